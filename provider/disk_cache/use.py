"""How a reader uses the disk cache: past it or not, and which of its answers may be kept.

A reader far above the cache says so for all that it awaits meanwhile, also in tasks that it begins:
`check` wants the storage itself, and who finds damage in what a disk had kept asks once more.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import TypeVar

ItemT = TypeVar("ItemT")


class CacheUse:
    """One reader's use of caches. A cache keeps answers of the storage when the reader says so."""

    __slots__ = ("_fresh", "is_doubtful", "is_past", "was_used")

    def __init__(self, *, is_past: bool) -> None:
        self.is_past = is_past
        """Whether caches are passed over. Kept bytes are compared with the storage's answers, and
        dropped where they differ."""
        self.was_used = False
        """Whether a cache served any bytes."""
        self.is_doubtful = False
        """Whether the reader found damage in any answer."""
        self._fresh: list[Callable[[], Awaitable[None]]] = []

    def offer(self, keep: Callable[[], Awaitable[None]]) -> None:
        """Hold back an answer of the storage; `keep` puts it into its cache."""
        self._fresh.append(keep)

    async def keep(self) -> None:
        """Let caches keep the answers so far, which the reader has verified.

        They keep none if the reader found damage in any.
        """
        fresh, self._fresh = self._fresh, []
        if not self.is_doubtful:
            for keep in fresh:
                await keep()


_USE: ContextVar[CacheUse | None] = ContextVar("cache use", default=None)


def current_use() -> CacheUse | None:
    """The use of the current reader, for a cache."""
    return _USE.get()


def doubt() -> None:
    """Report damage in an answer: no cache keeps the answers of the current use."""
    use = _USE.get()
    if use is not None:
        use.is_doubtful = True


@contextmanager
def cache_use(*, past: bool = False) -> Generator[CacheUse]:
    """The use of caches within the block. Not for generators, whose callers would have it, too.

    Answers of the storage are kept by `CacheUse.keep` alone. Outside of any block a cache keeps
    each answer at once: for callers that read whole objects of their own.
    """
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
