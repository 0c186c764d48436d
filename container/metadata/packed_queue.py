"""A queue's record as a few hundred bytes, for the many queues that rest at any time. Pure.

`pack` and `unpack` are each other's inverse for every record. The form is never stored: it is
made anew at each start, and may change with each version of this program.

A record is a tuple. First come its numbers: the head, the segments with their
extents, the manifests and the gaps. Behind them come the texts that they refer to by number: names
of objects, which the records of many queues share, and the reasons of gaps. The name of a manifest
follows from its numbers. A record that this form does not fit, such as one with fields of a newer
version, is one text: the JSON of the snapshot.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception
from typing import Any, cast

import orjson

from container.metadata.record_codecs import RECORD_CODECS
from container.metadata.records import NO_EXTRA, CopyState, Extent, Gap, ManifestRef, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import EPOCH_DIGITS, manifest_text
from provider.ranges import QueueOffset

Packed = tuple[bytes | str, ...]
"""What `pack` makes. It holds no references in circles, and the collector of garbage does not look
into it."""

HEAD = Struct("<qqqqqqBHHHH")
"""First and next offset, generation, repacks, `used_below`, whether there is one; how many
segments the CommitLog and the ConsumeQueue have, how many manifests and gaps there are."""
SEGMENT_COUNT = Struct("<H")
_SEGMENT = "<HqqqqBBB"
"""How many extents; base, made at, epoch, sealed at, whether it is sealed, type, state.
Its extents follow."""
_EXTENT = "IIIqqqHI"
"""The fields of `Extent` in order, with a number for the name: 42 bytes."""
MANIFEST = Struct("<q16sBqqIqqqq")
"""Epoch and nonce in its name; type, base, end, segments, bytes, time span, level."""
GAP = Struct("<qqqH")
"""Start, end, found at, number of the reason."""
NONCE_AT = -32
EPOCH_AT = NONCE_AT - 1 - EPOCH_DIGITS
"""Where a manifest's name has its nonce and its epoch."""
EXTENT_FIELDS = len(Extent._fields)
NAMES = slice(Extent._fields.index("object_name"), None, EXTENT_FIELDS)
"""The names in the fields of all extents of a segment."""
_EXTENTS = repeat(Extent)
_new = cast("Callable[[type[Extent], tuple[Any, ...]], Extent]", vars(tuple)["__new__"])
"""Makes an extent as `Extent._make` does, in half of its time."""
_TYPES = tuple(SegmentType)
_STATES = tuple(CopyState)
_QUEUE = RECORD_CODECS.of(Queue)


class _Unfit(ValueError):
    """A record that has no packed form but its JSON."""


@lru_cache(maxsize=256)
def segment_layout(extents: int) -> Struct:
    """How a segment with so many extents lies there."""
    return Struct(_SEGMENT + extents * _EXTENT)


def pack(queue: Queue) -> Packed:
    """A record in its packed form. O(extents), some 10 us."""
    try:
        return _packed(queue)
    except (StructError, ValueError):
        return (orjson.dumps(_QUEUE.encode(queue)).decode(),)


def unpack(packed: Packed, queue: QueueId) -> Queue:
    """The record of `queue` that was packed. O(extents), some 10 us."""
    numbers = packed[0]
    if isinstance(numbers, str):
        return _QUEUE.decode(orjson.loads(numbers))
    first, end, generation, repacks, log_used, units_used, is_used, *counts = HEAD.unpack_from(
        numbers
    )
    at = HEAD.size
    flat_files: list[tuple[Segment, ...]] = []
    for count in counts[:2]:
        segments: list[Segment] = []
        for _ in range(count):
            (extents,) = SEGMENT_COUNT.unpack_from(numbers, at)
            layout = segment_layout(extents)
            segments.append(_unpacked_segment(packed, layout.unpack_from(numbers, at)))
            at += layout.size
        flat_files.append(tuple(segments))
    manifests: list[ManifestRef] = []
    for _ in range(counts[2]):
        manifests.append(_unpacked_manifest(queue, MANIFEST.unpack_from(numbers, at)))
        at += MANIFEST.size
    gaps: list[Gap] = []
    for _ in range(counts[3]):
        gaps.append(_unpacked_gap(packed, GAP.unpack_from(numbers, at)))
        at += GAP.size
    return Queue(
        queue,
        first,
        end,
        flat_files[0],
        flat_files[1],
        tuple(manifests),
        tuple(gaps),
        generation,
        (log_used, units_used) if is_used else None,
        repacks,
        NO_EXTRA,
    )


