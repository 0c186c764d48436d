"""A disk cache of an object store: what it keeps hides no damage, and stays none for good."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import tieredstore
from fetcher.loading import load_runs
from fetcher.reads import RunReads
from fetcher.run_cache import CachedRun
from fetcher.single_flight import Flight
from fetcher.source import TierQueue
from provider.disk_cache.store import DiskCachedStore
from provider.disk_cache.use import cache_use
from provider.object.store import open_object_store
from tests.support.fake_broker import FakeBroker
from tests.support.patience import HANGS_AFTER_S
from tieredstore.config.effective import Config

assert open_object_store  # its imports read files, so they are not left to a running loop, ...
assert tieredstore.Follower  # ... and neither are its

BROKER: dict[str, Any] = {"cluster": "C", "broker": "broker-a"}
MESSAGES = 50
BODIES = [b"message %02d of fifty" % number for number in range(MESSAGES)]


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tier with one queue."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    broker, url = FakeBroker(tmp_path / "store"), f"memory://bucket/{tmp_path.name}"
    for number, body in enumerate(BODIES):
        broker.put("Orders", 0, body, keys=f"key-{number}")
    async with tieredstore.follow(tmp_path / "store", url, **BROKER) as follower:
        await follower.drain()
    return url


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("provider.disk_cache.store.DISK_S_MIN", HANGS_AFTER_S)
    fsspec.filesystem("memory").store.clear()
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def cached(tmp_path: Path) -> dict[str, Any]:
    """The setting that keeps what was read on disk."""
    return {"readAheadDiskCachePath": str(tmp_path / "cache")}


def damage(number: int) -> None:
    """Turn a bit of a body in storage; once more turns it back."""
    for body in fsspec.filesystem("memory").store.values():
        raw = body.getvalue()
        at = raw.find(BODIES[number][1:]) - 1
        if at > 0:
            body.seek(at)
            body.write(bytes([raw[at] ^ 1]))


async def read(url: str, cached: dict[str, Any]) -> list[bytes]:
    async with tieredstore.open(url, settings=cached) as tier:
        return [one.body async for one in tier.messages("Orders", 0)]


async def test_check_reads_the_storage_itself(url: str, cached: dict[str, Any]) -> None:
    assert await read(url, cached) == BODIES
    damage(7)
    async with tieredstore.open(url, settings=cached) as tier:
        kinds = {finding.finding async for finding in tier.check()}
    assert "checksum" in kinds


@pytest.mark.parametrize("number", [0, 7, MESSAGES - 1])
async def test_a_damaged_answer_that_was_kept_is_not_served_for_good(
    url: str, cached: dict[str, Any], number: int
) -> None:
    damage(number)
    with pytest.raises(tieredstore.Corrupt):
        await read(url, cached)
    damage(number)
    assert await read(url, cached) == BODIES
    assert await read(url, cached) == BODIES


async def test_a_key_is_found_though_a_damaged_answer_was_kept(
    url: str, cached: dict[str, Any]
) -> None:
    damage(7)
    async with tieredstore.open(url, settings=cached) as tier:
        assert not (await tier.query_message("Orders", "key-7")).is_complete
        damage(7)
        found = await tier.query_message("Orders", "key-7")
    assert [one.body for one in found.messages] == [BODIES[7]]


async def test_check_drops_what_was_kept_damaged(url: str, cached: dict[str, Any]) -> None:
    damage(7)
    settings = {**cached, "tieredStoreCrcCheckEnable": False}
    async with tieredstore.open(url, settings=settings) as tier:
        wrong = [one.body async for one in tier.messages("Orders", 0)]
    assert wrong != BODIES
    damage(7)
    async with tieredstore.open(url, settings=settings) as tier:
        assert [finding async for finding in tier.check()] == []
        assert [one.body async for one in tier.messages("Orders", 0)] == BODIES


def files_kept(cached: dict[str, Any]) -> list[Path]:
    directory = Path(cached["readAheadDiskCachePath"])
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("number", [0, 7, MESSAGES - 1])
async def test_an_answer_that_no_checksum_confirms_is_not_kept(
    url: str, cached: dict[str, Any], number: int
) -> None:
    damage(number)
    async with tieredstore.open(url, settings=cached) as tier:
        with pytest.raises(tieredstore.Corrupt):
            await tier.get_message("g", "Orders", 0, number)
        await tier.get_message("g", "Orders", 0, (number + 1) % MESSAGES)
        await tier.query_message("Orders", f"key-{number}")
    kept = b"".join(path.read_bytes() for path in files_kept(cached))
    damage(number)
    assert BODIES[number][1:] not in kept


async def test_without_verification_nothing_is_kept(url: str, cached: dict[str, Any]) -> None:
    settings = {**cached, "tieredStoreCrcCheckEnable": False}
    assert await read(url, settings) == BODIES
    assert files_kept(cached) == []
    assert await read(url, cached) == BODIES
    assert files_kept(cached)


def flip(found: bytes) -> None:
    """Turn a bit before these bytes, wherever they lie in parts; once more turns it back."""
    for name, body in fsspec.filesystem("memory").store.items():
        at = body.getvalue().find(found) - 1
        if "/@parts/" in name and at > 0:
            body.seek(at)
            body.write(bytes([body.getvalue()[at] ^ 1]))


async def keys_of(url: str, settings: dict[str, Any], offset: int = 0) -> list[str]:
    async with tieredstore.open(url, settings=settings) as tier:
        return [one.properties["KEYS"] async for one in tier.messages("Orders", 0, offset)]


KEYS = [f"key-{number}" for number in range(MESSAGES)]


@pytest.mark.parametrize("first", [0, 30])
async def test_a_property_that_arrived_wrong_is_not_kept(
    url: str, cached: dict[str, Any], first: int
) -> None:
    flip(b"ey-40")
    with pytest.raises(tieredstore.Corrupt, match="CRC-32C"):
        await keys_of(url, cached, first)
    assert b"ey-40" not in b"".join(path.read_bytes() for path in files_kept(cached))
    flip(b"ey-40")
    assert await keys_of(url, cached, first) == KEYS[first:]
    assert b"key-40" in b"".join(path.read_bytes() for path in files_kept(cached))


async def test_a_property_that_arrives_wrong_once_is_read_again(
    url: str, cached: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extent around it differs from its checksum, which a read for the cache compares."""
    real, times = DiskCachedStore._asked, list[int]()  # pyright: ignore[reportPrivateUsage]

    async def once(store: DiskCachedStore, wanted: Any) -> Any:
        found = await real(store, wanted)
        if times:
            return found
        times.append(1)
        return [bytes(one).replace(b"key-40", b"kEy-40") for one in found]

    monkeypatch.setattr(DiskCachedStore, "_asked", once)
    assert await keys_of(url, cached) == KEYS
    assert times


