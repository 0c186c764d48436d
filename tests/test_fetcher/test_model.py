"""Random reads, growth, gaps, retention, faults and cancellations against a plain list."""

import asyncio
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchResult
from provider.errors import NotFound, StoreError, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock, settle
from tests.support.read_tier import MemoryQueue, MemoryTier

OPTIONS = FetcherOptions(
    run_messages_max=16,
    run_bytes_max=3_000,
    cache_bytes_max=24_000,
    window_messages_min=4,
    window_step_messages=4,
    gap_bytes_max=150,
    bytes_in_flight_max=6_000,
    demands_max=2,
    readers_max=3,
)
TAGS = ("A", "B", "C", "")

asks = st.tuples(
    st.sampled_from("gh"),
    st.integers(-2, 120),
    st.sampled_from([1, 3, 7, 40]),
    st.sampled_from([None, "A", "B || C", "nothing"]),
    st.sampled_from([None, 1, 700]),
)


@dataclass
class Expected:
    """What a call must answer."""

    status: str
    next_offset: int
    offsets: list[int]


def model_answer(queue: MemoryQueue, tags: dict[int, str], ask: tuple) -> Expected:
    """The rules, one message at a time."""
    _, offset, messages_max, subscription, bytes_max = ask
    minimum, maximum = queue.min_offset, queue.next_offset
    if maximum <= 0:
        return Expected("NO_MESSAGE_IN_QUEUE", offset, [])
    if offset < minimum:
        return Expected("OFFSET_TOO_SMALL", minimum, [])
    if offset >= maximum:
        name = "OFFSET_OVERFLOW_ONE" if offset == maximum else "OFFSET_OVERFLOW_BADLY"
        return Expected(name, maximum, [])
    ends = {n: gap.end for gap in queue.gaps for n in range(gap.start, gap.end)}
    if offset in ends:
        return Expected("OFFSET_FOUND_NULL", ends[offset], [])
    wanted = None if subscription is None else {one.strip() for one in subscription.split("||")}
    found: list[int] = []
    at, looked, total = offset, 0, 0
    while at < maximum and looked < OPTIONS.run_messages_max:
        if at in ends:
            if found:
                break
            at = ends[at]
            continue
        looked += 1
        at += 1
        if wanted is None or tags[at - 1] in wanted:
            found.append(at - 1)
            total += len(queue.record(at - 1))
            if len(found) == messages_max or (bytes_max is not None and total >= bytes_max):
                break
    return Expected("FOUND" if found else "NO_MATCHED_MESSAGE", at, found)


class FetcherMachine(RuleBasedStateMachine):
    """One queue, one fetcher, one loop that runs only while a rule does."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.tags: dict[int, str] = {}

    @initialize(first=st.sampled_from([0, 30]), object_messages=st.sampled_from([0, 1, 8, 20]))
    def open(self, first: int, object_messages: int) -> None:
        self.queue = MemoryQueue(first=first)
        self.queue.object_messages = object_messages
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.fetcher = TieredMessageFetcher(
            MemoryTier(self.queue), options=OPTIONS, clock=self.clock
        )
        await self.fetcher.__aenter__()

    @rule(tag=st.sampled_from(TAGS), count=st.integers(1, 12), body=st.sampled_from([10, 400]))
    def grow(self, tag: str, count: int, body: int) -> None:
        for offset in range(self.queue.next_offset, self.queue.next_offset + count):
            self.tags[offset] = tag
        self.queue.fill(count, body_bytes=body, tags=(tag,))

    @precondition(lambda self: self.queue.next_offset > self.queue.base)
    @rule(count=st.integers(1, 20))
    def lose(self, count: int) -> None:
        self.queue.lose(count)

    @rule(count=st.integers(1, 5))
    def retain(self, count: int) -> None:
        self.queue.min_offset = QueueOffset(
            min(self.queue.min_offset + count, self.queue.next_offset)
        )

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @rule(ask=asks)
    def read(self, ask: tuple) -> None:
        self.check(ask, self.runner.run(self.call(ask)))

    @rule(group=st.sampled_from("gh"), messages_max=st.sampled_from([1, 5]))
    def read_on_to_the_end(self, group: str, messages_max: int) -> None:
        at = int(self.queue.min_offset)
        while at < self.queue.next_offset:
            ask = (group, at, messages_max, None, None)
            result = self.runner.run(self.call(ask))
            self.check(ask, result)
            at = int(result.next_offset)

    @rule(
        ask=asks,
        fault=st.sampled_from([Unavailable("busy", "object"), NotFound("gone", "object")]),
        count=st.integers(1, 3),
    )
    def read_from_failing_storage(self, ask: tuple, fault: StoreError, count: int) -> None:
        self.queue.faults = [fault] * count
        try:
            result = self.runner.run(self.call(ask))
        except (Unavailable, NotFound) as error:
            assert error is fault  # noqa: PT017 - a failure is allowed, not required
            assert len(self.queue.faults) < count
        else:
            self.check(ask, result, may_be_cut=len(self.queue.faults) < count)
        self.queue.faults = []
        self.runner.run(settle())

    @rule(several=st.lists(st.tuples(asks, st.booleans()), min_size=1, max_size=5))
    def read_together_and_cancel_some(self, several: list[tuple[tuple, bool]]) -> None:
        self.runner.run(self._together(several))

    async def _together(self, several: list[tuple[tuple, bool]]) -> None:
        self.queue.open_gate.clear()
        calls = [(ask, asyncio.create_task(self.call(ask)), stop) for ask, stop in several]
        await settle(4)
        for _, call, stop in calls:
            if stop:
                call.cancel()
        await settle(4)
        self.queue.open_gate.set()
        for ask, call, stop in calls:
            if not (stop and call.cancelled()):
                self.check(ask, await call)

    async def call(self, ask: tuple) -> FetchResult:
        group, offset, messages_max, subscription, bytes_max = ask
        return await self.fetcher.get_message(
            group,
            "T",
            0,
            offset,
            messages_max=messages_max,
            subscription=subscription,
            bytes_max=bytes_max,
        )

    def check(self, ask: tuple, result: FetchResult, *, may_be_cut: bool = False) -> None:
        expected = model_answer(self.queue, self.tags, ask)
        offsets = result.messages.offsets.tolist()
        for offset, record in zip(offsets, result.messages, strict=True):
            assert bytes(record) == self.queue.record(offset), (ask, offset)
        if may_be_cut and offsets != expected.offsets:
            assert offsets, "a failure is never told as `no message`"
            assert offsets == expected.offsets[: len(offsets)]
            assert offsets[-1] < result.next_offset <= expected.offsets[len(offsets)]
            return
        if not may_be_cut:
            assert result.next_offset == expected.next_offset, (ask, expected)
        assert (result.status.name, offsets) == (expected.status, expected.offsets), ask

    @invariant()
    def bounds_hold(self) -> None:
        if hasattr(self, "fetcher"):
            self.fetcher.check()
            held = self.fetcher.statistics()
            assert held.bytes_in_flight <= OPTIONS.bytes_in_flight_max
            assert held.readers <= OPTIONS.readers_max

    def teardown(self) -> None:
        if hasattr(self, "fetcher"):
            self.runner.run(self.fetcher.__aexit__(None, None, None))
            assert self.fetcher.statistics().reads_in_flight == 0
            assert self.fetcher.statistics().bytes_in_flight == 0
        self.runner.close()


TestFetcherModel = FetcherMachine.TestCase
