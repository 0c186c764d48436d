"""What networks and services do to requests, against a real server behind a proxy that fails."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from provider.clock import Clock, SystemClock
from provider.errors import AlreadyExists, Unavailable
from provider.file_segments import FileSegments, Placement, SegmentSlice
from provider.object.store import FsspecStore, open_object_store
from provider.object_store import ObjectStore
from provider.options import ObjectOptions, RetryOptions
from provider.ranges import ByteRange
from provider.stores.packed_segments import PackedSegments
from provider.stores.retrying import RetryingStore
from provider.testing.file_segments_contract import PackedSegmentsContract
from provider.testing.manual_clock import ManualClock
from provider.testing.object_store_contract import ObjectStoreContract
from tests.support.fault_proxy import ALL_WEATHERS, FaultProxy, WireFault
from tests.support.patience import Patience, until
from tests.support.seaweedfs import SeaweedFs
from tests.support.settling_store import SettlingStore

BUCKET = "weather"
QUIET_S = 0.5
"""Shorter than what the proxy's slow bodies take, longer than its pauses."""
ONE_AT_ONCE = ObjectOptions(requests_max=1, uploads_max=1, request_s_max=QUIET_S)
ROUND = [SegmentSlice("t/0/LOG/0", 0, (b"records",)), SegmentSlice("t/0/CQ/0", 0, (b"units",))]


@pytest.fixture
def proxy(seaweed: SeaweedFs) -> Iterator[FaultProxy]:
    """Before the server, as long as a test; without faults."""
    seaweed.make_bucket(BUCKET)
    with FaultProxy(seaweed.endpoint, seed=1) as proxy:
        yield proxy
        proxy.faults = ()
        proxy.release()


def store_behind(
    proxy: FaultProxy,
    seaweed: SeaweedFs,
    options: ObjectOptions | None = None,
    clock: Clock | None = None,
    **more: Any,
) -> FsspecStore:
    """An empty store that is reached through the proxy."""
    storage = {**seaweed.storage, "endpoint": proxy.endpoint, "retry_s_min": 0.01, **more}
    url = f"s3://{BUCKET}/{uuid4().hex}"
    return open_object_store(url, storage=storage, options=options, clock=clock)


@pytest.fixture
async def store(proxy: FaultProxy, seaweed: SeaweedFs) -> AsyncIterator[FsspecStore]:
    store = store_behind(proxy, seaweed)
    yield store
    await store.close()


def tried_again(store: ObjectStore) -> RetryingStore:
    options = RetryOptions(tries_max=20, first_wait_s_max=0.01, wait_s_max=0.1)
    return RetryingStore(store, clock=SystemClock(), rng=Random(1), options=options)


class TestS3InAnyWeather(ObjectStoreContract):
    @pytest.fixture
    async def store(self, proxy: FaultProxy, seaweed: SeaweedFs) -> AsyncIterator[ObjectStore]:
        store = SettlingStore(tried_again(store_behind(proxy, seaweed)))
        proxy.faults = ALL_WEATHERS
        yield store
        await store.close()


