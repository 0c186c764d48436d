"""Whether what is read may come from the disk cache, and whether it did.

A reader far above the cache says so for all that it awaits meanwhile, also in tasks that it begins:
`check` wants the storage itself, and who finds damage in what a disk had kept asks once more.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import TypeVar

ItemT = TypeVar("ItemT")


class CacheUse:
    """What one reader lets caches do, and what they did."""

    __slots__ = ("is_past", "was_used")

    def __init__(self, *, is_past: bool) -> None:
        self.is_past = is_past
        """Whether caches are passed over. What they have kept of the same bytes is compared with
        what the storage answers, and dropped where it differs."""
        self.was_used = False
        """Whether a cache served any bytes."""


_USE: ContextVar[CacheUse | None] = ContextVar("cache use", default=None)


def current_use() -> CacheUse | None:
    """That of whoever reads now, for a cache."""
    return _USE.get()


@contextmanager
def cache_use(*, past: bool = False) -> Generator[CacheUse]:
    """How caches are used within the block: not in a generator, whose caller would have it, too."""
    outer = _USE.get()
    use = CacheUse(is_past=past or (outer is not None and outer.is_past))
    token = _USE.set(use)
    try:
        yield use
    finally:
        _USE.reset(token)


async def each_past_caches(items: AsyncGenerator[ItemT]) -> AsyncIterator[ItemT]:
    """The items of a generator, which reads past caches, and the caller as before."""
    async with aclosing(items):
        while True:
            with cache_use(past=True):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
