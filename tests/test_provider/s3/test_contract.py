"""A store in a real S3 keeps the promises of both ports."""

from collections.abc import AsyncIterator
from random import Random
from uuid import uuid4

import pytest

from provider.clock import SystemClock
from provider.file_segments import FileSegments
from provider.object.store import FsspecStore, open_object_store
from provider.object_store import ObjectStore, ReplacingStore
from provider.stores.packed_segments import PackedSegments
from provider.stores.retrying import RetryingStore
from provider.testing.file_segments_contract import PackedSegmentsContract
from provider.testing.object_store_contract import ObjectStoreContract, ReplacingStoreContract
from tests.support.seaweedfs import SeaweedFs

BUCKET = "contract"


def store_in(seaweed: SeaweedFs) -> FsspecStore:
    """An empty store below a prefix of its own."""
    seaweed.make_bucket(BUCKET)
    url = f"s3://{BUCKET}/{uuid4().hex}/tier"
    return open_object_store(url, storage=seaweed.storage)


class TestS3(ReplacingStoreContract):
    @pytest.fixture
    async def store(self, seaweed: SeaweedFs) -> AsyncIterator[ReplacingStore]:
        store = store_in(seaweed)
        yield store
        await store.close()


class TestRetryingS3(ObjectStoreContract):
    @pytest.fixture
    async def store(self, seaweed: SeaweedFs) -> AsyncIterator[ObjectStore]:
        store = RetryingStore(store_in(seaweed), clock=SystemClock(), rng=Random(1))
        yield store
        await store.close()


class TestPackedSegmentsInS3(PackedSegmentsContract):
    @pytest.fixture
    async def store(self, seaweed: SeaweedFs) -> AsyncIterator[ObjectStore]:
        store = store_in(seaweed)
        yield store
        await store.close()

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        return PackedSegments(store, epoch=1, rng=Random(1))
