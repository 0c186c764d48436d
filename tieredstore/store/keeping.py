"""When a store opens its tier, and for how long: from when it is wanted first, to the end."""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from provider.clock import Clock
from provider.errors import Closed, Unavailable
from tieredstore.store.cold_side import ColdSide
from tieredstore.store.levels import Level
from tieredstore.store.tiered_reads import TieredReads
from tieredstore.waiting import PASSING, when_usable

LOGGER = logging.getLogger("tieredstore.store")


class TierKeeper:
    """Opens a tier in a task of its own, because it may be wanted by any; for one store block.

    Who waits for it may be cancelled: the tier is opened all the same, is paused until a level is
    set that uses it, and is there for whoever wants it next.

    A tier that is away when the store opens is awaited: it is tried again, and the hot log serves
    alone meanwhile. Only a log that knows where its queues end can do so.
    """

    def __init__(
        self,
        open_cold: Callable[[], AbstractAsyncContextManager[ColdSide]],
        reads: TieredReads,
        *,
        clock: Clock,
        start_s: float,
        knows_ends: Callable[[], bool],
    ) -> None:
        """`reads` is given the tier as long as it is open.

        `start_s`: longest wait for a storage that is away, in seconds; 0: a tier that is awaited
        is tried without end, another one once. `knows_ends`: whether the hot log may be used alone.
        """
        self._open_cold = open_cold
        self._reads = reads
        self._clock = clock
        self._start_s = start_s
        self._knows_ends = knows_ends
        self._starts = False
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self.is_open = asyncio.Event()
        """Set once the tier was opened."""
        self.changing = asyncio.Lock()
        """Held while the level changes, or topics are deleted."""

    def __repr__(self) -> str:
        return f"<TierKeeper of {self._reads.cold!r}, {len(self._waiting)} waiting>"

    async def want(self) -> None:
        """Have the tier opened, if it is not; returns when it is open.

        Raises:
            ConfigError, StoreError: as `open_cold_side`; the next one who wants it tries again.
            Unavailable: it is awaited.
            Closed: the store was closed meanwhile.
        """
        if self._reads.cold is not None:
            return
        if self._reads.awaited is not None:
            raise self._reads.away()
        if self._ended.is_set():
            raise Closed("the store was closed, or another process took its tier", repr(self))
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(opened)
        self._wanted.set()
        await opened

    async def start(self, wanted: Level) -> None:
        """`change_level` to the first level; the tier may be awaited afterwards.

        Raises: as `want`.
        """
        self._starts = True
        try:
            await self.change_level(wanted)
        finally:
            self._starts = False

    async def change_level(self, wanted: Level) -> None:
        """Let reads go by a level, and tier or not; opens the tier if it is needed.

        Raises: as `want`; the level stays as it is.
        """
        async with self.changing:
            if wanted is not Level.DISABLE and self._reads.awaited is None:
                await self.want()
            if (cold := self._reads.cold) is not None:
                (cold.pause if wanted is Level.DISABLE else cold.resume)()
            self._reads.level = wanted

    async def run(self) -> None:
        """Open the tier when it is wanted, and keep it until `end`.

        Raises:
            Fenced: someone newer took the tier.
            StoreError: as `open_cold_side`, of a tier that was open or awaited.
        """
        try:
            while not self._closing.is_set():
                await self._wanted.wait()
                self._wanted.clear()
                try:
                    await self._own()
                except Exception as error:
                    if self._reads.cold is not None or self._reads.awaited is not None:
                        raise
                    self._tell(error)
        finally:
            self._reads.cold = self._reads.awaited = None
            self._tell(Closed("the store was closed", repr(self)))
            self._ended.set()

    async def end(self) -> None:
        """Have the tier closed if it is open: what is there is tiered first."""
        self._closing.set()
        if self._reads.cold is not None:
            await self._ended.wait()

    async def _own(self) -> None:
        async with AsyncExitStack() as stack:
            self._reads.cold = cold = await self._opened(stack)
            if self._reads.awaited is not None:
                self._reads.awaited = None
                LOGGER.info("the tier answers")
                if self._reads.level is not Level.DISABLE:
                    cold.resume()
            self.is_open.set()
            self._tell(None)
            await self._closing.wait()

    async def _opened(self, stack: AsyncExitStack) -> ColdSide:
        """Open the tier, for as long as it takes where it is awaited."""
        may_await = self._starts and self._knows_ends()
        passing = PASSING if self._start_s else (Unavailable,)

        async def attempt() -> ColdSide:
            try:
                return await stack.enter_async_context(self._open_cold())
            except passing as error:
                if may_await and self._reads.awaited is None:
                    LOGGER.warning(
                        "the tier does not answer: until it does, offsets continue from the hot "
                        "log alone, and what only the tier has cannot be read"
                    )
                    self._reads.awaited = error
                    self._tell(None)
                raise

        start_s = self._start_s or (math.inf if may_await else 0.0)
        return await when_usable(attempt, clock=self._clock, start_s=start_s, passing=passing)

    def _tell(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for opened in waiting:
            if opened.done():
                continue  # who waited was cancelled
            if error is None:
                opened.set_result(None)
            else:
                opened.set_exception(error)
