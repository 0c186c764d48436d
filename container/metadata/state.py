"""The newest records of a tier, and what each operation does to them.

A transaction is planned first (`plan`: validated, nothing changed) and then installed, which
cannot fail. So it applies wholly or not at all, and the journal can validate a transaction
against the state as it will be while the entry before it is still being written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from container.errors import Refused
from container.metadata import queue_changes
from container.metadata.invariants import check_queue, queue_path, refuse_unless
from container.metadata.object_names import object_names
from container.metadata.operations import (
    IMPORTED,
    AddTombstones,
    CommitQueue,
    CutQueue,
    DropIndexFile,
    DropQueue,
    DropTombstones,
    EndAttempt,
    MoveToManifest,
    Operation,
    PutAttempt,
    PutIndexFile,
    PutQueue,
    PutTopic,
    RecordGap,
    SetSegmentState,
    TakeOwnership,
    TrimQueue,
)
from container.metadata.overlay import Overlay
from container.metadata.records import Attempt, Broker, IndexFile, Queue, Tombstone, Topic
from container.names.queue_id import QueueId
from container.names.rocketmq import parse_segment_name
from provider.ranges import QueueOffset

NO_BROKER = Broker("", "")
"""That of a tier that has no owner yet."""
BROKER_PATH = "@journal"
"""How messages name the tier as a whole."""
ALONE = "a fence is alone in its entry, or has an import behind it"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a state: the type of its records, and which of their fields is the key."""

    record: type
    key: str


TABLES: Final = {
    "topics": Table(Topic, "name"),
    "queues": Table(Queue, "id"),
    "tombstones": Table(Tombstone, "object_name"),
    "attempts": Table(Attempt, "attempt_id"),
    "index_files": Table(IndexFile, "object_name"),
}
"""The tables of a state by attribute, in the order in which a snapshot has them."""


@dataclass(slots=True, repr=False)
class TierState:
    """A holder of immutable records; only `install` and `apply` change which ones it holds.

    Readers take a record and keep it as long as they like. Iterating over a table while awaiting
    is not safe: take a `copy` first (O(records), no record is copied).

    T1  Every record lies under its own key.
    T2  Topic ids are unique and lower than `next_topic_id`.
    T3  Every queue has its topic.
    T4  Every queue keeps I1 to I5 (`metadata/records.py`).
    """

    broker: Broker = NO_BROKER
    topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    queues: dict[QueueId, Queue] = field(default_factory=dict[QueueId, Queue])
    tombstones: dict[str, Tombstone] = field(default_factory=dict[str, Tombstone])
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    index_files: dict[str, IndexFile] = field(default_factory=dict[str, IndexFile])
    sequence: int = 0
    """Number of the last applied journal entry; 0 before the first."""
    next_topic_id: int = 0
    """Higher than every topic id that was ever used."""
    next_generation: int = 0
    """Higher than every generation of a queue that was dropped; 0 if none ever was, and if no
    file of a queue that the tier does not have ever had a tombstone."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of a newer version's snapshot, kept as they are."""

    def __repr__(self) -> str:
        return (
            f"<TierState {self.sequence} epoch {self.broker.epoch}: {len(self.topics)} topics,"
            f" {len(self.queues)} queues, {len(self.tombstones)} tombstones>"
        )

    @property
    def used_below_of_new_queues(self) -> tuple[int, int] | None:
        """`Queue.used_below` of a queue that begins: unknown once names may have come again."""
        return None if self.next_generation else (0, 0)

    def copy(self) -> Self:
        """Another holder of the same records. O(records), about 10 ns each."""
        return replace(self, **{name: getattr(self, name).copy() for name in TABLES})

    def plan(self, operations: Iterable[Operation]) -> "StateChange":
        """Validate a transaction and work out what it changes; changes nothing itself.

        Some 10 us for a commit. Costs nothing per record that it does not touch.

        Raises:
            Refused: an operation's expectation does not hold; path and position name the place.
        """
        change = StateChange(self)
        for number, operation in enumerate(operations):
            if isinstance(operation, TakeOwnership):
                refuse_unless(number == 0, ALONE, BROKER_PATH)
            elif change.broker is not self.broker:
                refuse_unless(isinstance(operation, IMPORTED), ALONE, BROKER_PATH)
            _apply(change, operation)
        return change

    def install(self, change: "StateChange") -> None:
        """Carry out a planned change. Cannot fail; atomic between awaits."""
        self.broker = change.broker
        self.next_topic_id = max(self.next_topic_id, change.next_topic_id)
        self.next_generation = max(self.next_generation, change.next_generation)
        for name in TABLES:
            getattr(change, name).install(getattr(self, name))

    def apply(self, operations: Iterable[Operation]) -> None:
        """Plan and install.

        Raises:
            Refused: see `plan`; nothing was changed.
        """
        self.install(self.plan(operations))

    def check(self) -> None:
        """Check every invariant of every record; for tests and for the checker. O(extents).

        Raises:
            Refused: an invariant is violated; path and position name the place.
        """
        for name, table in TABLES.items():
            for key, record in getattr(self, name).items():
                wanted = getattr(record, table.key)
                refuse_unless(wanted == key, f"{name} has {wanted} as {key} (T1)", BROKER_PATH)
        ids: set[int] = set()
        for topic in self.topics.values():
            refuse_unless(topic.topic_id not in ids, "a topic id is used twice (T2)", topic.name)
            is_low = topic.topic_id < self.next_topic_id
            refuse_unless(is_low, "next_topic_id is low (T2)", topic.name)
            ids.add(topic.topic_id)
        for queue in self.queues.values():
            path = queue_path(queue.id)
            refuse_unless(queue.id.topic in self.topics, "a queue without a topic (T3)", path)
            check_queue(queue)


