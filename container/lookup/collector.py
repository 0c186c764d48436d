"""Collector of keys: from commits to memory, unsealed keys by hash, coverage of files."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from container.index.layout import KEY_ITEM_DTYPE, KeyItems, joined, no_items
from container.index.options import HELD_FILES, IndexOptions
from container.journal.journal import Journal
from container.metadata.coverage import (
    Span,
    covered_by_files,
    covered_in_turns,
    merged,
    readable,
    without,
)
from container.metadata.records import Queue
from container.metadata.state import StateChange, TierState
from container.names.queue_id import QueueId, SegmentType
from container.queue.commit_plan import CommitKeys, CommitPlan, keys_of_commit
from container.record.batch import MessageBatch
from provider.clock import Clock, wait_at_most
from provider.errors import Corrupt

BLOCK_ITEMS = 65_536


@dataclass(slots=True)
class Collected:
    """Collected items, and the offsets of each queue that they cover."""

    blocks: list[KeyItems] = field(default_factory=list[KeyItems])
    """Blocks of items. All but the last are full."""
    last_items: int = 0
    """Used places of the last block."""
    spans: dict[QueueId, list[tuple[int, int]]] = field(
        default_factory=dict[QueueId, list[tuple[int, int]]]
    )
    """Offsets `[from, to)` in order. Adjacent ones are joined."""
    record_bytes: int = 0
    """Length of the records together, in bytes."""
    since_s: float | None = None
    """Monotonic time of the first collection, in seconds."""
    is_cut: bool = False
    """Whether a truncation took keys away."""

    @property
    def items(self) -> int:
        """Number of items."""
        return max(0, len(self.blocks) - 1) * BLOCK_ITEMS + self.last_items

    def parts(self) -> list[KeyItems]:
        """Arrays of the items, without a copy."""
        return [*self.blocks[:-1], self.blocks[-1][: self.last_items]] if self.blocks else []

    def add(self, items: KeyItems) -> None:
        """Copy items in. O(items)."""
        while len(items):
            if not self.blocks or self.last_items == BLOCK_ITEMS:
                self.blocks.append(np.empty(BLOCK_ITEMS, KEY_ITEM_DTYPE))
                self.last_items = 0
            room = BLOCK_ITEMS - self.last_items
            part, items = items[:room], items[room:]
            self.blocks[-1][self.last_items : self.last_items + len(part)] = part
            self.last_items += len(part)

    def cover(self, queue: QueueId, start: int, end: int) -> None:
        """Record that the keys of `[start, end)` are in it. O(1) if it continues the last span."""
        spans = self.spans.setdefault(queue, [])
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif not spans or spans[-1][1] < start:
            spans.append((start, end))
        else:
            rest = sorted([*spans, (start, end)])
            spans.clear()
            for one in rest:
                if spans and spans[-1][1] >= one[0]:
                    spans[-1] = (spans[-1][0], max(spans[-1][1], one[1]))
                else:
                    spans.append(one)


class UnsealedIndex:
    """Keys being collected, keys of full buffers, and keys being sealed into a file.

    U1  The keys of every offset in `spans` are in it, if the messages have any.
    U2  It holds `held_max` items, or `items_max` and those of one commit if these are more. Items
        with reserved room count as held.
    """

    has_exact_times = True

    def __init__(self, *, items_max: int) -> None:
        self.items_max = items_max
        self.held_max = HELD_FILES * items_max
        self.reserved = 0
        """Items of commits under way that have room."""
        self.collecting = Collected()
        self.full: deque[Collected] = deque()
        """Full buffers, the oldest first, while a file is built of `sealing`."""
        self.revision = 0
        """Number that changes whenever `spans` may change."""
        self.sealing: Collected | None = None
        """Items of a file that is being or will be written. They stay until it is published."""

    def __repr__(self) -> str:
        sealing = self.sealing.items if self.sealing else 0
        return f"<UnsealedIndex: {self.items} items, {sealing} of them being sealed>"

    @property
    def items(self) -> int:
        """Number of items in memory."""
        return sum(part.items for part in self.parts())

    @property
    def is_full(self) -> bool:
        """Whether a file is due because of the number of items."""
        return bool(self.full) or self.collecting.items >= self.items_max

    def parts(self) -> list[Collected]:
        """Buffers, the oldest first."""
        sealing = () if self.sealing is None else (self.sealing,)
        return [*sealing, *self.full, self.collecting]

    def has_room(self, items: int) -> bool:
        """Whether so many items fit. Always true if no file is due and no room is reserved."""
        is_waiting = self.is_full or self.sealing is not None or self.reserved
        return not is_waiting or self.items + self.reserved + items <= self.held_max

    def add(
        self,
        queue: QueueId,
        span: Span,
        items: KeyItems,
        record_bytes: int,
        now_s: float,
    ) -> None:
        """Add the keys of the messages of a span of a queue."""
        if self.collecting.items >= self.items_max:
            self.full.append(self.collecting)
            self.collecting = Collected()
        self.revision += 1
        into = self.collecting
        if into.since_s is None:
            into.since_s = now_s
        into.add(items)
        into.cover(queue, *span)
        into.record_bytes += record_bytes

    def begin_sealing(self) -> Collected:
        """Return the oldest items to seal. Unchanged until `sealed`."""
        if self.sealing is None and self.full:
            self.sealing = self.full.popleft()
        elif self.sealing is None:
            self.sealing, self.collecting = self.collecting, Collected()
        return self.sealing

    def sealed(self) -> None:
        """Drop the sealed items, whose file is published."""
        self.revision += 1
        self.sealing = None

    def forget(self, queue: QueueId, topic_id: int | None, next_offset: int, log_end: int) -> None:
        """Drop the unpublished keys of a truncated queue: items from `log_end` on.

        O(items). `topic_id` None: the queue has no items.
        """
        self.revision += 1
        for part in self.parts():
            if queue not in part.spans:
                continue
            part.is_cut = True
            spans = [(a, min(b, next_offset)) for a, b in part.spans[queue] if a < next_offset]
            part.spans[queue] = spans
            if not spans:
                del part.spans[queue]
            kept: list[KeyItems] = []
            for items in part.parts():
                mine = (items["topic_id"] == topic_id) & (items["queue_id"] == queue.queue_id)
                kept.append(items[~(mine & (items["position"] >= log_end))])
            part.blocks, part.last_items = [], 0
            part.add(joined(kept))

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        """Items of a hash. O(items), about half a nanosecond each."""
        found: list[KeyItems] = []
        for part in self.parts():
            for items in part.parts():
                mine = items[items["key_hash"] == key_hash]
                found.append(mine[mine["topic_id"] == topic_id])
        return joined(found) if found else no_items()

    def spans(self, queue: QueueId) -> Sequence[tuple[int, int]]:
        """Offsets of a queue whose keys are in memory."""
        return [span for part in self.parts() for span in part.spans.get(queue, ())]


def with_keys(plan: CommitPlan, batch: MessageBatch) -> CommitPlan:
    """Add the keys of a batch to its plan. Thread-safe. Costs as `keys_of_records`.

    Adds none if a record contradicts the format. The record is read again for its keys later, which
    reports the damage.
    """
    try:
        return replace(plan, keys=keys_of_commit(plan.planned_on, batch))
    except Corrupt:
        return plan


class KeyCollector:
    """Collects the keys of published messages.

    K1  The offsets of a queue in `unsealed` are published: a truncation removes the others.
    K2  Offsets in neither `unsealed` nor a file are read again (`missing_of`): those lost by a
        crash, a cancelled commit, or a memory that stayed full. No key is missing in a queue that
        is not `doubted`.
    """

    def __init__(self, journal: Journal, *, options: IndexOptions, clock: Clock) -> None:
        self.options = options
        self.unsealed = UnsealedIndex(items_max=options.items_max)
        self._journal = journal
        self._clock = clock
        self._turn = asyncio.Lock()
        """Held by the commit that waits for room, so that commits get it in order."""
        self._freed = asyncio.Event()
        """Set when room is freed."""
        self._is_stuck = False
        """Whether a wait for room was in vain, and no file was published since."""
        self._covered: dict[QueueId, list[Span]] | None = None
        """By queue, the coverage of files. None: to be derived again."""
        self._file_changes = 0
        self._generations = {
            one.id: one.generation for one in journal.state.queues.bounds() if one.generation
        }
        """Generation of each queue. 0 if missing."""
        self._doubted: dict[QueueId, None] | None = None
        """Queues that changed since their last complete check. None: all, without a list of them.
        """
        journal.subscribe(self.published)

    def __repr__(self) -> str:
        return f"<KeyCollector: {self.unsealed!r}>"

    @property
    def _state(self) -> TierState:
        return self._journal.state

    @asynccontextmanager
    async def room_for(self, plans: Iterable[CommitPlan]) -> AsyncGenerator[bool]:
        """Reserve room for the keys of a commit until the end of the block. Yield whether it has.

        Waits at most `room_wait_s_max` for index files, and not at all if an earlier wait was in
        vain and no file was published since. Costs no wait if there is room.
        """
        items = sum(len(plan.keys.items) for plan in plans if plan.keys is not None)
        async with self._turn:
            await self._wait_for_room(items)
            has_room = self.unsealed.has_room(items)
            self._is_stuck = not has_room
            if has_room:
                self.unsealed.reserved += items
        try:
            yield has_room
        finally:
            if has_room:
                self.unsealed.reserved -= items
                self._freed.set()

    async def _wait_for_room(self, items: int) -> None:
        deadline_s = self._clock.monotonic_s() + self.options.room_wait_s_max
        while not (self._is_stuck or self.unsealed.has_room(items)):
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return
            self._freed.clear()
            await wait_at_most(self._clock, left_s, self._room_freed())

    async def _room_freed(self) -> None:
        await self._freed.wait()

    def committed(self, plans: Iterable[CommitPlan], *, has_room: bool) -> None:
        """Add the keys of commits that were just published.

        `has_room`: of `room_for`. Without it, keys that do not fit are read again later.
        """
        for plan in plans:
            if plan.keys is not None:
                span = plan.expected_offset, plan.next_offset
                self.take(plan.queue, span, plan.keys, has_room=has_room)

    def take(self, queue: QueueId, span: Span, keys: CommitKeys, *, has_room: bool = False) -> bool:
        """Add the keys of a span, unless they are unpublished or known, or there is no room."""
        record, topic = self._state.queues.get(queue), self._state.topics.get(queue.topic)
        if record is None or topic is None or record.next_offset < span[1]:
            return False
        known = any(a < span[1] and span[0] < b for a, b in self.unsealed.spans(queue))
        if record.generation != keys.generation or known:
            return False
        items = keys.items
        if not (has_room or self.unsealed.has_room(len(items))):
            return False
        items["topic_id"] = topic.topic_id
        self.unsealed.add(queue, span, items, keys.record_bytes, self._clock.monotonic_s())
        return True

    def sealed(self) -> None:
        """Drop the sealed items, whose file is published, and let commits go on."""
        self.unsealed.sealed()
        self._is_stuck = False
        self._freed.set()

    def published(self, changes: Sequence[StateChange]) -> None:
        """Handle a published entry: drop keys removed by a truncation or deletion."""
        for change in changes:
            if change.index_files.changed:
                self._covered = None
                self._file_changes += 1
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
        """Queues with possibly missing keys, in the order of the tier.

        O(queues) with a small constant, unless there is none. `missing_of` removes those that need
        no check before their next change.
        """
        if self._doubted is None:
            self._doubted = dict.fromkeys(self._state.queues)
        doubted = self._doubted = dict(self._doubted)  # an emptied dict keeps its memory
        return [one for one in self._state.queues if one in doubted] if doubted else []

    async def prepare(self) -> None:
        """Read the coverage of all files for `missing_of`, if it changed. Yields to others."""
        while self._covered is None:
            changes = self._file_changes
            covered = await covered_in_turns(self._state.index_files.values(), self._clock)
            if changes == self._file_changes:
                self._covered = covered

    def missing_of(self, queue_id: QueueId) -> list[Span]:
        """Offsets of a queue that are in no index. Some 5 us.

        O(coverage of all files) if these changed since the last `prepare`.
        """
        if self._covered is None:
            self._covered = covered_by_files(self._state.index_files.values())
        left: list[Span] = []
        queue = self._state.queues.bounds_of(queue_id)
        if queue is not None:
            covered = self._covered.get(queue_id, [])
            if len(covered) > 1:
                covered = self._covered[queue_id] = merged(covered)
            known = [*covered, *self.unsealed.spans(queue_id)]
            if queue.gaps:
                spans = readable(self._state.queues[queue_id])
            else:
                spans = [(queue.min_offset, queue.next_offset)]
            left = without(spans, known)
        if not left and self._doubted is not None:
            self._doubted.pop(queue_id, None)
        return left

    def messages_missing(self) -> int:
        """Number of messages that are in no index. Costs `missing_of` for each doubted queue."""
        return sum(end - start for one in self.doubted() for start, end in self.missing_of(one))

    def check(self) -> None:
        """Assert K1, and K2 except for unpublished files. For tests, between awaits."""
        if self._doubted is not None and (
            self._journal.planned.index_files == self._state.index_files
        ):
            for queue_id in self._state.queues.keys() - self._doubted.keys():
                assert not self.missing_of(queue_id), f"K2: {queue_id} is not doubted"
        for part in self.unsealed.parts():
            for queue_id, spans in part.spans.items():
                record = self._state.queues.get(queue_id)
                assert record is not None, f"K1: {queue_id}"
                assert spans[-1][1] <= record.next_offset, f"K1: {queue_id} {spans}"
