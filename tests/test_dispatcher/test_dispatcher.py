"""The dispatcher at work: what it takes, when, and how much at once."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue
from dispatcher.statistics import Progress
from tests.support.dispatch_world import World
from tests.support.memory_tier import records_of

A, B, C = QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Orders", 2)


async def test_draining_tiers_everything_from_the_oldest_message_in_one_round() -> None:
    world = World()
    for queue in (A, B, C):
        world.hot.append(queue, *(b"%d" % n for n in range(100)))
    report = await world.finish(world.dispatcher.drain())
    assert all(world.is_tiered(queue) for queue in (A, B, C))
    assert world.tier.calls == {"commit": 1}
    assert (report.messages, report.behind, report.halted) == (300, 0, ())
    assert world.hot.released == {A: 100, B: 100, C: 100}


async def test_a_lone_message_is_committed_within_a_second() -> None:
    world = World()
    async with world.running():
        await world.pass_time(1.0)
        world.hot.append(A, b"alone")
        await world.wait_for(lambda: A in world.tier.queues, seconds=1.0)
        assert world.is_tiered(A)


@pytest.mark.parametrize("messages", [0, 1])
async def test_it_has_started_once_every_queue_was_compared_with_the_tier(
    messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    for _ in range(messages):
        world.hot.append(A, b"one")
    poll = world.hot.poll

    async def slow_poll() -> Sequence[HotQueue]:
        await world.clock.sleep(1.0)
        return await poll()

    monkeypatch.setattr(world.hot, "poll", slow_poll)
    async with world.running():
        await world.pass_time(0.9)
        assert not world.dispatcher.statistics().started
        await world.pass_time(0.2)
        assert world.dispatcher.statistics().started


async def test_idle_polls_ask_the_tier_nothing() -> None:
    world = World()
    world.hot.append(A, b"one")
    await world.finish(world.dispatcher.drain())
    before = dict(world.tier.calls)
    polls = world.hot.calls["poll"]
    async with world.running():
        await world.pass_time(60.0, step_s=0.2)
    assert world.tier.calls == before
    assert world.hot.calls["poll"] > polls + 200
    assert world.hot.calls["records"] == 1


async def test_queues_that_become_ready_together_share_one_commit() -> None:
    world = World()
    async with world.running():
        queues = [QueueId("Thin", number) for number in range(200)]
        for queue in queues:
            world.hot.append(queue, b"x")
        await world.pass_time(2.0)
        assert all(world.is_tiered(queue) for queue in queues)
        assert world.tier.calls == {"commit": 1}


async def test_the_first_message_after_a_silence_is_committed_at_once() -> None:
    world = World(batch_age_s_max=10.0, first_at_once=True)
    async with world.running():
        for silence in range(1, 4):
            world.hot.append(A, b"lone")
            await world.pass_time(0.3)
            assert world.is_tiered(A)
            assert world.tier.calls["commit"] == silence
            await world.pass_time(11.0, step_s=1.0)


async def test_messages_after_the_first_one_wait_for_others() -> None:
    world = World(batch_age_s_max=10.0, first_at_once=True)
    async with world.running():
        for _ in range(25):
            world.hot.append(A, b"x")
            world.hot.append(B, b"x")
            await world.pass_time(1.0, step_s=0.25)
        assert world.tier.calls["commit"] == 3, "one at once, then one in 10 s"
        await world.pass_time(10.0, step_s=0.5)
        assert world.is_tiered(A)
        assert world.is_tiered(B)


async def test_a_batch_closes_on_its_count_without_waiting_for_its_age() -> None:
    world = World(batch_messages_max=10, batch_age_s_max=100.0)
    async with world.running():
        world.hot.append(A, *[b"x"] * 9)
        await world.pass_time(50.0, step_s=1.0)
        assert world.tier.calls["commit"] == 0
        world.hot.append(A, b"the tenth")
        await world.pass_time(0.2)
        assert world.is_tiered(A)


async def test_a_batch_closes_on_its_bytes_without_waiting_for_its_age() -> None:
    world = World(batch_bytes_max=1000, bytes_in_flight_max=4000, batch_age_s_max=100.0)
    async with world.running():
        world.hot.append(A, bytes(500))
        await world.pass_time(50.0, step_s=1.0)
        assert world.tier.calls["commit"] == 0
        world.hot.append(A, bytes(500))
        await world.pass_time(0.2)
        assert world.is_tiered(A)


async def test_a_message_larger_than_every_limit_goes_alone() -> None:
    world = World(batch_bytes_max=1000, bytes_in_flight_max=4000)
    world.hot.append(A, b"small", bytes(50_000), b"small")
    world.hot.append(B, *[bytes(300)] * 50)
    world.tier.commit_s = 0.1
    await world.finish(world.dispatcher.drain())
    assert world.is_tiered(A)
    assert world.is_tiered(B)
    large = [p for p in world.tier.plans if p.bytes > 4000]
    assert [len(records_of(plan)) for plan in large] == [1]
    assert world.tier.bytes_in_flight_peak == large[0].bytes


async def test_bytes_in_flight_stay_below_their_bound_and_rounds_overlap() -> None:
    world = World(batch_bytes_max=2000, bytes_in_flight_max=10_000)
    for number in range(20):
        world.hot.append(QueueId("Hot", number), *[bytes(100)] * 200)
    world.tier.commit_s = 0.01
    report = await world.finish(world.dispatcher.drain(), step_s=0.01)
    assert report.behind == 0
    assert 5_000 < world.tier.bytes_in_flight_peak <= 10_000
    assert report.bytes_in_flight_peak <= 10_000
    assert world.tier.commits_at_once_peak == 2
    assert (report.bytes_in_flight, report.rounds_in_flight) == (0, 0)


async def test_a_queue_that_is_behind_takes_several_batches_in_one_commit() -> None:
    world = World(batch_messages_max=10, batches_per_commit_max=8)
    world.hot.append(A, *[b"x"] * 200)
    await world.finish(world.dispatcher.drain())
    assert [len(records_of(plan)) for plan in world.tier.plans] == [80, 80, 40]


async def test_references_kept_are_bounded_and_nothing_waits_for_want_of_them() -> None:
    world = World(batch_messages_max=100, references_max=300, batch_age_s_max=100.0)
    queues = [QueueId("Q", number) for number in range(4)]
    for queue in queues:
        world.hot.append(queue, *[b"x"] * 1000)
    await world.finish(world.dispatcher.drain())
    assert all(world.is_tiered(queue) for queue in queues)
    assert world.dispatcher.statistics().references == 0


async def test_one_hot_queue_and_999_thin_ones_no_thin_one_waits_long() -> None:
    world = World(batch_messages_max=64, batch_bytes_max=8192, bytes_in_flight_max=65536)
    world.tier.commit_s = 0.2
    hot = QueueId("Hot", 0)
    thin = [QueueId("Thin", number) for number in range(999)]
    appended: dict[QueueId, float] = {}
    worst_s = 0.0
    world.hot.append(hot, *[bytes(100)] * 5_000)
    async with world.running():
        for step in range(60):
            world.hot.append(hot, *[bytes(100)] * 100)
            for queue in thin[step * 17 % 999 :: 60]:
                if queue not in appended:
                    world.hot.append(queue, b"x")
                    appended[queue] = world.clock.monotonic_s()
            await world.pass_time(0.1, step_s=0.1)
            for queue in [queue for queue in appended if queue in world.tier.queues]:
                worst_s = max(worst_s, world.clock.monotonic_s() - appended.pop(queue))
                thin.remove(queue) if queue in thin else None
        assert world.state(hot).behind > 1000, "the hot queue must be behind all the time"
    # age, one commit under way, its own commit; and the steps of poll and test
    assert 0.5 < worst_s <= 0.5 + 0.2 + 0.2 + 0.3


async def test_progress_is_told_while_draining() -> None:
    world = World(batch_messages_max=10, batches_per_commit_max=1)
    world.hot.append(A, *[b"x"] * 300)  # more rounds than one turn of a waiter takes
    told: list[Progress] = []
    await world.finish(world.dispatcher.drain(on_progress=told.append))
    done = [progress.messages_done for progress in told]
    assert done == sorted(done)
    assert 0 <= done[0] < done[-1] == 300
    assert {progress.messages_total for progress in told[1:]} == {300}


@pytest.mark.parametrize(("backfill", "first"), [("all", 0), ("none", 100), ("10m", 40)])
async def test_backfill_decides_where_a_new_queue_begins(backfill: str, first: int) -> None:
    world = World(backfill=timedelta(minutes=10) if backfill == "10m" else backfill)
    for _ in range(100):
        world.hot.append(A, b"x")
        await world.clock.advance(10.0)
    async with world.running():
        world.hot.append(A, b"after the start")
        world.hot.append(B, b"a new queue")
        await world.pass_time(2.0)
    assert min(world.tier.bodies(A)) == first
    assert max(world.tier.bodies(A)) == 100
    assert world.is_tiered(B)


async def test_where_a_queue_begins_survives_a_death_before_its_first_commit() -> None:
    world = World(backfill="none", batch_age_s_max=5.0)
    world.hot.append(A, b"before the start")
    async with world.running() as worker:
        world.hot.append(A, b"after the start")
        await world.pass_time(1.0)
        worker.cancel()
    world.restart()
    async with world.running():
        await world.pass_time(10.0)
    assert list(world.tier.bodies(A)) == [1]


async def test_its_repr_says_what_it_does() -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.drain())
    assert repr(world.dispatcher) == (
        "<TieredDispatcher idle: 1 queues, 1 messages in 1 rounds, 0 bytes in flight>"
    )
