"""Packed form of a resting queue's record, and its conversion from and to snapshot JSON."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception
from sys import intern
from typing import Any, cast

import orjson

from container.metadata.record_codecs import RECORD_CODECS
from container.metadata.records import NO_EXTRA, CopyState, Extent, Gap, ManifestRef, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import EPOCH_DIGITS, manifest_text
from provider.ranges import QueueOffset

Packed = tuple[bytes | str, ...]
"""Packed record, as returned by `pack`. It has no reference cycles, and the garbage collector does
not traverse it."""

HEAD = Struct("<qqqqqqBHHHH")
"""First and next offset, generation, repacks, `used_below`, whether it is set; numbers of CommitLog
segments, ConsumeQueue segments, manifests and gaps."""
SEGMENT_COUNT = Struct("<H")
_SEGMENT = "<HqqqqBBB"
"""Number of extents; base, creation time, epoch, seal time, whether it is sealed, type, state. The
segment's extents follow."""
_EXTENT = "IIIqqqHI"
"""The fields of `Extent` in order, with a number for the name: 42 bytes."""
MANIFEST = Struct("<q16sBqqIqqqq")
"""Epoch and nonce in its name; type, base, end, segments, bytes, time span, level."""
GAP = Struct("<qqqH")
"""Start, end, time of discovery, number of the reason."""
NONCE_AT = -32
EPOCH_AT = NONCE_AT - 1 - EPOCH_DIGITS
"""Positions of the epoch and the nonce in the name of a manifest."""
EXTENT_FIELDS = len(Extent._fields)
NAMES = slice(Extent._fields.index("object_name"), None, EXTENT_FIELDS)
"""The names in the fields of all extents of a segment."""
_EXTENTS = repeat(Extent)
_new = cast("Callable[[type[Extent], tuple[Any, ...]], Extent]", vars(tuple)["__new__"])
"""Creates an extent as `Extent._make` does, in half of its time."""
_TYPES = tuple(SegmentType)
_STATES = tuple(CopyState)
_QUEUE = RECORD_CODECS.of(Queue)


class _Unfit(ValueError):
    """Record whose only packed form is its JSON."""


@lru_cache(maxsize=256)
def segment_layout(extents: int) -> Struct:
    """Layout of a segment with this number of extents."""
    return Struct(_SEGMENT + extents * _EXTENT)


def pack(queue: Queue) -> Packed:
    """Pack a record. O(extents), some 10 us."""
    try:
        return _packed(queue)
    except (StructError, ValueError):
        return (orjson.dumps(_QUEUE.encode(queue)).decode(),)


def unpack(packed: Packed, queue: QueueId) -> Queue:
    """Unpack the record of `queue`. O(extents), some 10 us."""
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
    """First and next offset, generation, number of gaps. None if the record must be unpacked."""
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


_PLAIN_FIELDS = 6
"""Fields of an extent in a segment's own file; the name and the offset in it are left out."""
_NAME_AT = 6
_QUEUE_FIELDS, _SEGMENT_FIELDS, _MANIFEST_FIELDS, _GAP_FIELDS = (
    frozenset(field.name for field in fields(kind) if field.name != "extra")
    for kind in (Queue, Segment, ManifestRef, Gap)
)
_EMPTY: list[Any] = []
_FINISHED = int(CopyState.COPY_FINISHED)


class _Other(Exception):
    """Value that only the codec can handle."""


def raw_of(packed: Packed, queue: QueueId) -> Any:  # noqa: ANN401 - what orjson writes
    """Snapshot form of the packed record of `queue`. O(extents), some 6 us."""
    numbers = packed[0]
    if isinstance(numbers, str):
        return orjson.Fragment(numbers)
    first, end, generation, repacks, log_used, units_used, is_used, *counts = HEAD.unpack_from(
        numbers
    )
    raw: dict[str, Any] = {"id": [*queue], "min_offset": first, "next_offset": end}
    at = HEAD.size
    for name, count in (("commit_log", counts[0]), ("consume_queue", counts[1])):
        if count:
            raw[name] = segments = list[Any]()
            for _ in range(count):
                layout = segment_layout(*SEGMENT_COUNT.unpack_from(numbers, at))
                segments.append(_segment_raw(packed, layout.unpack_from(numbers, at)))
                at += layout.size
    if counts[2]:
        stop = at + counts[2] * MANIFEST.size
        rows = MANIFEST.iter_unpack(memoryview(numbers)[at:stop])
        raw["manifests"] = [_manifest_raw(queue, row) for row in rows]
        at = stop
    if counts[3]:
        rows = GAP.iter_unpack(memoryview(numbers)[at : at + counts[3] * GAP.size])
        raw["gaps"] = [
            {"start": a, "end": b, "reason": packed[reason], "found_ms": found_ms}
            for a, b, found_ms, reason in rows
        ]
    if generation:
        raw["generation"] = generation
    if is_used:
        raw["used_below"] = (log_used, units_used)
    if repacks:
        raw["repacks"] = repacks
    return raw


