"""Truncation of the journal: the head below a snapshot, and a damaged tail on request."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from container.errors import NewerVersion
from container.journal.entry import copy_in, decode_entry
from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.journal.options import RandomSource
from container.journal.reader import Loaded
from container.journal.snapshot import write_snapshot
from container.metadata.codec import decode_operations
from container.metadata.operations import CommitQueue, Operation, PutQueue, RecordGap
from container.metadata.state import TierState
from container.names.queue_id import QueueId
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
from provider.clock import Clock
from provider.errors import AlreadyExists, Corrupt, NotFound
from provider.object_store import Buffer, ObjectStore

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


SNAPSHOTS = 2
"""As many as a boundary needs: one of them may turn out to be damaged."""


@dataclass(frozen=True, slots=True)
class JournalCut:
    """What goes if a journal is cut behind its whole part."""

    kept: int
    """The last entry that stays."""
    given_up: tuple[int, ...]
    """Entries behind it that are there, damaged or not."""
    unreadable: int
    """Those among them of which nothing is known."""
    ends: Mapping[QueueId, tuple[int, int]]
    """Of each queue that would lose messages: its next offset then, and the one that the readable
    entries tell."""
    newest: int
    """The highest number of any entry, snapshot or boundary."""


async def find_journal_cut(store: ObjectStore, loaded: Loaded) -> JournalCut:
    """What lies behind the part of the journal that was loaded. Reads each entry there once.

    Raises:
        Unavailable: try again.
    """
    kept = loaded.state.sequence
    told: dict[QueueId, int] = {}
    numbers = [name.sequence for name in await _names(store, JOURNAL_PREFIX)]
    given_up = tuple(number for number in numbers if number > kept)
    unreadable = set(given_up)
    for number in given_up:
        name = EntryName(number)
        try:
            raw = await store.read(str(name))
        except NotFound:
            continue
        for said, operations in _said(raw, name):
            unreadable.discard(said)
            for operation in operations if said > kept else ():
                _note_end(told, operation)
    others = [*await _names(store, SNAPSHOT_PREFIX), *await _names(store, BOUNDARY_PREFIX)]
    newest = max([kept, *numbers, *(name.sequence for name in others)])
    return JournalCut(kept, given_up, len(unreadable), _lost(loaded.state, told), newest)


async def _names(store: ObjectStore, prefix: str) -> list[EntryName | SnapshotName | BoundaryName]:
    parsed = [parse_name(entry.name) for entry in await store.list(prefix)]
    return [one for one in parsed if isinstance(one, EntryName | SnapshotName | BoundaryName)]


def _said(raw: Buffer, name: EntryName) -> list[tuple[int, list[Operation]]]:
    """The operations that an entry's object tells, by number: its own, and those of its copy."""
    found: list[tuple[int, list[Operation]]] = []
    with suppress(Corrupt, NewerVersion):
        copy = copy_in(raw, name)
        if copy is not None:
            before = EntryName(name.sequence - 1)
            frame, _ = decode_entry(copy, before)
            found.append((before.sequence, decode_operations(frame.payload, path=str(before))))
    with suppress(Corrupt, NewerVersion):
        frame, _ = decode_entry(raw, name)
        found.append((name.sequence, decode_operations(frame.payload, path=str(name))))
    return found


def _note_end(told: dict[QueueId, int], operation: Operation) -> None:
    """Note where a queue ends after an operation."""
    match operation:
        case CommitQueue():
            told[operation.queue] = operation.next_offset
        case RecordGap():
            told[operation.queue] = operation.gap.end
        case PutQueue():
            told[operation.queue.id] = operation.queue.next_offset
        case _:
            pass


def _lost(state: TierState, told: Mapping[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
    """Queues whose end lies lower in the state than an entry tells."""
    ends: dict[QueueId, tuple[int, int]] = {}
    for queue_id, end in sorted(told.items()):
        queue = state.queues.get(queue_id)
        stays = queue.next_offset if queue else 0
        if end > stays:
            ends[queue_id] = (stays, end)
    return ends


async def cut_journal(
    store: ObjectStore, loaded: Loaded, cut: JournalCut, *, rng: RandomSource, clock: Clock
) -> int:
    """Make the part that was loaded the whole journal; returns the number that it ends with now.

    The caller must know that no owner lives: one that publishes meanwhile could lose what it has
    acknowledged. Five requests. May be called again after any failure, with a new `cut`.

    Raises:
        Unavailable: unknown outcome; look again.
        Corrupt: a snapshot reads back different from what was written; nothing is cut.
    """
    state = loaded.state.copy()
    state.sequence = cut.newest + 1
    epoch = state.broker.epoch
    for _ in range(SNAPSHOTS):
        await write_snapshot(store, state, epoch=epoch, rng=rng, clock=clock)
    nonce = rng.randbytes(NONCE_BYTES)
    frame = Frame(FrameKind.BOUNDARY, epoch, state.sequence, nonce, b"{}")
    await store.create(str(BoundaryName(state.sequence)), [frame.encode()])
    return state.sequence