class StateChange:
    """What a transaction does to a state: made by `TierState.plan`, carried out by `install`."""

    __slots__ = ("broker", "next_generation", "next_topic_id", *TABLES)

    def __init__(self, state: TierState) -> None:
        self.broker = state.broker
        self.next_topic_id = state.next_topic_id
        self.next_generation = state.next_generation
        self.topics = Overlay(state.topics)
        self.queues = Overlay(state.queues)
        self.tombstones = Overlay(state.tombstones)
        self.attempts = Overlay(state.attempts)
        self.index_files = Overlay(state.index_files)

    def __repr__(self) -> str:
        records = sum(len(getattr(self, name).changed) for name in TABLES)
        return f"<StateChange: {records} records>"


def _apply(change: StateChange, operation: Operation) -> None:
    """Do one operation to the draft, or refuse it."""
    match operation:
        case CommitQueue():
            _commit(change, operation)
        case RecordGap():
            queue = _queue(change, operation.queue)
            change.queues.put(queue.id, queue_changes.record_gap(queue, operation))
        case SetSegmentState():
            queue = _queue(change, operation.queue)
            change.queues.put(queue.id, queue_changes.set_segment_state(queue, operation))
        case PutQueue():
            _put_queue(change, operation)
        case CutQueue():
            queue = _queue(change, operation.queue.id)
            change.queues.put(queue.id, queue_changes.cut(queue, operation))
            _uncover(change, queue.id, operation.queue.next_offset)
            _bury(change, operation.tombstones)
        case MoveToManifest():
            queue = _queue(change, operation.queue)
            change.queues.put(queue.id, queue_changes.move_to_manifest(queue, operation))
            _bury(change, operation.tombstones)
        case TrimQueue():
            queue = _queue(change, operation.queue)
            change.queues.put(queue.id, queue_changes.trim(queue, operation))
            _bury(change, operation.tombstones)
        case DropQueue():
            queue = _queue(change, operation.queue)
            queue_changes.refuse_other_basis(queue, operation.planned_on)
            change.next_generation = max(change.next_generation, queue.generation + 1)
            change.queues.drop(queue.id)
            _uncover(change, queue.id, 0)
            _bury(change, operation.tombstones)
        case _:
            _apply_to_broker(change, operation)


def _apply_to_broker(change: StateChange, operation: Operation) -> None:
    """The operations that concern no queue."""
    match operation:
        case TakeOwnership():
            _take_ownership(change, operation)
        case PutTopic():
            _put_topic(change, operation.topic)
        case AddTombstones():
            _bury(change, operation.tombstones)
        case DropTombstones():
            for name in operation.object_names:
                change.tombstones.drop(name)
        case PutAttempt():
            change.attempts.put(operation.attempt.attempt_id, operation.attempt)
        case EndAttempt():
            known = change.attempts.get(operation.attempt_id)
            refuse_unless(known is not None, "no such attempt", operation.attempt_id)
            change.attempts.drop(operation.attempt_id)
        case PutIndexFile():
            change.index_files.put(operation.index_file.object_name, operation.index_file)
        case DropIndexFile():
            known = change.index_files.get(operation.object_name)
            refuse_unless(known is not None, "no such index file", operation.object_name)
            change.index_files.drop(operation.object_name)
        case _:
            raise AssertionError(f"no effect is declared for {operation}")


