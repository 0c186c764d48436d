"""A configured store with somebody's plug-ins in it, as programs open it."""

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from dispatcher.statistics import DispatchStatistics
from provider.errors import StoreError
from provider.stores.throttled import TransferLimits
from tieredstore.config.sources import ConfigError
from tieredstore.store.cold_side import ColdSide
from tieredstore.store.forwarding import ForwardingMessageStore
from tieredstore.store.levels import Level
from tieredstore.store.plugins import KEY, PluginContext, StoreLayers, opened
from tieredstore.store.tiered import TieredMessageStore


class PluggedStore(ForwardingMessageStore):
    """Calls of `MessageStore` go to the outermost plug-in, the others to the store that tiers.

    Entering the block raises what `TieredMessageStore` raises, and ConfigError for a plug-in that
    fails. What a plug-in raises later has a note that names it.
    """

    def __init__(self, context: PluginContext, layers: StoreLayers) -> None:
        """Nothing is opened before the block is entered."""
        super().__init__(layers.outermost)
        self._context = context
        self._layers = layers
        self._tiered = tiering_of(context, layers)

    async def __aenter__(self) -> Self:
        """Open the hot log, then the plug-ins, the outermost last."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(opened(self._context, self._layers))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close them in the reverse order; see `TieredMessageStore`."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    @property
    def level(self) -> Level:
        """See `TieredMessageStore.level`."""
        return self._tiered.level

    @property
    def directory(self) -> Path:
        """See `TieredMessageStore.directory`."""
        return self._tiered.directory

    @property
    def location(self) -> str:
        """See `TieredMessageStore.location`."""
        return self._tiered.location

    @property
    def limits(self) -> TransferLimits:
        """See `TieredMessageStore.limits`."""
        return self._tiered.limits

    @property
    def cold(self) -> ColdSide | None:
        """See `TieredMessageStore.cold`. Internal."""
        return self._tiered.cold

    @property
    def awaited(self) -> StoreError | None:
        """See `TieredMessageStore.awaited`."""
        return self._tiered.awaited

    async def set_level(self, level: Level | str | int) -> None:
        """See `TieredMessageStore.set_level`."""
        await self._tiered.set_level(level)

    async def commit_offset(self, topic: str, queue_id: int) -> int:
        """See `TieredMessageStore.commit_offset`."""
        return await self._tiered.commit_offset(topic, queue_id)

    async def set_retention(self, topic: str, hours: int | None) -> None:
        """See `TieredMessageStore.set_retention`."""
        await self._tiered.set_retention(topic, hours)

    def dispatch_statistics(self) -> DispatchStatistics | None:
        """See `TieredMessageStore.dispatch_statistics`."""
        return self._tiered.dispatch_statistics()


def tiering_of(context: PluginContext, layers: StoreLayers) -> TieredMessageStore:
    """The store among the layers that tiers.

    Raises:
        ConfigError: there is none.
    """
    if layers.tiered is None:
        origin = context.config.settings[KEY].origin
        raise ConfigError(
            f"{KEY} ({origin}) names no tieredstore.TieredMessageStore, so nothing would be tiered:"
            " add it, as the last name"
        )
    return layers.tiered
