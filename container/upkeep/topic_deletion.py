"""Deleting a topic from the tier, on an explicit word: what is published, and what it frees.

Bytes that were written for a queue and not published before its topic was deleted go, too: the
announcement of the queue's first files says where they lie (`first_files.py`). It stays, for a
request that was cancelled may still land; the next owner looks there again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from container.errors import BytesMissing, Refused
from container.journal.journal import Journal
from container.metadata.object_names import own_file
from container.metadata.operations import AddTombstones, DropQueue
from container.metadata.part_counts import references, release_of
from container.metadata.records import Queue, QueueBasis, Segment, Tombstone
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import parse_segment_name
from container.queue.manifest import ManifestReader
from container.upkeep.first_files import KIND
from container.upkeep.offloading import OFFLOADED
from provider.clock import Clock
from provider.errors import StoreError, Unavailable
from provider.object_store import ObjectStore

DELETED = "topic deleted"
"""The reason in tombstones of its files: a queue of that name begins again when they are gone."""


async def delete_topic(
    journal: Journal, store: ObjectStore, topic: str, *, clock: Clock, plans_max: int
) -> int:
    """Unpublish all queues of a topic in one entry, as `Tier.delete_topic` says.

    Planned at most `plans_max` times, where the queues are changed again and again.
    """
    manifests = ManifestReader(store)
    changed: StoreError | None = None
    for _ in range(plans_max):
        queues = journal.state.queues.of_topic(topic)
        now_ms = clock.now_ms()
        try:
            drops = [await _drop(one, manifests, now_ms=now_ms) for one in queues]
            drops = [_hastened(drop, journal.state.tombstones.values(), now_ms) for drop in drops]
            left = await _never_published(journal.state, store, topic, now_ms=now_ms)
            if drops or left:
                await journal.publish([*drops, AddTombstones(left)] if left else drops)
        except (BytesMissing, Refused) as error:  # a commit, or upkeep, has changed a record
            if all(journal.state.queues.get(one.id) is one for one in queues):
                raise
            changed = error
            for one in queues:
                await journal.settle(one.id)
        else:
            return len(queues)
    raise Unavailable("its queues change faster than they can be deleted", topic) from changed


async def _never_published(
    state: TierState, store: ObjectStore, topic: str, *, now_ms: int
) -> tuple[Tombstone, ...]:
    """Files of queues that were begun and never published. One request for each such queue."""
    prefixes = [
        one.output_prefix
        for one in state.attempts.values()
        if one.kind == KIND and one.output_prefix.startswith(f"{topic}/")
    ]
    names = [entry.name for prefix in prefixes for entry in await store.list(prefix)]
    return tuple(
        Tombstone(name, now_ms, DELETED)
        for name in names
        if parse_segment_name(name) is not None and name not in state.tombstones
    )


async def _drop(queue: Queue, manifests: ManifestReader, *, now_ms: int) -> DropQueue:
    """The operation that unpublishes a queue. One request for each manifest that is not cached.

    Its files may go at once, for nobody is to read them any more.
    """
    listed: list[Segment] = []
    for ref in queue.manifests:
        listed += await manifests.segments(ref)
    segments = [segment for kind in FLAT_FILES for segment in queue.segments(kind)] + listed
    files = [own_file(queue.id, segment) for segment in segments]
    names = [name for name in files if name is not None]
    names += [ref.object_name for ref in queue.manifests]
    tombstones = tuple(Tombstone(name, now_ms, DELETED) for name in dict.fromkeys(names))
    release = release_of(queue, references(listed), now_ms)
    return DropQueue(queue.id, tombstones, QueueBasis.of(queue), release)


def _hastened(drop: DropQueue, tombstones: Iterable[Tombstone], now_ms: int) -> DropQueue:
    """A drop that also takes at once what was offloaded and waits for the lag. O(tombstones)."""
    own_files = f"{drop.queue}/"
    waiting = [
        Tombstone(one.object_name, now_ms, DELETED)
        for one in tombstones
        if one.reason == OFFLOADED and one.object_name.startswith(own_files)
    ]
    return replace(drop, tombstones=(*drop.tombstones, *waiting))


def still_dying(tombstones: Mapping[str, Tombstone], queues: Iterable[QueueId]) -> QueueId | None:
    """One of `queues` of which files of a deleted topic are still there. Pure, O(tombstones)."""
    wanted = {str(queue): queue for queue in queues}
    if not wanted:
        return None
    for name, one in tombstones.items():
        if one.reason == DELETED and (queue := wanted.get(name.rsplit("/", 2)[0])) is not None:
            return queue
    return None
