"""A tier in memory that fails the way storage does, and the same way for the same seed.

Fault model (what the dispatcher must survive):

- `refused`: the commit fails, nothing happened.
- `lost_reply`: the commit lands, the caller is told that it failed.
- `bad_queues`: every round with one of them is refused.
- `refusals`: whatever would change one of these queues fails; reading it too if bytes are missing.
- a stalled commit: it takes `commit_s` of the clock; cancelled meanwhile, it landed or not.

Whatever breaks the contract of `TierPort` is an AssertionError: a batch that does not begin at
the published end, two commits of a queue at once.
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from container.metadata.records import Gap, Queue
from container.names.queue_id import QueueId, SegmentType
from container.queue.commit_plan import CommitPlan, PlannedSlice
from container.record.batch import MessageBatch
from container.record.unit import UNIT_BYTES
from provider.clock import Clock
from provider.errors import OutOfRange, StoreError, Unavailable
from provider.file_segments import SegmentSlice
from provider.ranges import QueueOffset


class InlineExecutor(Executor):
    """Runs what is submitted at once, on the caller's thread: for tests that own time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future


def memory_plan(queue: QueueId, start: QueueOffset, records: Sequence[bytes]) -> CommitPlan:
    """A plan whose slices have one buffer for each record, and one for each unit."""
    steps = tuple(
        PlannedSlice(
            SegmentSlice(f"{queue}/{kind.name}", 0, buffers),
            kind,
            base=0,
            runs=(),
            extents=0,
            growing=None,
            created_ms=0,
            epoch=0,
            sealed_ms=None,
        )
        for kind, buffers in (
            (SegmentType.COMMIT_LOG, tuple(records)),
            (SegmentType.CONSUME_QUEUE, (bytes(UNIT_BYTES),) * len(records)),
        )
    )
    record = Queue(queue, QueueOffset(start), QueueOffset(start))
    return CommitPlan(queue, start, QueueOffset(start + len(records)), steps, record)


def records_of(plan: CommitPlan) -> list[bytes]:
    """The records of a plan that `memory_plan` made."""
    return [bytes(record) for record in plan.slices[0].buffers]


@dataclass
class MemoryQueue:
    """What one queue has: records by offset, with tier positions in bytes 28..35."""

    next_offset: int
    records: dict[int, bytes] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    bytes: int = 0


