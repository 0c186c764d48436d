"""A golden store tiered into parts once, and copied into a memory by those who damage it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec

from container.index.options import IndexOptions
from container.metadata.records import Extent, Queue
from container.names.queue_id import FLAT_FILES, SegmentType
from container.options import TierOptions, UpkeepOptions
from container.queue.manifest import ManifestReader
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.object_store import ObjectStore
from tests.support.cli import settings
from tests.support.golden import GoldenTree
from tests.support.packed_tier import tier_packed
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.session.places import directory_of, storage_at

Objects = dict[str, bytes]
UNITS_PER_SEGMENT = 40
"""So few that closed segments move to manifests."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class PackedTier:
    """A tier in this process's memory, or on S3."""

    tree: GoldenTree
    url: str

    @property
    def options(self) -> list[str]:
        return [
            *settings(self.tree, self.url),
            *("-D", "tieredStoreIndexFileMaxIndexNum=1000"),
        ]

    @property
    def config(self) -> Config:
        return Config.load(defines=[word for word in self.options if word != "-D"])

    @property
    def store(self) -> ObjectStore:
        config = self.config
        return storage_at(config, directory_of(config), clock=SystemClock())

    @property
    def root(self) -> str:
        where = directory_of(self.config)
        assert isinstance(where, TierUrl)
        return str(where).partition(":/")[2]

    @property
    def objects(self) -> Objects:
        """All objects of a tier in memory."""
        memory, root = fsspec.filesystem("memory"), f"{self.root}/"
        return {
            name.removeprefix(root): memory.cat_file(name)
            for name in memory.store
            if name.startswith(root)
        }

    def put(self, objects: Objects) -> None:
        """Put these in the place of all objects of a tier in memory."""
        memory, root = fsspec.filesystem("memory"), f"{self.root}/"
        for name in [one for one in memory.store if one.startswith(root)]:
            memory.rm_file(name)
        for name, raw in objects.items():
            memory.pipe_file(f"{root}{name}", raw)

    async def make(
        self, *, batch_messages_max: int = 16, upkeep: UpkeepOptions | None = None
    ) -> None:
        """Tier the golden store in small rounds, with index files and manifests."""
        store = self.store
        sizes = TierOptions(
            commit_log_bytes_max=self.tree.golden.commit_log_segment_bytes,
            consume_queue_bytes_max=20 * UNITS_PER_SEGMENT,
        )
        found = await tier_packed(
            self.tree,
            store,
            options=sizes,
            upkeep_options=upkeep or UpkeepOptions(sealed_segments_max=1),
            index=IndexOptions(items_max=1000, finish_items_min=1),
            batch_messages_max=batch_messages_max,
        )
        assert found == [], found
        await store.close()

    async def read(self, work: Callable[[TierReader], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """What `work` makes of a reader of the tier."""
        store = self.store
        try:
            return await work(await TierReader.open(store, verify=True))
        finally:
            await store.close()

    async def extents(self, kind: SegmentType) -> list[Extent]:
        """All extents of one kind, of all queues."""

        async def found(reader: TierReader) -> list[Extent]:
            manifests = ManifestReader(reader.store)
            return [
                extent
                for queue in reader.state.queues.values()
                for segment in await all_segments(queue, kind, manifests)
                for extent in segment.extents
            ]

        return await self.read(found)


async def all_segments(queue: Queue, kind: SegmentType, manifests: ManifestReader) -> list[Any]:
    assert kind in FLAT_FILES
    listed = [
        segment
        for ref in queue.manifests
        if ref.type == kind
        for segment in await manifests.segments(ref)
    ]
    return [*listed, *queue.segments(kind)]


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    return await asyncio.to_thread(work)
