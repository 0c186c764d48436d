"""One read whoever asks: sharing, cancelling, closing, demand before read-ahead."""

import asyncio
import gc
import warnings

import pytest

from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.run_cache import CacheKey
from fetcher.single_flight import Flight, ReadBudget
from fetcher.window import GroupPosition, WindowLimits
from provider.errors import Closed, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock, settle
from tests.support.read_tier import QUEUE, MemoryTier, filled, gone


async def test_readers_at_the_same_place_share_one_read() -> None:
    queue = filled(100)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        queue.open_gate.clear()
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(fetcher.get_message(f"g{n}", "T", 0, 10 + n % 3, messages_max=20))
                for n in range(50)
            ]
            await settle()
            queue.open_gate.set()
        assert {len(call.result().messages) for call in calls} == {20}
        assert fetcher.statistics().misses == 50
    assert queue.requests == {"units": 1, "log": 1}


async def test_cancelling_one_reader_does_not_stop_a_read_that_others_share() -> None:
    queue = filled(100)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        queue.open_gate.clear()
        first = asyncio.create_task(fetcher.get_message("a", "T", 0, 0, messages_max=20))
        await settle()
        second = asyncio.create_task(fetcher.get_message("b", "T", 0, 5, messages_max=20))
        await settle()
        first.cancel()
        await settle()
        assert first.cancelled()
        queue.open_gate.set()
        assert len((await second).messages) == 20
    assert queue.requests == {"units": 1, "log": 1}


async def test_a_read_goes_on_when_everybody_who_waited_is_cancelled() -> None:
    queue = filled(100)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        queue.open_gate.clear()
        call = asyncio.create_task(fetcher.get_message("a", "T", 0, 0, messages_max=20))
        await settle()
        call.cancel()
        queue.open_gate.set()
        await settle()
        await fetcher.get_message("a", "T", 0, 0, messages_max=20)
        assert fetcher.statistics().hits == 1
    assert queue.requests == {"units": 1, "log": 1}


async def test_a_hit_does_not_wait_behind_a_miss() -> None:
    queue = filled(200)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        await fetcher.get_message("a", "T", 0, 0, messages_max=32)
        queue.open_gate.clear()
        miss = asyncio.create_task(fetcher.get_message("b", "T", 0, 150, messages_max=20))
        await settle()
        call = fetcher.get_message("c", "T", 0, 5, messages_max=20)
        with pytest.raises(StopIteration) as stopped:
            call.send(None)  # one step, and it is finished: nothing was waited for
        assert len(stopped.value.value.messages) == 20
        queue.open_gate.set()
        await miss


async def test_closing_ends_the_reads_and_tells_who_waits() -> None:
    queue = filled(100)
    queue.open_gate.clear()
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        call = asyncio.create_task(fetcher.get_message("a", "T", 0, 0, messages_max=20))
        await settle()
    with pytest.raises(Closed):
        await call
    assert queue.waiting == 0
    assert repr(fetcher) == (
        "<TieredMessageFetcher closed: 0 runs of 0 bytes, 0 reads in flight, 0 readers>"
    )


async def test_an_error_in_the_block_is_raised_bare() -> None:
    with pytest.raises(KeyError):
        async with TieredMessageFetcher(MemoryTier(filled(1))):
            raise KeyError


async def test_a_failure_is_raised_for_all_who_wait_and_the_next_call_tries_again() -> None:
    queue = filled(100)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        queue.open_gate.clear()
        queue.faults = [Unavailable("busy", "object")]
        calls = [
            asyncio.create_task(fetcher.get_message(name, "T", 0, 0, messages_max=20))
            for name in "abc"
        ]
        await settle()
        queue.open_gate.set()
        for call in calls:
            with pytest.raises(Unavailable):
                await call
        assert len((await fetcher.get_message("a", "T", 0, 0, messages_max=20)).messages) == 20


async def test_a_reader_that_joined_a_failing_read_ahead_reads_for_itself() -> None:
    queue = filled(5000)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        at = 0
        for _ in range(3):
            at = (await fetcher.get_message("a", "T", 0, at, messages_max=32)).next_offset
        queue.open_gate.clear()
        while fetcher.statistics().reads_in_flight == 0:
            at = (await fetcher.get_message("a", "T", 0, at, messages_max=32)).next_offset
        await settle()
        queue.faults = [Unavailable("busy", "object")]
        window = fetcher.statistics().windows["T/0 a"]
        there = max(end for _, end in queue.unit_reads) - 1
        call = asyncio.create_task(fetcher.get_message("b", "T", 0, there, messages_max=1))
        await settle()
        queue.open_gate.set()
        assert (await call).messages.offsets.tolist() == [there]
        assert fetcher.statistics().reads_failed == 1
        assert fetcher.statistics().windows["T/0 a"] == window // 2