def _queue(change: StateChange, queue_id: QueueId) -> Queue:
    queue = change.queues.get(queue_id)
    if queue is None:
        raise Refused("no such queue", queue_path(queue_id))
    return queue


def _commit(change: StateChange, operation: CommitQueue) -> None:
    queue = _queue(change, operation.queue)
    change.queues.put(queue.id, queue_changes.commit(queue, operation))
    for part in operation.changes:
        live = queue.segments(part.type)
        if not live or live[-1].base != part.base:  # after a cut a file's name may come again
            for name in object_names(queue.id, [part]):
                change.tombstones.drop(name)


def _bury(change: StateChange, tombstones: Iterable[Tombstone]) -> None:
    for tombstone in tombstones:
        name = tombstone.object_name
        change.tombstones.put(name, tombstone)
        if change.next_generation == 0 and not name.startswith("@"):
            parsed = parse_segment_name(name)
            if parsed is not None and change.queues.get(parsed.queue) is None:
                # A file of a queue that the tier does not have: its name may come again.
                change.next_generation = 1


def _uncover(change: StateChange, queue: QueueId, next_offset: int) -> None:
    """No index file has the keys of a queue from `next_offset` on any more.

    Those offsets may come again, with other messages.
    """
    for file in change.index_files.found(
        lambda one: any(name == queue and end > next_offset for name, _, end in one.coverage)
    ):
        coverage = tuple(
            (name, start, end if name != queue else min(end, QueueOffset(next_offset)))
            for name, start, end in file.coverage
            if name != queue or start < next_offset
        )
        change.index_files.put(file.object_name, replace(file, coverage=coverage))


def _take_ownership(change: StateChange, operation: TakeOwnership) -> None:
    broker = change.broker
    refuse_unless(
        operation.epoch == broker.epoch + 1,
        f"epoch {operation.epoch} does not follow {broker.epoch}",
        BROKER_PATH,
    )
    named = (operation.cluster, operation.broker)
    refuse_unless(
        broker.epoch == 0 or named == (broker.cluster, broker.name),
        f"the tier belongs to {broker.cluster}/{broker.name}, not to {'/'.join(named)}",
        BROKER_PATH,
    )
    change.broker = replace(
        broker,
        cluster=operation.cluster,
        name=operation.broker,
        epoch=operation.epoch,
        owner=operation.owner,
    )


def _put_topic(change: StateChange, topic: Topic) -> None:
    known = change.topics.get(topic.name)
    if known is not None:
        refuse_unless(
            known.topic_id == topic.topic_id,
            f"topic id {topic.topic_id} would replace {known.topic_id}",
            topic.name,
        )
    else:
        refuse_unless(topic.topic_id >= 0, f"topic id {topic.topic_id}", topic.name)
        if topic.topic_id < change.next_topic_id:
            used = change.topics.any(lambda other: other.topic_id == topic.topic_id)
            refuse_unless(not used, f"topic id {topic.topic_id} is taken", topic.name)
        change.next_topic_id = max(change.next_topic_id, topic.topic_id + 1)
    change.topics.put(topic.name, topic)


def _put_queue(change: StateChange, operation: PutQueue) -> None:
    queue = operation.queue
    path = queue_path(queue.id)
    known = change.queues.get(queue.id)
    refuse_unless(change.topics.get(queue.id.topic) is not None, "the topic is not there", path)
    refuse_unless(
        known is None or queue.next_offset >= known.next_offset,
        "a replaced queue would lose messages; a cut does that",
        path,
    )
    refuse_unless(
        known is None or _history(queue) == _history(known),
        "a replaced queue would lose what is published of it",
        path,
    )
    check_queue(queue)
    if known is None:
        own_files = f"{path}/"
        dying = change.tombstones.any(lambda dead: dead.object_name.startswith(own_files))
        refuse_unless(not dying, "files of a dropped queue of that name wait for deletion", path)
        generation, used_below = change.next_generation, None if change.next_generation else (0, 0)
    else:
        generation, used_below = known.generation, known.used_below
    change.queues.put(queue.id, replace(queue, generation=generation, used_below=used_below))


def _history(queue: Queue) -> tuple[object, ...]:
    """All that is published of a queue but where it begins and ends."""
    return queue.commit_log, queue.consume_queue, queue.manifests, queue.gaps
