"""Retrying, metering and probing, over a store that fails as told."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from provider.errors import AlreadyExists, Denied, NotFound, Unavailable
from provider.object_store import Append, Buffer, ObjectEntry
from provider.options import RetryOptions
from provider.ranges import ByteRange
from provider.stores.metered import MeteredStore, ProviderMetrics
from provider.stores.retrying import RetryingStore
from provider.stores.verified import probe
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore


def retrying(
    faults: list[Fault], **bounds: float
) -> tuple[RetryingStore, FaultyObjectStore, ManualClock]:
    clock = ManualClock()
    faulty = FaultyObjectStore(MemoryStore(), faults=faults)
    options = RetryOptions(**bounds)  # pyright: ignore[reportArgumentType]
    return RetryingStore(faulty, clock=clock, rng=Random(1), options=options), faulty, clock


async def test_what_may_be_repeated_is_until_it_works() -> None:
    store, faulty, clock = retrying([Fault("lost_reply", "append", calls=(1, 2))])
    task = asyncio.ensure_future(store.append([Append("f", 0, (b"x",), new=True)]))
    await settle()
    await clock.advance(60)
    await task
    assert (faulty.calls["append"], store.retries) == (3, 2)
    assert bytes(await store.read("f")) == b"x"


async def test_create_is_never_repeated() -> None:
    store, faulty, clock = retrying([Fault("lost_reply", "create")])
    with pytest.raises(Unavailable):
        await store.create("f", [b"x"])
    assert (faulty.calls["create"], clock.sleeping) == (1, 0)


async def test_tries_are_bounded() -> None:
    store, faulty, clock = retrying([Fault("refused", "size")], tries_max=4)
    task = asyncio.ensure_future(store.size("f"))
    await settle()
    await clock.advance(60)
    with pytest.raises(Unavailable):
        await task
    assert faulty.calls["size"] == 4


async def test_no_try_begins_after_the_deadline() -> None:
    store, _, clock = retrying(
        [Fault("refused")], tries_max=1000, deadline_s=3.0, first_wait_s_max=1.0
    )
    task = asyncio.ensure_future(store.read("f"))
    for _ in range(30):
        await clock.advance(0.1)
    await settle()
    with pytest.raises(Unavailable):
        await task


async def test_other_verdicts_are_not_repeated() -> None:
    store, faulty, _ = retrying([])
    with pytest.raises(NotFound):
        await store.read("absent")
    assert faulty.calls["read"] == 1


async def test_requests_bytes_seconds_and_outcomes_are_counted() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    faulty = FaultyObjectStore(MemoryStore(), clock=clock)
    store = MeteredStore(faulty, clock=clock, metrics=ProviderMetrics(registry))
    await store.create("f", [b"abc", b"de"])
    with pytest.raises(AlreadyExists):
        await store.create("f", [b"abc"])
    await store.append([Append("f", 5, (b"12",)), Append("g", 0, (b"3",))])
    await store.read_many([("f", ByteRange(0, 4)), ("g", ByteRange(0, 1))])
    faulty.faults = (Fault("delayed", "read", delay_s=2.0),)
    reading = asyncio.ensure_future(store.read("f", ByteRange(1, 3)))
    await settle()
    await clock.advance(2.0)
    await reading
    cancelled = asyncio.ensure_future(store.read("f"))
    await settle()
    cancelled.cancel()
    await asyncio.wait([cancelled])

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(
            f"tieredstore_provider_{name}", {"store": "first", **labels}
        )

    assert sample("requests_total", verb="create", outcome="ok") == 1
    assert sample("requests_total", verb="create", outcome="alreadyexists") == 1
    assert sample("requests_total", verb="read", outcome="cancelled") == 1
    assert sample("requests_total", verb="append", outcome="ok") == 1
    sizes = {"create": 5, "append": 3, "read_many": 5, "read": 2}
    assert {verb: sample("bytes_total", verb=verb) for verb in sizes} == sizes
    assert sample("seconds_count", verb="read") == 2
    assert sample("seconds_sum", verb="read") == 2.0
    assert repr(store) == f"<MeteredStore: {faulty!r}>"


async def test_reads_at_once_are_counted_when_the_metrics_are_read() -> None:
    registry = CollectorRegistry()
    metrics, clock = ProviderMetrics(registry), ManualClock()
    stores = [
        MeteredStore(MemoryStore(), clock=clock, metrics=metrics, store=label)
        for label in ("first", "second")
    ]
    for store in stores:
        await store.create("f", [b"0123456789"])
        assert store.read_now is not None
        assert store.read_now("f", 1, 3) == b"123"
        assert store.read_now("f", 0, 1, follows=True) == b"0"
        assert store.read_now("absent", 0, 1) is None
    await stores[1].read("f", ByteRange(0, 5))

    def samples(name: str, **labels: str) -> list[float | None]:
        full = f"tieredstore_provider_{name}_total"
        return [
            registry.get_sample_value(full, {"store": store, "verb": "read", **labels})
            for store in ("first", "second")
        ]

    for _ in range(2):
        assert samples("requests", outcome="ok") == [2, 3]
        assert samples("bytes") == [4, 9]
    assert MeteredStore(FaultyObjectStore(MemoryStore()), clock=ManualClock()).read_now is None


class IgnoresTheCondition(MemoryStore):
    """A storage that overwrites, as many that claim to be compatible with S3 do."""

    async def create(self, name: str, buffers: list[Buffer]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        await self.delete([name])
        await super().create(name, buffers)


class ChecksFirst(MemoryStore):
    """A storage that checks the condition, and stores a moment later."""

    async def create(self, name: str, buffers: list[Buffer]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        is_there = name in [entry.name for entry in await self.list(name)]
        await settle()
        if is_there:
            raise AlreadyExists("the name is taken", name)
        await self.delete([name])
        await super().create(name, buffers)


class KeepsAll(MemoryStore):
    """A storage that denies deletions."""

    async def delete(self, names: Sequence[str]) -> None:
        raise Denied("allow s3:DeleteObject", names[0])


class ListsLate(MemoryStore):
    """A storage whose listings lag behind."""

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        return []


async def test_a_good_storage_passes_the_probe_and_keeps_nothing_of_it() -> None:
    store = FaultyObjectStore(MemoryStore())
    await probe(store, rng=Random(1))
    assert await store.inner.list("") == []
    assert sum(store.calls.values()) == 15


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (IgnoresTheCondition(), "ignores create-if-absent"),
        (ChecksFirst(), "checks the condition before it stores"),
        (ListsLate(), "does not list"),
    ],
    ids=["ignores the condition", "checks first", "lists late"],
)
async def test_a_storage_that_breaks_a_promise_is_refused(store: MemoryStore, reason: str) -> None:
    with pytest.raises(Denied, match=reason):
        await probe(store, rng=Random(1))


@pytest.mark.parametrize("calls", [(1,), (2, 3), (6, 7)])
async def test_an_unavailable_storage_is_no_verdict_on_its_promises(
    calls: tuple[int, ...],
) -> None:
    store = FaultyObjectStore(MemoryStore(), faults=[Fault("refused", "create", calls=calls)])
    with pytest.raises(Unavailable):
        await probe(store, rng=Random(1))


async def test_where_deletions_are_denied_one_object_is_left_however_often_it_is_tried() -> None:
    store = KeepsAll()
    for _ in range(3):
        with pytest.raises(Denied, match="s3:DeleteObject"):
            await probe(store, rng=Random())
    assert [entry.name for entry in await store.list("")] == ["@probe/deletable"]
