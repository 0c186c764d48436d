"""Deletion of a topic from the tier, on request: unpublishes its queues and frees their objects.

Bytes that were written for a queue but not published before the deletion are freed too. The files
are listed after writes of cancelled commits have landed. The announcement of a never published
queue's first files gives their place (`creation_intents.py`). It stays, and each deleted queue gets
one: a commit in flight may still land, and the next owner lists the files again.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from container.errors import BytesMissing
from container.journal.journal import Journal
from container.metadata.object_names import own_file
from container.metadata.operations import AddTombstones, DropQueue, Operation, PutAttempt
from container.metadata.part_counts import references, release_of
from container.metadata.records import (
    Attempt,
    ManifestRef,
    Queue,
    QueueBasis,
    Segment,
    Tombstone,
)
from container.metadata.state import TierState
from container.metadata.tables import TombstoneTable
from container.move.offload_copies import OFFLOADED
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import parse_segment_name
from container.queue.manifest import ManifestReader
from container.upkeep.creation_intents import DROPPED, KIND, attempt_of
from provider.clock import Clock
from provider.errors import Unavailable
from provider.object_store import ObjectStore

DELETED = "topic deleted"
"""Reason in tombstones of its files. A queue of that name can begin again once they are gone."""


async def delete_topic(
    journal: Journal,
    store: ObjectStore,
    topic: str,
    *,
    has_segment_names: bool,
    clock: Clock,
    plans_max: int,
) -> int:
    """Unpublish all queues of a topic in one entry, as documented in `Tier.delete_topic`.

    Planned on the newest records, without an await before the publication, so commits do not
    conflict with it. At most `plans_max` attempts, if manifests are merged concurrently.
    """
    manifests = ManifestReader(store)
    planned, now_ms = journal.planned, clock.now_ms()
    listed: dict[str, Sequence[Segment]] = {}
    missing: BytesMissing | None = None
    for _ in range(plans_max):
        left = await _never_published(journal.state, store, topic, now_ms=now_ms)
        known = planned.queues.of_topic(topic) if has_segment_names else ()
        files: dict[QueueId, Sequence[str]] = {}
        with suppress(Unavailable):  # the next owner lists them again
            files = {one.id: await _segment_files(store, f"{one.id}/") for one in known}
        for ref in _unlisted(planned.queues.of_topic(topic), listed):
            try:
                listed[ref.object_name] = await manifests.segments(ref)
            except BytesMissing as error:
                if ref in _unlisted(planned.queues.of_topic(topic), listed):
                    raise
                missing = error  # it was merged with others since
        queues = planned.queues.of_topic(topic)  # no await from here on
        if _unlisted(queues, listed):
            continue
        drops: list[Operation] = []
        for one in queues:
            unknown = [name for name in files.get(one.id, ()) if name not in planned.tombstones]
            drops.append(_drop(one, listed, planned.tombstones, now_ms, unknown))
            if has_segment_names:
                drops.append(_announced(one.id, journal.epoch, now_ms))
        if drops or left:
            await journal.publish([*drops, AddTombstones(left)] if left else drops)
        return len(queues)
    reason = "its manifests change faster than they can be read; try again"
    raise Unavailable(reason, topic) from missing


async def _segment_files(store: ObjectStore, prefix: str) -> list[str]:
    """Files of one queue, published or not. One request."""
    entries = await store.list(prefix)
    return [entry.name for entry in entries if parse_segment_name(entry.name) is not None]


def _unlisted(
    queues: Iterable[Queue], listed: Mapping[str, Sequence[Segment]]
) -> list[ManifestRef]:
    """Manifests of some queues that were not read."""
    return [ref for one in queues for ref in one.manifests if ref.object_name not in listed]


async def _never_published(
    state: TierState, store: ObjectStore, topic: str, *, now_ms: int
) -> tuple[Tombstone, ...]:
    """Files of queues that were begun and never published. One request for each such queue."""
    prefixes = [
        one.output_prefix
        for one in state.attempts.values()
        if one.kind == KIND and one.output_prefix.startswith(f"{topic}/")
    ]
    names = [name for prefix in prefixes for name in await _segment_files(store, prefix)]
    return tuple(Tombstone(name, now_ms, DELETED) for name in names if name not in state.tombstones)


def _announced(queue: QueueId, epoch: int, now_ms: int) -> PutAttempt:
    """Operation that makes the next owner list the files left by a deleted queue."""
    return PutAttempt(Attempt(attempt_of(queue), DROPPED, now_ms, epoch, f"{queue}/"))


def _drop(
    queue: Queue,
    listed: Mapping[str, Sequence[Segment]],
    tombstones: TombstoneTable,
    now_ms: int,
    files: Iterable[str],
) -> DropQueue:
    """Operation that unpublishes a queue. Pure.

    `files` are those in its directories, published or not, that have no tombstones.

    Its files may be deleted at once, as no reader may read them any more. So may its offloaded
    bytes, after the lag.
    """
    old = [segment for ref in queue.manifests for segment in listed[ref.object_name]]
    segments = [segment for kind in FLAT_FILES for segment in queue.segments(kind)] + old
    own_files = [own_file(queue.id, segment) for segment in segments]
    names = [name for name in own_files if name is not None]
    names += [ref.object_name for ref in queue.manifests]
    names += files
    waiting = tombstones.in_directory(str(queue.id))
    names += sorted(name for name in waiting if tombstones[name].reason == OFFLOADED)
    dead = tuple(Tombstone(name, now_ms, DELETED) for name in dict.fromkeys(names))
    return DropQueue(queue.id, dead, QueueBasis.of(queue), release_of(references(old), now_ms))


def still_dying(tombstones: TombstoneTable, queues: Iterable[QueueId]) -> QueueId | None:
    """First of `queues` with remaining files of a deleted topic. Pure.

    O(tombstones of the queues).
    """
    for queue in queues:
        names = tombstones.in_directory(str(queue))
        if any(tombstones[name].reason == DELETED for name in names):
            return queue
    return None
