"""Truncation of the journal: the head below a snapshot, and a damaged tail on request."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from container.errors import NewerVersion
from container.journal.frame import NONCE_BYTES, Frame, FrameKind, copy_in, decode_entry
from container.journal.reader import Loaded, write_snapshot
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
from provider.clock import Clock, RandomSource
from provider.errors import AlreadyExists, Corrupt, NotFound
from provider.object_store import Buffer, ObjectStore

DELETED_AT_ONCE_MAX = 1000
OLD_LISTINGS = 2
"""Life of a replaced boundary, in multiples of the longest trusted listing."""


@dataclass(frozen=True, slots=True)
class VerifiedSnapshot:
    """Snapshot that this process has read as a whole."""

    name: SnapshotName
    seen_s: float
    """Monotonic time of that read, in seconds."""


def plan_boundary(
    verified: list[VerifiedSnapshot], now_s: float, grace_s: float
) -> SnapshotName | None:
    """Newest snapshot up to which entries may be deleted: old enough, and not the newest. Pure."""
    old = [one.name for one in verified[:-1] if now_s - one.seen_s >= grace_s]
    return max(old, default=None)


@dataclass(frozen=True, slots=True)
class DurableBoundary:
    """Boundary that this process has created or found."""

    sequence: int
    since_s: float
    """Monotonic time by which it was durable, in seconds."""


def plan_old_boundaries(made: list[DurableBoundary], now_s: float, listing_s_max: float) -> int:
    """Number below which boundaries may be deleted: each trusted listing has a newer one. Pure."""
    old = [one.sequence for one in made if now_s - one.since_s > OLD_LISTINGS * listing_s_max]
    return max(old, default=0)


async def truncate_journal(
    store: ObjectStore, upto: SnapshotName, *, replaced: int, epoch: int, rng: RandomSource
) -> int:
    """Make the boundary durable, then delete the obsolete objects. Return the number deleted.

    Boundaries below `replaced` (`plan_old_boundaries`) and claims of our epoch are obsolete too.
    May be called again after any failure. Five requests, and one per 1,000 objects.
    """
    nonce = rng.randbytes(NONCE_BYTES)
    frame = Frame(FrameKind.BOUNDARY, epoch, upto.sequence, nonce, b"{}")
    boundary = BoundaryName(upto.sequence)
    with suppress(AlreadyExists):  # an earlier attempt or another owner created the same
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
        if claim is not None and claim.epoch <= epoch:  # its claimant won, or died
            old.append(entry.name)
    for start in range(0, len(old), DELETED_AT_ONCE_MAX):
        await store.delete(old[start : start + DELETED_AT_ONCE_MAX])
    return len(old)


SNAPSHOTS = 2
"""Snapshots required by a boundary: one of them may turn out to be damaged."""


@dataclass(frozen=True, slots=True)
class JournalCut:
    """Effect of truncating a journal after its intact part."""

    kept: int
    """Number of the last entry that stays."""
    given_up: tuple[int, ...]
    """Numbers of the existing entries after it, damaged or not."""
    unreadable: int
    """Given-up entries without any readable content."""
    ends: Mapping[QueueId, tuple[int, int]]
    """Queues that would lose messages: next offset after the truncation, and the next offset of the
    readable entries."""
    newest: int
    """Highest number of any entry, snapshot or boundary."""


async def find_journal_cut(store: ObjectStore, loaded: Loaded) -> JournalCut:
    """Inspect the entries after the loaded part of the journal. Reads each of them once.

    Raises:
        Unavailable: retry later.
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
    """Operations in an entry's object by number: its own, and those of its copy."""
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
    """Record the end of a queue after an operation."""
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
    """Queues whose end in the state is lower than in an entry."""
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
    """Make the loaded part the whole journal. Return the number of its new last entry.

    The caller must know that no owner is alive: an owner that publishes during the call could lose
    acknowledged changes. Five requests. May be called again after any failure, with a new `cut`.

    Raises:
        Unavailable: the outcome is unknown. Call `find_journal_cut` again.
        Corrupt: a snapshot reads back different from what was written. Nothing is truncated.
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
