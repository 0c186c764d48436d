"""Manifests: sealed segments that left the snapshot, in immutable objects read on demand."""

from cachetools import LRUCache

from container.journal_entry import Frame, FrameKind
from container.tier_codec import decode_segments
from container.tier_names import ManifestName, parse_name
from container.tier_records import ManifestRef, Segment
from provider.errors import Corrupt
from provider.object_store import Buffer, ObjectStore

CACHED_SEGMENTS_MAX = 4096
"""Segments that a reader keeps; each is about 200 bytes and 150 for every extent."""


def decode_manifest(raw: Buffer, ref: ManifestRef) -> tuple[Segment, ...]:
    """Read a manifest's object and compare it with the reference to it.

    Raises:
        Corrupt: it is damaged, or not what the reference says.
        NewerVersion: a newer program wrote it.
    """
    path = ref.object_name
    frame = Frame.decode(raw, FrameKind.MANIFEST, path=path)
    queue, segments = decode_segments(frame.payload, path=path)
    name = parse_name(path)
    if isinstance(name, ManifestName) and (name.queue, name.nonce) != (queue, frame.nonce.hex()):
        raise Corrupt(f"it says that it is of {queue}", path)
    found = (len(segments), segments[0].base, segments[-1].end) if segments else (0, 0, 0)
    if found != (ref.segments, ref.base, ref.end):
        raise Corrupt(f"it holds {found}, the reference says otherwise", path)
    return segments


class ManifestReader:
    """Loads manifests when somebody needs them, and keeps the last used."""

    def __init__(self, store: ObjectStore, *, segments_max: int = CACHED_SEGMENTS_MAX) -> None:
        self._store = store
        self._cache: LRUCache[str, tuple[Segment, ...]] = LRUCache(segments_max, getsizeof=len)
        self._reads = 0

    def __repr__(self) -> str:
        return f"<ManifestReader: {self._cache.currsize:.0f} segments kept, {self._reads} reads>"

    async def segments(self, ref: ManifestRef) -> tuple[Segment, ...]:
        """The segments of a manifest, in order. One request unless it was used lately.

        Raises:
            NotFound: it was replaced; load the queue's record again.
            Corrupt: it is damaged, or not what `ref` says.
            Unavailable: try again.
        """
        known = self._cache.get(ref.object_name)
        if known is not None:
            return known
        segments = decode_manifest(await self._store.read(ref.object_name), ref)
        self._reads += 1
        if len(segments) <= self._cache.maxsize:
            self._cache[ref.object_name] = segments
        return segments
