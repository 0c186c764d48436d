"""A tier in memory with a second store: messages, an offload by hand, and what is where."""

from dataclasses import replace

from container.metadata.objects import is_away
from container.metadata.records import Segment
from container.move.offload_plan import Until
from container.names.queue_id import FLAT_FILES, QueueId
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.offload import OffloadedQueue
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld

HOUR_S = 3600
OPTIONS = TierOptions(
    commit_log_bytes_max=2_000,
    consume_queue_bytes_max=400,
    extent_bytes_max=1_000,
    cut_grace_hours=1,
)
BY_HAND = UpkeepOptions(
    interval_s=20.0,
    snapshot_entries_max=20,
    grace_s=100.0,
    sealed_segments_max=2,
    manifests_per_level_max=2,
    repack_bytes_max=1_500,
    offloads=True,
    offload_place="s3://second/place",
    offload_lag_s=1_000.0,
    offload_interval_s=30.0,
)
BY_AGE = replace(BY_HAND, offload_age_hours=1)
OTHER = QueueId("Other", 3)
ALL = Until()


def world(options: UpkeepOptions = BY_HAND, *, packed: bool = False) -> OwnedWorld:
    return OwnedWorld(OPTIONS, options, packed=packed, offloads=True)


async def by_hand(tier: Tier, until: Until = ALL, topic: str = TOPIC) -> list[OffloadedQueue]:
    step = tier.upkeep.offload
    assert step is not None
    return await step.by_hand(topic, until)


async def segments(world: OwnedWorld, queue: QueueId = QUEUE) -> list[Segment]:
    reader = await TierReader.open(world.view())
    container = reader.container(queue)
    assert container is not None
    return [one for kind in FLAT_FILES for one in await container.segments(kind)]


async def away(world: OwnedWorld, queue: QueueId = QUEUE) -> int:
    """How many segments are in the second store."""
    return sum(map(is_away, await segments(world, queue)))


def in_second(world: OwnedWorld) -> set[str]:
    """What lies in the second store beside the object that says whose it is."""
    assert world.second is not None
    return {name for name in world.second._shared.objects if not name.endswith("/@store")}
