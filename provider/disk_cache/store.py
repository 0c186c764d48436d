"""Store with a disk cache of the ranges read from immutable objects."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from provider.clock import Clock
from provider.disk_cache.files import CacheFiles, DiskThread, key_of
from provider.disk_cache.use import CacheUse, current_use
from provider.object_store import Buffer, ForwardingStore, ObjectStore
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange

ResultT = TypeVar("ResultT")
KNOWN_SHARE: Final = 0.8
"""Weight of earlier calls in the average response time of the storage."""
DISK_S_MIN: Final = 0.05
"""Shortest timeout of the disk in seconds. It is the storage's response time if that is longer."""
DISK_S_MAX: Final = 1.0
"""Longest timeout of the disk, in seconds, also if the storage is slower."""


class DiskCachedStore(ForwardingStore):
    """Wrapper that serves cached bytes of a range and requests only the rest.

    Readers in `cache_use(past=True)` read the storage itself; cached bytes that differ are dropped.
    Readers in `cache_use` decide when a response is cached: after its verification. A hit costs one
    hop to a thread. Errors of the disk count as misses and are not reported. A call waits for the
    disk about as long as the storage takes to respond, and not at all while an earlier call hangs.
    Memory: the bytes read, a second copy while a range is joined, and the names of files.
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
        """Wrap `inner`.

        Args:
            inner: store to cache.
            directory: place of the cached files.
            scope: identifies this store among others that share the directory.
            is_immutable: whether the object of a name never changes. Only such objects are cached.
            clock: source of time.
            options: bounds of the cache.
        """
        super().__init__(inner)
        self._scope = scope
        self._is_immutable = is_immutable
        self._files = CacheFiles(directory, options, clock)
        self._thread = DiskThread(clock)
        self._clock = clock
        self._storage_s = 0.0
        """Average response time of the storage, in seconds."""
        self.hits = 0
        """Number of ranges that needed no request."""
        self.misses = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<DiskCachedStore {self.hits} hits, {self.misses} misses: {self._files!r}>"

    @property
    def files(self) -> CacheFiles:
        """Files of the cache, for statistics."""
        return self._files

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. Whole objects are not cached."""
        if wanted is None or not self._is_immutable(name):
            return await super().read(name, wanted)
        return (await self.read_many([(name, wanted)]))[0]

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`. One call of `inner` reads all misses."""
        if self._is_closed:
            return await super().read_many(wanted)  # the wrapped store raises `Closed`
        use = current_use()
        if use is not None and use.is_past:
            return await self._read_past(wanted)
        return await self._read_kept(wanted, use)

    async def _read_past(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        found = await super().read_many(wanted)
        fresh = [
            (key_of(self._scope, name), part.start, data)
            for (name, part), data in zip(wanted, found, strict=True)
            if self._is_immutable(name)
        ]
        if fresh:
            await self._on_disk(lambda: [self._files.correct(*one) for one in fresh])
        return found

    async def _read_kept(
        self, wanted: Sequence[tuple[str, ByteRange]], use: CacheUse | None
    ) -> list[Buffer]:
        keys = [
            key_of(self._scope, name) if self._is_immutable(name) else None for name, _ in wanted
        ]
        looked_up = await self._on_disk(
            lambda: [
                [] if key is None else self._files.get(key, part)
                for key, (_, part) in zip(keys, wanted, strict=True)
            ]
        )
        nothing: list[list[tuple[ByteRange, Buffer]]] = [[] for _ in wanted]
        # If the disk is late, everything is requested, and cached if the disk responds by then.
        kept = nothing if looked_up is None else looked_up
        holes = [
            [(name, hole) for hole in _holes(part, [place for place, _ in have])]
            for (name, part), have in zip(wanted, kept, strict=True)
        ]
        if use is not None:
            use.was_used = use.was_used or any(kept)
        asked = [one for some in holes for one in some]
        self.misses += sum(map(bool, holes))
        self.hits += len(wanted) - sum(map(bool, holes))
        answers = iter(await self._asked(asked) if asked else [])
        found: list[Buffer] = []
        fresh: list[tuple[str, ByteRange, Buffer]] = []
        for (name, _), key, have, missing in zip(wanted, keys, kept, holes, strict=True):
            parts = list(have)
            for _, hole in missing:
                data = next(answers)
                parts.append((hole, data))
                if key is not None:
                    fresh.append((name, hole, data))
            parts.sort(key=lambda one: one[0].start)
            found.append(parts[0][1] if len(parts) == 1 else b"".join(data for _, data in parts))
        if fresh and use is not None:
            use.offer(lambda: self._keep(fresh, use))
        return found

    async def _keep(self, fresh: Sequence[tuple[str, ByteRange, Buffer]], use: CacheUse) -> None:
        """Put the parts that `use` allows into files."""
        parts = [
            (
                key_of(self._scope, name),
                one.start,
                memoryview(data)[one.start - part.start :][: one.length],
            )
            for name, part, data in fresh
            for one in use.confirmed(name, part)
        ]
        if parts:
            await self._on_disk(lambda: [self._files.put(*one) for one in parts])

    async def _asked(self, wanted: Sequence[tuple[str, ByteRange]]) -> Sequence[Buffer]:
        """Read from the storage, and measure its response time, which bounds waits for the disk."""
        began_s = self._clock.monotonic_s()
        found = await super().read_many(wanted)
        took_s = self._clock.monotonic_s() - began_s
        known = KNOWN_SHARE if self._storage_s else 0.0
        self._storage_s = known * self._storage_s + (1 - known) * took_s
        return found

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects, also in the cache; `ObjectStore.delete`.

        An object that another process deleted may still be read from the cache. Its reader has
        metadata that name the object, and names of immutable objects are not used again.
        """
        await super().delete(names)
        keys = [key_of(self._scope, name) for name in names if self._is_immutable(name)]
        if keys:
            await self._on_disk(lambda: self._files.drop(keys))

    async def close(self) -> None:
        """Close the wrapped store, and end the thread. The files stay."""
        self._is_closed = True
        try:
            await super().close()
        finally:
            self._thread.end()

    async def _on_disk(self, work: Callable[[], ResultT]) -> ResultT | None:
        """Run a call of the disk; None if it times out, or while an earlier call hangs."""
        if self._is_closed:
            return None
        wait_s = max(DISK_S_MIN, min(DISK_S_MAX, self._storage_s))
        return await self._thread.call(work, wait_s)


def _holes(wanted: ByteRange, have: Sequence[ByteRange]) -> list[ByteRange]:
    """Return the parts of a range outside of the ascending ranges `have`. Pure."""
    edges = [wanted.start, *(edge for part in have for edge in (part.start, part.end)), wanted.end]
    return [
        ByteRange(start, end)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
        if start < end
    ]
