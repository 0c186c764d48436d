"""Deletion of topics by command: from a store directory with its tier, or from a tier alone."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from container.tier import Tier
from dispatcher.topic_filter import own_topics
from provider.clock import Clock
from provider.errors import NotFound
from provider.names import is_directory
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.identity import has_tier, memory_of_follower, memory_of_store
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of
from tieredstore.session.reader import existing_tier
from tieredstore.session.takeover import refuse_living_owner
from tieredstore.store.configured import plan_store
from tieredstore.store.levels import Level
from tieredstore.store.plugins import opened
from tieredstore.store.topic_deletion import deletable

LOGGER = logging.getLogger("tieredstore.owner")


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """Extent of a topic, in store and tier, before it is deleted."""

    topic: str
    store_queues: int
    """Queues that the store directory has."""
    tier_queues: int
    """Queues that the tier has."""
    tier_messages: int
    """Messages of them that can be read."""
    tier_bytes: int
    """Length of their records together."""

    @property
    def is_there(self) -> bool:
        """Whether there is anything of it."""
        return self.store_queues + self.tier_queues > 0


@dataclass(frozen=True, slots=True)
class DeletionPlaces:
    """Places of a deletion: a store directory, a tier, or both."""

    config: Config
    store: Path | None
    has_tier: bool


def places_of(config: Config, *, tier_only: bool) -> DeletionPlaces:
    """The store and the tier that are configured and there. Blocks for some listings.

    Raises:
        ConfigError: none is named; or there is no store where one is named; or several brokers fit;
            or the store has a tier, and none is in the place that is named.
        NotFound: a tier alone is named, and there is none.
        Denied, Unavailable: an object store refuses or does not answer.
    """
    names_store = config.gives("storePathRootDir") and not tier_only
    names_tier = config.gives("tieredStoreFilePath")
    if not (names_store or names_tier):
        raise ConfigError(
            "nothing is named to delete from: give storePathRootDir, tieredStoreFilePath or both, "
            "in the file given to --conf or with -D"
        )
    if not names_store:
        return DeletionPlaces(existing_tier(config), None, has_tier=True)
    store = config.store_dir
    if not is_directory(store / "consumequeue"):
        raise ConfigError(
            f"there is no store in {store} (storePathRootDir): --tier-only leaves the store alone"
        )
    if names_tier:
        try:
            found = existing_tier(config)
        except NotFound:
            found = None
        if found is not None and _has_begun(found):
            return DeletionPlaces(found, store, has_tier=True)
        # Nothing was tiered yet, and a tier is not begun to delete from it; or it is away.
        for memory in (memory_of_store(config, store), memory_of_follower(config, store)):
            if memory is not None:
                memory.refuse_empty()
    return DeletionPlaces(config, store, has_tier=False)


def _has_begun(config: Config) -> bool:
    """Whether there is a tier. A directory counts by itself: its files show any fault later."""
    where = directory_of(config)
    return not isinstance(where, TierUrl) or has_tier(config, where)


async def topics_in(places: DeletionPlaces, topics: Collection[str]) -> Sequence[DeletedTopic]:
    """Return the extent of each topic, in order. Reads names in the store, and tier metadata.

    Raises:
        ValueError: a topic is a system topic that does not exist.
        StoreError: the tier cannot be read.
    """
    wanted = sorted(deletable(topics, held=topics))
    local = {} if places.store is None else await asyncio.to_thread(_local, places.store, wanted)
    found = [DeletedTopic(name, local.get(name, 0), 0, 0, 0) for name in wanted]
    if places.has_tier:
        async with ReadableTier(lambda: places.config) as tier:
            found = [_with_tier(tier, one) for one in found]
    own = own_topics(places.config.cluster, places.config.broker)
    deletable(topics, own, {one.topic for one in found if one.is_there})
    return found


def _with_tier(tier: ReadableTier, one: DeletedTopic) -> DeletedTopic:
    """Return the topic with its extent in the tier."""
    queues = tier.queues(one.topic) if one.topic in tier.topics() else []
    return replace(
        one,
        tier_queues=len(queues),
        tier_messages=sum(queue.messages for queue in queues),
        tier_bytes=sum(queue.commit_log_bytes for queue in queues),
    )


def _local(store: Path, topics: Collection[str]) -> dict[str, int]:
    """Count the queues of each topic in a store directory."""
    counts: dict[str, int] = {}
    for topic in topics:
        directory = store / "consumequeue" / topic
        counts[topic] = len(list(directory.iterdir())) if is_directory(directory) else 0
    return counts


async def delete_topics(
    places: DeletionPlaces, topics: Collection[str], *, clock: Clock, take_over: bool
) -> bool:
    """Delete topics where they are; nothing is tiered meanwhile. Calling it again completes it.

    Returns whether it deleted files that an interrupted deletion had left in the tier.

    Raises:
        InUse: another process writes the store.
        Owned: a process that lives owns the tier; nothing was deleted.
        ConfigError, StoreError: as `TieredMessageStore`, `open_owner` and `Tier.delete_topic`.
    """
    if places.has_tier and not take_over:
        await refuse_living_owner(places.config, clock=clock)
    now_ms = clock.now_ms()
    due = {name for name, due_ms in (await _dead(places)).items() if due_ms <= now_ms}
    await _delete(places, topics, clock=clock, take_over=take_over)
    return bool(due) and not due & (await _dead(places)).keys()


async def _delete(
    places: DeletionPlaces, topics: Collection[str], *, clock: Clock, take_over: bool
) -> None:
    config = places.config
    if places.store is None:
        await _delete_from_tier(config, topics, clock=clock, take_over=take_over)
        return
    context, layers = await asyncio.to_thread(
        lambda: plan_store(
            config,
            clock=clock,
            take_over=take_over,
            tiers=places.has_tier,
            level=Level.DISABLE,
            continues=False,
        )
    )
    async with opened(context, layers):
        await layers.outermost.delete_topics(topics)
    if places.has_tier and layers.tiered is None:  # no plug-in of the configuration tiers
        await _delete_from_tier(config, topics, clock=clock, take_over=take_over)


async def _delete_from_tier(
    config: Config, topics: Collection[str], *, clock: Clock, take_over: bool
) -> None:
    async with running_owner(config, clock=clock, take_over=take_over) as tier:
        for topic in sorted(topics):
            await tier.delete_topic(topic)
    _tell_of_objects_left(tier, now_ms=clock.now_ms())


async def _dead(places: DeletionPlaces) -> dict[str, int]:
    """Objects of the tier that an owner is to delete, and from when on. Reads its metadata."""
    if not places.has_tier:
        return {}
    async with ReadableTier(lambda: places.config) as tier:
        dead = tier.reader.state.tombstones.values()
        return {one.object_name: one.not_before_ms for one in dead}


def _tell_of_objects_left(tier: Tier, *, now_ms: int) -> None:
    """Log the reason why due objects are not deleted by the end of the command."""
    left = [
        one for one in tier.state.tombstones.values() if one.tries or one.not_before_ms <= now_ms
    ]
    if left:
        why = tier.upkeep.undeleted or "the storage took too long"
        LOGGER.warning(
            "what was deleted stays in the storage until a later owner can delete it: %s", why
        )
