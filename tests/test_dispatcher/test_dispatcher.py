"""The dispatcher over a hot log and a tier in memory, on a clock that the test moves."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from container.tier_records import QueueId
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from dispatcher.queue_progress import QueueState
from dispatcher.source import HotQueueState
from dispatcher.statistics import Progress
from provider.clock import ManualClock, settle
from provider.errors import Closed, Corrupt, Fenced, Unavailable
from tests.support.fake_hot_log import FakeHotLog
from tests.support.memory_tier import InlineExecutor, MemoryTier

A, B, C = QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Orders", 2)


class World:
    """A clock, a hot log, a tier, and a dispatcher between them."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.hot = FakeHotLog(self.clock)
        self.tier = MemoryTier(self.clock)
        self.options = DispatchOptions(**options)
        self.dispatcher = self.new_dispatcher()

    def new_dispatcher(self) -> TieredDispatcher:
        return TieredDispatcher(
            self.hot, self.tier, options=self.options, clock=self.clock, executor=InlineExecutor()
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


async def test_draining_tiers_everything_from_the_oldest_message_in_one_round() -> None:
    world = World()
    for queue in (A, B, C):
        world.hot.append(queue, *(b"%d" % n for n in range(100)))
    report = await world.finish(world.dispatcher.drain())
    assert all(world.is_tiered(queue) for queue in (A, B, C))
    assert world.tier.calls == {"commit": 1}
    assert (report.messages, report.behind, report.over) == (300, 0, ())
    assert world.hot.released == {A: 100, B: 100, C: 100}


async def test_a_lone_message_is_committed_within_a_second() -> None:
    world = World()
    async with world.running():
        await world.pass_time(1.0)
        world.hot.append(A, b"alone")
        await world.wait_for(lambda: A in world.tier.queues, seconds=1.0)
        assert world.is_tiered(A)


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
    assert [len(plan.records) for plan in large] == [1]
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
    assert [len(plan.records) for plan in world.tier.plans] == [80, 80, 40]


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


async def test_a_failing_queue_does_not_fail_its_neighbours() -> None:
    world = World()
    queues = [QueueId("Q", number) for number in range(50)]
    world.tier.bad_queues = {queues[17]}
    async with world.running():
        for queue in queues:
            world.hot.append(queue, b"x")
        await world.pass_time(5.0)
        good = [queue for queue in queues if queue != queues[17]]
        assert all(world.is_tiered(queue) for queue in good)
        assert world.state(queues[17]).failures > 2
        world.hot.append(good[0], b"y")
        await world.wait_for(lambda: world.is_tiered(good[0]), seconds=1.0)
        world.tier.bad_queues = set()
        await world.wait_for(lambda: world.is_tiered(queues[17]), seconds=31.0)


async def test_an_outage_costs_few_requests_and_memory_and_ends_for_all_at_once() -> None:
    world = World(batch_messages_max=100, batch_bytes_max=10_000, bytes_in_flight_max=100_000)
    queues = [QueueId("Q", number) for number in range(100)]
    async with world.running():
        world.tier.error = Unavailable("down", "tier")
        for _ in range(60):
            for queue in queues:
                world.hot.append(queue, b"x")
            await world.pass_time(5.0, step_s=1.0)
        asked = world.tier.calls["commit"]
        assert asked < 100
        statistics = world.dispatcher.statistics()
        assert statistics.outage
        assert statistics.last_error == "down: path=tier position=0"
        assert statistics.bytes_in_flight == 0
        assert statistics.oldest_age_s > 290
        world.tier.error = None
        await world.wait_for(lambda: all(map(world.is_tiered, queues)), seconds=32.0, step_s=0.5)
        assert world.tier.calls["commit"] - asked < 30


async def test_a_lost_reply_is_settled_and_nothing_is_written_twice() -> None:
    world = World()
    world.tier.lost_reply = 1.0
    world.hot.append(A, b"x", b"y")
    report = await world.finish(world.dispatcher.drain())
    assert world.is_tiered(A)
    assert (report.rounds, report.rounds_failed, world.tier.calls["commit"]) == (1, 0, 1)


async def test_the_same_range_is_tried_again_before_anything_later() -> None:
    world = World()
    async with world.running():
        world.tier.bad_queues = {A}
        world.hot.append(A, b"1", b"2")
        await world.pass_time(2.0)
        world.hot.append(A, b"3")
        await world.pass_time(2.0)
        world.tier.bad_queues = set()
        await world.wait_for(lambda: world.is_tiered(A), seconds=31.0)
    assert [len(plan.records) for plan in world.tier.plans] == [2, 1]


async def test_a_newer_owner_ends_everything() -> None:
    world = World()
    world.tier.error = Fenced("epoch 8 owns this tier", "@journal/42")
    world.hot.append(A, b"x")
    with pytest.raises(Fenced, match="epoch 8"):
        await world.finish(world.dispatcher.run())
    with pytest.raises(Fenced):
        await world.dispatcher.drain()
    await world.dispatcher.close()


async def test_draining_a_tier_that_stays_away_gives_up_after_its_patience() -> None:
    world = World()
    world.tier.error = Unavailable("no route", "tier")
    world.hot.append(A, b"x")
    with pytest.raises(Unavailable, match=r"nothing landed for 20 s \(no route"):
        await world.finish(world.dispatcher.drain(patience_s=20.0))
    assert 20 <= world.clock.monotonic_s() < 21


async def test_draining_beside_run_flushes_at_once() -> None:
    world = World(batch_age_s_max=100.0)
    async with world.running():
        world.hot.append(A, b"x")
        await world.finish(world.dispatcher.drain(), seconds=1.0)
        assert world.is_tiered(A)


async def test_draining_goes_on_when_run_is_cancelled_meanwhile() -> None:
    world = World()
    world.tier.commit_s = 5.0
    world.hot.append(A, b"x")
    async with world.running():
        drain = asyncio.get_running_loop().create_task(world.dispatcher.drain())
        await world.pass_time(1.0)
    await world.finish(asyncio.wait([drain]))
    assert world.is_tiered(A)


async def test_closing_commits_what_is_there_and_ends_run() -> None:
    world = World(batch_age_s_max=100.0)
    async with world.running() as run:
        world.hot.append(A, b"x")
        await world.finish(world.dispatcher.close(), seconds=1.0)
        assert world.is_tiered(A)
        await asyncio.wait([run])
        assert run.exception() is None
    await world.dispatcher.close()
    with pytest.raises(Closed):
        await world.dispatcher.run()


async def test_closing_gives_up_in_time_when_the_tier_stalls() -> None:
    world = World(close_s_max=3.0)
    world.tier.commit_s = 1000.0
    world.hot.append(A, b"x")
    async with world.running() as run:
        await world.finish(world.dispatcher.close(), seconds=3.5)
        await asyncio.wait([run])
    assert world.state(A).behind == 1


async def test_closing_without_run_commits_too() -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.close(), seconds=1.0)
    assert world.is_tiered(A)


