"""Offload of a topic by command, from the tier's first store to the second."""

from random import SystemRandom

from container.move.offload_plan import Until
from container.upkeep.offload import OffloadedQueue, planned_offload
from provider.clock import Clock
from provider.stores.verified import probe
from tieredstore.config.effective import Config, refuse_linked_stores, second_location
from tieredstore.config.location import OFFLOAD_PATH
from tieredstore.config.sources import ConfigError
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of, storage_at
from tieredstore.session.reader import existing_tier, whole_paths
from tieredstore.session.takeover import refuse_living_owner


def offloading_config(config: Config) -> Config:
    """The configuration of the broker whose tier is offloaded. Blocks, as `existing_tier`.

    Raises:
        ConfigError: no second store is configured, or the broker is ambiguous.
        NotFound: there is no tier.
    """
    if not config.settings[OFFLOAD_PATH].value:
        raise ConfigError(
            f"the place of the second store is not set: set {OFFLOAD_PATH}, such as "
            f"-D {OFFLOAD_PATH}=s3://bucket/prefix, for this command and for all that read the tier"
        )
    found = existing_tier(config)
    second_location(found)
    refuse_linked_stores(found)
    return found


async def plan(config: Config, topic: str, until: Until, *, clock: Clock) -> list[OffloadedQueue]:
    """Return the moves that `offload_topic` would make. Changes nothing, needs no ownership.

    Raises:
        NotFound: the tier has no such topic; names the nearest.
        StoreError: the tier cannot be read.
    """
    async with ReadableTier(lambda: config) as tier:
        tier.queues(topic)
        return await planned_offload(
            tier.reader.state,
            tier.reader.store,
            config.upkeep,
            topic,
            until,
            now_ms=clock.now_ms(),
        )


async def offload_topic(
    config: Config, topic: str, until: Until, *, clock: Clock, take_over: bool
) -> list[OffloadedQueue]:
    """Offload the sealed part of a topic, up to `until`. Owns the tier meanwhile.

    Raises:
        NotFound: the tier has no such topic; names the nearest.
        Owned: a process that lives owns the tier; nothing was moved.
        Denied: the second store refuses us, or keeps no promises.
        Corrupt: it gave back other bytes than it was given; what was published before is sound.
        StoreError: as `open_owner`.
    """
    await plan(config, topic, until, clock=clock)
    if not take_over:
        await refuse_living_owner(config, clock=clock)
    await _probe_second(config, clock=clock)
    async with running_owner(config, clock=clock, take_over=take_over) as tier:
        step = tier.upkeep.offload
        assert step is not None, "there is a second store"
        with whole_paths(directory_of(config), second_location(config)):
            return await step.by_hand(topic, until)


async def _probe_second(config: Config, *, clock: Clock) -> None:
    """Refuse a second store that cannot keep anything, before anything is done."""
    place, store = second_location(config), storage_at(config, directory_of(config), clock=clock)
    assert place is not None, "there is a second store"
    assert store.second is not None, "there is a second store"
    try:
        with whole_paths(place):
            await probe(store.second, rng=SystemRandom())
    finally:
        await store.close()
