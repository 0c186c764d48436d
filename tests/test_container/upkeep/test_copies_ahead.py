"""Copies side by side: bounds, order, and what becomes of those that nobody takes."""

import asyncio
from random import Random

import pytest

from container.metadata.records import Extent, Segment
from container.move.offload_copies import copies_ahead, copy_bytes
from container.move.offload_plan import Held
from container.names.queue_id import QueueId, SegmentType
from container.options import UpkeepOptions
from provider.errors import Corrupt, StoreError, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import settle

QUEUE = QueueId("T", 0)
OPTIONS = UpkeepOptions(
    repack_bytes_max=100, offload_extent_bytes_max=150, offload_bytes_in_flight_max=600,
    offload_copies_max=4,
)  # fmt: skip


def held(base: int, *lengths: int) -> Held:
    extents: list[Extent] = []
    at = 0
    for length in lengths:
        extents.append(Extent(at, length, 1, QueueOffset(base + at), 1, 1))
        at += length
    return Held(QUEUE, Segment(SegmentType.COMMIT_LOG, base, 1, 1, tuple(extents), sealed_ms=1))


class Copies:
    """Copies that end when they are told to, or fail."""

    def __init__(self) -> None:
        self.gates: dict[int, asyncio.Event] = {}
        self.failing: dict[int, StoreError] = {}
        self.running: set[int] = set()
        self.ended: list[int] = []
        self.abandoned: list[int] = []
        self.bytes_most = 0
        self.sizes: dict[int, int] = {}

    async def copy(self, one: Held) -> int:
        base = one.segment.base
        self.running.add(base)
        self.sizes[base] = copy_bytes(one, OPTIONS)
        self.bytes_most = max(self.bytes_most, sum(self.sizes[n] for n in self.running))
        try:
            await self.gates.setdefault(base, asyncio.Event()).wait()
        finally:
            self.running.discard(base)
        if base in self.failing:
            raise self.failing[base]
        self.ended.append(base)
        return base


def test_a_copy_counts_its_longest_object_twice() -> None:
    assert copy_bytes(held(0, 40, 40, 40, 10), OPTIONS) == 160
    assert copy_bytes(held(0, 130), OPTIONS) == 260
    assert copy_bytes(held(0, 10_000), OPTIONS) == 300, "a long extent goes in pieces"


async def test_copies_are_taken_in_order_whatever_ends_first() -> None:
    wanted, work = [held(number, 10) for number in range(9)], Copies()
    async with copies_ahead(wanted, work.copy, OPTIONS, work.abandoned.append) as copies:
        await settle()
        assert work.running == {0, 1, 2, 3}, "no more than may wait to be taken"
        for number in (3, 1):
            work.gates[number].set()
        await settle()
        assert work.running == {0, 2}
        work.gates[0].set()
        assert await copies.take(wanted[0]) == 0
        for number in range(1, 9):
            await settle()
            work.gates[number].set()
            assert await copies.take(wanted[number]) == number
    assert work.abandoned == []


@pytest.mark.parametrize("seed", range(20))
async def test_bytes_stay_within_their_bound_and_nothing_waits_for_ever(seed: int) -> None:
    rng, work = Random(seed), Copies()
    wanted = [held(number, rng.choice([5, 90, 140, 9_000])) for number in range(30)]
    async with copies_ahead(wanted, work.copy, OPTIONS, work.abandoned.append) as copies:
        for one in wanted:
            call = asyncio.ensure_future(copies.take(one))
            while not call.done():
                await settle()
                work.gates[rng.choice(sorted(work.running))].set() if work.running else None
                await settle()
            assert call.result() == one.segment.base
    assert work.bytes_most <= OPTIONS.offload_bytes_in_flight_max


async def test_a_larger_copy_than_the_bound_goes_alone() -> None:
    work, wanted = Copies(), [held(0, 10), held(1, 10)]
    tight = UpkeepOptions(offload_bytes_in_flight_max=1)
    async with copies_ahead(wanted, work.copy, tight, work.abandoned.append) as copies:
        for number, one in enumerate(wanted):
            await settle()
            assert work.running == {number}
            work.gates[number].set()
            await copies.take(one)


async def test_a_failure_is_raised_in_its_turn_and_the_others_are_forsaken() -> None:
    wanted, work = [held(number, 10) for number in range(9)], Copies()
    work.failing[1] = Corrupt("damaged", "object")

    async def offload() -> None:
        async with copies_ahead(wanted, work.copy, OPTIONS, work.abandoned.append) as copies:
            await settle()
            for number in (1, 0, 2):
                work.gates[number].set()
            await settle()
            assert await copies.take(wanted[0]) == 0
            await copies.take(wanted[1])

    with pytest.raises(Corrupt, match="damaged"):
        await offload()
    assert work.abandoned == [2], "made, and not taken"
    assert not work.running


async def test_an_error_or_a_cancellation_of_the_block_ends_the_copies() -> None:
    wanted = [held(number, 10) for number in range(3)]

    async def offload(work: Copies) -> None:
        async with copies_ahead(wanted, work.copy, OPTIONS, work.abandoned.append) as copies:
            await settle()
            work.gates[1].set()
            await settle()
            if not work.failing:
                await copies.take(wanted[0])
            raise Unavailable("away", "object")

    cancelled, failed = Copies(), Copies()
    failed.failing[9] = Unavailable("never", "object")
    task = asyncio.ensure_future(offload(cancelled))
    await settle(500)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(Unavailable, match="away"):
        await offload(failed)
    for work in (cancelled, failed):
        assert work.abandoned == [1]
        assert not work.running
