"""Fixtures and short cuts for tests that follow a broker's directory."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue, Wanted, records_of_queue
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)


@pytest.fixture
async def logs() -> AsyncIterator[list[RocketMqHotLog]]:
    opened: list[RocketMqHotLog] = []
    yield opened
    for log in opened:
        await log.close()


class CheckedHotLog(RocketMqHotLog):
    """Asserts the invariants of a hot log, and that no queue's end goes back, after every poll."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._ends: dict[QueueId, int] = {}

    async def poll(self) -> Sequence[HotQueue]:
        changed = await super().poll()
        self.check()
        for seen in changed:
            end = self._ends.get(seen.id, 0)
            assert end <= seen.max_offset, f"{seen} ended at {end} before"
            self._ends[seen.id] = seen.max_offset
        return changed


async def follow(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], **changes: object
) -> RocketMqHotLog:
    log = await CheckedHotLog.open(
        broker.directory,
        options=HotLogOptions(**changes),  # pyright: ignore[reportArgumentType] - as given
        clock=clock,
        cluster="TestCluster",
        broker="broker-a",
    )
    logs.append(log)
    return log


async def poll_later(log: RocketMqHotLog, clock: ManualClock) -> dict[QueueId, tuple[int, int]]:
    """A second later, so that directories are due, too."""
    await clock.advance(1.0)
    return {seen.id: (seen.min_offset, seen.max_offset) for seen in await log.poll()}


async def bodies(log: RocketMqHotLog, queue: QueueId, start: int, end: int) -> int:
    """Read `[start, end)`; returns how many messages were read before the end or an error."""
    at = start
    while at < end:
        units = await log.references(queue, QueueOffset(at), messages_max=7)
        at = (await records_of_queue(log, Wanted(queue, QueueOffset(at), units))).next_offset
    return at - start
