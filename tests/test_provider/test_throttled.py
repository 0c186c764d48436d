"""Limits of bytes a second, on a clock that the test moves."""

import asyncio

import pytest

from provider.clock import SystemClock
from provider.object_store import Append, AppendingStore
from provider.ranges import ByteRange
from provider.stores.throttled import ThrottledStore, TokenBucket, TransferLimits
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from provider.testing.object_store_contract import AppendingStoreContract


class TestThrottled(AppendingStoreContract):
    @pytest.fixture(params=[0, 1 << 30])
    def store(self, request: pytest.FixtureRequest) -> AppendingStore:
        limits = TransferLimits(request.param, request.param)
        return ThrottledStore(MemoryStore(), clock=SystemClock(), limits=limits)


async def moved_in(clock: ManualClock, bucket: TokenBucket, sizes: list[int]) -> list[float]:
    """When each of several transfers, all asked for now, may go; in seconds from now."""
    began_s = clock.monotonic_s()
    went: list[float] = []

    async def move(size: int) -> None:
        await bucket.take(size)
        went.append(clock.monotonic_s() - began_s)

    async with asyncio.TaskGroup() as group:
        for size in sizes:
            group.create_task(move(size))
            await settle()
        for _ in range(100):
            await clock.advance(0.25)
    return went


async def test_transfers_go_in_order_at_the_limit_and_long_ones_in_one_piece() -> None:
    clock = ManualClock()
    bucket = TokenBucket(clock, lambda: 1000)
    went = await moved_in(clock, bucket, [500, 4000, 1000, 1, 1])
    assert went == pytest.approx([0.0, 0.0, 3.5, 4.5, 4.5], abs=0.01)


async def test_what_was_not_used_is_saved_for_a_second_only() -> None:
    clock = ManualClock()
    bucket = TokenBucket(clock, lambda: 1000)
    await clock.advance(3600)
    went = await moved_in(clock, bucket, [1000, 1000, 1])
    assert went == pytest.approx([0.0, 0.0, 1.0], abs=0.01)


async def test_without_a_limit_nobody_waits() -> None:
    clock = ManualClock()
    assert await moved_in(clock, TokenBucket(clock, lambda: 0), [1 << 40] * 3) == [0.0] * 3


async def test_a_new_limit_holds_at_once_for_those_who_wait() -> None:
    clock = ManualClock()
    limits = TransferLimits(upload_bytes_per_s=10)
    store = ThrottledStore(MemoryStore(), clock=clock, limits=limits)
    await store.create("a", [b"x" * 100_000])
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(store.append([Append("b", 0, (b"y",))]))
        await clock.advance(100)
        assert not waiting.done()
        limits.upload_bytes_per_s = 100_000
        await clock.advance(2.0)
        assert waiting.done()
    limits.upload_bytes_per_s = 0
    await store.create("c", [b"z" * 1_000_000])
    await store.create("d", [b"z"])
    with pytest.raises(ValueError, match="-1 bytes a second"):
        limits.upload_bytes_per_s = -1


async def test_reads_have_a_limit_of_their_own() -> None:
    clock = ManualClock()
    limits = TransferLimits(download_bytes_per_s=1000)
    store = ThrottledStore(MemoryStore(), clock=clock, limits=limits)
    await store.create("a", [bytes(3000)])
    await store.read("a")
    async with asyncio.TaskGroup() as group:
        reads = [
            group.create_task(store.read_many([("a", ByteRange(0, 1000))] * 2)),
            group.create_task(store.read("a", ByteRange(0, 10))),
        ]
        await clock.advance(1.9)
        assert not reads[0].done()
        await clock.advance(0.2)
        assert [read.done() for read in reads] == [True, False]
        await clock.advance(2.0)
        assert reads[1].done()


async def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    clock = ManualClock()
    bucket = TokenBucket(clock, lambda: 1000)
    await bucket.take(2000)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bucket.take(1_000_000))
        await settle()
        waiting.cancel()
        await settle()
    assert clock.sleeping == 0
    assert await moved_in(clock, bucket, [1]) == pytest.approx([1.0], abs=0.01)
