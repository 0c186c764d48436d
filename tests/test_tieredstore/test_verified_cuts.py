"""Cuts and comparisons beside rot at rest and disk caches: they believe the storage alone.

A bit of a property flips at rest, or on its way into a disk cache. No body checksum covers it.
"""

import asyncio
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner, Result

import tieredstore
from dispatcher.ports import QueueState
from dispatcher.statistics import DispatchStatistics
from provider.object.store import open_object_store
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli

assert open_object_store  # its imports read files, so they are not left to a running loop, ...
assert tieredstore.Follower  # ... and neither are its

NAMES = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return f"memory://verified-cuts/{tmp_path.name}"


def filled(directory: Path, *, first_other: int = 50) -> FakeBroker:
    broker = FakeBroker(directory)
    for number in range(50):
        body = b"message %02d of fifty" if number < first_other else b"another %02d of fifty"
        broker.put("Orders", 0, body % number, keys=f"key-{number:02d}-x")
    return broker


async def drained(store: Path, url: str, **settings: str) -> DispatchStatistics:
    async with tieredstore.follow(
        store, url, cluster="C", broker="broker-a", settings=settings
    ) as follower:
        await follower.drain()
        return follower.statistics()


async def keys(url: str, **settings: str) -> list[str]:
    async with tieredstore.open(url, settings=settings) as tier:
        return [one.properties["KEYS"] async for one in tier.messages("Orders", 0)]


def flip(url: str, what: bytes) -> None:
    """Flip a bit of the byte before `what` in each part of the tier that has it."""
    found = 0
    for name, body in fsspec.filesystem("memory").store.items():
        raw = body.getvalue()
        at = raw.find(what) - 1
        if url.removeprefix("memory:/") in name and "/@parts/" in name and at > 0:
            body.seek(at)
            body.write(bytes([raw[at] ^ 1]))
            found += 1
    assert found


def run(url: str, *words: object, cache: Path | None = None) -> Result:
    kept = () if cache is None else ("-D", f"readAheadDiskCachePath={cache}")
    return CliRunner().invoke(cli, ["--tier", url, *NAMES, *kept, *map(str, words)])


def test_a_cut_gives_damaged_bytes_no_checksum_of_their_own(tmp_path: Path, url: str) -> None:
    filled(tmp_path / "store")
    asyncio.run(drained(tmp_path / "store", url))
    flip(url, b"ey-10-x")
    other = filled(tmp_path / "other", first_other=40)
    assert run(url, "check").exit_code == 1
    store = ("-D", f"storePathRootDir={other.directory}")
    cut = run(url, *store, "repair", "Orders", 0, "--cut-to-hot", "--yes")
    assert cut.exit_code == 1
    assert "@parts/" in cut.output
    assert "put a sound copy back" in cut.output
    checked = run(url, "check")
    assert checked.exit_code == 1, "the damage is still known"
    assert "checksum" in checked.output
    flip(url, b"ey-10-x")
    assert run(url, *store, "repair", "Orders", 0, "--cut-to-hot", "--yes").exit_code == 0
    assert run(url, "check").exit_code == 0
    assert (asyncio.run(keys(url)))[10] == "key-10-x"


def test_a_cut_reads_past_a_cache_that_kept_a_damaged_answer(tmp_path: Path, url: str) -> None:
    cache = tmp_path / "cache"
    filled(tmp_path / "store")
    asyncio.run(drained(tmp_path / "store", url))
    flip(url, b"ey-10-x")
    with pytest.raises(tieredstore.Corrupt, match="CRC-32C"):
        asyncio.run(keys(url, readAheadDiskCachePath=str(cache)))
    flip(url, b"ey-10-x")
    other = filled(tmp_path / "other", first_other=40)
    store = ("-D", f"storePathRootDir={other.directory}")
    cut = run(url, *store, "repair", "Orders", 0, "--cut-to-hot", "--yes", cache=cache)
    assert cut.exit_code == 0, cut.output
    assert run(url, "check").exit_code == 0, "the published checksum is that of the storage"


@pytest.mark.parametrize("what", [b"ey-49-x", b"essage 49 of"])
def test_an_owner_whose_cache_kept_a_damaged_answer_stops_no_sound_queue(
    tmp_path: Path, url: str, what: bytes
) -> None:
    cache = tmp_path / "cache"
    broker = filled(tmp_path / "store")
    asyncio.run(drained(tmp_path / "store", url))
    flip(url, what)
    lying = asyncio.run(drained(tmp_path / "store", url, readAheadDiskCachePath=str(cache)))
    (halted,) = lying.halted
    assert halted.state is QueueState.DAMAGED, "damage is not another message"
    assert "CRC" in halted.reason
    flip(url, what)
    sound = asyncio.run(drained(tmp_path / "store", url, readAheadDiskCachePath=str(cache)))
    assert not sound.halted
    assert not sound.last_error
    store = ("-D", f"storePathRootDir={broker.directory}")
    said = run(url, *store, "repair", "Orders", 0, "--cut-to-hot", "--yes", cache=cache)
    assert "nothing is to be cut" in said.output
    assert len(asyncio.run(keys(url))) == 50
