"""What is open while a tier is read."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from container.lookup.find import KnownCoverage
from container.tier_reader import TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock
from tieredstore.config.effective import Config
from tieredstore.opening import open_reader, read_bytes


@dataclass(frozen=True, slots=True)
class OpenedTier:
    """What is open while the block of a tier runs."""

    config: Config
    """With the cluster and broker that were found."""
    reader: TierReader
    fetcher: TieredMessageFetcher
    known: KnownCoverage = field(default_factory=KnownCoverage)
    """What queries by key found out of the indices."""


async def opened_tier(
    stack: AsyncExitStack,
    config: Config,
    *,
    java_metadata: Path | None,
    damaged: bool,
    clock: Clock,
) -> OpenedTier:
    """Load the metadata and begin to serve; `stack` closes it. Raises as `ReadableTier`."""
    raw = None if java_metadata is None else await asyncio.to_thread(read_bytes, java_metadata)
    reader = await stack.enter_async_context(
        open_reader(config, raw, java_path=str(java_metadata), damaged=damaged)
    )
    fetcher = TieredMessageFetcher(reader, options=config.fetcher, clock=clock)
    await stack.enter_async_context(fetcher)
    return OpenedTier(config, reader, fetcher)
