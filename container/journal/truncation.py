"""Deletes journal entries that snapshots have made superfluous (decision 0008).

1. A snapshot is written, read back and compared (`snapshot.py`).
2. The boundary is durable before anything at or below it is deleted.
3. The boundary never passes the second newest snapshot, so that the newest may turn out to be
   damaged; and never a snapshot younger than the grace time.
"""

from contextlib import suppress
from dataclasses import dataclass

from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.journal.options import RandomSource
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    JOURNAL_PREFIX,
    SNAPSHOT_PREFIX,
    BoundaryName,
    ClaimName,
    EntryName,
    SnapshotName,
    parse_name,
)
from provider.errors import AlreadyExists
from provider.object_store import ObjectStore

DELETED_AT_ONCE_MAX = 1000
OLD_LISTINGS = 2
"""A replaced boundary stays for so many of the longest listings that are believed."""


@dataclass(frozen=True, slots=True)
class VerifiedSnapshot:
    """A snapshot that we have read whole."""

    name: SnapshotName
    seen_s: float
    """Monotonic time at which we had read it."""


def plan_boundary(
    verified: list[VerifiedSnapshot], now_s: float, grace_s: float
) -> SnapshotName | None:
    """The newest snapshot up to which entries may go: old enough, and not the newest. Pure."""
    old = [one.name for one in verified[:-1] if now_s - one.seen_s >= grace_s]
    return max(old, default=None)


@dataclass(frozen=True, slots=True)
class DurableBoundary:
    """A boundary that we have made, or found there."""

    sequence: int
    since_s: float
    """Monotonic time by which it was durable."""


def plan_old_boundaries(made: list[DurableBoundary], now_s: float, listing_s_max: float) -> int:
    """Boundaries below this one may go: every believed listing shows it, or a newer one. Pure."""
    old = [one.sequence for one in made if now_s - one.since_s > OLD_LISTINGS * listing_s_max]
    return max(old, default=0)


async def truncate_journal(
    store: ObjectStore, upto: SnapshotName, *, replaced: int, epoch: int, rng: RandomSource
) -> int:
    """Make the boundary durable, then delete what it makes superfluous; how many objects went.

    Boundaries below `replaced` (`plan_old_boundaries`) are superfluous, too, and claims of our
    epoch. May be called again after any failure. Five requests, and one per 1,000 objects.
    """
    nonce = rng.randbytes(NONCE_BYTES)
    frame = Frame(FrameKind.BOUNDARY, epoch, upto.sequence, nonce, b"{}")
    boundary = BoundaryName(upto.sequence)
    with suppress(AlreadyExists):  # an earlier attempt, or another owner: it says the same
        await store.create(str(boundary), [frame.encode()])
    old: list[str] = []
    for entry in await store.list(JOURNAL_PREFIX):
        name = parse_name(entry.name)
        if isinstance(name, EntryName) and name.sequence <= upto.sequence:
            old.append(entry.name)
    for entry in await store.list(SNAPSHOT_PREFIX):
        name = parse_name(entry.name)
        if isinstance(name, SnapshotName) and name.sequence < upto.sequence:
            old.append(entry.name)
    for entry in await store.list(BOUNDARY_PREFIX):
        name, claim = parse_name(entry.name), ClaimName.parse(entry.name)
        if isinstance(name, BoundaryName) and name.sequence < replaced:
            old.append(entry.name)
        if claim is not None and claim.epoch <= epoch:  # its taker won, or died
            old.append(entry.name)
    for start in range(0, len(old), DELETED_AT_ONCE_MAX):
        await store.delete(old[start : start + DELETED_AT_ONCE_MAX])
    return len(old)
