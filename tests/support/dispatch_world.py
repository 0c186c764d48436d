"""A dispatcher between a hot log and a tier in memory, on a clock that the test moves.

After every step of the clock the dispatcher's invariants are asserted.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from container.names.queue_id import QueueId
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from dispatcher.topic_filter import TopicFilter
from provider.testing.manual_clock import ManualClock, settle
from tests.support.fake_hot_log import FakeHotLog
from tests.support.memory_tier import InlineExecutor, MemoryTier


class World:
    """A clock, a hot log, a tier, and a dispatcher between them."""

    def __init__(self, *, topics: TopicFilter | None = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.hot = FakeHotLog(self.clock)
        self.tier = MemoryTier(self.clock)
        self.options = DispatchOptions(**options)
        self.topics = topics
        self.dispatcher = self.new_dispatcher()

    def new_dispatcher(self) -> TieredDispatcher:
        return TieredDispatcher(
            self.hot,
            self.tier,
            options=self.options,
            clock=self.clock,
            topics=self.topics,
            executor=InlineExecutor(),
        )

    def restart(self) -> None:
        self.hot = self.hot.reopened()
        self.dispatcher = self.new_dispatcher()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        task = asyncio.get_running_loop().create_task(self.dispatcher.run())
        await settle(100)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise error

    async def pass_time(self, seconds: float, *, step_s: float = 0.05) -> None:
        for _ in range(round(seconds / step_s)):
            await self.clock.advance(step_s)
            await settle(60)
            self.dispatcher.check()

    async def wait_for(self, what: Callable[[], bool], *, seconds: float, step_s: float = 0.05):
        started_s = self.clock.monotonic_s()
        while not what():
            assert self.clock.monotonic_s() - started_s < seconds, f"waited for {seconds} s"
            await self.pass_time(step_s, step_s=step_s)

    async def finish(self, coroutine, *, seconds: float = 3600.0, step_s: float = 0.05):
        task = asyncio.get_running_loop().create_task(coroutine)
        await settle(100)
        started_s = self.clock.monotonic_s()
        while not task.done():
            assert self.clock.monotonic_s() - started_s < seconds, f"not done in {seconds} s"
            await self.pass_time(step_s, step_s=step_s)
        return task.result()

    def hot_records(self, queue: QueueId) -> dict[int, bytes]:
        return dict(enumerate(self.hot.queues[queue].records))

    def is_tiered(self, queue: QueueId) -> bool:
        return self.tier.bodies(queue) == self.hot_records(queue)

    def state(self, queue: QueueId):
        return next(q for q in self.dispatcher.statistics().queues if q.queue == queue)