async def test_progress_is_told_while_draining() -> None:
    world = World(batch_messages_max=10, batches_per_commit_max=1)
    world.hot.append(A, *[b"x"] * 30)
    told: list[Progress] = []
    await world.finish(world.dispatcher.drain(on_progress=told.append))
    assert [progress.messages_done for progress in told] == [0, 10, 20, 30]
    assert {progress.messages_total for progress in told[1:]} == {30}


async def test_messages_deleted_before_they_were_tiered_leave_a_gap_and_keep_the_rest() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, *[b"%d" % n for n in range(10, 30)])
    world.hot.delete_below(A, 15)
    report = await world.finish(world.dispatcher.drain())
    kept = [*range(10), *range(15, 30)]
    assert sorted(world.tier.bodies(A)) == kept
    (gap,) = world.tier.queues[A].gaps
    assert (gap.start, gap.end) == (10, 15)
    assert report.gaps == 1


async def test_a_queue_deleted_while_it_is_read_leaves_a_gap() -> None:
    world = World(batch_messages_max=10, batches_per_commit_max=1)
    world.tier.commit_s = 1.0
    world.hot.append(A, *[b"x"] * 40)
    async with world.running():
        await world.pass_time(0.5)
        world.hot.delete_below(A, 25)
        await world.wait_for(lambda: 39 in world.tier.bodies(A), seconds=10)
    assert sorted(world.tier.bodies(A)) == [*range(10), *range(25, 40)]