class TestPackedSegmentsInAnyWeather(PackedSegmentsContract):
    @pytest.fixture
    async def store(self, proxy: FaultProxy, seaweed: SeaweedFs) -> AsyncIterator[ObjectStore]:
        store = tried_again(store_behind(proxy, seaweed))
        proxy.faults = ALL_WEATHERS
        yield store
        await store.close()

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return WrittenAgain(store, epoch=1, rng=Random(1))

    async def test_a_round_is_one_object_however_many_slices_it_has(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        """Here it may be two: what an unclear attempt left is referred to by nothing."""
        placements = await segments.write([SegmentSlice(f"{n}", 0, (b"x",)) for n in range(99)])
        assert len({placed.object_name for placed in placements}) == 1


class WrittenAgain(PackedSegments):
    """As the layer above does it (S2)."""

    async def write(
        self, slices: Sequence[SegmentSlice], *, alone: bool = False
    ) -> list[Placement]:
        for _ in range(20):
            try:
                return await super().write(slices, alone=alone)
            except Unavailable:
                continue
        return await super().write(slices, alone=alone)


async def test_a_lost_reply_is_settled_by_the_nonce_in_the_name(
    proxy: FaultProxy, store: FsspecStore
) -> None:
    proxy.faults = [WireFault("lost_reply", "PUT", calls=(1,))]
    segments = PackedSegments(store, epoch=1, rng=Random(1))
    log, units = await segments.write(ROUND)
    assert segments.settled == 1
    assert log.object_name == units.object_name
    assert [entry.name for entry in await store.list("")] == [log.object_name]
    assert bytes(await store.read(log.object_name)) == b"recordsunits"
    assert [method for method, _ in proxy.requests][:3] == ["PUT", "PUT", "GET"]


async def test_a_conflict_says_nothing_and_is_no_name_that_is_taken(
    proxy: FaultProxy, store: FsspecStore
) -> None:
    proxy.faults = [WireFault("conflict", "PUT", calls=(1,))]
    with pytest.raises(Unavailable, match="left open whether this one took place"):
        await store.create("a", [b"first"])
    await store.create("a", [b"first"])
    with pytest.raises(AlreadyExists):
        await store.create("a", [b"second"])
    assert bytes(await store.read("a")) == b"first"


async def test_a_create_is_never_repeated_unseen(proxy: FaultProxy, store: FsspecStore) -> None:
    for kind in ("busy", "reset", "torn", "lost_reply"):
        proxy.faults = [WireFault(kind, "PUT", calls=(1,))]
        before = len(proxy.requests)
        with pytest.raises(Unavailable):
            await store.create(f"by/{kind}", [b"x" * 100_000])
        assert len(proxy.requests) == before + 1, kind
    assert [entry.name for entry in await store.list("")] == ["by/lost_reply"]


async def test_what_may_be_repeated_is_repeated_by_the_client(
    proxy: FaultProxy, store: FsspecStore
) -> None:
    body = Random(1).randbytes(100_000)
    await store.create("a", [body])
    for kind in ("busy", "reset", "lost_reply", "short"):
        proxy.faults = [WireFault(kind, calls=(1,))]
        assert bytes(await store.read("a", ByteRange(10, 90_000))) == body[10:90_000], kind
        assert proxy.struck[kind] == 1


@pytest.mark.parametrize("kind", ["stalled", "silent"])
async def test_a_call_that_hangs_never_holds_its_slot(
    proxy: FaultProxy, seaweed: SeaweedFs, kind: Any
) -> None:
    clock = ManualClock()
    store = store_behind(proxy, seaweed, ONE_AT_ONCE, clock, quiet_s_max=60.0)

    async def is_ended_by_its_deadline(hanging: Coroutine[Any, Any, object]) -> None:
        struck = proxy.struck[kind]
        task = asyncio.create_task(hanging)
        await until(lambda: proxy.struck[kind] > struck, Patience("nothing is struck"))
        await clock.advance(2 * QUIET_S)
        with pytest.raises(Unavailable, match="does not answer in time"):
            await task

    await store.create("a", [b"abc"])
    proxy.faults = [WireFault(kind, calls=(1,))]
    await is_ended_by_its_deadline(store.read("a", ByteRange(0, 3)))
    assert bytes(await store.read("a", ByteRange(0, 3))) == b"abc"
    proxy.faults = [WireFault(kind, "PUT", calls=(1,))]
    await is_ended_by_its_deadline(store.create("b", [b"x"]))
    await store.create("c", [b"x"])
    await store.close()


async def test_a_reply_that_stands_still_is_asked_for_again_before_the_deadline(
    proxy: FaultProxy, seaweed: SeaweedFs
) -> None:
    store = store_behind(proxy, seaweed, quiet_s_max=QUIET_S)
    await store.create("a", [b"abc"])
    proxy.faults = [WireFault("stalled", "GET", calls=(1,))]
    assert bytes(await store.read("a", ByteRange(0, 3))) == b"abc"
    assert [method for method, _ in proxy.requests][-2:] == ["GET", "GET"]
    await store.close()


async def test_what_is_slow_and_gets_on_is_waited_for(
    proxy: FaultProxy, seaweed: SeaweedFs
) -> None:
    store = store_behind(proxy, seaweed, quiet_s_max=QUIET_S)
    body = Random(1).randbytes(64_000)
    proxy.faults = [WireFault("slow")]
    async with asyncio.timeout(30):
        await store.create("a", [body])
        assert bytes(await store.read("a", ByteRange(0, len(body)))) == body
    assert [method for method, _ in proxy.requests] == ["PUT", "GET"]
    await store.close()


async def test_bytes_that_change_on_their_way_up_are_refused_by_the_server(
    proxy: FaultProxy, store: FsspecStore
) -> None:
    body = Random(1).randbytes(100_000)
    proxy.faults = [WireFault("corrupt_request", "PUT", calls=(1,))]
    with pytest.raises(Unavailable):
        await store.create("a", [body])
    assert await store.list("") == []
    await store.create("a", [body])
    assert bytes(await store.read("a")) == body


async def test_the_counted_requests_are_those_that_reach_the_server(
    proxy: FaultProxy, store: FsspecStore
) -> None:
    for number in range(3):
        await store.create(f"a/{number}", [b"abc"])
    with pytest.raises(AlreadyExists):
        await store.create("a/0", [b"x"])
    await store.read("a/0")
    await store.read_many([("a/1", ByteRange(0, 1)), ("a/2", ByteRange(1, 3))])
    await store.size("a/0")
    await store.list("")
    await store.list("absent")
    await store.directories("")
    await store.delete(["a/0", "a/1", "absent"])
    kinds = Counter(_billed(method, target) for method, target in proxy.requests)
    assert store.meter.requests == kinds
    assert store.meter.total == len(proxy.requests)


async def test_encryption_at_rest_is_asked_for_with_each_object_and_only_there(
    proxy: FaultProxy, seaweed: SeaweedFs
) -> None:
    asked = b"x-amz-server-side-encryption"
    store = store_behind(proxy, seaweed, server_side_encryption="AES256")
    await store.create("a", [b"abc"])
    assert bytes(await store.read("a")) == b"abc"
    await store.close()
    sent = [fields.get(asked) for fields in proxy.headers]
    assert list(zip((method for method, _ in proxy.requests), sent, strict=True)) == [
        ("PUT", b"AES256"),
        ("GET", None),
    ]


def _billed(method: str, target: str) -> str:
    """What a request is billed as."""
    if method == "POST" and "delete" in target:
        return "DELETE"
    return "LIST" if method == "GET" and "list-type=2" in target else method
