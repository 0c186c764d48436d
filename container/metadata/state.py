"""The newest records of a tier, and what each operation does to them.

A transaction is planned first (`plan`: validated, nothing changed) and then installed, which
cannot fail. So it applies wholly or not at all, and the journal can validate a transaction
against the state as it will be while the entry before it is still being written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from container.metadata import part_counts
from container.metadata.invariants import check_queue, queue_path, refuse_unless
from container.metadata.operations import IMPORTED, Operation, TakeOwnership
from container.metadata.queue_table import QueueTable
from container.metadata.records import Attempt, Broker, IndexFile, Part, Topic
from container.metadata.state_change import BROKER_PATH, StateChange, apply_operation, uncover
from container.metadata.tables import TABLES
from container.metadata.tombstone_table import TombstoneTable

NO_BROKER = Broker("", "")
"""That of a tier that has no owner yet."""
ALONE = "a fence is alone in its entry, or has an import behind it"


@dataclass(slots=True, repr=False)
class TierState:
    """A holder of immutable records; only `install` and `apply` change which ones it holds.

    Readers take a record and keep it as long as they like. Iterating over a table while awaiting
    is not safe: take a `copy` first (O(records), no record is copied).

    T1  Every record lies under its own key.
    T2  Topic ids are unique and lower than `next_topic_id`.
    T3  Every queue has its topic.
    T4  Every queue keeps I1 to I5 (`metadata/records.py`).
    T5  While `parts_counted`, every part has at least as many references as extents in the
        snapshot name it, and every part that one names has a record (P1 of `part_counts.py`).
    """

    broker: Broker = NO_BROKER
    topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    queues: QueueTable = field(default_factory=QueueTable)
    tombstones: TombstoneTable = field(default_factory=TombstoneTable)
    attempts: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    index_files: dict[str, IndexFile] = field(default_factory=dict[str, IndexFile])
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    parts_counted: bool = field(default=True, compare=False)
    """Whether `parts` holds: not where an older program wrote the tier, before it is counted."""
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

    def plan(self, operations: Iterable[Operation]) -> StateChange:
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
            apply_operation(change, operation)
        uncover(change)
        return change

    def install(self, change: StateChange) -> None:
        """Carry out a planned change. Cannot fail; atomic between awaits."""
        self.broker = change.broker
        self.next_topic_id = max(self.next_topic_id, change.next_topic_id)
        self.next_generation = max(self.next_generation, change.next_generation)
        self.parts_counted = change.parts_counted
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
        if self.parts_counted:
            self._check_parts()

    def _check_parts(self) -> None:
        """T5. A recount that knows the manifests says more (`part_counts.recounted`)."""
        counts = Counter[str]()
        for queue in self.queues.values():
            counts.update(part_counts.references_of(queue))
        for name, least in counts.items():
            known = self.parts.get(name)
            count = 0 if known is None else known.references
            refuse_unless(count >= least, f"{least} extents name it, {count} counted (T5)", name)
