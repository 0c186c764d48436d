"""Manifests: sealed segments moved out of the snapshot to immutable objects, read on demand."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from container.errors import BytesMissing
from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.metadata.codec import decoding_segments, encode_segments
from container.metadata.records import ManifestRef, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.tier_objects import ManifestName, parse_name
from container.queue.repack_plan import is_compacted
from provider.clock import RandomSource, at_once, in_turns
from provider.errors import Corrupt, OutOfRange
from provider.object_store import Buffer, ObjectStore

WAITING_FACTOR_MAX = 4
"""Limit of sealed segments in the snapshot that wait for repacking, as a multiple of the usual
limit."""
MANIFEST_SEGMENTS_MAX = 1024
"""Limit of segments in one manifest, about 10 ms of CPU to read or write. It bounds the rewrites of
a trim or an offload for any length of queue. A longer manifest is from a program without this
limit."""
CACHED_EXTENTS_MAX = 100_000
"""Limit of extents that a reader caches, about 200 bytes each."""


def decode_manifest(raw: Buffer, ref: ManifestRef) -> tuple[Segment, ...]:
    """Decode a manifest's object and compare it with the reference to it.

    Raises:
        Corrupt: it is damaged, or contradicts the reference.
        NewerVersion: a newer program wrote it.
    """
    return at_once(_decoding(raw, ref))


def _decoding(raw: Buffer, ref: ManifestRef) -> Generator[None, None, tuple[Segment, ...]]:
    path = ref.object_name
    frame = Frame.decode(raw, FrameKind.MANIFEST, path=path)
    queue, segments = yield from decoding_segments(frame.payload, path=path)
    name = parse_name(path)
    if isinstance(name, ManifestName) and (name.queue, name.nonce) != (queue, frame.nonce.hex()):
        raise Corrupt(f"it is of {queue}", path)
    found = (len(segments), segments[0].base, segments[-1].end) if segments else (0, 0, 0)
    if found != (ref.segments, ref.base, ref.end):
        raise Corrupt(f"it holds {found}, unlike its reference", path)
    return segments


def _weight(segments: tuple[Segment, ...]) -> int:
    return sum(1 + len(segment.extents) for segment in segments)


class ManifestReader:
    """Loads manifests on demand, and caches the most recently used."""

    def __init__(self, store: ObjectStore, *, extents_max: int = CACHED_EXTENTS_MAX) -> None:
        self._store = store
        self._cache: LRUCache[str, tuple[Segment, ...]] = LRUCache(extents_max, getsizeof=_weight)
        self._reads = 0

    def __repr__(self) -> str:
        return f"<ManifestReader: {len(self._cache)} kept, {self._reads} read>"

    async def segments(self, ref: ManifestRef) -> tuple[Segment, ...]:
        """Return the segments of a manifest, in order. One request unless cached.

        Raises:
            BytesMissing: it was replaced or is lost. Load the queue's record again, once.
            Corrupt: it is damaged, or contradicts `ref`.
            Unavailable: retry later.
        """
        known = self._cache.get(ref.object_name)
        if known is not None:
            return known
        try:
            raw = await self._store.read(ref.object_name)
        except OutOfRange as error:
            raise BytesMissing.of(error) from error
        segments = await in_turns(_decoding(raw, ref))
        self._reads += 1
        if _weight(segments) <= self._cache.maxsize:
            self._cache[ref.object_name] = segments
        return segments


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """Contents of the next manifest of a flat file: segments, or older manifests."""

    type: SegmentType
    segments: tuple[Segment, ...] = ()
    merged: tuple[ManifestRef, ...] = ()

    @property
    def level(self) -> int:
        """Level of the manifest to write."""
        return self.merged[0].level + 1 if self.merged else 0


def plan_manifest(
    queue: Queue,
    *,
    sealed_segments_max: int,
    manifests_per_level_max: int,
    compacted_bytes: int | None = None,
) -> ManifestPlan | None:
    """Plan the next manifest of a queue. None if every number is within its limit. Pure.

    `compacted_bytes`: segments whose bytes do not lie in objects of that size stay for a while.

    Each level has at most `manifests_per_level_max` manifests, which one of the next level
    replaces, until one has `MANIFEST_SEGMENTS_MAX` segments. From there on the references grow with
    the history, by one for that number of segments.
    """
    for kind in FLAT_FILES:
        leaving: list[Segment] = []
        for segment in queue.segments(kind):
            if segment.sealed_ms is None or not segment.is_readable:
                break
            leaving.append(segment)
        if len(leaving) > sealed_segments_max and (
            compacted_bytes is None
            or len(leaving) > WAITING_FACTOR_MAX * sealed_segments_max
            or all(is_compacted(one, compacted_bytes) for one in leaving[:sealed_segments_max])
        ):
            return ManifestPlan(kind, segments=tuple(leaving[:sealed_segments_max]))
        refs = [ref for ref in queue.manifests if ref.type == kind]
        for level in sorted({ref.level for ref in refs}):
            alike = [ref for ref in refs if ref.level == level]
            if len(alike) > manifests_per_level_max:
                merged = _fitting(alike, manifests_per_level_max)
                if merged:
                    return ManifestPlan(kind, merged=merged)
    return None


def _fitting(alike: Sequence[ManifestRef], count_max: int) -> tuple[ManifestRef, ...]:
    """Oldest adjacent manifests that fit into one. Empty if no two fit. Pure."""
    for first in range(len(alike) - 1):
        segments, last = 0, first
        while last < min(len(alike), first + count_max):
            segments += alike[last].segments
            if segments > MANIFEST_SEGMENTS_MAX:
                break
            last += 1
        if last - first > 1:
            return tuple(alike[first:last])
    return ()


def name_manifest(
    queue: QueueId, segments: Sequence[Segment], level: int, *, epoch: int, rng: RandomSource
) -> ManifestName:
    """Create a unique manifest name for these segments."""
    nonce = rng.randbytes(NONCE_BYTES).hex()
    return ManifestName(queue, segments[0].type, level, segments[0].base, epoch, nonce)


async def write_manifest(
    store: ObjectStore, name: ManifestName, segments: Sequence[Segment], *, sequence: int
) -> ManifestRef:
    """Write `segments` under a new name, read it back and compare. Two requests.

    Raises:
        Unavailable: the outcome is unknown. Retry under another name.
        Corrupt: the object reads back different from what was written. It must not be used.
    """
    payload = encode_segments(name.queue, segments)
    nonce = bytes.fromhex(name.nonce)
    raw = Frame(FrameKind.MANIFEST, name.epoch, sequence, nonce, payload).encode()
    await store.create(str(name), [raw])
    if bytes(await store.read(str(name))) != raw:
        raise Corrupt("a manifest reads back different from what was written", str(name))
    return ManifestRef(
        str(name),
        name.type,
        segments[0].base,
        segments[-1].end,
        len(segments),
        sum(segment.size for segment in segments),
        min((s.begin_timestamp for s in segments if s.begin_timestamp is not None), default=0),
        max((s.end_timestamp for s in segments if s.end_timestamp is not None), default=0),
        name.level,
    )
