"""Every store keeps the promises of the ports where requests fail, as far as callers settle them.

The same behind a real server is in `s3/test_weather.py`.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from provider.clock import SystemClock
from provider.file_segments import FileSegments
from provider.object.store import open_object_store
from provider.object_store import AppendingStore, ObjectStore
from provider.options import RetryOptions
from provider.posix.store import PosixStore
from provider.stores.packed_segments import PackedSegments
from provider.stores.retrying import RetryingStore
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.file_segments_contract import PackedSegmentsContract
from provider.testing.memory import MemoryStore
from provider.testing.object_store_contract import AppendingStoreContract, ObjectStoreContract
from tests.support.settling_store import SettlingStore

SETTLED = ("create", "read", "read_many", "size", "list", "delete", "append")
"""Verbs that are settled; `register` is its caller's to repeat."""
WEATHER = tuple(
    Fault(kind, verb, probability=0.1) for kind in ("refused", "lost_reply") for verb in SETTLED
)
OPTIONS = RetryOptions(tries_max=50, first_wait_s_max=0.0)


def in_weather(inner: ObjectStore) -> AppendingStore:
    faulty: FaultyObjectStore = FaultyObjectStore(inner, rng=Random(3), faults=WEATHER)  # pyright: ignore[reportArgumentType] - without append
    return SettlingStore(RetryingStore(faulty, clock=SystemClock(), rng=Random(1), options=OPTIONS))


def growing(kind: str, directory: Path) -> AppendingStore:
    return MemoryStore() if kind == "memory" else PosixStore(directory)


class TestGrowingStores(AppendingStoreContract):
    @pytest.fixture(params=["memory", "posix"])
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[AppendingStore]:
        store = in_weather(growing(request.param, tmp_path))
        yield store
        await store.close()


class TestFsspecStores(ObjectStoreContract):
    @pytest.fixture(params=["memory", "file"])
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[ObjectStore]:
        store = in_weather(open_object_store(f"{request.param}://{tmp_path}/tier"))
        yield store
        await store.close()


class TestPackedSegments(PackedSegmentsContract):
    @pytest.fixture(params=["memory", "file"])
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[ObjectStore]:
        store = in_weather(open_object_store(f"{request.param}://{tmp_path}/tier"))
        yield store
        await store.close()

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))
