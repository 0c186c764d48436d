"""A long extent in pieces: each is read, cut between records or units, and an extent by itself.

An import or a large setting may have made extents that are too long for one request and for memory.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

from container.metadata.records import Extent
from container.names.queue_id import SegmentType
from container.record.columns import leading_columns
from container.record.crc32c import crc32c
from container.record.unit import UNIT_BYTES
from container.record.verification import ENDS_INSIDE, walk_records
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset


class Piece(NamedTuple):
    """A part of an extent, with the extent that it is: its place is still that of the whole."""

    extent: Extent
    body: Buffer


class _Cut(NamedTuple):
    """Where a piece ends, and what its records say."""

    length: int
    first_offset: QueueOffset | None
    """None: no record begins in it."""
    next_offset: QueueOffset
    times: tuple[int, int]


async def pieces_of_extent(
    store: ObjectStore,
    kind: SegmentType,
    own: str,
    extent: Extent,
    bytes_max: int,
    *,
    is_lost: bool = False,
) -> AsyncIterator[Piece]:
    """The pieces of an extent in order, the checksum of the whole compared behind the last.

    One read for each, of at most `bytes_max`, and more where a single record is longer: memory is
    twice that. `own`: the segment's own file. `is_lost`: it begins in a gap, and holds no message:
    nor does any of its pieces, which all begin with the same lost one.

    Raises:
        Corrupt: its bytes have another checksum than it says, or are no records.
        OutOfRange, NotFound, Denied, Unavailable: as `ObjectStore.read`.
    """
    name, at, sum_ = extent.object_name or own, 0, 0
    following = _Cut(0, None, extent.first_offset, (extent.min_timestamp, extent.min_timestamp))
    while at < extent.length:
        cut, room = None, bytes_max
        body: Buffer = b""
        while cut is None:  # a record is longer than the room
            end = min(at + room, extent.length)
            place = extent.object_offset
            with cache_use(past=True):
                body = await store.read(name, ByteRange(place + at, place + end))
            is_last = end == extent.length
            if is_lost:
                times = (extent.min_timestamp, extent.max_timestamp)
                cut = _Cut(len(body), extent.first_offset, extent.first_offset, times)
            else:
                cut = _cut(kind, body, extent, at, following, is_last=is_last, name=name)
            room *= 2
        body = memoryview(body)[: cut.length]
        sum_ = crc32c(body, sum_)
        first = following.next_offset if cut.first_offset is None else cut.first_offset
        low, high = cut.times
        yield Piece(
            extent._replace(
                position=extent.position + at,
                length=cut.length,
                crc32c=crc32c(body),
                first_offset=extent.first_offset if not at else first,
                min_timestamp=low,
                max_timestamp=high,
                object_offset=extent.object_offset + at,
            ),
            body,
        )
        at += cut.length
        following = cut
    if extent.crc32c not in {None, sum_}:
        reason = f"CRC-32C of {extent.length} bytes is not that of its extent"
        raise Corrupt(reason, name, extent.object_offset)


def _cut(
    kind: SegmentType,
    body: Buffer,
    extent: Extent,
    at: int,
    before: _Cut,
    *,
    is_last: bool,
    name: str,
) -> _Cut | None:
    """Where the piece that begins `body` ends; None: a record is longer than it. Pure."""
    if kind is not SegmentType.COMMIT_LOG:
        count = len(body) // UNIT_BYTES
        first = QueueOffset(extent.first_offset + at // UNIT_BYTES)
        length = len(body) if is_last else count * UNIT_BYTES
        times = (extent.min_timestamp, extent.max_timestamp)  # units say no times
        return _Cut(length, first, QueueOffset(first + count), times) if length else None
    walk = walk_records(body)
    columns, reason = leading_columns(body, walk.starts, walk.sizes)
    if walk.reason not in {"", ENDS_INSIDE} or reason or (is_last and walk.reason):
        said = reason or walk.reason
        raise Corrupt(f"an extent is no run of records: {said}", name, extent.object_offset + at)
    if not len(walk.starts):
        time_ms = before.times[1]
        none = _Cut(len(body), None, before.next_offset, (time_ms, time_ms))
        return none if is_last else None
    offsets = columns.headers["queue_offset"]
    times = columns.store_timestamps
    length = len(body) if is_last else int(walk.starts[-1] + walk.sizes[-1])
    return _Cut(
        length,
        QueueOffset(int(offsets[0])),
        QueueOffset(int(offsets[-1]) + 1),
        (int(times.min()), int(times.max())),
    )
