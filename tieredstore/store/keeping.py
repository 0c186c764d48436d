"""When a store opens its tier, and for how long: from when it is wanted first, to the end."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from provider.errors import Closed
from tieredstore.store.cold_side import ColdSide
from tieredstore.store.levels import Level
from tieredstore.store.tiered_reads import TieredReads


class TierKeeper:
    """Opens a tier in a task of its own, because it may be wanted by any; for one store block.

    Who waits for it may be cancelled: the tier is opened all the same, is paused until a level is
    set that uses it, and is there for whoever wants it next.
    """

    def __init__(
        self,
        open_cold: Callable[[], AbstractAsyncContextManager[ColdSide]],
        reads: TieredReads,
    ) -> None:
        """`reads` is given the tier as long as it is open."""
        self._open_cold = open_cold
        self._reads = reads
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self.changing = asyncio.Lock()
        """Held while the level changes, or topics are deleted."""

    def __repr__(self) -> str:
        return f"<TierKeeper of {self._reads.cold!r}, {len(self._waiting)} waiting>"

    async def want(self) -> None:
        """Have the tier opened, if it is not; returns when it is open.

        Raises:
            ConfigError, StoreError: as `open_cold_side`; the next one who wants it tries again.
            Closed: the store was closed meanwhile.
        """
        if self._reads.cold is not None:
            return
        if self._ended.is_set():
            raise Closed("the store was closed, or another process took its tier", repr(self))
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(opened)
        self._wanted.set()
        await opened

    async def change_level(self, wanted: Level) -> None:
        """Let reads go by a level, and tier or not; opens the tier if it is needed.

        Raises: as `want`; the level stays as it is.
        """
        async with self.changing:
            if wanted is not Level.DISABLE:
                await self.want()
            if (cold := self._reads.cold) is not None:
                (cold.pause if wanted is Level.DISABLE else cold.resume)()
            self._reads.level = wanted

    async def run(self) -> None:
        """Open the tier when it is wanted, and keep it until `end`.

        Raises:
            Fenced: someone newer took the tier.
            StoreError: as `open_cold_side`, of a tier that was open.
        """
        try:
            while not self._closing.is_set():
                await self._wanted.wait()
                self._wanted.clear()
                try:
                    await self._own()
                except Exception as error:
                    if self._reads.cold is not None:
                        raise
                    self._tell(error)
        finally:
            self._reads.cold = None
            self._tell(Closed("the store was closed", repr(self)))
            self._ended.set()

    async def end(self) -> None:
        """Have the tier closed if it is open: what is there is tiered first."""
        self._closing.set()
        if self._reads.cold is not None:
            await self._ended.wait()

    async def _own(self) -> None:
        async with self._open_cold() as cold:
            self._reads.cold = cold
            self._tell(None)
            await self._closing.wait()

    def _tell(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for opened in waiting:
            if opened.done():
                continue  # who waited was cancelled
            if error is None:
                opened.set_result(None)
            else:
                opened.set_exception(error)
