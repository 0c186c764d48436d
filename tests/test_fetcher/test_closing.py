"""A fetcher is closed once or more, and one that is dropped while it is open says so."""

import gc
import warnings

import pytest

from fetcher.fetcher import TieredMessageFetcher
from provider.errors import Closed
from tests.support.read_tier import MemoryTier, filled


async def test_closing_is_idempotent() -> None:
    async with TieredMessageFetcher(MemoryTier(filled(40))) as fetcher:
        await fetcher.get_message("g", "T", 0, 0, messages_max=10)
        await fetcher.close()
        assert repr(fetcher).startswith("<TieredMessageFetcher closed: 0 runs")
        with pytest.raises(Closed):
            await fetcher.get_message("g", "T", 0, 0, messages_max=10)
        await fetcher.close()
    await fetcher.close()


async def test_a_fetcher_that_was_never_opened_can_be_closed() -> None:
    await TieredMessageFetcher(MemoryTier(filled(1))).close()


async def test_a_fetcher_dropped_while_open_warns() -> None:
    dropped = [await TieredMessageFetcher(MemoryTier(filled(40))).__aenter__()]
    reads = dropped[0]._reads
    with pytest.warns(ResourceWarning, match="not closed: <TieredMessageFetcher open: 0 runs"):
        dropped.clear()
    await reads.close()


async def test_a_fetcher_dropped_when_closed_or_never_opened_does_not_warn() -> None:
    gc.collect()  # what earlier tests dropped is theirs to answer for
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with TieredMessageFetcher(MemoryTier(filled(40))) as fetcher:
            await fetcher.get_message("g", "T", 0, 0, messages_max=10)
        del fetcher
        TieredMessageFetcher(MemoryTier(filled(40)))
        gc.collect()
