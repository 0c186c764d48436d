"""Deletion rule: the objects that may be deleted. Pure; `tombstones.py` deletes them.

The order is always: unpublished in the journal (the tombstone), then deleted after the grace time.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice

from container.metadata.objects import names_of_queue
from container.metadata.records import Queue, Tombstone
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import SegmentName, parse_segment_name
from container.names.tier_objects import KeptName, ManifestName, parse_name
from container.options import UpkeepOptions
from provider.clock import backoff_s
from provider.stores.verified import PROBE_PREFIX

NEVER_PUBLISHED = "never published"
"""Reason in tombstones of orphans."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """Plan for the due tombstones."""

    delete: tuple[Tombstone, ...]
    """Tombstones of objects to delete."""
    drop: tuple[str, ...]
    """Tombstones of objects that are in use again. Only the tombstones are dropped."""


def plan_deletions(
    state: TierState,
    now_ms: int,
    options: UpkeepOptions,
    *,
    among: Iterable[str] | None = None,
    unclear: AbstractSet[str] = frozenset(),
    rests: Callable[[Tombstone], bool] = lambda _: False,
) -> Deletions:
    """Plan the due tombstones, of each kind at most `tombstones_per_step_max`. Pure.

    `rests`: whether the object of a tombstone must stay for another reason. `among`: names of the
    only objects to consider. None: all.

    O(considered tombstones), and O(extents) of the queues whose objects are due. Objects whose
    names may be reused are skipped, except the `unclear` ones: no commit begins them before they
    are gone (`PendingDeletions`).
    """
    looked_at: Iterable[Tombstone] = state.tombstones.values()
    if among is not None:
        looked_at = (one for name in among if (one := state.tombstones.get(name)) is not None)
    due = [
        one
        for one in looked_at
        if one.not_before_ms <= now_ms
        and not rests(one)
        and (one.object_name in unclear or not may_come_back(state, one.object_name))
    ]
    if not due:
        return Deletions((), ())
    used, limit = _still_named(state, due), options.tombstones_per_step_max
    delete = (one for one in due if one.object_name not in used)
    drop = (one.object_name for one in due if one.object_name in used)
    return Deletions(tuple(islice(delete, limit)), tuple(islice(drop, limit)))


def still_due(
    state: TierState, planned: Iterable[Tombstone], *, unclear: AbstractSet[str] = frozenset()
) -> tuple[Tombstone, ...]:
    """Filter the planned tombstones: leave out objects that are in use again. Pure.

    Only the file of a segment can be reused, by a truncation or a commit. O(tombstones), and
    O(extents) of their queues.
    """
    used: dict[QueueId, set[str]] = {}
    still: list[Tombstone] = []
    for one in planned:
        name = one.object_name
        if name not in state.tombstones:
            continue
        if name not in unclear and may_come_back(state, name):
            continue
        parsed = parse_segment_name(name)
        queue = state.queues.get(parsed.queue) if parsed else None
        if queue is not None:
            if queue.id not in used:
                used[queue.id] = set(names_of_queue(queue))
            if name in used[queue.id]:
                continue
        still.append(one)
    return tuple(still)


def _still_named(state: TierState, due: Iterable[Tombstone]) -> AbstractSet[str]:
    """Names of the due objects that are in use.

    Reads only the records of the queues that own a file or a manifest among them: there may be a
    hundred thousand queues. Other records name only parts, which are counted.
    """
    if not state.parts_counted:
        return names_in_use(state)
    names = {one.object_name for one in due}
    parsed = [parse_name(name) or parse_segment_name(name) for name in names]
    own = {one.queue for one in parsed if isinstance(one, ManifestName | SegmentName)}
    used = {name for name in names if name in state.index_files or name in state.parts}
    for queue_id in own:
        queue = state.queues.get(queue_id)
        if queue is not None:
            used.update(_names_in(queue))
    return used


def _names_in(queue: Queue) -> Iterator[str]:
    """Names of all objects in a queue's record. O(extents)."""
    yield from (ref.object_name for ref in queue.manifests)
    yield from names_of_queue(queue)


def names_in_use(state: TierState) -> set[str]:
    """Names of all objects in the state's records, and of all referenced parts. O(extents).

    Excludes the own files of segments in manifests.
    """
    used = {*state.index_files, *state.parts}
    for queue in state.queues.values():
        used.update(_names_in(queue))
    return used


def may_come_back(state: TierState, name: str) -> bool:
    """Whether an unpublished commit may be writing to the object.

    Only the name of a segment's own file can be reused: after a tail truncation, by the segment
    that begins at the same byte. Such a segment begins at the end of its flat file.
    """
    parsed = parse_segment_name(name)
    queue = state.queues.get(parsed.queue) if parsed else None
    if parsed is None or queue is None or parsed.type not in FLAT_FILES:
        return False
    return parsed.base >= queue.flat_end(parsed.type)


def failed_again(tombstone: Tombstone, now_ms: int, options: UpkeepOptions) -> Tombstone:
    """Tombstone after one more failed deletion. Its delay doubles each time."""
    tries, s_max = tombstone.tries + 1, max(options.tombstone_retry_s_max, options.grace_s)
    wait_ms = int(1000 * backoff_s(tries, s_min=options.grace_s, s_max=s_max))
    return replace(tombstone, tries=tries, not_before_ms=now_ms + wait_ms)


def never_published(state: TierState, names: Iterable[str]) -> list[str]:
    """Unreferenced manifests, and copies of truncated segments, of earlier owners. Pure.

    Their names have the epoch of the owner that created them, so they can never be published.
    Includes objects left by probes: a running probe takes seconds, less than any grace time.
    """
    used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
    orphans: list[str] = []
    for name in names:
        if name in used or name in state.tombstones:
            continue
        parsed = parse_name(name) or KeptName.parse(name)
        is_old = isinstance(parsed, ManifestName | KeptName) and parsed.epoch < state.broker.epoch
        if is_old or name.startswith(PROBE_PREFIX):
            orphans.append(name)
    return orphans
