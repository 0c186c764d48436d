"""An owner's index: keys from commits into memory, and how much of it is in files. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from container.index.options import IndexOptions
from container.index.unsealed import UnsealedIndex
from container.journal.journal import Journal
from container.lookup.coverage import Span, covered_by_files, merged, readable, without
from container.metadata.records import Queue
from container.metadata.state import StateChange, TierState
from container.names.queue_id import QueueId, SegmentType
from container.queue.collected_keys import CommitKeys, keys_of_commit
from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch
from provider.clock import Clock
from provider.errors import Corrupt


def with_keys(plan: CommitPlan, batch: MessageBatch) -> CommitPlan:
    """The plan of a batch with its keys. Thread-safe; costs as `keys_of_records`.

    Without keys where a record contradicts the format: it is read again for them, which tells it.
    """
    try:
        return replace(plan, keys=keys_of_commit(plan.planned_on, batch))
    except Corrupt:
        return plan


class KeyCollector:
    """Takes the keys of what was published.

    K1  What `unsealed` says that it has of a queue is published: a cut takes it away.
    K2  What neither it nor a file has is read again (`missing_of`): what a crash, a cancelled
        commit or a full memory left out. Nothing is missing of a queue that is not `doubted`.
    """

    def __init__(self, journal: Journal, *, options: IndexOptions, clock: Clock) -> None:
        self.options = options
        self.unsealed = UnsealedIndex(items_max=options.items_max)
        self._journal = journal
        self._clock = clock
        self._covered: dict[QueueId, list[Span]] | None = None
        """By queue, what files cover, as few spans as possible; None: to be worked out again."""
        self._generations = {
            one.id: one.generation for one in journal.state.queues.bounds() if one.generation
        }
        """Of each queue; 0 where it is missing."""
        self._doubted: dict[QueueId, None] | None = None
        """Queues that changed since nothing was missing of them; None: all, and no list of them."""
        journal.subscribe(self.published)

    def __repr__(self) -> str:
        return f"<KeyCollector: {self.unsealed!r}>"

    @property
    def _state(self) -> TierState:
        return self._journal.state

    def committed(self, plans: Iterable[CommitPlan]) -> None:
        """Take the keys of commits that were just published."""
        for plan in plans:
            if plan.keys is not None:
                self.take(plan.queue, plan.expected_offset, plan.next_offset, plan.keys)

    def take(self, queue: QueueId, start: int, end: int, keys: CommitKeys) -> bool:
        """Take the keys of `[start, end)`, unless they are not published (any more), or known."""
        record, topic = self._state.queues.get(queue), self._state.topics.get(queue.topic)
        if record is None or topic is None or record.next_offset < end:
            return False
        known = any(a < end and start < b for a, b in self.unsealed.spans(queue))
        if record.generation != keys.generation or known:
            return False
        items = keys.items
        items["topic_id"] = topic.topic_id
        now_s = self._clock.monotonic_s()
        return self.unsealed.add(queue, start, end, items, keys.record_bytes, now_s)

    def published(self, changes: Sequence[StateChange]) -> None:
        """An entry was published: forget what a cut, or a deletion, has taken away."""
        for change in changes:
            if change.index_files.changed:
                self._covered = None
                self._doubted = None
            if self._doubted is not None:
                self._doubted.update(dict.fromkeys(change.queues.changed))
            for queue_id, record in change.queues.changed.items():
                if record is None and self._doubted is not None:
                    self._doubted.pop(queue_id, None)
                generation = None if record is None else record.generation
                if self._generations.get(queue_id, 0) != generation:
                    self._forget(queue_id, record)
                if not generation:
                    self._generations.pop(queue_id, None)
                else:
                    self._generations[queue_id] = generation

    def _forget(self, queue_id: QueueId, record: Queue | None) -> None:
        topic = self._state.topics.get(queue_id.topic)
        next_offset = 0 if record is None else record.next_offset
        log_end = 0 if record is None else record.flat_end(SegmentType.COMMIT_LOG)
        topic_id = None if topic is None else topic.topic_id
        self.unsealed.forget(queue_id, topic_id, next_offset, log_end)

    def doubted(self) -> list[QueueId]:
        """The queues of which keys may be missing, in the order in which the tier has them.

        O(queues) with a small constant, unless there is none. `missing_of` says which need no
        other look before they change.
        """
        if self._doubted is None:
            self._doubted = dict.fromkeys(self._state.queues)
        doubted = self._doubted = dict(self._doubted)  # one that was large keeps its memory
        return [one for one in self._state.queues if one in doubted] if doubted else []

    def missing_of(self, queue_id: QueueId) -> list[Span]:
        """The offsets of a queue whose keys are nowhere. Some 5 us.

        O(coverage of all files) where files have come or gone since the last call.
        """
        if self._covered is None:
            files = covered_by_files(self._state.index_files.values())
            self._covered = {queue: merged(spans) for queue, spans in files.items()}
        left: list[Span] = []
        queue = self._state.queues.bounds_of(queue_id)
        if queue is not None:
            known = [*self._covered.get(queue_id, ()), *self.unsealed.spans(queue_id)]
            if queue.gaps:
                spans = readable(self._state.queues[queue_id])
            else:
                spans = [(queue.min_offset, queue.next_offset)]
            left = without(spans, known)
        if not left and self._doubted is not None:
            self._doubted.pop(queue_id, None)
        return left

    def messages_missing(self) -> int:
        """Number of messages whose keys are nowhere. Costs `missing_of` for each doubted queue."""
        return sum(end - start for one in self.doubted() for start, end in self.missing_of(one))

    def check(self) -> None:
        """Assert K1, and K2 but for files that are not published yet. For tests, between awaits."""
        if self._doubted is not None and (
            self._journal.planned.index_files == self._state.index_files
        ):
            for queue_id in self._state.queues.keys() - self._doubted.keys():
                assert not self.missing_of(queue_id), f"K2: {queue_id} is not doubted"
        for part in (self.unsealed.collecting, self.unsealed.sealing):
            for queue_id, spans in part.spans.items() if part is not None else ():
                record = self._state.queues.get(queue_id)
                assert record is not None, f"K1: {queue_id}"
                assert spans[-1][1] <= record.next_offset, f"K1: {queue_id} {spans}"
