"""Unconfirmed messages of a replicated broker without ConsumeQueue files: counted, with ages."""

import random
import time
from pathlib import Path

import pytest

import tieredstore
from container.names.queue_id import QueueId
from container.record.header import TRANSACTION_PREPARED
from dispatcher.ports import HotQueueState
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker
from tests.support.followed import follow
from tests.support.log_alone import A0, A1, B0, broker, clock, ends, logs, rocks
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs", "rocks"]  # fixtures
assert tieredstore.Follower  # its imports read files, so they are not left to a running loop


def end_of(broker: FakeBroker, queue: QueueId, offset: int) -> int:
    unit = broker.unit(queue.topic, queue.queue_id, offset)
    return unit.position + unit.size


def waiting(log: RocketMqHotLog, queue: QueueId) -> tuple[int, int]:
    seen = log.queue(queue)
    assert seen is not None
    assert bool(seen.waiting) == bool(seen.waits_for) == bool(seen.waiting_ms)
    return seen.waiting, seen.waiting_ms - FIRST_STORE_TIMESTAMP if seen.waiting else 0


async def test_each_queue_has_its_unconfirmed_messages_and_the_age_of_the_first(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for queue in (A0, B0, A0, A0, B0, A1, A1):
        rocks.put(queue.topic, queue.queue_id)
    rocks.put("A", 0, sys_flag=TRANSACTION_PREPARED, with_unit=False)
    rocks.put("SELF_TEST_TOPIC", 0)
    rocks.confirm(end_of(rocks, B0, 0))
    log = await follow(rocks, clock, logs, replicated=True)
    assert len(await log.poll()) == 3
    assert [(ends(log, q), waiting(log, q)) for q in (A0, B0, A1)] == [
        ((0, 1), (2, 2)),
        ((0, 1), (1, 4)),
        ((0, 0), (2, 5)),
    ]
    seen = log.queue(A1)
    assert seen is not None
    assert seen.state is HotQueueState.UNCONFIRMED
    rocks.confirm(end_of(rocks, A1, 0))
    rocks.put("A", 1)
    await clock.advance(1.0)
    await log.poll()
    assert [(ends(log, q), waiting(log, q)) for q in (A0, B0, A1)] == [
        ((0, 3), (0, 0)),
        ((0, 2), (0, 0)),
        ((0, 1), (2, 6)),
    ]
    rocks.confirm(rocks.position)
    await clock.advance(1.0)
    await log.poll()
    assert (ends(log, A1), waiting(log, A1)) == ((0, 3), (0, 0))


async def test_messages_that_an_election_takes_back_no_longer_wait(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    rocks.put("A", 0)
    rocks.confirm(rocks.position)
    begun = rocks.position
    for queue in (A0, B0, B0, A1):
        rocks.put(queue.topic, queue.queue_id)
    log = await follow(rocks, clock, logs, replicated=True)
    await log.poll()
    assert [waiting(log, q)[0] for q in (A0, B0, A1)] == [1, 2, 1]
    rocks.crash(rocks.position - begun)
    rocks.next_offsets |= {A0: 1, B0: 0, A1: 0}
    rocks.put("B", 0, body=b"of the new master")
    await clock.advance(1.0)
    await log.poll()
    assert [waiting(log, q)[0] for q in (A0, B0, A1)] == [0, 1, 0]
    rocks.confirm(rocks.position)
    await clock.advance(1.0)
    await log.poll()
    assert (ends(log, A0), ends(log, B0), ends(log, A1)) == ((0, 1), (0, 1), (0, 0))


@pytest.mark.parametrize("seed", range(6))
async def test_counts_are_those_of_the_log_wherever_it_is_confirmed(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], seed: int
) -> None:
    rng = random.Random(seed)
    queues = [A0, A1, B0]
    put: list[tuple[QueueId, int, int]] = []
    log = await follow(rocks, clock, logs, replicated=True)
    confirmed = 0
    for _ in range(12):
        for _ in range(rng.randrange(12)):  # files of 4 KiB are rolled
            queue = rng.choice(queues)
            offset = rocks.put(queue.topic, queue.queue_id, body=bytes(rng.randrange(600)))
            put.append((queue, end_of(rocks, queue, offset), len(put)))
        confirmed = rng.randrange(confirmed, rocks.position + 1)
        rocks.confirm(confirmed)
        await clock.advance(1.0)
        await log.poll()
        for queue in {one for one, _, _ in put}:
            above = [at for one, end, at in put if one == queue and end > confirmed]
            below = sum(one == queue and end <= confirmed for one, end, _ in put)
            assert (ends(log, queue)[1], waiting(log, queue)) == (
                below,
                (len(above), above[0]) if above else (0, 0),
            )


@pytest.mark.parametrize("backfill", ["all", "none", "1h"])
async def test_a_queue_whose_messages_are_all_unconfirmed_is_behind_and_tiered_later(
    tmp_path: Path, backfill: str
) -> None:
    rocks = FakeBroker(tmp_path / "store", now_ms=int(time.time() * 1000) - 5000)
    settings = {"storeType": "defaultRocksDB", "enableControllerMode": "true"}
    settings["tieredStoreBackfill"] = backfill
    for _ in range(3):
        rocks.put("A", 0)

    async with tieredstore.follow(
        rocks.directory,
        tmp_path / "tier",
        cluster="C",
        broker="b",
        settings=settings,
    ) as follower:
        statistics = await follower.drain()
        assert (statistics.messages, statistics.behind, statistics.halted) == (0, 3, ())
        assert 4 < statistics.oldest_age_s < 60
        (one,) = statistics.waiting
        assert (one.queue, one.waiting, one.commit_offset) == (A0, 3, QueueOffset(0))
        rocks.put("A", 0)
        rocks.confirm(rocks.position)
        statistics = await follower.drain()
        assert (statistics.messages, statistics.behind, statistics.waiting) == (4, 0, ())
