"""A queue one of whose ConsumeQueue files is empty, missing or a stranger: never silent."""

import pytest

from container.tier_records import QueueId
from dispatcher.source import HotQueueState
from provider.clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tieredstore.hot.follower import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]  # fixtures

A0, A1 = QueueId("A", 0), QueueId("A", 1)
FILE_UNITS = 20


@pytest.fixture
def filled(broker: FakeBroker) -> FakeBroker:
    """Five files of 20 units, the last one with 10."""
    for number in range(90):
        broker.put("A", 0, str(number).encode(), tags=f"Tag{number % 3}")
    return broker


@pytest.mark.parametrize("empty", [0, 1, 3])
@pytest.mark.parametrize("from_unit", [0, 7])
async def test_a_file_that_becomes_zeros_stops_its_queue_with_a_sentence(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    empty: int,
    from_unit: int,
) -> None:
    filled.put("A", 1)
    path = filled.queue_files(A0)[empty]
    whole = path.read_bytes()
    path.write_bytes(whole[: from_unit * 20] + bytes(400 - from_unit * 20))
    log = await follow(filled, clock, logs)
    seen = {seen.id: seen for seen in await log.poll()}
    end = empty * FILE_UNITS + from_unit
    assert (seen[A0].max_offset, seen[A0].state) == (end, HotQueueState.DAMAGED)
    assert f"path={path} position={from_unit * 20}" in seen[A0].detail
    assert str(end) in seen[A0].detail
    assert seen[A1].state is HotQueueState.READY
    assert await bodies(log, A0, 0, end) == end
    assert await poll_later(log, clock) == {}
    path.write_bytes(whole)
    assert await poll_later(log, clock) == {A0: (0, 90)}
    known = log.queue(A0)
    assert known is not None
    assert known.state is HotQueueState.READY


async def test_a_hole_that_is_there_only_after_the_queue_was_passed_stops_it_where_it_stands(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [b"x"] * 10)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.put_many("A", 0, [b"x"] * 40)
    raw = broker.queue_files(A0)[0].read_bytes()
    broker.queue_files(A0)[0].write_bytes(raw[:200] + bytes(200))
    assert await poll_later(log, clock) == {A0: (0, 10)}
    known = log.queue(A0)
    assert known is not None
    assert known.state is HotQueueState.DAMAGED
