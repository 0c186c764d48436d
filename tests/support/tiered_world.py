"""A tiered store over a hot log on disk and a tier in memory that fails on purpose."""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from container.index.options import IndexOptions
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.steps import OwnedTier
from container.tier import Tier, TierIdentity
from container.upkeep.retention import RetentionStep
from provider.clock import Clock, SystemClock
from provider.file_segments import SegmentsDriver
from provider.object_store import ObjectStore
from provider.stores.in_place_segments import InPlaceDriver
from provider.stores.packed_segments import PackedDriver
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.memory import MemoryStore
from tests.support.hot_store import SMALL
from tests.support.store_reader import findings
from tieredstore.config.effective import Config
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore

OUTAGE = (Fault("refused"),)
GREEDY = RetentionOptions(reserved_s=0, disk_clean_ratio=1e-9, files_max=1000)
"""Every file that the tier has goes, whatever its age, for a test's clock may stand still."""


class FrozenClock(SystemClock):
    """Its wall time stands still unless a test moves it."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._began_ms = super().now_ms()

    def now_ms(self) -> int:
        return self._began_ms + self.ahead_ms


class TieredWorld:
    """One directory and one tier, over which stores are opened one after the other.

    `faults` of `tier_store` may be set while one is open: `OUTAGE` fails every request.
    """

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        options: HotWriteOptions = SMALL,
        retention: RetentionOptions = GREEDY,
        tier_options: TierOptions | None = None,
        index: IndexOptions | None = None,
        objects: Callable[[], ObjectStore] | None = None,
        upkeep: UpkeepOptions | None = None,
    ) -> None:
        """`objects`: opens the tier's object store, where it is not a memory with files."""
        self.root = root
        self.clock = clock
        self.options = options
        self.retention = retention
        self.tier_options = tier_options or TierOptions()
        self.index = index
        self.upkeep = upkeep or UpkeepOptions()
        self.objects = objects
        self.memory = MemoryStore()
        self.tier_store = FaultyObjectStore(self.memory.another_client(), clock=clock)
        self.local = self._local()
        self._owners = 0

    def config(self) -> Config:
        settings: dict[str, object] = {
            "brokerClusterName": "TestCluster",
            "brokerName": "broker-a",
            "tieredStoreOwnerCheckInterval": 0,
            "readAheadCacheEnable": False,
            "tieredStoreGroupCommitTimeout": 0,
        }
        config = Config.load(settings=settings, environment={})
        return replace(config, dispatch=replace(config.dispatch, backoff_s_max=0.2))

    def store(self, level: str = "NOT_IN_DISK") -> TieredMessageStore:
        """The next store; whatever owned the tier is dead."""
        self.local = self._local()
        return TieredMessageStore(
            self.local,
            local=self.local,
            config=self.config(),
            level=level,
            open_tier=self.own,
            clock=self.clock,
        )

    @asynccontextmanager
    async def own(self) -> AsyncGenerator[Tier]:
        """The tier, owned; its journal is the store's to run."""
        faults = self.tier_store.faults
        client = self.memory.another_client()
        files: Any = client if self.objects is None else self.objects()
        self.tier_store = store = FaultyObjectStore(files, clock=self.clock, faults=faults)
        self._owners += 1
        rng = random.Random(self._owners)
        segments: SegmentsDriver = InPlaceDriver(store, clock=self.clock, takeover_wait_s_max=0)
        if self.objects is not None:
            segments = PackedDriver(store, rng=random.SystemRandom())
        tier = await Tier.own(
            store,
            TierIdentity("TestCluster", "broker-a", f"owner {self._owners}"),
            segments=segments,
            clock=self.clock,
            rng=rng,
            options=self.tier_options,
            index=self.index,
            upkeep_options=self.upkeep,
        )
        try:
            yield tier
        finally:
            await tier.journal.close()
            client.kill()
            if files is not client:
                await files.close()

    async def findings(self) -> list[str]:
        """What a check of the whole tier tells."""
        if self.objects is None:
            return await findings(self.memory.another_client())
        files = self.objects()
        try:
            return await findings(files)
        finally:
            await files.close()

    def _local(self) -> LocalMessageStore:
        return LocalMessageStore(
            self.root, options=self.options, retention=self.retention, clock=self.clock
        )

    async def commit(self, store: TieredMessageStore) -> None:
        """Have all tiered that is in the hot log now."""
        cold = store.cold
        assert cold is not None
        await self.local.log.flush()
        cold.feed.poll_all()
        await cold.dispatcher.drain()

    async def expire(self, store: TieredMessageStore) -> dict[QueueId, int]:
        """Run retention once; the first offset that the tier has of each queue then."""
        cold = store.cold
        assert cold is not None
        tier = cold.tier
        owned = OwnedTier(
            tier.journal,
            tier.store,
            self.clock,
            random.Random(0),
            self.upkeep,
            tier.upkeep.deletions,
            tier.upkeep.topic_hours,
        )
        await RetentionStep(owned).step()
        return {queue: int(one.min_offset) for queue, one in tier.state.queues.items()}

    async def move(self, store: TieredMessageStore) -> int:
        """Have all tiered, and delete what may go of the hot log; how many files went."""
        await self.commit(store)
        return len((await self.local.trim()).files)
