"""Stores that a program names by relative paths, before it changes its working directory."""

import asyncio
from pathlib import Path

import pytest

import tieredstore
from tests.support.hot_store import SMALL, new_message
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.plugins import PluggedStore
from tieredstore.store.tiered import TieredMessageStore

COUNT = 100


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "DISABLE"])  # the tier is open before, or not
def test_a_store_of_relative_paths_outlives_a_change_of_directory(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    store = tieredstore.open_store("store", "tier", broker="b", hot=SMALL, level=level)

    async def lived(store: TieredMessageStore | PluggedStore) -> None:
        async with store:
            await put_around(store, elsewhere, monkeypatch)
            await store.set_level("FORCE")
            await store.put_message(new_message(0, topic="Later"))
            found = [message.offset async for message in store.read("Orders")]
            assert found == list(range(COUNT))

    asyncio.run(lived(store))
    assert not list(elsewhere.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "store", "tier"}


def test_a_hot_log_of_a_relative_path_outlives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    store = LocalMessageStore(Path("store"), options=SMALL)

    async def lived() -> None:
        async with store:
            await put_around(store, elsewhere, monkeypatch)
            found = [message.offset async for message in store.read("Orders")]
            assert found == list(range(COUNT))

    asyncio.run(lived())
    assert not list(elsewhere.iterdir())


async def put_around(
    store: LocalMessageStore | TieredMessageStore | PluggedStore,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Put a message, change the directory, and put messages of several files."""
    await store.put_message(new_message(0))
    await asyncio.to_thread(monkeypatch.chdir, elsewhere)
    await store.put_messages([new_message(number) for number in range(1, COUNT)])
