"""What lies around the two stores of a tier: one layer of tries, counters and limits for each."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import fsspec
import pytest
from prometheus_client import CollectorRegistry

from provider.disk_cache.use import cache_use
from provider.errors import Unavailable
from provider.object.store import FsspecStore
from provider.object_store import Buffer
from provider.options import RetryOptions
from provider.ranges import ByteRange
from provider.stores.metered import ProviderMetrics
from provider.stores.two_stores import TwoStores
from provider.testing.manual_clock import ManualClock, settle
from tieredstore.config.effective import Config
from tieredstore.session.places import (
    directory_of,
    job_storage,
    meters_of,
    owned_storage,
    reading_storage,
)

OFFLOADED = f"@offload/{'ab' * 8}/0000000001/{'cd' * 16}/X"
Opener = Callable[[Config, ManualClock], TwoStores]


def config_of(first: str | Path, second: str, **more: int) -> Config:
    places = {"tieredStoreFilePath": str(first), "tieredStoreOffloadPath": second}
    names = {"brokerClusterName": "C", "brokerName": "b"}
    return Config.load(settings={**places, **names, **more})


def owned(config: Config, clock: ManualClock) -> TwoStores:
    metrics = ProviderMetrics(CollectorRegistry())
    return owned_storage(config, directory_of(config), clock=clock, rng=Random(1), metrics=metrics)


def reading(config: Config, clock: ManualClock) -> TwoStores:
    return reading_storage(config, directory_of(config), clock=clock)


def job(config: Config, clock: ManualClock) -> TwoStores:
    return job_storage(config, directory_of(config), clock=clock)


@pytest.fixture
def second() -> str:
    fsspec.filesystem("memory").store.clear()
    return "memory://second/place"


@pytest.mark.parametrize("opened", [reading, job, owned])
@pytest.mark.parametrize("first", ["directory", "memory://first/place"])
async def test_a_read_of_the_second_store_is_tried_by_one_layer(
    tmp_path: Path, second: str, opened: Opener, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def away(_: FsspecStore, name: str, wanted: ByteRange | None = None) -> Buffer:
        del wanted
        tried.append(name)
        raise Unavailable("an outage", name)

    monkeypatch.setattr(FsspecStore, "read", away)
    clock, options = ManualClock(), RetryOptions()
    place = tmp_path / "first" if first == "directory" else first
    store = opened(config_of(place, second), clock)
    read = asyncio.ensure_future(store.read(OFFLOADED, ByteRange(0, 8)))
    waited_s = 0
    while not read.done():
        await settle()
        await clock.advance(1)
        waited_s += 1
    with pytest.raises(Unavailable):
        await read
    assert tried == [OFFLOADED] * len(tried)
    assert 1 < len(tried) <= options.tries_max
    assert waited_s <= options.deadline_s + 1
    await store.close()


@pytest.mark.parametrize("first", ["directory", "memory://first/place"])
async def test_requests_count_as_those_of_their_store(
    tmp_path: Path, second: str, first: str
) -> None:
    place = tmp_path / "first" if first == "directory" else first
    clock, registry = ManualClock(), CollectorRegistry()
    config = config_of(place, second)
    store = owned_storage(
        config,
        directory_of(config),
        clock=clock,
        rng=Random(1),
        metrics=ProviderMetrics(registry),
    )
    await store.create("one", [b"12"])
    for _ in range(3):
        await store.read_many([("one", ByteRange(0, 2))])
    await store.create(OFFLOADED, [b"123"])
    await store.read(OFFLOADED)
    meters = {name: dict(meter.requests) for name, meter in meters_of(store).items()}
    asked_for_keys = {"LIST": 1}  # whether it is encrypted
    assert meters.pop("second") == {"PUT": 1, "GET": 1, **asked_for_keys}
    of_first = {"first": {"PUT": 1, "GET": 3, **asked_for_keys}}
    assert meters == ({} if first == "directory" else of_first)

    def moved(store: str, verb: str) -> float | None:
        labels = {"store": store, "verb": verb}
        return registry.get_sample_value("tieredstore_provider_bytes_total", labels)

    assert [moved(one, "create") for one in ("first", "second")] == [2, 3]
    assert moved("second", "read") == 3
    await store.close()


@pytest.mark.parametrize("keys", ["", "m:" + "A" * 43 + "="])
async def test_kept_bytes_wait_for_no_limit_and_count_as_no_request(
    tmp_path: Path, second: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS", keys)
    limit, name = 1_000, f"@parts/{1:010d}/{'ab' * 16}"
    clock, registry = ManualClock(), CollectorRegistry()
    places = {"tieredStoreFilePath": "memory://first/place", "brokerName": "b"}
    cache = {"readAheadDiskCachePath": str(tmp_path / "cache")}
    config = Config.load(settings={**places, **cache, "objectStoreDownloadRateMax": limit})
    store = owned_storage(
        config, directory_of(config), clock=clock, rng=Random(1), metrics=ProviderMetrics(registry)
    )
    await store.create(name, [bytes(100 * limit)])

    def counted() -> list[object]:
        meters = [dict(meter.requests) for meter in meters_of(store).values()]
        labels = {"store": "first", "verb": "read"}
        names = ("tieredstore_provider_requests_total", "tieredstore_provider_bytes_total")
        ok = {**labels, "outcome": "ok"}
        found = [
            registry.get_sample_value(names[0], ok),
            registry.get_sample_value(names[1], labels),
        ]
        return [*meters, *found]

    wanted = ByteRange(0, 50 * limit)
    with cache_use() as use:
        assert bytes(await store.read(name, wanted)) == bytes(wanted.length)
        await use.keep()
    before = counted()
    assert before[1] == (2 if keys else 1), "a data key is read once"
    for start in range(0, 10 * limit, limit):
        part = ByteRange(start, start + 2 * limit)
        assert bytes(await store.read(name, part)) == bytes(part.length)
    assert (counted(), clock.monotonic_s()) == (before, 0.0)
    await store.close()


def test_the_memory_bound_counts_the_cache_of_each_store(second: str, tmp_path: Path) -> None:
    names = {"brokerName": "b", "readAheadDiskCachePath": str(tmp_path / "cache")}

    def bound(first: str, offload: str) -> int:
        places = {"tieredStoreFilePath": first, "tieredStoreOffloadPath": offload}
        return Config.load(settings={**names, **places}).memory_bytes_max

    one = Config.load(settings={**names, "tieredStoreFilePath": "memory://a/b"})
    of_cache = one.disk_cache.memory_bytes_max
    assert of_cache > 0
    assert bound("memory://a/b", second) - bound("memory://a/b", "") == of_cache
    assert bound(str(tmp_path), second) - bound(str(tmp_path), "") == of_cache


async def test_both_stores_keep_to_the_limit_together(second: str) -> None:
    clock = ManualClock()
    limit = 1_000
    config = config_of("memory://first/place", second, objectStoreUploadRateMax=limit)
    store = owned(config, clock)
    names: Sequence[str] = ("one", OFFLOADED, f"{OFFLOADED}1", "two")
    began_s = clock.monotonic_s()

    async def make() -> None:
        for name in names:
            await store.create(name, [bytes(2 * limit)])

    made = asyncio.ensure_future(make())
    while not made.done():
        await settle()
        await clock.advance(0.5)
    await made
    assert clock.monotonic_s() - began_s >= 2 * (len(names) - 1) - 1
    await store.close()
