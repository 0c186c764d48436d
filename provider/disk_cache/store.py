"""A store that keeps on disk what was read of immutable objects: the run cache of a far tier."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from provider.clock import Clock
from provider.disk_cache.entry import key_of
from provider.disk_cache.files import CacheFiles
from provider.disk_cache.use import CacheUse, current_use
from provider.forwarding import ForwardingStore
from provider.object_store import Buffer, ObjectStore
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange

ResultT = TypeVar("ResultT")


class DiskCachedStore(ForwardingStore):
    """Wrap a store; what a range has on disk costs no request, and only the rest is asked for.

    Whoever reads with `cache_use(past=True)` reads the storage itself; what is kept of the same
    bytes goes if it differs. A hit costs one hop to a thread. What fails on the disk is a miss, and
    is never told: the store below has everything. Memory: what is read, once more while a range is
    put together; the names of files.
    """

    def __init__(
        self,
        inner: ObjectStore,
        directory: Path,
        *,
        scope: str,
        is_immutable: Callable[[str], bool],
        clock: Clock,
        options: DiskCacheOptions,
    ) -> None:
        """Keep bytes of objects that are `is_immutable`: their names never stand for other bytes.

        `scope` tells the objects of this store from those of others in one directory.
        """
        super().__init__(inner)
        self._scope = scope
        self._is_immutable = is_immutable
        self._files = CacheFiles(directory, options, clock)
        self._thread = ThreadPoolExecutor(1, "tieredstore-disk-cache")
        self.hits = 0
        """Ranges that needed no request."""
        self.misses = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<DiskCachedStore {self.hits} hits, {self.misses} misses: {self._files!r}>"

    @property
    def files(self) -> CacheFiles:
        """The files, for statistics."""
        return self._files

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. Whole objects are not cached."""
        if wanted is None or not self._is_immutable(name):
            return await super().read(name, wanted)
        return (await self.read_many([(name, wanted)]))[0]

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`. Holes are asked for in one call below."""
        if self._is_closed:
            return await super().read_many(wanted)  # which refuses
        use = current_use()
        if use is not None and use.is_past:
            return await self._read_past(wanted)
        return await self._read_kept(wanted, use)

    async def _read_past(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        found = await super().read_many(wanted)
        told = [
            (key_of(self._scope, name), part.start, data)
            for (name, part), data in zip(wanted, found, strict=True)
            if self._is_immutable(name)
        ]
        if told and not self._is_closed:
            await self._in_thread(lambda: [self._files.correct(*one) for one in told])
        return found

    async def _read_kept(
        self, wanted: Sequence[tuple[str, ByteRange]], use: CacheUse | None
    ) -> list[Buffer]:
        keys = [
            key_of(self._scope, name) if self._is_immutable(name) else None for name, _ in wanted
        ]
        kept = await self._in_thread(
            lambda: [
                [] if key is None else self._files.get(key, part)
                for key, (_, part) in zip(keys, wanted, strict=True)
            ]
        )
        holes = [
            [(name, hole) for hole in _holes(part, [place for place, _ in have])]
            for (name, part), have in zip(wanted, kept, strict=True)
        ]
        if use is not None:
            use.was_used = use.was_used or any(kept)
        asked = [one for some in holes for one in some]
        self.misses += sum(map(bool, holes))
        self.hits += len(wanted) - sum(map(bool, holes))
        answers = iter(await super().read_many(asked) if asked else [])
        found: list[Buffer] = []
        fresh: list[tuple[str, int, Buffer]] = []
        for key, have, missing in zip(keys, kept, holes, strict=True):
            parts = list(have)
            for _, hole in missing:
                data = next(answers)
                parts.append((hole, data))
                if key is not None:
                    fresh.append((key, hole.start, data))
            parts.sort(key=lambda one: one[0].start)
            found.append(parts[0][1] if len(parts) == 1 else b"".join(data for _, data in parts))
        if fresh and not self._is_closed:
            await self._in_thread(lambda: [self._files.put(*one) for one in fresh])
        return found

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects, here too; `ObjectStore.delete`.

        What another process deletes may still be read here: whoever reads it has metadata that
        name it, and they say what it is.
        """
        await super().delete(names)
        keys = [key_of(self._scope, name) for name in names if self._is_immutable(name)]
        if keys and not self._is_closed:
            await self._in_thread(lambda: self._files.drop(keys))

    async def close(self) -> None:
        """Close the wrapped store, and end the thread; what is on disk stays."""
        self._is_closed = True
        try:
            await super().close()
        finally:
            self._thread.shutdown(wait=False)  # to cancel what waits would cancel its callers

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _holes(wanted: ByteRange, have: Sequence[ByteRange]) -> list[ByteRange]:
    """What of a range lies in none of some parts of it, which are in order."""
    edges = [wanted.start, *(edge for part in have for edge in (part.start, part.end)), wanted.end]
    return [
        ByteRange(start, end)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
        if start < end
    ]
