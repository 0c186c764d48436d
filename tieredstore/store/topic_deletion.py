"""Deletion of topics: validation of the names, then hot log and tier in the safe order."""

from collections.abc import Collection, Iterable

from container.names.queue_id import queue_counts
from dispatcher.topic_filter import is_system_topic
from tieredstore.store.cold_tier import ColdTier
from tieredstore.store.protocol import MessageStore


def deletable(
    topics: Collection[str], own: Collection[str] = (), held: Collection[str] = ()
) -> frozenset[str]:
    """Return the topics that a call names, each once. Pure.

    Args:
        topics: the names of the call.
        own: topics that a broker creates for itself; see `own_topics`.
        held: topics of which the store has queues. System topics among them may be deleted.

    Raises:
        ValueError: one of them is a system topic that the store does not have, or the call names
            one text in place of several.
    """
    names = _names(topics)
    for topic in sorted(names):
        if topic not in held and (is_system_topic(topic) or topic in own):
            raise ValueError(f"{topic} is a system topic, which is not deleted")
    return names


def unused(
    topics: Iterable[str], retained: Collection[str], own: Collection[str] = ()
) -> list[str]:
    """Return the topics that are neither retained nor system topics, sorted. Pure.

    Raises:
        ValueError: `retained` is one text in place of several.
    """
    kept = {*_names(retained), *own}
    return sorted(one for one in topics if one not in kept and not is_system_topic(one))


async def delete_topics(
    topics: Collection[str], inner: MessageStore, cold: ColdTier | None
) -> None:
    """Delete topics from a store, and from its tier if it has one; see `ColdTier.delete_topics`."""
    if cold is None:
        await inner.delete_topics(topics)
    else:
        await cold.delete_topics(topics, lambda: inner.delete_topics(topics))


def topics_of(inner: MessageStore, cold: ColdTier | None) -> dict[str, int]:
    """Return topics of hot log and tier, with their queue counts (highest id + 1). O(queues)."""
    hot, tiered = inner.topics(), queue_counts(() if cold is None else cold.tier.state.queues)
    return {topic: max(hot.get(topic, 0), tiered.get(topic, 0)) for topic in (*hot, *tiered)}


def queue_ids_of(topic: str, inner: MessageStore, cold: ColdTier | None) -> list[int]:
    """Return the queues of a topic in hot log and tier, ascending. O(queues of the hot log)."""
    tiered = () if cold is None else cold.tier.state.queues.names_of_topic(topic)
    return sorted({*inner.queue_ids(topic), *(queue.queue_id for queue in tiered)})


def _names(topics: Collection[str]) -> frozenset[str]:
    if isinstance(topics, str):
        raise ValueError(f"the topics are one text, {topics!r}: give a list of names")  # noqa: TRY004 - as other wrong arguments
    return frozenset(topics)
