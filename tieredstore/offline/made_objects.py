"""Objects that workers of a rebuild make in an object store: named before, visible to nobody.

A task may run twice, and a worker may die in between: the name of what it makes follows from the
run and the target, so the second time finds the same bytes. Nothing refers to them before the run
publishes where they lie; the parts and index files of a run that died are found by their epoch.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from provider.errors import AlreadyExists, Unavailable
from provider.file_segments import SegmentSlice
from provider.object_store import Buffer, ObjectStore
from provider.stores.packed_segments import NONCE_BYTES, PackedSegments
from tieredstore.offline.sources import store_at
from tieredstore.offline.split import TierPlace


@dataclass(frozen=True, slots=True)
class ObjectSink:
    """Where the objects of one run go. Can be pickled."""

    place: TierPlace
    epoch: int
    """Of the owner that publishes them."""
    run: str
    """What no other run has: 16 random bytes, hexadecimal."""
    index_files: Mapping[str, str] = field(default_factory=dict[str, str])
    """By target, the name of the index file that it becomes, which nothing else has."""
    whole: Mapping[str, str] = field(default_factory=dict[str, str])
    """By target, the closed segment all of whose bytes it has."""
    names_in: str = ""
    """A target that begins with this goes on with the name of its index file; "": none does."""

    def write(self, target: str, raw: Buffer) -> str:
        """Make the object of a target, or find it made; its name. Two requests at most.

        Raises:
            Unavailable: try again; or something else lies under an index file's name.
            Denied: the storage refuses.
        """
        store = store_at(self.place)
        name = self.index_files.get(target, "")
        if self.names_in and target.startswith(self.names_in):
            name = target.removeprefix(self.names_in)
        if name:
            store.call(_create, name, raw)
            return name
        return store.call(self._write_part, target, raw)

    async def _write_part(self, store: ObjectStore, target: str, raw: Buffer) -> str:
        segments = PackedSegments(store, epoch=self.epoch, rng=_NonceOf(f"{self.run}/{target}"))
        segment = self.whole.get(target, "")
        placed = await segments.write([SegmentSlice(segment, 0, (raw,))], alone=bool(segment))
        return placed[0].object_name


class _NonceOf:
    """Gives the same nonce for the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def randbytes(self, n: int, /) -> bytes:
        """`NonceSource.randbytes`."""
        return hashlib.blake2b(self._text.encode(), digest_size=n or NONCE_BYTES).digest()


async def _create(store: ObjectStore, name: str, raw: Buffer) -> None:
    try:
        await store.create(name, [raw])
    except AlreadyExists as error:
        if bytes(await store.read(name)) != raw:
            reason = "another run has made an index file of this name; try again"
            raise Unavailable(reason, name) from error
