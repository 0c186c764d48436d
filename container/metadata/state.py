"""State of a tier: its newest records, and the draft of a transaction on top of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from container.errors import Refused
from container.metadata import objects, queue_changes
from container.metadata.coverage import CoverageRows
from container.metadata.objects import object_names, offload, repack
from container.metadata.operations import (
    IMPORTED,
    AddTombstones,
    CommitQueue,
    CountParts,
    CutQueue,
    DropIndexFile,
    DropQueue,
    DropTombstones,
    EndAttempt,
    MoveToManifest,
    OffloadSegments,
    Operation,
    PutAttempt,
    PutIndexFile,
    PutQueue,
    PutTopic,
    RecordGap,
    Release,
    RepackSegments,
    SetSegmentState,
    TakeOwnership,
    TrimQueue,
)
from container.metadata.records import (
    Attempt,
    Broker,
    IndexFile,
    Part,
    Queue,
    Tombstone,
    Topic,
    check_queue,
    queue_path,
    refuse_unless,
)
from container.metadata.tables import (
    TABLES,
    Overlay,
    QueueOverlay,
    QueueTable,
    TombstoneOverlay,
    TombstoneTable,
)
from container.names.queue_id import QueueId
from container.names.rocketmq import parse_segment_name
from provider.ranges import QueueOffset

BROKER_PATH = "@journal"
"""Name of the tier as a whole in error messages."""


class StateChange:
    """Planned effect of a transaction: created by `TierState.plan`, applied by `install`."""

    __slots__ = (
        "broker",
        "next_generation",
        "next_topic_id",
        "parts_counted",
        "uncovered",
        *TABLES,
    )

    def __init__(self, state: "TierState") -> None:
        self.broker = state.broker
        self.next_topic_id = state.next_topic_id
        self.next_generation = state.next_generation
        self.topics = Overlay(state.topics)
        self.queues = QueueOverlay(state.queues)
        self.tombstones = TombstoneOverlay(state.tombstones)
        self.attempts = Overlay(state.attempts)
        self.index_files = Overlay(state.index_files)
        self.parts = Overlay(state.parts)
        self.parts_counted = state.parts_counted
        self.uncovered: dict[QueueId, QueueOffset] = {}
        """Queues that were truncated or dropped, with their new ends. No index file covers a queue
        from there on any more, as those offsets may be reused. See `uncover`."""

    def __repr__(self) -> str:
        records = sum(len(getattr(self, name).changed) for name in TABLES)
        return f"<StateChange: {records} records>"


def apply_operation(change: StateChange, operation: Operation) -> None:
    """Apply one operation to the draft, or refuse it."""
    match operation:
        case CommitQueue():
            _commit(change, operation)
        case RecordGap():
            queue = _queue(change, operation.queue)
            change.queues.put(queue.id, queue_changes.record_gap(queue, operation))
        case SetSegmentState():
            queue = _queue(change, operation.queue)
            _replace(change, queue, queue_changes.set_segment_state(queue, operation), None)
        case RepackSegments() | OffloadSegments():
            _move_bytes(change, operation)
        case PutQueue():
            _put_queue(change, operation)
        case CutQueue():
            queue = _queue(change, operation.queue.id)
            _replace(change, queue, queue_changes.cut(queue, operation), operation.release)
            change.uncovered[queue.id] = operation.queue.next_offset
            _add_tombstones(change, operation.tombstones)
        case MoveToManifest():
            queue = _queue(change, operation.queue)
            change.queues.put(queue.id, queue_changes.move_to_manifest(queue, operation))
            _add_tombstones(change, operation.tombstones)
        case TrimQueue():
            queue = _queue(change, operation.queue)
            _replace(change, queue, queue_changes.trim(queue, operation), operation.release)
            _add_tombstones(change, operation.tombstones)
        case DropQueue():
            queue = _queue(change, operation.queue)
            queue_changes.refuse_other_basis(queue, operation.planned_on, operation.release)
            change.next_generation = max(change.next_generation, queue.generation + 1)
            _replace(change, queue, None, operation.release)
            change.uncovered[queue.id] = QueueOffset(0)
            _add_tombstones(change, operation.tombstones)
        case _:
            _apply_to_broker(change, operation)


def _apply_to_broker(change: StateChange, operation: Operation) -> None:
    """Apply an operation that concerns no queue."""
    match operation:
        case TakeOwnership():
            _take_ownership(change, operation)
        case PutTopic():
            _put_topic(change, operation.topic)
        case CountParts():
            _count_parts(change, operation)
        case AddTombstones():
            _add_tombstones(change, operation.tombstones)
        case DropTombstones():
            _exhume(change, operation.object_names)
        case PutAttempt():
            change.attempts.put(operation.attempt.attempt_id, operation.attempt)
        case EndAttempt():
            known = change.attempts.get(operation.attempt_id)
            refuse_unless(known is not None, "no such attempt", operation.attempt_id)
            change.attempts.drop(operation.attempt_id)
        case PutIndexFile():
            _put_index_file(change, operation.index_file)
        case DropIndexFile():
            uncover(change)
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


def _replace(
    change: StateChange,
    before: Queue,
    after: Queue | None,
    release: Release | None,
    *,
    level: int = 0,
) -> None:
    """Replace or drop a queue's record.

    Count its parts: a part without references gets a tombstone.
    """
    if after is None:
        change.queues.drop(before.id)
    else:
        change.queues.put(after.id, after)
    if not change.parts_counted:
        return
    if not change.parts.is_empty and objects.says_too_little(before, after, release):
        change.parts_counted = False  # an older program's, with unknown references
        return
    delta = objects.counted_change(before, after, release)
    due_ms = None if release is None else release.not_before_ms
    objects.count(change.parts, change.tombstones, delta, not_before_ms=due_ms, level=level)


def _move_bytes(change: StateChange, operation: RepackSegments | OffloadSegments) -> None:
    queue = _queue(change, operation.queue)
    if isinstance(operation, RepackSegments):
        after, level = repack(queue, operation), operation.level
        _replace(change, queue, after, operation.release, level=level)
        return
    _replace(change, queue, offload(queue, operation), operation.release)
    _add_tombstones(change, operation.tombstones)


def _count_parts(change: StateChange, operation: CountParts) -> None:
    """Begin to count. Parts without a reference stay until a later owner finds them."""
    counts = Counter(dict(operation.in_manifests))
    for queue in change.queues.records():
        counts.update(objects.references_of(queue))
    for part in change.parts.found(lambda _: True):
        change.parts.drop(part.object_name)
    objects.count(change.parts, change.tombstones, counts)
    change.parts_counted = True


def _commit(change: StateChange, operation: CommitQueue) -> None:
    queue = _queue(change, operation.queue)
    change.queues.put(queue.id, queue_changes.commit(queue, operation))
    if change.parts_counted:
        delta = objects.counted_commit(queue, operation)
        objects.count(change.parts, change.tombstones, delta)
    for part in operation.changes:
        live = queue.segments(part.type)
        if not live or live[-1].base != part.base:  # after a truncation a file's name may be reused
            for name in object_names(queue.id, [part]):
                change.tombstones.drop(name)


def _add_tombstones(change: StateChange, tombstones: Iterable[Tombstone]) -> None:
    for tombstone in tombstones:
        name = tombstone.object_name
        change.tombstones.put(name, tombstone)
        if change.next_generation == 0 and not name.startswith("@"):
            parsed = parse_segment_name(name)
            if parsed is not None and change.queues.get(parsed.queue) is None:
                # A file of a queue that the tier does not have: its name may be reused.
                change.next_generation = 1


def _exhume(change: StateChange, names: Iterable[str]) -> None:
    for name in names:
        change.tombstones.drop(name)


def uncover(change: StateChange) -> None:
    """Remove truncated and dropped offsets from the coverage of all index files, in one pass.

    O(log coverage) for each such queue and file, and a copy of the chunk with its rows.
    """
    if not change.uncovered:
        return
    ends = dict(change.uncovered)
    change.uncovered.clear()
    for file in change.index_files.found(lambda one: bool(one.coverage)):
        rows = CoverageRows.of(file.coverage)
        coverage, cuts = rows.without_ends(ends)
        if coverage is not rows:
            # A queue without rows is recognized by that: its items are stale.
            after = replace(file, coverage=coverage, cuts=file.cuts + cuts)
            change.index_files.put(file.object_name, after)


def _put_index_file(change: StateChange, file: IndexFile) -> None:
    """Publish an index file. Older programs did not sort the rows of its coverage."""
    uncover(change)  # of earlier files: the coverage of this one is up to date
    change.index_files.put(file.object_name, replace(file, coverage=CoverageRows.of(file.coverage)))


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
        begun_ms=broker.begun_ms if broker.epoch else operation.taken_ms,
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
        dying = change.tombstones.has_in_directory(path)
        refuse_unless(not dying, "files of a dropped queue of that name wait for deletion", path)
        generation, used_below = change.next_generation, None if change.next_generation else (0, 0)
    else:
        generation, used_below = known.generation, known.used_below
    after = replace(queue, generation=generation, used_below=used_below)
    change.queues.put(queue.id, after)
    # References of a known queue stay unchanged, and a queue without bytes has none.
    if change.parts_counted and known is None and any(_history(after)):
        delta = objects.counted_change(None, after, None)
        objects.count(change.parts, change.tombstones, delta)


def _history(queue: Queue) -> tuple[object, ...]:
    """Everything published of a queue except its first and its next offset."""
    return queue.commit_log, queue.consume_queue, queue.manifests, queue.gaps


NO_BROKER = Broker("", "")
"""Broker record of a tier without an owner."""
ALONE = "a fence is alone in its entry, or has an import behind it"


@dataclass(slots=True, repr=False)
class TierState:
    """Holder of immutable records. Only `install` and `apply` change its contents.

    Readers may keep a record for any time. Iterating over a table across an await is not safe: take
    a `copy` first (O(records), no record is copied).

    T1  Every record lies under its own key.
    T2  Topic ids are unique and lower than `next_topic_id`.
    T3  Every queue has its topic.
    T4  Every queue keeps I1 to I5 (`metadata/records.py`).
    T5  While `parts_counted`, every part has at least as many references as extents in the
        snapshot name it, and every part that one names has a record (P1 of `objects.py`).
    """

    broker: Broker = NO_BROKER
    topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    queues: QueueTable = field(default_factory=QueueTable)
    tombstones: TombstoneTable = field(default_factory=TombstoneTable)
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    index_files: dict[str, IndexFile] = field(default_factory=dict[str, IndexFile])
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    parts_counted: bool = field(default=True, compare=False)
    """Whether `parts` is complete. False after an older program wrote the tier, until it is
    counted."""
    sequence: int = 0
    """Number of the last applied journal entry; 0 before the first."""
    next_topic_id: int = 0
    """Higher than every topic id that was ever used."""
    next_generation: int = 0
    """Higher than every generation of a dropped queue. 0 if no queue was ever dropped, and no file
    of an unknown queue ever had a tombstone."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of a newer version's snapshot, kept unchanged."""

    def __repr__(self) -> str:
        return (
            f"<TierState {self.sequence} epoch {self.broker.epoch}: {len(self.topics)} topics,"
            f" {len(self.queues)} queues, {len(self.tombstones)} tombstones>"
        )

    @property
    def used_below_of_new_queues(self) -> tuple[int, int] | None:
        """`Queue.used_below` of a new queue. None once names may be reused."""
        return None if self.next_generation else (0, 0)

    def copy(self) -> Self:
        """Copy the tables, sharing their records. O(records), about 10 ns each."""
        return replace(self, **{name: getattr(self, name).copy() for name in TABLES})

    def plan(self, operations: Iterable[Operation]) -> StateChange:
        """Validate a transaction and derive its changes. Changes nothing.

        Some 10 us for a commit. No cost for records that it does not touch.

        Raises:
            Refused: an operation's expectation does not hold. Path and position name the place.
        """
        change = StateChange(self)
        for number, operation in enumerate(operations):
            if isinstance(operation, TakeOwnership):
                refuse_unless(number == 0, ALONE, BROKER_PATH)
            elif change.broker is not self.broker:
                refuse_unless(isinstance(operation, IMPORTED), ALONE, BROKER_PATH)
            apply_operation(change, operation)
        uncover(change)
        return change

    def install(self, change: StateChange) -> None:
        """Apply a planned change. Cannot fail. Atomic between awaits."""
        self.broker = change.broker
        self.next_topic_id = max(self.next_topic_id, change.next_topic_id)
        self.next_generation = max(self.next_generation, change.next_generation)
        self.parts_counted = change.parts_counted
        for name in TABLES:
            getattr(change, name).install(getattr(self, name))

    def apply(self, operations: Iterable[Operation]) -> None:
        """Plan and install.

        Raises:
            Refused: see `plan`. Nothing was changed.
        """
        self.install(self.plan(operations))

    def check(self) -> None:
        """Check every invariant of every record, for tests and for the checker. O(extents).

        Raises:
            Refused: an invariant is violated. Path and position name the place.
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
        if self.parts_counted:
            self._check_parts()

    def _check_parts(self) -> None:
        """Check T5. A recount with the manifests is stricter (`objects.recounted`)."""
        counts = Counter[str]()
        for queue in self.queues.values():
            counts.update(objects.references_of(queue))
        for name, least in counts.items():
            known = self.parts.get(name)
            count = 0 if known is None else known.references
            refuse_unless(count >= least, f"{least} extents name it, {count} counted (T5)", name)
