"""A tier directory that is removed while a store of our own is open."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from provider.errors import Unavailable
from tests.support.patience import Patience, until

assert (
    tieredstore.LocalMessageStore
)  # its imports read files, so they are not left to a running loop
QUICK = {"tieredStoreGroupCommitTimeout": 10, "tieredStoreShutdownTimeout": 300}


async def tiered(store: Any, end: int) -> None:
    """Return once the queue is tiered up to `end`."""
    patience = Patience("it is not tiered")
    while await store.commit_offset("T", 0) < end:
        patience.look()
        await asyncio.sleep(0.01)


async def test_a_tier_that_is_removed_while_a_store_is_open_is_said_and_ends_in_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tieredstore.store")
    tier = tmp_path / "tier"

    async def run() -> None:
        async with tieredstore.open_store(
            tmp_path / "store", tier, broker="b", settings=QUICK
        ) as store:
            await store.put_message(tieredstore.NewMessage("T", 0, b"one"))
            await tiered(store, 1)
            shutil.rmtree(tier)
            await store.put_message(tieredstore.NewMessage("T", 0, b"two"))
            await until(lambda: bool(caplog.records), Patience("nothing is said"))
            assert await store.commit_offset("T", 0) == 1

    with pytest.raises(Unavailable, match="journal was removed while the store was open"):
        await run()
    assert "nothing reaches the tier at present" in caplog.records[0].getMessage()
    with pytest.raises(tieredstore.ConfigError, match="new_tier=True"):
        async with tieredstore.open_store(tmp_path / "store", tier, broker="b", settings=QUICK):
            pass
    async with tieredstore.open_store(
        tmp_path / "store", tier, broker="b", settings=QUICK, new_tier=True
    ) as store:  # what the hot log has is tiered again
        await tiered(store, 2)