async def test_a_deleted_object_is_looked_for_again_once_with_newer_metadata() -> None:
    old, new = filled(50), filled(50)
    new.min_offset = QueueOffset(10)
    old.faults = [gone()]
    tier = MemoryTier(old)
    tier.newer = [new]
    async with TieredMessageFetcher(tier) as fetcher:
        found = await fetcher.get_message("a", "T", 0, 5, messages_max=20)
        assert (found.status.name, found.next_offset) == ("OFFSET_TOO_SMALL", 10)
        new.faults = [gone(), gone()]
        with pytest.raises(type(gone())):
            await fetcher.get_message("a", "T", 0, 15, messages_max=20)
    assert tier.refreshes == 2


async def test_what_was_cached_of_a_queue_goes_when_its_end_goes_back() -> None:
    queue = filled(50)
    tier = MemoryTier(queue)
    async with TieredMessageFetcher(tier) as fetcher:
        await fetcher.get_message("a", "T", 0, 0, messages_max=50)
        again = filled(20, body_bytes=200)
        tier.queues[QUEUE] = again
        found = await fetcher.get_message("a", "T", 0, 0, messages_max=50)
        assert [bytes(one) for one in found.messages] == [again.record(n) for n in range(20)]


async def test_a_read_of_a_queue_that_is_replaced_meanwhile_is_not_served() -> None:
    queue = filled(50)
    tier = MemoryTier(queue)
    async with TieredMessageFetcher(tier) as fetcher:
        queue.open_gate.clear()
        call = asyncio.create_task(fetcher.get_message("a", "T", 0, 0, messages_max=5))
        await settle()
        tier.queues[QUEUE] = again = filled(50, body_bytes=200)
        fetcher.forget(QUEUE)
        queue.open_gate.set()
        assert bytes((await call).messages[0]) == again.record(0)


async def test_old_runs_go_though_nobody_calls() -> None:
    clock = ManualClock()
    async with TieredMessageFetcher(MemoryTier(filled(50)), clock=clock) as fetcher:
        await fetcher.get_message("a", "T", 0, 0, messages_max=50)
        assert fetcher.statistics().runs_held == 1
        await clock.advance(40)
        assert fetcher.statistics().runs_held == 0


@pytest.mark.parametrize(("offset", "tags"), [(0, None), (0, "A"), (50, None)])
async def test_a_row_of_calls_that_need_not_wait_lets_other_tasks_run(
    offset: int, tags: str | None
) -> None:
    options = FetcherOptions(loop_hold_s_max=0)
    async with TieredMessageFetcher(MemoryTier(filled(50)), options=options) as fetcher:
        await fetcher.get_message("a", "T", 0, offset, messages_max=50, subscription=tags)
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        for _ in range(10_000):
            await fetcher.get_message("a", "T", 0, offset, messages_max=5, subscription=tags)
            if ran.is_set():
                return
        raise AssertionError("hits starve the loop")


async def test_demand_is_granted_before_read_ahead_that_waited_longer() -> None:
    budget = ReadBudget(100)
    key = CacheKey(QUEUE, None)
    limits = WindowLimits(messages_min=32, messages_max=64, step_messages=32)
    ahead = Flight(key, 0, 1, GroupPosition(limits, 0.0))
    order: list[str] = []

    async def take(flight: Flight, name: str) -> None:
        await budget.acquire(flight, 60)
        order.append(name)
        budget.check()

    first = await budget.acquire(Flight(key, 0, 1), 500)
    tasks = [asyncio.create_task(take(ahead, "ahead"))]
    await settle()
    tasks.append(asyncio.create_task(take(Flight(key, 0, 1), "demand")))
    cancelled = asyncio.create_task(take(Flight(key, 0, 1), "cancelled"))
    await settle()
    cancelled.cancel()
    await settle()
    budget.check()
    budget.release(first)
    budget.check()
    await settle()
    assert order == ["demand"]
    budget.release(60)
    await settle()
    assert order == ["demand", "ahead"]
    assert budget.in_use == 60


async def test_closing_is_idempotent() -> None:
    async with TieredMessageFetcher(MemoryTier(filled(40))) as fetcher:
        await fetcher.get_message("g", "T", 0, 0, messages_max=10)
        await fetcher.close()
        assert repr(fetcher).startswith("<TieredMessageFetcher closed: 0 runs")
        with pytest.raises(Closed):
            await fetcher.get_message("g", "T", 0, 0, messages_max=10)
        await fetcher.close()
    await fetcher.close()


async def test_a_fetcher_that_was_never_opened_can_be_closed() -> None:
    await TieredMessageFetcher(MemoryTier(filled(1))).close()


async def test_a_fetcher_dropped_while_open_warns() -> None:
    dropped = [await TieredMessageFetcher(MemoryTier(filled(40))).__aenter__()]
    reads = dropped[0]._reads
    with pytest.warns(ResourceWarning, match="not closed: <TieredMessageFetcher open: 0 runs"):
        dropped.clear()
    await reads.close()


async def test_a_fetcher_dropped_when_closed_or_never_opened_does_not_warn() -> None:
    gc.collect()  # what earlier tests dropped is theirs to answer for
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with TieredMessageFetcher(MemoryTier(filled(40))) as fetcher:
            await fetcher.get_message("g", "T", 0, 0, messages_max=10)
        del fetcher
        TieredMessageFetcher(MemoryTier(filled(40)))
        gc.collect()
