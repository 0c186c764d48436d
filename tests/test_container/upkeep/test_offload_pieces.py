"""Extents that are too long for one request are offloaded in pieces, each an extent by itself."""

from dataclasses import replace

import pytest

from container.metadata.records import Segment
from container.move.offload_plan import pieces_of_extent
from container.names.queue_id import SegmentType
from container.names.rocketmq import segment_name
from container.record.unit import UNIT_BYTES
from container.tier_view import TierReader
from provider.errors import Corrupt, Unavailable
from provider.object_store import Buffer
from provider.ranges import ByteRange
from provider.testing.faulty import Fault
from tests.support.offloaded import (
    BY_HAND,
    OPTIONS,
    away,
    by_hand,
    in_second,
    segments,
)
from tests.support.owned_tier import QUEUE, OwnedWorld, put
from tests.support.store_reader import queue_contents

SMALL = replace(BY_HAND, offload_extent_bytes_max=900, repack_bytes_max=1_200)


async def long_extents(*, packed: bool = False) -> OwnedWorld:
    """A tier whose extents have a thousand bytes and more; the owner has ended."""
    it = OwnedWorld(
        replace(OPTIONS, commit_log_bytes_max=6_000, extent_bytes_max=4_000),
        SMALL,
        packed=packed,
        offloads=True,
    )
    async with it.owned() as tier:
        for _ in range(5):
            await put(tier, 9, body_bytes=150)
    it.kill_all()
    return it


def most(some: list[Segment]) -> int:
    """Bytes of the longest extent."""
    return max(extent.length for one in some for extent in one.extents)


@pytest.mark.parametrize("packed", [False, True])
async def test_long_extents_go_in_pieces_that_read_back(*, packed: bool) -> None:
    it = await long_extents(packed=packed)
    before = await queue_contents(await TierReader.open(it.view()), QUEUE)
    assert most(await segments(it)) > 2_000
    async with it.owned() as tier:
        assert await by_hand(tier)
        found = await segments(it)
        assert await away(it) == len(found)
        assert most(found) <= 1_200
        assert {extent.crc32c is None for one in found for extent in one.extents} == {False}
        known = {extent.object_name for one in found for extent in one.extents}
        assert in_second(it) == known
        assert await it.reads_back() == 45
        after = await queue_contents(await TierReader.open(it.view(), verify=True), QUEUE)
        assert after.offsets == before.offsets
        await it.pass_time(1_500)
        assert await it.reads_back() == 45


async def test_the_pieces_say_what_their_records_do() -> None:
    it = await long_extents()
    found = await segments(it)
    for segment in found:
        own = segment_name(QUEUE, segment.type, segment.base)
        for extent in segment.extents:
            pieces = [
                piece async for piece in pieces_of_extent(it.view(), segment.type, own, extent, 700)
            ]
            parts = [piece.extent for piece in pieces]
            assert [one.position for one in parts] == [
                extent.position + sum(one.length for one in parts[:number])
                for number in range(len(parts))
            ]
            assert parts[-1].end == extent.end
            assert parts[0].first_offset == extent.first_offset
            assert min(one.min_timestamp for one in parts) == extent.min_timestamp
            assert max(one.max_timestamp for one in parts) == extent.max_timestamp
            whole = bytes(await it.view().read(own, ByteRange(extent.object_offset, extent.end)))
            assert b"".join(bytes(piece.body) for piece in pieces) == whole
            if segment.type is SegmentType.COMMIT_LOG:
                firsts = [int.from_bytes(bytes(one.body)[20:28]) for one in pieces]
                assert [one.first_offset for one in parts] == firsts
            else:
                units = [one.position // UNIT_BYTES for one in parts]
                shift = extent.first_offset - extent.position // UNIT_BYTES
                assert [one.first_offset for one in parts] == [shift + unit for unit in units]


async def test_a_record_that_is_longer_than_a_piece_is_one() -> None:
    it = await long_extents()
    log = next(one for one in await segments(it) if one.type is SegmentType.COMMIT_LOG)
    own, extent = segment_name(QUEUE, log.type, log.base), log.extents[0]
    pieces = [piece async for piece in pieces_of_extent(it.view(), log.type, own, extent, 16)]
    assert sum(piece.extent.length for piece in pieces) == extent.length
    firsts = [piece.extent.first_offset for piece in pieces]
    assert firsts == sorted(set(firsts))
    assert len(pieces) > 3


async def test_memory_is_that_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    it = await long_extents()
    longest = 0
    async with it.owned() as tier:
        store = it.stores[-1]
        read = store.read

        async def noting(name: str, wanted: ByteRange | None = None) -> Buffer:
            nonlocal longest
            if wanted is not None and "/COMMIT_LOG/" in name:
                longest = max(longest, wanted.length)
            return await read(name, wanted)

        monkeypatch.setattr(store, "read", noting)
        await by_hand(tier)
    assert 0 < longest <= 1_200


@pytest.mark.leaves_findings(
    "checksum", "body-crc", "record", why="a byte of the first store was changed"
)
@pytest.mark.parametrize("at", [100, 1_500])
async def test_damage_in_a_long_extent_leaves_its_segment_where_it_is(at: int) -> None:
    it = await long_extents()
    log = next(one for one in await segments(it) if one.type is SegmentType.COMMIT_LOG)
    own = segment_name(QUEUE, log.type, log.base)
    it.memory._shared.objects[own][at] ^= 1
    async with it.owned() as tier:
        (done,) = await by_hand(tier)
        assert [(type(error), error.path) for error in done.errors] == [(Corrupt, own)]
        assert len(await segments(it)) - await away(it) == 1
        await it.pass_time(1_500)
        known = {one.object_name for s in await segments(it) for one in s.extents}
        assert in_second(it) <= known


async def test_records_that_are_none_are_damage() -> None:
    it = await long_extents()
    log = next(one for one in await segments(it) if one.type is SegmentType.COMMIT_LOG)
    own, extent = segment_name(QUEUE, log.type, log.base), log.extents[0]
    shifted = extent._replace(object_offset=extent.object_offset + 3, length=extent.length - 3)
    with pytest.raises(Corrupt, match="an extent is no run of records"):
        _ = [piece async for piece in pieces_of_extent(it.view(), log.type, own, shifted, 700)]
    other = extent._replace(crc32c=1)
    with pytest.raises(Corrupt, match="is not that of its extent"):
        _ = [piece async for piece in pieces_of_extent(it.view(), log.type, own, other, 700)]


async def test_pieces_that_failed_are_garbage_and_go() -> None:
    it = await long_extents()
    async with it.owned() as tier:
        it.seconds[-1].faults = (Fault("refused", "create", calls=tuple(range(6, 100))),)
        with pytest.raises(Unavailable):
            await by_hand(tier)
        it.seconds[-1].faults = ()
        await by_hand(tier)
        await it.pass_time(1_500)
        known = {one.object_name for s in await segments(it) for one in s.extents}
        assert in_second(it) == known
        assert await it.reads_back() == 45
