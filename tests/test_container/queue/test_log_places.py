"""Where messages lie by the extents is where the units say, and ends of objects are those.

Reads for a disk cache have whole extents.
"""

import pytest

from container.metadata.objects import object_name
from container.metadata.records import Extent, Gap, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions, UpkeepOptions
from container.queue.message_queue_container import pieces_of_segment
from container.queue.positions import log_position, lost_bytes, object_ends
from container.record.checksum import crc32c
from container.tier import Tier
from provider.disk_cache.use import Unconfirmed, cache_use
from provider.ranges import ByteRange, QueueOffset
from tests.support.messages import TOPIC
from tests.support.owned_tier import OwnedWorld, put

QUEUE = QueueId(TOPIC, 0)
SMALL = TierOptions(
    commit_log_bytes_max=20_000, consume_queue_bytes_max=4_000, extent_bytes_max=1_000
)
TIDY = UpkeepOptions(snapshot_entries_max=2, sealed_segments_max=1, interval_s=1.0)


def ends_of(queue: Queue) -> list[int]:
    """Offsets at which what follows lies elsewhere, one after the other."""
    found: list[int] = []
    last: tuple[str, int] | None = None
    for segment in queue.commit_log:
        for extent in segment.extents:
            name = object_name(queue.id, segment, extent)
            if last != (name, extent.object_offset):  # before the first lies what manifests list
                found.append(extent.first_offset)
            last = name, extent.object_offset + extent.length
    return found


async def positions_of(tier: Tier, queue: Queue) -> dict[int, int]:
    """Where each message lies, by the units; and the end."""
    gaps = {n for gap in queue.gaps for n in range(gap.start, gap.end)}
    source = tier.container(QUEUE)
    assert source is not None
    found = {int(queue.next_offset): queue.flat_end(SegmentType.COMMIT_LOG)}
    for offset in set(range(queue.min_offset, queue.next_offset)) - gaps:
        units = await source.units(QueueOffset(offset), QueueOffset(offset + 1))
        found[offset] = int(units["position"][0])
    return found


@pytest.mark.parametrize("packed", [False, True])
async def test_extents_and_units_agree_over_segments_gaps_and_merges(*, packed: bool) -> None:
    world = OwnedWorld(SMALL, TIDY, packed=packed)
    async with world.owned() as tier:
        for number in range(8):
            await put(tier, 60, QUEUE)
            if number == 4:
                await tier.record_gap(QUEUE, QueueOffset(300), QueueOffset(307), "lost")
            queue = tier.queue(QUEUE)
            assert queue is not None
            true = await positions_of(tier, queue)
            told = {n: log_position(queue, QueueOffset(n)) for n in range(queue.next_offset + 1)}
            known = {n: place for n, place in told.items() if place is not None}
            assert known.items() <= true.items()
            first = [one.first_offset for part in queue.commit_log for one in part.extents]
            assert known.keys() == {*first, queue.next_offset}
            ends = ends_of(queue)
            for low in range(0, queue.next_offset, 17):
                for high in range(low, queue.next_offset + 1, 13):
                    wanted = [end for end in ends if low < end < high]
                    assert object_ends(queue, QueueOffset(low), QueueOffset(high)) == wanted
        await world.pass_time(20.0)


@pytest.mark.parametrize("packed", [False, True])
async def test_units_and_records_in_one_round_are_those_of_two(*, packed: bool) -> None:
    world = OwnedWorld(SMALL, TIDY, packed=packed)
    async with world.owned() as tier:
        for _ in range(4):
            await put(tier, 60, QUEUE)
        source = tier.container(QUEUE)
        assert source is not None
        start, end = QueueOffset(60), QueueOffset(240)
        low, high = source.log_position(start), source.log_position(end)
        assert low is not None
        assert high is not None
        span = ByteRange(low, high)
        units, pieces = await source.units_and_pieces(start, end, span)
        assert (units == await source.units(start, end)).all()
        assert b"".join(pieces) == bytes(await source.log(span))
        assert [len(piece) for piece in pieces] == [
            len(piece) for piece in (await source.log_pieces([span]))[0]
        ]


