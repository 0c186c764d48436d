"""Reads the journal: the newest valid snapshot, then the entries after it (decision 0008).

Entries may be deleted while they are read, and an old owner may have created an entry again under a
deleted number. The boundary tells both: an entry at or below a boundary that is listed *after* it
was read is not believed, and the newest snapshot is loaded instead.
"""

from dataclasses import dataclass

from container.errors import Refused
from container.journal.frame import Frame, FrameKind
from container.journal.options import JournalOptions
from container.journal.snapshot import decode_snapshot
from container.metadata.codec import decode_operations
from container.metadata.operations import TakeOwnership
from container.metadata.state import TierState
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    JOURNAL_PREFIX,
    SNAPSHOT_PREFIX,
    BoundaryName,
    EntryName,
    SnapshotName,
    parse_name,
)
from provider.clock import Clock, SystemClock
from provider.errors import Corrupt, NotFound, OutOfRange, Unavailable
from provider.object_store import Buffer, ObjectEntry, ObjectStore
from provider.ranges import ByteRange

RELOADS_MAX = 8


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a start has read."""

    state: TierState
    snapshot: SnapshotName | None
    """The snapshot that it began with; None for a young journal."""
    damaged: tuple[Corrupt, ...]
    """Newer snapshots that are damaged; nothing is lost by them."""


def apply_entry(state: TierState, raw: Buffer, name: EntryName) -> None:
    """Apply the next entry to `state`, all of it or nothing.

    Raises:
        Corrupt: the entry is damaged, or contradicts the state that it follows.
        NewerVersion: a newer program wrote it.
    """
    path = str(name)
    assert name.sequence == state.sequence + 1, f"{path} does not follow {state!r}"
    frame = Frame.decode(raw, FrameKind.ENTRY, path=path)
    if frame.sequence != name.sequence:
        raise Corrupt(f"the entry says that its number is {frame.sequence}", path)
    operations = decode_operations(frame.payload, path=path)
    fenced = bool(operations) and isinstance(operations[0], TakeOwnership)
    if frame.epoch != state.broker.epoch + fenced:
        raise Corrupt(f"epoch {frame.epoch} behind epoch {state.broker.epoch}", path)
    try:
        state.apply(operations)
    except Refused as refused:
        raise Corrupt(f"the entry contradicts what is before it: {refused}", path) from refused
    state.sequence = name.sequence


class JournalReader:
    """Reads the journal in `store`; keeps nothing but its limits."""

    def __init__(
        self, store: ObjectStore, options: JournalOptions, *, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._options = options
        self._clock = clock or SystemClock()

    async def listed(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """A listing that shows the newest object, or a newer one. One request.

        A listing may miss objects that are created or deleted while it runs. The newest object
        stays for longer than `listing_s_max` once it is replaced, so that a shorter listing does
        not miss both.

        Raises:
            Unavailable: try again; also where every listing took longer than that.
        """
        for _ in range(RELOADS_MAX):
            began_s = self._clock.monotonic_s()
            found = await self._store.list(prefix, after=after)
            if self._clock.monotonic_s() - began_s <= self._options.listing_s_max:
                return found
        raise Unavailable("listings take so long that they prove nothing", prefix)

    async def boundary(self) -> int:
        """Entries up to it may be deleted; 0 before the first. One request.

        Raises:
            Unavailable: try again.
        """
        names = [parse_name(entry.name) for entry in await self.listed(BOUNDARY_PREFIX)]
        return max((name.sequence for name in names if isinstance(name, BoundaryName)), default=0)

    async def load(self) -> Loaded:
        """Read the state as it is now.

        Costs a listing and a read of one snapshot, then what `catch_up` costs.

        Raises:
            Corrupt: an entry, or every snapshot that could be used, is damaged; or is missing.
            NewerVersion: a newer program wrote what is needed.
            Unavailable: try again.
        """
        last: SnapshotName | None = None
        for attempt in range(RELOADS_MAX):
            loaded = await self._newest_snapshot()
            if await self.catch_up(loaded.state):
                return loaded
            if attempt and loaded.snapshot == last:  # not replaced: there is no other
                if loaded.damaged:
                    raise loaded.damaged[0]
                raise Corrupt("entries were deleted, and no snapshot holds them", SNAPSHOT_PREFIX)
            last = loaded.snapshot
        raise Unavailable("the journal is cut faster than it can be read", JOURNAL_PREFIX)

    async def load_whole_part(self) -> tuple[Loaded, Corrupt | None]:
        """The state before the first damaged entry, and the damage; for reading only.

        Raises:
            NewerVersion: a newer program wrote what is needed.
            Unavailable: try again.
        """
        loaded = await self._newest_snapshot()
        try:
            await self.catch_up(loaded.state)
        except Corrupt as damage:
            return loaded, damage
        return loaded, None

    async def _newest_snapshot(self) -> Loaded:
        for _ in range(RELOADS_MAX):
            names = [parse_name(entry.name) for entry in await self.listed(SNAPSHOT_PREFIX)]
            try:
                return await self._newest_of([n for n in names if isinstance(n, SnapshotName)])
            except NotFound:  # a newer one replaced it meanwhile; the others are older
                continue
        raise Unavailable("snapshots are replaced faster than they can be read", SNAPSHOT_PREFIX)

    async def _newest_of(self, names: list[SnapshotName]) -> Loaded:
        damaged: list[Corrupt] = []
        for name in reversed(names):
            try:
                state = decode_snapshot(await self._store.read(str(name)), name)
            except Corrupt as damage:
                damaged.append(damage)
                continue
            return Loaded(state, name, tuple(damaged))
        return Loaded(TierState(), None, tuple(damaged))

    async def catch_up(self, state: TierState) -> bool:
        """Apply the entries after `state.sequence`; False if they were deleted: load again.

        One listing; where there are new entries also a read of each and a listing of the boundary
        per `catch_up_bytes_max`. `state` changes entry by entry, never within one.

        Raises:
            Corrupt: an entry is damaged or missing; the state is as it was before that entry.
            NewerVersion: a newer program wrote it.
            Unavailable: try again.
        """
        after = str(EntryName(state.sequence))
        listed = await self._store.list(JOURNAL_PREFIX, after=after)
        found = [(name, e.size_bytes) for e in listed if (name := _entry_name(e.name))]
        while found:
            batch = self._batch(found, state.sequence + 1)
            if not batch:
                if not await self._missing(state):
                    return False
                found = [one for one in found if one[0].sequence > state.sequence]
                continue
            if not await self._apply(state, batch):
                return False
            found = found[len(batch) :]
        return state.sequence > 0 or await self.boundary() == 0

    def _batch(
        self, found: list[tuple[EntryName, int]], sequence: int
    ) -> list[tuple[EntryName, int]]:
        """The next entries, dense from `sequence` on, within the limits."""
        batch: list[tuple[EntryName, int]] = []
        total = 0
        for name, size_bytes in found[: self._options.catch_up_entries_max]:
            total += size_bytes
            dense = name.sequence == sequence + len(batch)
            if not dense or (batch and total > self._options.catch_up_bytes_max):
                break
            batch.append((name, size_bytes))
        return batch

    async def _apply(self, state: TierState, batch: list[tuple[EntryName, int]]) -> bool:
        """Read and apply some entries; False if they were deleted, whoever created them since."""
        wanted = [(str(name), ByteRange(0, size)) for name, size in batch if size > 0]
        try:
            raws = await self._store.read_many(wanted)
        except OutOfRange:  # deleted, and perhaps created again, shorter
            raws = None
        if await self.boundary() >= batch[0][0].sequence:
            return False
        if raws is None:
            raise Corrupt("a journal entry was deleted above the boundary", str(batch[0][0]))
        read = iter(raws)
        for name, size in batch:
            apply_entry(state, next(read) if size > 0 else b"", name)
        return True

    async def _missing(self, state: TierState) -> bool:
        """Read and apply an entry that a listing has not shown; False if it was deleted.

        A listing may miss an entry that is created while it runs, so this reads it by its name.
        """
        name = EntryName(state.sequence + 1)
        try:
            raw = await self._store.read(str(name))
        except NotFound:
            raw = None
        if await self.boundary() >= name.sequence:
            return False
        if raw is None:
            raise Corrupt("a journal entry is missing, and later ones exist", str(name))
        apply_entry(state, raw, name)
        return True


def _entry_name(name: str) -> EntryName | None:
    parsed = parse_name(name)
    return parsed if isinstance(parsed, EntryName) else None
