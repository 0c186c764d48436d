"""Whatever fails, is cancelled or restarts: the tier is the hot log's prefix, nothing twice."""

import asyncio
import random

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from container.names.queue_id import QueueId
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from provider.errors import Unavailable
from provider.testing.manual_clock import ManualClock, settle
from tests.support.fake_hot_log import FakeHotLog
from tests.support.memory_tier import InlineExecutor, MemoryTier

QUEUES = [QueueId("T", number) for number in range(4)]
OPTIONS = DispatchOptions(
    batch_messages_max=4,
    batch_bytes_max=400,
    bytes_in_flight_max=1000,
    batches_per_commit_max=2,
    references_max=10,
)
queues = st.sampled_from(QUEUES)


class DispatchMachine(RuleBasedStateMachine):
    """A dispatcher between a broker that appends and deletes, and a tier that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.hot = FakeHotLog(self.clock, batch_messages_max=3)
        self.written: dict[QueueId, list[bytes]] = {}
        self.task: asyncio.Task[None] | None = None

    @initialize(seed=st.integers(0, 2**32), commit_s=st.sampled_from([0.0, 0.1, 3.0]))
    def begin(self, seed: int, commit_s: float) -> None:
        self.tier = MemoryTier(self.clock, random.Random(seed), commit_s=commit_s)
        self.dispatcher = self.new_dispatcher()
        self.start()

    def new_dispatcher(self) -> TieredDispatcher:
        return TieredDispatcher(
            self.hot, self.tier, options=OPTIONS, clock=self.clock, executor=InlineExecutor()
        )

    def start(self) -> None:
        async def starting() -> None:
            self.task = asyncio.get_running_loop().create_task(self.dispatcher.run())
            await settle()

        self.runner.run(starting())

    def stop(self) -> None:
        async def stopping() -> None:
            assert self.task is not None
            self.task.cancel()
            await asyncio.wait([self.task])
            if not self.task.cancelled():
                self.task.result()

        self.runner.run(stopping())

    @rule(queue=queues, sizes=st.lists(st.integers(0, 300), min_size=1, max_size=9))
    def append(self, queue: QueueId, sizes: list[int]) -> None:
        before = len(self.hot.queues[queue].records) if queue in self.hot.queues else 0
        self.hot.append(queue, *(bytes(size) for size in sizes))
        self.written.setdefault(queue, []).extend(self.hot.queues[queue].records[before:])

    @rule(queue=queues, count=st.integers(1, 5))
    def delete(self, queue: QueueId, count: int) -> None:
        if queue in self.hot.queues:
            self.hot.delete_below(queue, self.hot.queues[queue].min_offset + count)

    @rule(seconds=st.sampled_from([0.01, 0.25, 0.6, 5.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @rule(refused=st.sampled_from([0.0, 0.3, 1.0]), lost=st.sampled_from([0.0, 0.3, 1.0]))
    def weather(self, refused: float, lost: float) -> None:
        self.tier.refused, self.tier.lost_reply = refused, lost

    @rule(bad=st.sets(queues, max_size=2))
    def some_queues_fail(self, bad: set[QueueId]) -> None:
        self.tier.bad_queues = bad

    @rule(queue=queues, readable=st.booleans())
    def a_queue_cannot_be_read(self, queue: QueueId, *, readable: bool) -> None:
        if queue in self.hot.queues:
            error = None if readable else Unavailable("injected", "store")
            self.hot.queues[queue].error = error

    @rule()
    def cancel_and_run_again(self) -> None:
        self.stop()
        self.start()

    @rule()
    def restart(self) -> None:
        self.stop()
        self.hot = self.hot.reopened()
        self.dispatcher = self.new_dispatcher()
        self.start()

    @invariant()
    def what_is_tiered_is_what_was_written(self) -> None:
        for queue, here in self.tier.queues.items() if hasattr(self, "tier") else ():
            written = self.written[queue]
            holes = {offset for gap in here.gaps for offset in range(gap.start, gap.end)}
            begun = min(here.records)
            tiered = self.tier.bodies(queue)
            assert sorted(tiered) == [n for n in range(begun, here.next_offset) if n not in holes]
            assert all(tiered[offset] == written[offset] for offset in tiered)

    @invariant()
    def what_the_dispatcher_promises_holds(self) -> None:
        if hasattr(self, "tier"):
            self.dispatcher.check()

    @invariant()
    def bytes_in_flight_are_bounded(self) -> None:
        if hasattr(self, "tier"):
            assert self.tier.bytes_in_flight_peak <= OPTIONS.bytes_in_flight_max
            assert self.dispatcher.statistics().bytes_in_flight_peak <= 1000

    def teardown(self) -> None:
        """In good weather everything that is left arrives, and nothing is held any more."""
        try:
            if hasattr(self, "tier"):
                self.finish()
        finally:
            self.runner.close()

    def finish(self) -> None:
        self.tier.refused = self.tier.lost_reply = 0.0
        self.tier.bad_queues = set()
        for here in self.hot.queues.values():
            here.error = None
        for _ in range(1_200):  # a hundred appends of small batches, at 3 s a commit
            self.pass_time(1.0)
            # Bytes that arrived under a lost reply are in the tier before the dispatcher knows it.
            known = self.dispatcher.statistics().behind == 0
            if known and all(self.is_done(queue) for queue in self.hot.queues):
                break
        self.stop()
        statistics = self.dispatcher.statistics()
        assert statistics.behind == 0, statistics
        assert statistics.halted == ()
        assert (statistics.bytes_in_flight, statistics.references) == (0, 0)
        self.what_is_tiered_is_what_was_written()

    def is_done(self, queue: QueueId) -> bool:
        here = self.tier.queues.get(queue)
        hot = self.hot.queues[queue]
        if here is None:
            return hot.min_offset == len(hot.records)
        return here.next_offset == len(hot.records)


TestDispatchMachine = DispatchMachine.TestCase
