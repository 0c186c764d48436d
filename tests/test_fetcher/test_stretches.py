"""Runs begin and end where large buffers do, and hold the same messages however they are cut."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from container.queue.message_queue_container import ExtentChecks
from container.record.header import Coda
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.plan import ALONE_BYTES_MIN, stretches_of
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import ByteRange
from tests.support.read_tier import MemoryQueue, MemoryTier

BODY_BYTES = 100_000


class CutQueue(MemoryQueue):
    """Its log lies in objects, so that a read gives a buffer of each."""

    cuts: Sequence[int] = ()

    async def log_pieces(
        self, wanted: Sequence[ByteRange], checks: ExtentChecks | None = None
    ) -> list[list[Buffer]]:
        whole = await self.log_many(wanted)
        found: list[list[Buffer]] = []
        for part, raw in zip(wanted, whole, strict=True):
            inside = [cut - part.start for cut in self.cuts if part.start < cut < part.end]
            edges = [0, *inside, part.length]
            found.append([bytes(raw[start:end]) for start, end in pairwise(edges)])
        return found


def large(messages: int, cut_after: Sequence[int]) -> CutQueue:
    """Messages of 100 kB, with an object's end after each of these."""
    queue = CutQueue()
    queue.fill(messages, body_bytes=BODY_BYTES)
    size = len(queue.commit_log) // messages
    queue.cuts = [size * number for number in cut_after]
    return queue


def columns(sizes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.array(sizes, np.int64)
    return np.cumsum(lengths) - lengths, lengths


def test_a_large_buffer_is_neither_copied_nor_joined() -> None:
    first, second, small = (bytes(size) for size in (2 << 20, ALONE_BYTES_MIN, 100))
    positions, sizes = columns([1 << 20, 1 << 20, ALONE_BYTES_MIN, 60, 40])
    found = stretches_of(
        [ByteRange(0, (3 << 20) + 100)], [[first, second, small]], positions, sizes
    )
    assert [(one.first, one.stop) for one in found] == [(0, 2), (2, 3), (3, 5)]
    for one, buffer in zip(found, (first, second, small), strict=True):
        assert memoryview(one.data).obj is buffer
    assert found[0].starts.tolist() == [0, 1 << 20]
    assert found[2].starts.tolist() == [0, 60]


def test_small_buffers_are_joined_and_so_are_the_two_sides_of_a_record() -> None:
    positions, sizes = columns([100, 100])
    (one,) = stretches_of(
        [ByteRange(0, 100), ByteRange(100, 200)], [[b"a" * 100], [b"b" * 100]], positions, sizes
    )
    assert one.data == b"a" * 100 + b"b" * 100
    half = ALONE_BYTES_MIN + 8
    positions, sizes = columns([ALONE_BYTES_MIN, 16, ALONE_BYTES_MIN])
    (one,) = stretches_of([ByteRange(0, 2 * half)], [[b"a" * half, b"b" * half]], positions, sizes)
    assert (one.first, one.stop, len(one.data)) == (0, 3, 2 * half)


@given(st.data())
def test_each_message_lies_where_it_is_said_to(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 900_000), min_size=1, max_size=12))
    positions, lengths = columns(sizes)
    total = int(lengths.sum())
    log = np.arange(total, dtype=np.uint32).astype(np.uint8).tobytes()
    middles = st.sampled_from([*positions.tolist(), *(positions + lengths // 2).tolist()])
    cuts = data.draw(st.sets(middles))
    edges = sorted({0, total, *cuts})
    parts: list[Buffer] = [log[start:end] for start, end in pairwise(edges)]
    found = stretches_of([ByteRange(0, total)], [parts], positions, lengths)
    assert [one.first for one in found] == [0, *(one.stop for one in found[:-1])]
    assert found[-1].stop == len(sizes)
    for one in found:
        for number, start in enumerate(one.starts.tolist(), one.first):
            at, size = int(positions[number]), sizes[number]
            assert bytes(memoryview(one.data)[start : start + size]) == log[at : at + size]


@pytest.mark.parametrize("cached", [True, False])
async def test_one_read_over_several_objects_makes_several_runs(*, cached: bool) -> None:
    queue = large(40, [15, 16, 30])
    options = FetcherOptions(cache_enabled=cached)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=40, bytes_max=None)
        fetcher.check()
        assert [bytes(one) for one in found.messages] == [queue.record(one) for one in range(40)]
        seen = fetcher.statistics()
    assert (queue.requests["units"], queue.requests["log"]) == (1, 1)
    assert seen.runs_read == (4 if cached else 1)


async def test_damage_behind_the_first_object_leaves_what_precedes_it() -> None:
    queue = large(40, [15, 30])
    size = len(queue.commit_log) // 40
    queue.commit_log[size * 20 + 200] ^= 1
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=40, bytes_max=None)
        assert found.messages.offsets.tolist() == list(range(20))
        with pytest.raises(Corrupt):
            await fetcher.get_message("g", "T", 0, 20, messages_max=40, bytes_max=None)
        fetcher.check()


@pytest.mark.parametrize("bad", [0, 15])
async def test_damage_at_the_start_of_an_object_is_named_there(bad: int) -> None:
    queue = large(40, [15, 30])
    size = len(queue.commit_log) // 40
    queue.commit_log[size * bad + 4] ^= 1
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        if bad:
            found = await fetcher.get_message("g", "T", 0, 0, messages_max=40, bytes_max=None)
            assert found.messages.offsets.tolist() == list(range(bad))
        with pytest.raises(Corrupt) as caught:
            await fetcher.get_message("g", "T", 0, bad, messages_max=40, bytes_max=None)
        assert caught.value.position == size * bad


async def test_a_coda_in_a_later_object_is_passed_over() -> None:
    queue = large(15, [])
    position = len(queue.commit_log)
    queue.commit_log += Coda(1).encode()
    queue.fill(15, body_bytes=BODY_BYTES)
    queue.consume_queue[15 * 20 : 15 * 20 + 8] = position.to_bytes(8, "big")
    queue.cuts = [position]
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=30, bytes_max=None)
        assert found.messages.offsets.tolist() == list(range(30))
        assert bytes(found.messages[16]) == queue.record(16)
        assert found.messages.joined() == b"".join(found.messages)
        fetcher.check()