async def test_a_tier_that_is_ahead_stops_its_queue_alone_and_heals_with_the_same_messages() -> (
    None
):
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    world.hot.append(B, b"x")
    await world.finish(world.dispatcher.drain())
    lost = world.hot.queues[A].records[7:]
    world.hot.lose_tail(A, 3)
    world.restart()
    async with world.running():
        world.hot.append(B, b"y")
        await world.pass_time(2.0)
        assert world.is_tiered(B)
        stopped = world.state(A)
        assert stopped.state is QueueState.STOPPED
        assert "tieredstore repair Orders 0 --cut-to-hot" in stopped.reason
        world.hot.queues[A].records += lost
        world.hot.append(A, b"new")
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)


async def test_a_tier_that_is_ahead_stays_stopped_when_other_messages_take_the_offsets() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    before = world.tier.bodies(A)
    world.hot.lose_tail(A, 3)
    world.restart()
    report = await world.finish(world.dispatcher.drain())
    assert [queue.queue for queue in report.over] == [A]
    world.hot.append(A, *[b"other"] * 5)
    report = await world.finish(world.dispatcher.drain())
    assert "different messages at offset 7" in report.over[0].reason
    assert "tieredstore repair Orders 0 --cut-to-hot" in report.over[0].reason
    assert world.tier.bodies(A) == before


async def test_a_damaged_message_stops_its_queue_behind_the_good_ones() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    world.hot.append(B, b"x")
    world.hot.queues[A].damaged_offset = 4
    report = await world.finish(world.dispatcher.drain())
    assert sorted(world.tier.bodies(A)) == [0, 1, 2, 3]
    assert world.is_tiered(B)
    assert [(q.queue, q.state) for q in report.over] == [(A, QueueState.DAMAGED)]
    assert "the record is not one" in report.over[0].reason


async def test_a_damaged_message_that_the_broker_deletes_becomes_a_gap() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    world.hot.queues[A].damaged_offset = 4
    await world.finish(world.dispatcher.drain())
    world.hot.queues[A].damaged_offset = None
    world.hot.delete_below(A, 6)
    await world.finish(world.dispatcher.drain())
    assert sorted(world.tier.bodies(A)) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert "the record is not one" in world.tier.queues[A].gaps[0].reason


async def test_refused_and_damaged_queues_of_the_hot_log_are_reported() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.hot.queues[A].state, world.hot.queues[A].detail = HotQueueState.REFUSED, "a batch queue"
    world.hot.append(B, b"x")
    world.hot.queues[B].state, world.hot.queues[B].detail = HotQueueState.DAMAGED, "torn at 7"
    report = await world.finish(world.dispatcher.drain())
    over = {(q.queue, q.state, q.reason) for q in report.over}
    assert over == {
        (A, QueueState.REFUSED, "a batch queue"),
        (B, QueueState.DAMAGED, "torn at 7"),
    }
    assert world.is_tiered(B)
    assert A not in world.tier.queues


async def test_a_hot_log_that_cannot_be_read_for_a_while_is_tried_again() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.hot.append(B, b"x")
    world.hot.queues[A].error = Unavailable("busy", "store")
    world.hot.poll_error = Unavailable("busy", "store")
    async with world.running():
        await world.pass_time(1.0)
        assert world.tier.queues == {}
        world.hot.poll_error = None
        await world.wait_for(lambda: B in world.tier.queues, seconds=3.0)
        assert A not in world.tier.queues
        world.hot.queues[A].error = None
        await world.wait_for(lambda: world.is_tiered(A), seconds=5.0)


async def test_a_queue_that_the_tier_refuses_for_good_stops_alone() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.tier.error = Corrupt("manifest is torn", "@manifest/7", 12)
    report = await world.finish(world.dispatcher.drain())
    assert report.over[0].reason.startswith("the tier refuses its messages: manifest is torn")


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


async def test_its_repr_says_what_it_does() -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.drain())
    assert repr(world.dispatcher) == (
        "<TieredDispatcher idle: 1 queues, 1 messages in 1 rounds, 0 bytes in flight>"
    )
