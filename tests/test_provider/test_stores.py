"""Every store and every wrapper that we ship keeps the promises of the port."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from provider.clock import SystemClock
from provider.encryption.keys import MasterKeys
from provider.encryption.store import EncryptedStore
from provider.file_segments import FileSegments
from provider.object.files import files_of
from provider.object.store import FsspecStore, open_object_store
from provider.object_store import AppendingStore, ObjectStore, ReplacingStore
from provider.options import DiskCacheOptions, PosixOptions, RangeOptions
from provider.posix.store import PosixStore
from provider.stores.in_place_segments import InPlaceSegments
from provider.stores.metered import MeteredStore
from provider.stores.packed_segments import PackedSegments
from provider.stores.range_reads import RangeReads
from provider.stores.retrying import RetryingStore
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.file_segments_contract import InPlaceSegmentsContract, PackedSegmentsContract
from provider.testing.memory import MemoryStore
from provider.testing.object_store_contract import (
    AppendingStoreContract,
    ObjectStoreContract,
    ReplacingStoreContract,
    SharedStoreContract,
)
from tests.support.fsspec_files import AsyncMemory, Paging
from tests.support.keeping_store import KeepingStore


async def not_fenced() -> None:
    """What the journal says to an owner that nobody has displaced."""


class TestMemory(AppendingStoreContract):
    @pytest.fixture
    def store(self) -> AppendingStore:
        return MemoryStore()


class TestMemoryShared(SharedStoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    def other(self, store: MemoryStore) -> AppendingStore:
        return store.another_client()


class TestPosix(AppendingStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[AppendingStore]:
        store = PosixStore(tmp_path / "made" / "when needed")
        yield store
        await store.close()


class TestPosixWithFewFiles(AppendingStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[AppendingStore]:
        options = PosixOptions(
            files_open_max=8, read_threads_max=1, write_threads_max=1, loop_read_bytes_max=16
        )
        store = PosixStore(tmp_path, options=options)
        yield store
        await store.close()


class TestPosixShared(SharedStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[AppendingStore]:
        store = PosixStore(tmp_path)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: AppendingStore, tmp_path: Path) -> AsyncIterator[AppendingStore]:
        other = PosixStore(tmp_path)
        yield other
        await other.close()


class TestMetered(AppendingStoreContract):
    @pytest.fixture
    def store(self) -> AppendingStore:
        return MeteredStore(MemoryStore(), clock=SystemClock())


class TestRetrying(AppendingStoreContract):
    @pytest.fixture
    def store(self) -> AppendingStore:
        return RetryingStore(MemoryStore(), clock=SystemClock(), rng=Random(1))


class TestRangeReads(AppendingStoreContract):
    @pytest.fixture
    def store(self) -> AppendingStore:
        options = RangeOptions(gap_bytes_max=2, request_bytes_max=4096, hedge_after_s=60)
        return RangeReads(MemoryStore(), clock=SystemClock(), options=options)


class TestDiskCached(ObjectStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        store = KeepingStore(
            MemoryStore(),
            tmp_path,
            scope="memory",
            is_immutable=lambda name: "/" in name,
            clock=SystemClock(),
            options=DiskCacheOptions(),
        )
        yield store
        await store.close()


class TestFaultyWithoutFaults(AppendingStoreContract):
    @pytest.fixture
    def store(self) -> AppendingStore:
        return FaultyObjectStore(MemoryStore())


class TestAllWrappersOverPosix(AppendingStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[AppendingStore]:
        clock = SystemClock()
        faulty = FaultyObjectStore(PosixStore(tmp_path))
        metered = MeteredStore(faulty, clock=clock)
        store = RetryingStore(metered, clock=clock, rng=Random(1))
        yield store
        await store.close()


OBJECT_STORES = ["memory", "file", "stock", "own"]
"""Stores over fsspec: by URL, and over file systems without and with the richer calls."""


def object_store(kind: str, directory: Path) -> FsspecStore:
    """An empty store of that kind."""
    match kind:
        case "memory":
            return open_object_store(f"memory://bucket/{directory.name}")
        case "file":
            return open_object_store(f"file://{directory}/made/when needed")
        case "stock":
            return FsspecStore(files_of(AsyncMemory()), "/bucket/tier")
        case _:
            return FsspecStore(files_of(Paging()), "/bucket/tier")


class TestFsspec(ReplacingStoreContract):
    @pytest.fixture(params=OBJECT_STORES)
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[ReplacingStore]:
        store = object_store(request.param, tmp_path)
        yield store
        await store.close()


class TestWrappersOverFsspec(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        clock = SystemClock()
        metered = MeteredStore(object_store("memory", tmp_path), clock=clock)
        return RetryingStore(metered, clock=clock, rng=Random(1))


class TestPackedSegmentsOnFsspec(PackedSegmentsContract):
    @pytest.fixture(params=OBJECT_STORES)
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[ObjectStore]:
        store = object_store(request.param, tmp_path)
        yield store
        await store.close()

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))


def encrypted(inner: ObjectStore) -> EncryptedStore:
    return EncryptedStore(inner, MasterKeys({"a": bytes(32)}), held="@journal/")


class TestEncrypted(ObjectStoreContract):
    @pytest.fixture(params=["raw", "posix", *OBJECT_STORES])
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[ObjectStore]:
        inner = (
            MemoryStore()
            if request.param == "raw"
            else PosixStore(tmp_path)
            if request.param == "posix"
            else object_store(request.param, tmp_path)
        )
        store = encrypted(inner)
        yield store
        await store.close()


class TestPackedSegmentsEncrypted(PackedSegmentsContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return encrypted(MemoryStore())

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))


class TestInPlaceSegmentsInMemory(InPlaceSegmentsContract):
    @pytest.fixture
    def store(self) -> AppendingStore:
        return MemoryStore()

    @pytest.fixture(params=[True, False], ids=["alone", "beside another"])
    def segments(self, store: AppendingStore, request: pytest.FixtureRequest) -> FileSegments:
        return InPlaceSegments(store, alone=request.param, epoch=1, verify_owner=not_fenced)


class TestInPlaceSegmentsOnPosix(InPlaceSegmentsContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[AppendingStore]:
        store = PosixStore(tmp_path)
        yield store
        await store.close()

    @pytest.fixture
    def segments(self, store: AppendingStore) -> FileSegments:
        return InPlaceSegments(store, alone=True, epoch=1, verify_owner=not_fenced)


class TestPackedSegmentsInMemory(PackedSegmentsContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))


class TestPackedSegmentsOnPosix(PackedSegmentsContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        store = PosixStore(tmp_path)
        yield store
        await store.close()

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))


class TestPackedSegmentsWhoseRepliesAreLost(PackedSegmentsContract):
    @pytest.fixture(params=[0.0, 0.4, 1.0])
    def store(self, request: pytest.FixtureRequest) -> ObjectStore:
        lost = Fault("lost_reply", "create", probability=request.param)
        return FaultyObjectStore(MemoryStore(), faults=[lost])

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))