class MemoryTier:
    """See the module; `calls` counts requests, `rounds` lists the queues of each commit call."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random | None = None,
        *,
        commit_s: float = 0.0,
        refused: float = 0.0,
        lost_reply: float = 0.0,
    ) -> None:
        self.queues: dict[QueueId, MemoryQueue] = {}
        self.calls: Counter[str] = Counter()
        self.rounds: list[tuple[QueueId, ...]] = []
        self.plans: list[CommitPlan] = []
        self.bad_queues: set[QueueId] = set()
        self.refusals: dict[QueueId, StoreError] = {}
        self.error: StoreError | None = None
        """Raised by every call while set."""
        self.near_offset = 0
        """Messages below it are history: `messages_at` must be asked for them expressly."""
        self.commit_s = commit_s
        self.refused = refused
        self.lost_reply = lost_reply
        self.bytes_in_flight_peak = 0
        self.commits_at_once_peak = 0
        self._clock = clock
        self._rng = rng or random.Random(0)
        self._in_flight: dict[QueueId, CommitPlan] = {}
        self._commits = 0

    @property
    def trouble(self) -> StoreError | None:
        return None

    def bodies(self, queue: QueueId) -> dict[int, bytes]:
        """Every tiered record by offset, with bytes 28..35 as they were in the hot log."""
        here = self.queues.get(queue)
        records = here.records if here else {}
        return {offset: raw[:28] + bytes(8) + raw[36:] for offset, raw in records.items()}

    def queue(self, queue: QueueId) -> Queue | None:
        here = self.queues.get(queue)
        if here is None:
            return None
        low = QueueOffset(min(here.records, default=here.next_offset))
        return Queue(queue, low, QueueOffset(here.next_offset), gaps=tuple(here.gaps))

    def plan_commit(self, queue: QueueId, batch: MessageBatch) -> CommitPlan:
        here = self.queues.get(queue)
        assert here is None or batch.first_offset == here.next_offset, "planned on another end"
        raw = batch.data.tobytes()
        bounds = zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True)
        records = [raw[start : start + size] for start, size in bounds]
        return memory_plan(queue, batch.first_offset, records)

    async def commit(self, plans: Sequence[CommitPlan]) -> None:
        self.calls["commit"] += 1
        names = [plan.queue for plan in plans]
        assert len(set(names)) == len(names), "a queue is in a round once"
        assert not self._in_flight.keys() & set(names), "at most one commit of a queue in flight"
        self.rounds.append(tuple(names))
        self._in_flight |= {plan.queue: plan for plan in plans}
        self._commits += 1
        flying = sum(plan.bytes for plan in self._in_flight.values())
        self.bytes_in_flight_peak = max(self.bytes_in_flight_peak, flying)
        self.commits_at_once_peak = max(self.commits_at_once_peak, self._commits)
        settled = False
        try:
            await self._clock.sleep(self.commit_s)
            settled = True
            self._raise_faults(names)
            self._raise_refusals(names)
            self._apply(plans)
            if self._rng.random() < self.lost_reply:
                raise Unavailable("injected lost reply", "tier")
        finally:
            if not settled and self._rng.random() < 0.5:
                self._apply(plans)  # cancelled, but it was on its way
            self._commits -= 1
            for name in names:
                del self._in_flight[name]

    def _raise_faults(self, names: Sequence[QueueId]) -> None:
        if self.error is not None:
            raise self.error
        if self.bad_queues & set(names) or self._rng.random() < self.refused:
            raise Unavailable("injected refusal", "tier")

    def _raise_refusals(self, names: Sequence[QueueId]) -> None:
        for name in names:
            if name in self.refusals:
                raise self.refusals[name]

    def _apply(self, plans: Sequence[CommitPlan]) -> None:
        for plan in plans:
            here = self.queues.setdefault(plan.queue, MemoryQueue(plan.expected_offset))
            assert here.next_offset == plan.expected_offset, "a commit overtakes another"
            self.plans.append(plan)
            for record in records_of(plan):
                position = here.bytes.to_bytes(8)
                here.records[here.next_offset] = record[:28] + position + record[36:]
                here.next_offset += 1
                here.bytes += len(record)

    async def settle(self, queue: QueueId) -> None:
        """A commit that is cancelled lands at once or never."""

    async def begin_queue(self, queue: QueueId, offset: QueueOffset) -> None:
        self.calls["begin_queue"] += 1
        self._raise_refusals([queue])
        self.queues.setdefault(queue, MemoryQueue(offset))

    async def record_gap(
        self, queue: QueueId, start: QueueOffset, end: QueueOffset, reason: str
    ) -> None:
        self.calls["record_gap"] += 1
        await self._clock.sleep(0)
        self._raise_faults([queue])
        self._raise_refusals([queue])
        here = self.queues[queue]
        assert here.next_offset == start < end, "a gap begins at the published end"
        here.gaps.append(Gap(start, end, reason, self._clock.now_ms()))
        here.next_offset = end
        if self._rng.random() < self.lost_reply:
            raise Unavailable("injected lost reply", "tier")

    async def messages_at(
        self,
        queue: QueueId,
        offsets: Sequence[QueueOffset],
        *,
        bytes_max: int,
        history: bool = False,
        verified: bool = False,
    ) -> list[bytes | None]:
        self.calls["messages_at"] += 1
        assert list(offsets) == sorted(set(offsets)), "offsets ascend"
        assert offsets, "somebody asks for nothing"
        await self._clock.sleep(0)
        self._raise_faults([queue])
        if isinstance(self.refusals.get(queue), OutOfRange):
            raise self.refusals[queue]
        here = self.queues[queue]
        found = [here.records[offset] for offset in offsets]
        sizes = list(accumulate(len(record) for record in found))
        fitting = found[: max(1, bisect_right(sizes, bytes_max))]
        old = 0 if history else bisect_left(offsets, self.near_offset)
        return [None] * min(old, len(fitting)) + fitting[old:]

    async def messages_of_queues(
        self, offsets: Mapping[QueueId, Sequence[QueueOffset]], *, bytes_max: int
    ) -> AsyncGenerator[Mapping[QueueId, Sequence[bytes | None]]]:
        self.calls["messages_of_queues"] += 1
        await self._clock.sleep(0)
        room, found = bytes_max, dict[QueueId, Sequence[bytes | None]]()
        for queue, wanted in offsets.items():
            try:
                self._raise_faults([queue])
            except StoreError:
                continue
            here = self.queues[queue]
            if isinstance(self.refusals.get(queue), OutOfRange):
                continue
            records = [
                here.records[offset] if offset >= self.near_offset else None for offset in wanted
            ]
            size = sum(len(record) for record in records if record is not None)
            if size > bytes_max:
                continue
            if size > room:
                yield found
                await self._clock.sleep(0)
                room, found = bytes_max, {}
            found[queue] = records
            room -= size
        yield found