async def test_what_was_read_is_served_without_the_storage(
    url: str, cached: dict[str, Any]
) -> None:
    assert await keys_of(url, cached, 45) == KEYS[45:]
    for name, body in fsspec.filesystem("memory").store.items():
        if "/@parts/" in name:
            body.seek(0)
            body.write(bytes(len(body.getvalue())))
    assert await keys_of(url, cached, 45) == KEYS[45:]
    assert b"key-3\x02" in b"".join(path.read_bytes() for path in files_kept(cached)), "extents"


@pytest.mark.parametrize(
    ("place", "variable", "value", "keeps"),
    [
        ("s3://b/t", "AWS_ENDPOINT_URL", "http://127.0.0.1:1", "extents"),
        ("s3://b/t", "AWS_ENDPOINT_URL", "https://s3.example.test", "ranges"),
        ("s3://b/t", "AWS_ENDPOINT_URL", "", "ranges"),
        ("s3://b/t", "TIEREDSTORE_OBJECT_STORE_ENDPOINT", "http://127.0.0.1:1", "extents"),
        ("memory://b/t", "AWS_ENDPOINT_URL", "", "extents"),
    ],
)
def test_whole_extents_are_kept_where_neither_tls_nor_encryption_covers_every_byte(
    tmp_path: Path, place: str, variable: str, value: str, keeps: str
) -> None:
    settings = {"tieredStoreFilePath": place, "readAheadDiskCachePath": str(tmp_path)}
    master = f"a:{base64.b64encode(bytes(32)).decode()}"
    encrypts = {"TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS": master}

    def keeps_extents(settings: dict[str, str], **more: str) -> bool:
        config = Config.load(settings=settings, environment={variable: value, **more})
        return config.fetcher.keeps_extents

    assert keeps_extents(settings) is (keeps == "extents")
    assert not keeps_extents(settings, **encrypts)
    second = {**settings, "tieredStoreOffloadPath": "memory://c/u"}
    assert keeps_extents(second), "one of both stores is enough"
    del settings["readAheadDiskCachePath"]
    assert not keeps_extents(settings)


async def test_what_an_owner_compares_with_its_hot_log_is_not_kept(
    url: str, cached: dict[str, Any], tmp_path: Path
) -> None:
    async with tieredstore.follow(tmp_path / "store", url, **BROKER, settings=cached) as follower:
        await follower.drain()
    assert files_kept(cached) == [], "bytes around the few records are not compared"


@pytest.mark.parametrize("number", [0, 7])
async def test_calls_that_share_a_read_share_its_second_try(
    url: str, cached: dict[str, Any], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fetcher.reads.RunReads._verified", keep_unverified)
    damage(number)
    async with tieredstore.open(url, settings=cached) as tier:
        with pytest.raises(tieredstore.Corrupt):
            await tier.get_message("g", "Orders", 0, number)
    damage(number)
    monkeypatch.undo()
    assert files_kept(cached)
    async with tieredstore.open(url, settings=cached) as tier:
        calls = (tier.get_message(f"g{one}", "Orders", 0, number) for one in range(4))
        found = await asyncio.gather(*calls)
    assert {one.status.name for one in found} == {"FOUND"}


async def keep_unverified(
    reads: RunReads, queue: TierQueue, flight: Flight, messages: int
) -> tuple[CachedRun, ...]:
    """A load whose answers are kept at once, as a program before verification did."""
    with cache_use() as use:
        try:
            return await load_runs(
                queue, flight, messages_max=messages, options=reads._options, budget=reads._budget  # pyright: ignore[reportPrivateUsage]
            )  # fmt: skip
        finally:
            use.is_doubtful = False
            await use.keep()