def bounds(packed: Packed) -> tuple[QueueOffset, QueueOffset, int, int] | None:
    """First and next offset, generation, number of gaps; None where the whole record is wanted."""
    numbers = packed[0]
    if isinstance(numbers, str):
        return None
    head = HEAD.unpack_from(numbers)
    return QueueOffset(head[0]), QueueOffset(head[1]), head[2], head[-1]


def _packed(queue: Queue) -> Packed:
    texts: dict[str, int] = {}
    pieces = [b""]
    for live in (queue.commit_log, queue.consume_queue):
        pieces += [_packed_segment(segment, texts) for segment in live]
    pieces += [_packed_manifest(queue.id, ref) for ref in queue.manifests]
    for gap in queue.gaps:
        _fits(not gap.extra)
        reason = texts.setdefault(gap.reason, len(texts) + 1)
        pieces.append(GAP.pack(gap.start, gap.end, gap.found_ms, reason))
    _fits(not queue.extra)
    pieces[0] = HEAD.pack(
        queue.min_offset,
        queue.next_offset,
        queue.generation,
        queue.repacks,
        *(queue.used_below or (0, 0)),
        queue.used_below is not None,
        len(queue.commit_log),
        len(queue.consume_queue),
        len(queue.manifests),
        len(queue.gaps),
    )
    return (b"".join(pieces), *texts)


def _packed_segment(segment: Segment, texts: dict[str, int]) -> bytes:
    _fits(not segment.extra)
    sealed_ms, extents = segment.sealed_ms, segment.extents
    flat = list[Any](chain.from_iterable(extents))
    flat[NAMES] = [texts.setdefault(name, len(texts) + 1) for name in flat[NAMES]]
    return segment_layout(len(extents)).pack(
        len(extents),
        segment.base,
        segment.created_ms,
        segment.epoch,
        sealed_ms or 0,
        sealed_ms is not None,
        segment.type,
        segment.state,
        *flat,
    )


def _unpacked_segment(packed: Packed, row: Sequence[Any]) -> Segment:
    _, base, made_ms, epoch, sealed_ms, is_sealed, kind, state, *flat = row
    flat[NAMES] = [packed[number] for number in flat[NAMES]]
    column = iter(flat)
    return Segment(
        _TYPES[int(kind)],
        base,
        made_ms,
        epoch,
        tuple(map(_new, _EXTENTS, zip(*[column] * EXTENT_FIELDS, strict=True))),
        sealed_ms if is_sealed else None,
        _STATES[int(state)],
        NO_EXTRA,
    )


def _packed_manifest(queue: QueueId, ref: ManifestRef) -> bytes:
    _fits(not ref.extra)
    name = ref.object_name
    epoch, nonce = int(name[EPOCH_AT : NONCE_AT - 1]), bytes.fromhex(name[NONCE_AT:])
    _fits(name == manifest_text(queue, ref.type, ref.level, ref.base, epoch, nonce.hex()))
    return MANIFEST.pack(
        epoch,
        nonce,
        ref.type,
        ref.base,
        ref.end,
        ref.segments,
        ref.bytes,
        ref.min_timestamp,
        ref.max_timestamp,
        ref.level,
    )


def _unpacked_manifest(queue: QueueId, row: tuple[Any, ...]) -> ManifestRef:
    epoch, nonce, number, base, end, segments, size, first_ms, last_ms, level = row
    kind = _TYPES[int(number)]
    name = manifest_text(queue, kind, level, base, epoch, nonce.hex())
    return ManifestRef(name, kind, base, end, segments, size, first_ms, last_ms, level)


def _unpacked_gap(packed: Packed, row: tuple[Any, ...]) -> Gap:
    start, end, found_ms, reason = row
    return Gap(start, end, str(packed[int(reason)]), found_ms)


def _fits(condition: bool) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise _Unfit