def _segment_raw(packed: Packed, row: tuple[Any, ...]) -> dict[str, Any]:
    _, base, made_ms, epoch, sealed_ms, is_sealed, kind, state, *flat = row
    raw: dict[str, Any] = {"type": kind, "base": base, "created_ms": made_ms, "epoch": epoch}
    if flat:
        flat[NAMES] = [packed[number] for number in flat[NAMES]]
        column = iter(flat)
        extents = list(zip(*[column] * EXTENT_FIELDS, strict=True))
        if "" in packed[1:]:  # in the segment's own file, perhaps at the expected place
            extents = [
                row[:_PLAIN_FIELDS] if not row[_NAME_AT] and row[-1] == row[0] else row
                for row in extents
            ]
        raw["extents"] = extents
    if is_sealed:
        raw["sealed_ms"] = sealed_ms
    if state != _FINISHED:
        raw["state"] = state
    return raw


def _manifest_raw(queue: QueueId, row: tuple[Any, ...]) -> dict[str, Any]:
    epoch, nonce, kind, base, end, segments, size, first_ms, last_ms, level = row
    raw = {
        "object_name": manifest_text(queue, kind, level, base, epoch, nonce.hex()),
        "type": kind,
        "base": base,
        "end": end,
        "segments": segments,
        "bytes": size,
        "min_timestamp": first_ms,
        "max_timestamp": last_ms,
    }
    if level:
        raw["level"] = level
    return raw


def packed_of(raw: Any) -> tuple[QueueId, Packed] | None:  # noqa: ANN401 - what orjson reads
    """Pack a record from its snapshot form. None if only the codec can decode it.

    That is the case if anything differs from the form written here: a field of a newer version, a
    value of another type, damage, or a record kept as JSON. O(extents), some 10 us.
    """
    try:
        return _packed_raw(raw)
    except (_Other, StructError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _packed_raw(raw: dict[str, Any]) -> tuple[QueueId, Packed]:
    _takes(raw.keys() <= _QUEUE_FIELDS)
    topic, number = raw["id"]
    queue = QueueId(intern(topic), number)
    texts: dict[str, int] = {}
    integers: list[Any] = [number, raw["min_offset"], raw["next_offset"]]
    """Values that must be integers: struct would accept True as 1."""
    pieces = [b""]
    live = _array(raw, "commit_log"), _array(raw, "consume_queue")
    for segments in live:
        pieces += [_packed_raw_segment(segment, texts, integers) for segment in segments]
    manifests, gaps = _array(raw, "manifests"), _array(raw, "gaps")
    pieces += [_packed_raw_manifest(queue, ref, integers) for ref in manifests]
    for gap in gaps:
        _takes(gap.keys() <= _GAP_FIELDS and type(gap["reason"]) is str)
        row = [gap["start"], gap["end"], gap["found_ms"]]
        integers += row
        pieces.append(GAP.pack(*row, texts.setdefault(gap["reason"], len(texts) + 1)))
    used = raw.get("used_below")
    log_used, units_used = (0, 0) if used is None else used
    others = [raw.get("generation", 0), raw.get("repacks", 0), log_used, units_used]
    integers += others
    _takes(set(map(type, integers)) == {int})
    counts = len(live[0]), len(live[1]), len(manifests), len(gaps)
    pieces[0] = HEAD.pack(raw["min_offset"], raw["next_offset"], *others, used is not None, *counts)
    return queue, (b"".join(pieces), *texts)


def _packed_raw_segment(raw: dict[str, Any], texts: dict[str, int], integers: list[Any]) -> bytes:
    _takes(raw.keys() <= _SEGMENT_FIELDS)
    extents = _array(raw, "extents")
    flat: list[Any] = []
    for extent in extents:
        flat += extent
        if len(extent) == _PLAIN_FIELDS:
            flat += ("", extent[0])
        else:
            _takes(len(extent) == EXTENT_FIELDS)
    names = map(intern, flat[NAMES])
    flat[NAMES] = [texts.get(name) or texts.setdefault(name, len(texts) + 1) for name in names]
    sealed_ms, kind, state = raw.get("sealed_ms"), raw["type"], raw.get("state", _FINISHED)
    end_ms = 0 if sealed_ms is None else sealed_ms
    head = [raw["base"], raw["created_ms"], raw["epoch"], end_ms]
    integers += flat
    integers += head
    integers += (kind, state)
    _takes(kind < len(SegmentType) and state < len(CopyState))
    count = len(extents)
    return segment_layout(count).pack(count, *head, sealed_ms is not None, kind, state, *flat)


def _packed_raw_manifest(queue: QueueId, raw: dict[str, Any], integers: list[Any]) -> bytes:
    _takes(raw.keys() <= _MANIFEST_FIELDS)
    name, kind, base, level = raw["object_name"], raw["type"], raw["base"], raw.get("level", 0)
    epoch, nonce = int(name[EPOCH_AT : NONCE_AT - 1]), bytes.fromhex(name[NONCE_AT:])
    row = [
        kind,
        base,
        raw["end"],
        raw["segments"],
        raw["bytes"],
        raw["min_timestamp"],
        raw["max_timestamp"],
        level,
    ]
    integers += row
    _takes(kind < len(SegmentType))
    _takes(name == manifest_text(queue, kind, level, base, epoch, nonce.hex()))
    return MANIFEST.pack(epoch, nonce, *row)


def _array(raw: dict[str, Any], name: str) -> list[Any]:
    found: list[Any] = raw.get(name, _EMPTY)
    _takes(type(found) is list)
    return found


def _takes(condition: bool) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise _Other