def extent(position: int, first: int, crc: int | None) -> Extent:
    return Extent(position, 10, crc, QueueOffset(first), 1, 1, "", position)


def test_nothing_is_known_where_extents_do_not_say_their_first_message() -> None:
    old = Segment(SegmentType.COMMIT_LOG, 0, 1, 1, (extent(0, 0, None),), sealed_ms=1)
    new = Segment(SegmentType.COMMIT_LOG, 10, 1, 1, (extent(0, 5, 7),))
    queue = Queue(QUEUE, QueueOffset(0), QueueOffset(9), (old,))
    assert log_position(queue, QueueOffset(0)) is None
    assert log_position(queue, QueueOffset(9)) is None
    assert object_ends(queue, QueueOffset(0), QueueOffset(9)) == []
    later = Queue(QUEUE, QueueOffset(0), QueueOffset(9), (old, new))
    assert log_position(later, QueueOffset(0)) is None
    assert log_position(later, QueueOffset(5)) == 10
    assert log_position(later, QueueOffset(9)) == 20
    assert object_ends(later, QueueOffset(0), QueueOffset(9)) == [5]
    empty = Queue(QUEUE, QueueOffset(0), QueueOffset(0))
    assert log_position(empty, QueueOffset(0)) is None
    assert object_ends(empty, QueueOffset(0), QueueOffset(9)) == []


def test_a_log_of_which_all_bytes_have_expired_has_lost_none() -> None:
    gaps = (Gap(QueueOffset(3), QueueOffset(9), "lost", 0),)
    queue = Queue(
        QUEUE,
        QueueOffset(9),
        QueueOffset(9),
        (Segment(SegmentType.COMMIT_LOG, 70, 0, 1),),
        gaps=gaps,
    )
    assert lost_bytes(queue, queue.commit_log) == {}


KIB = 1 << 10
OBJECT = bytes(range(256)) * (8 * KIB)


def extents_of(*lengths: int) -> Segment:
    """A segment of a log in one object."""
    extents: list[Extent] = []
    for length in lengths:
        at = extents[-1].end if extents else 0
        sum_ = crc32c(OBJECT[at : at + length])
        extents.append(Extent(at, length, sum_, QueueOffset(at), 0, 0, "@parts/x", at))
    return Segment(SegmentType.COMMIT_LOG, 0, 0, 1, tuple(extents))


@pytest.mark.parametrize(
    ("lengths", "inside", "read", "kept"),
    [
        ((100 * KIB,), (1000, 2000), (0, 100 * KIB), [(0, 100 * KIB)]),
        ((300 * KIB,), (1000, 2000), (1000, 2000), []),
        ((900 * KIB,), (0, 500 * KIB), (0, 900 * KIB), [(0, 900 * KIB)]),
        ((900 * KIB,), (0, 400 * KIB), (0, 400 * KIB), []),
        ((9, 9, 9), (10, 11), (9, 18), [(9, 18)]),
        ((9, 9, 9), (8, 19), (0, 27), [(0, 27)]),
        ((9, 600 * KIB, 9), (3, 2000), (3, 2000), []),
        ((9, 9, 600 * KIB), (3, 20), (3, 20), [(9, 18)]),
    ],
)
def test_a_read_for_a_cache_has_whole_extents_where_that_is_little(
    lengths: tuple[int, ...],
    inside: tuple[int, int],
    read: tuple[int, int],
    kept: list[tuple[int, int]],
) -> None:
    with cache_use(confirms=True) as use:
        (piece,) = pieces_of_segment(
            QueueId("T", 0), extents_of(*lengths), ByteRange(*inside), verify=False, use=use
        )
        found = piece.cut(OBJECT[piece.read.start : piece.read.end])
        assert (piece.read, bytes(found)) == (ByteRange(*read), OBJECT[slice(*inside)])
        assert use.confirmed("@parts/x", piece.read) == [ByteRange(*one) for one in kept]
        if kept:
            with pytest.raises(Unconfirmed):
                piece.cut(bytes(piece.read.length))
