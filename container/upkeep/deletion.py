"""Which objects may be deleted, decided purely; the housekeeper deletes them.

The order is always: unpublished in the journal (the tombstone), then deleted after the lag.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from container.journal.options import JournalOptions
from container.metadata.object_names import names_of_queue
from container.metadata.records import Tombstone
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES
from container.names.rocketmq import parse_segment_name
from container.names.tier_objects import KeptName, ManifestName, parse_name


@dataclass(frozen=True, slots=True)
class Burial:
    """What to do with the tombstones that are due."""

    delete: tuple[Tombstone, ...]
    """Objects to delete."""
    drop: tuple[str, ...]
    """Tombstones of objects that are in use again: they go, the objects stay."""


def plan_burial(state: TierState, now_ms: int, options: JournalOptions) -> Burial:
    """The tombstones that are due, at most `tombstones_per_round_max`. Pure.

    O(tombstones), and O(records) where one is due.
    """
    due: list[Tombstone] = []
    for tombstone in state.tombstones.values():
        if tombstone.not_before_ms <= now_ms and tombstone.tries < options.tombstone_tries_max:
            due.append(tombstone)
            if len(due) == options.tombstones_per_round_max:
                break
    if not due:
        return Burial((), ())
    used = names_in_use(state)
    delete = tuple(
        one
        for one in due
        if one.object_name not in used and not may_come_back(state, one.object_name)
    )
    return Burial(delete, tuple(one.object_name for one in due if one.object_name in used))


def names_in_use(state: TierState) -> set[str]:
    """Every object that the state's records name, but for what only manifests name. O(extents)."""
    used = set(state.index_files)
    for queue in state.queues.values():
        used.update(ref.object_name for ref in queue.manifests)
        used.update(names_of_queue(queue))
    return used


def may_come_back(state: TierState, name: str) -> bool:
    """Whether a commit that is not published yet may be writing to the object.

    A segment's own file is the one kind of name that can be used again: after a cut, by the
    segment that begins where the old one did. It can only begin at the end of its flat file.
    """
    parsed = parse_segment_name(name)
    queue = state.queues.get(parsed.queue) if parsed else None
    if parsed is None or queue is None or parsed.type not in FLAT_FILES:
        return False
    return parsed.base >= queue.flat_end(parsed.type)


def failed_again(tombstone: Tombstone, now_ms: int, options: JournalOptions) -> Tombstone:
    """The tombstone after one more failure: later, and not for ever."""
    wait_ms = int(options.grace_s * 1000)
    return replace(tombstone, tries=tombstone.tries + 1, not_before_ms=now_ms + wait_ms)


def never_published(state: TierState, names: Iterable[str]) -> list[str]:
    """Manifests, and copies of cut segments, of earlier owners that nothing refers to. Pure.

    Their names hold the epoch of the owner that made them: they can never be published.
    """
    used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
    orphans: list[str] = []
    for name in names:
        parsed = parse_name(name) or KeptName.parse(name)
        if (
            isinstance(parsed, ManifestName | KeptName)
            and parsed.epoch < state.broker.epoch
            and name not in used
            and name not in state.tombstones
        ):
            orphans.append(name)
    return orphans
