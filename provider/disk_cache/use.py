"""Use of the disk cache by a reader: read past it or not, and which responses it may keep.

A reader far above the cache sets this in a context variable, which applies to all calls that it
awaits and to tasks that it starts. `check` reads the storage itself. A reader that finds damage in
cached bytes reads a second time past the cache.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from provider.ranges import ByteRange

ItemT = TypeVar("ItemT")


class Unconfirmed(Exception):
    """Bytes near a range differ from their published checksum. Read the range past caches."""


class CacheUse:
    """Use of caches by one reader. A cache keeps responses of the storage when `keep` is called."""

    __slots__ = ("_confirmed", "_fresh", "confirms", "is_doubtful", "is_past", "was_used")

    def __init__(self, *, is_past: bool, confirms: bool) -> None:
        self.confirms = confirms
        """Whether caches keep only ranges of `confirm`."""
        self._confirmed: dict[str, list[ByteRange]] = {}
        self.is_past = is_past
        """Whether to read past caches. Cached bytes are compared with the responses of the storage,
        and dropped if they differ."""
        self.was_used = False
        """Whether a cache served any bytes."""
        self.is_doubtful = False
        """Whether the reader found damage in any response."""
        self._fresh: list[Callable[[], Awaitable[None]]] = []

    def offer(self, keep: Callable[[], Awaitable[None]]) -> None:
        """Hold a response of the storage. `keep` puts it into its cache."""
        self._fresh.append(keep)

    def confirm(self, name: str, verified: ByteRange) -> None:
        """Allow caches to keep a range of an object, whose checksum matches."""
        ranges = self._confirmed.setdefault(name, [])
        if ranges and ranges[-1].end == verified.start:
            verified = ByteRange(ranges.pop().start, verified.end)
        ranges.append(verified)

    def confirmed(self, name: str, part: ByteRange) -> list[ByteRange]:
        """Return the parts of a range that a cache may keep."""
        if not self.confirms:
            return [part]
        return [
            ByteRange(max(part.start, one.start), min(part.end, one.end))
            for one in self._confirmed.get(name, [])
            if one.start < part.end and part.start < one.end
        ]

    async def keep(self) -> None:
        """Put the responses so far, which the reader has verified, into their caches.

        Drops all of them if the reader found damage in any.
        """
        fresh, self._fresh = self._fresh, []
        if not self.is_doubtful:
            for keep in fresh:
                await keep()


_USE: ContextVar[CacheUse | None] = ContextVar("cache use", default=None)


def current_use() -> CacheUse | None:
    """Return the use of the current reader; None outside of `cache_use`. For caches."""
    return _USE.get()


def doubt() -> None:
    """Report damage in a response: no cache keeps responses of the current use."""
    use = _USE.get()
    if use is not None:
        use.is_doubtful = True


@contextmanager
def cache_use(*, past: bool = False, confirms: bool = False) -> Generator[CacheUse]:
    """Set the use of caches for the block. In a generator it would apply to the caller, too.

    `confirms`: caches keep only what has a published checksum that matches.

    Only `CacheUse.keep` caches responses of the storage. Outside of any block none is kept, because
    the caller does not verify them: an owner compares a few records with its hot log.
    """
    outer = _USE.get()
    is_past = past or (outer is not None and outer.is_past)
    use = CacheUse(is_past=is_past, confirms=confirms)
    token = _USE.set(use)
    try:
        yield use
    finally:
        _USE.reset(token)


async def each_past_caches(items: AsyncGenerator[ItemT]) -> AsyncIterator[ItemT]:
    """Iterate over a generator that reads past caches. The caller's own use does not change."""
    async with aclosing(items):
        while True:
            with cache_use(past=True):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
