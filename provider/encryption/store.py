"""Store with client-side encryption, and its counterpart that refuses encrypted storage."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from provider.disk_cache.use import cache_use
from provider.encryption.frames import (
    CONTENT_BYTES,
    FRAME_BYTES,
    KEY_ID_BYTES,
    MixedUploads,
    ObjectKey,
    content_bytes,
    frames_of,
    key_ids,
    open_range,
    open_whole,
    seal,
)
from provider.encryption.keys import KEYS_PREFIX, KeyRing, MasterKeys, OlderForm, wraps_in
from provider.errors import Corrupt, Denied, NotFound, OutOfRange
from provider.names import check_name
from provider.object_store import Append, Buffer, ForwardingStore, ObjectEntry, ObjectStore
from provider.ranges import ByteRange

ResultT = TypeVar("ResultT")
ON_LOOP_BYTES_MAX: Final = 256 << 10
"""Most bytes that are encrypted on the event loop, in half a millisecond."""
REPLACED: Final = (MixedUploads, OlderForm)
"""Errors of a read if caches have parts of an object that was replaced. The read is retried."""


class EncryptedStore(ForwardingStore):
    """`ObjectStore` over one that stores ciphertext only (decision 0030).

    Names, lengths and times of objects stay visible. Costs the requests of `inner`, and at first
    two more, which read the data keys. Ranges are widened to whole frames, by less than 8 KiB.
    Objects do not grow in place: `append` is refused. CPU: about 2 s a GB, in threads except for
    small objects. Memory: a copy of the bytes of a call.
    """

    def __init__(self, inner: ObjectStore, masters: MasterKeys, *, held: str) -> None:
        """Wrap `inner`. `held` is a prefix below which every non-empty storage has objects."""
        super().__init__(inner)
        self.ring = KeyRing(inner, masters, held=held)
        """Data keys of the storage."""

    def __repr__(self) -> str:
        return f"<EncryptedStore {self.ring!r}: {self.inner!r}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object, encrypted; `ObjectStore.create`.

        Raises also:
            Denied: the storage holds objects that are not encrypted, or under other keys.
        """
        check_name(name)
        await self.inner.create(name, await self._sealed(name, buffers))

    async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Replace an object, encrypted; `ReplacingStore.replace`. Errors also as `create`."""
        check_name(name)
        await super().replace(name, await self._sealed(name, buffers))

    async def _sealed(self, name: str, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        key_id = await self.ring.for_writing()
        sealing = partial(seal, self.ring.cipher(key_id, name).cipher, key_id, buffers)
        return await _computed(sealing, sum(map(len, buffers)))

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`.

        Raises also:
            Corrupt: the bytes were changed, moved or truncated, are of several uploads or of
                another tier, or are not encrypted.
            Denied: the master key of the object's data key is not configured.
        """
        if wanted is not None:
            (content,) = await self.read_many([(name, wanted)])
            return content
        await self.ring.know_place()
        try:
            return await self._read_whole(name)
        except REPLACED:
            with cache_use(past=True):
                return await self._read_whole(name)

    async def _read_whole(self, name: str) -> Buffer:
        found = await self.inner.read(name)
        key_of = await self._keys(found, name)
        return await _computed(partial(open_whole, key_of, found, name), len(found))

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`. Errors also as `read`."""
        await self.ring.know_place()
        try:
            return await self._read_ranges(wanted)
        except REPLACED:
            with cache_use(past=True):
                return await self._read_ranges(wanted)

    async def _read_ranges(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        widened = [(name, frames_of(part)) for name, part in wanted]
        try:
            found = await self.inner.read_many(widened)
        except NotFound:
            raise
        except OutOfRange as error:
            position = error.position // FRAME_BYTES * CONTENT_BYTES
            raise OutOfRange("the encrypted object ends earlier", error.path, position) from error
        contents: list[Buffer] = []
        for (name, part), frames in zip(wanted, found, strict=True):
            key_of = await self._keys(frames, name)
            opening = partial(open_range, key_of, frames, name, part)
            contents.append(await _computed(opening, len(frames)))
        return contents

    async def size(self, name: str) -> int:
        """Return the object's length in bytes, by the storage's length; `ObjectStore.size`.

        Raises also:
            Corrupt: no encrypted object has this length.
        """
        await self.ring.know_place()
        object_bytes = await self.inner.size(name)
        size_bytes = content_bytes(object_bytes)
        if size_bytes is None:
            raise Corrupt(f"an object of {object_bytes} bytes was not written encrypted", name)
        return size_bytes

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects by name, without the keys; `ObjectStore.list`.

        An object that is not encrypted has the storage's length.
        """
        await self.ring.know_place()
        return [
            entry if size is None else replace(entry, size_bytes=size)
            for entry in await self.inner.list(prefix, after=after)
            if not entry.name.startswith(KEYS_PREFIX)
            for size in [content_bytes(entry.size_bytes)]
        ]

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; `ObjectStore.delete`. Errors also as `KeyRing.know_place`."""
        await self.ring.know_place()
        await super().delete(names)

    async def append(self, appends: Sequence[Append]) -> None:
        """Refuse: objects do not grow in place.

        Raises:
            Denied: always.
        """
        raise Denied("encrypted objects do not grow in place", appends[0].name if appends else "")

    async def _keys(self, frames: Buffer, name: str) -> Callable[[bytes], ObjectKey]:
        if not self.ring.is_bound(bytes(frames[:KEY_ID_BYTES])):
            await self.ring.know(key_ids(frames), name)
        return partial(self._key, name)

    def _key(self, name: str, key_id: bytes) -> ObjectKey:
        return self.ring.cipher(key_id, name)


class RefuseEncryptedStore(ForwardingStore):
    """Wrapper that refuses a storage that is encrypted, for an owner without keys.

    Costs one listing at the first call, and one before the first `create`, as another process may
    have started an encrypted tier meanwhile. Without it, an encrypted tier would seem damaged.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._is_plain = False
        self._has_created = False

    def __repr__(self) -> str:
        return f"<RefuseEncryptedStore: {self.inner!r}>"

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[ResultT]],
        size_bytes: int = 0,
    ) -> ResultT:
        is_first_create = verb == "create" and not self._has_created
        if not self._is_plain or is_first_create:
            wraps = await wraps_in(self.inner)
            if wraps:
                masters = sorted(set(chain.from_iterable(wraps.values())))
                raise Denied(
                    f"it is encrypted: give its master key {' or '.join(masters)}", KEYS_PREFIX
                )
            self._is_plain = True
            self._has_created = self._has_created or is_first_create
        return await super()._call(verb, names, effect, size_bytes)


async def _computed(work: Callable[[], ResultT], size_bytes: int) -> ResultT:
    """Run `work`, in a thread if it is long. Cancelling does not stop the thread."""
    return work() if size_bytes <= ON_LOOP_BYTES_MAX else await asyncio.to_thread(work)
