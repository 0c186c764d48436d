"""Journal reader: loads the newest valid snapshot, then the entries after it (decision 0008)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self
from zlib import crc32

from container.errors import NewerVersion
from container.journal.frame import (
    CRC_BYTES,
    NONCE_BYTES,
    Frame,
    FrameKind,
    apply_entry,
    copy_in,
    decode_entry,
    follows,
)
from container.metadata.codec import (
    RECORDS_PER_TURN,
    decode_state,
    decoding_state,
    encoding_of,
    state_pieces,
)
from container.metadata.records import Broker
from container.metadata.state import NO_BROKER, TierState
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
from container.options import JournalOptions
from container.record.checksum import crc32c
from provider.clock import Clock, RandomSource, SystemClock, in_turns
from provider.errors import Corrupt, NotFound, OutOfRange, Unavailable
from provider.object_store import Buffer, ObjectEntry, ObjectStore
from provider.ranges import ByteRange

PIECE_BYTES_MAX = 1 << 16
"""Bytes of a record after which other tasks get a turn: a coverage of thousands of queues."""
CHUNKS_PER_TURN = 64
"""Chunks that are summed or compared before other tasks get a turn."""


def decode_snapshot(raw: Buffer, name: SnapshotName) -> TierState:
    """Decode a snapshot's object.

    Raises:
        Corrupt: it is damaged, or contradicts its name.
        NewerVersion: a newer program wrote it.
    """
    frame = Frame.decode(raw, FrameKind.SNAPSHOT, path=str(name))
    return _named(decode_state(frame.payload, path=str(name)), frame, name)


async def decode_in_turns(raw: Buffer, name: SnapshotName, clock: Clock) -> TierState:
    """As `decode_snapshot`. Yields to other tasks: 100,000 queues take seconds."""
    frame = Frame.decode(raw, FrameKind.SNAPSHOT, path=str(name))
    turns = decoding_state(frame.payload, path=str(name))
    return _named(await in_turns(turns, lambda: clock.sleep(0)), frame, name)


def _named(state: TierState, frame: Frame, name: SnapshotName) -> TierState:
    """Return the state of a snapshot's frame, if it matches the name."""
    said = SnapshotName(frame.sequence, frame.epoch, frame.nonce.hex())
    if said != name or state.sequence != name.sequence or state.broker.epoch > name.epoch:
        raise Corrupt(f"the snapshot says that it is {said} of {state!r}", str(name))
    return state


async def encode_snapshot(
    state: TierState, *, epoch: int, nonce: bytes, clock: Clock
) -> tuple[SnapshotName, list[bytes]]:
    """Encode a snapshot to its name and its bytes, as consecutive chunks.

    Yields to other tasks. `state` must be the caller's own copy. The bytes stay in chunks because
    joining those of 100,000 queues would block the event loop for a tenth of a second.
    """
    chunks: list[bytes] = []
    pieces = state_pieces(state)
    some: list[bytes] = []
    for piece in pieces:
        some.append(piece)
        if len(some) == RECORDS_PER_TURN or len(piece) > PIECE_BYTES_MAX:
            chunks.append(b"".join(some))
            some.clear()
            await clock.sleep(0)
    chunks.append(b"".join(some))
    frame = Frame(FrameKind.SNAPSHOT, epoch, state.sequence, nonce, b"")
    encoding = 0
    async for chunk in _in_turns(chunks, clock):
        encoding = max(encoding, encoding_of(chunk))  # a chunk ends where a record does
    head = frame.head(encoding, sum(map(len, chunks)))
    crc = crc32c(head)
    async for chunk in _in_turns(chunks, clock):
        crc = crc32c(chunk, crc)
    name = SnapshotName(state.sequence, epoch, nonce.hex())
    return name, [head + crc.to_bytes(CRC_BYTES, "big"), *chunks]


async def write_snapshot(
    store: ObjectStore, state: TierState, *, epoch: int, rng: RandomSource, clock: Clock
) -> SnapshotName:
    """Write `state` under a new name, read it back and compare. Two requests.

    Raises:
        Unavailable: the outcome is unknown. Call again, which takes another name.
        Corrupt: the object reads back different from what was written. It must not be used.
    """
    nonce = rng.randbytes(NONCE_BYTES)
    name, chunks = await encode_snapshot(state.copy(), epoch=epoch, nonce=nonce, clock=clock)
    await store.create(str(name), chunks)
    found = memoryview(await store.read(str(name)))
    at = 0
    async for chunk in _in_turns(chunks, clock):
        if bytes(found[at : at + len(chunk)]) != chunk:
            break
        at += len(chunk)
    if at != len(found) or at != sum(map(len, chunks)):
        raise Corrupt("a snapshot reads back different from what was written", str(name))
    return name


async def _in_turns(chunks: Sequence[bytes], clock: Clock) -> AsyncIterator[bytes]:
    """Iterate over the chunks, and give other tasks a turn in between."""
    for number, chunk in enumerate(chunks):
        yield chunk
        if number % CHUNKS_PER_TURN == CHUNKS_PER_TURN - 1:
            await clock.sleep(0)


UNREPLACED_MIN = 3
"""Reloads after which a snapshot that is still the newest one is the only one."""
RELOADS_MAX = 8


@dataclass(slots=True)
class Loaded:
    """Result of the first read, with the entries applied since."""

    state: TierState
    snapshot: SnapshotName | None
    """Snapshot that it began with. None for a young journal."""
    damaged: tuple[Corrupt, ...]
    """Damaged newer snapshots. They lose no data."""
    last: bytes = b""
    """Own bytes of the newest applied entry. Empty if only a snapshot was read."""
    is_other_history: bool = False
    """Whether the journal diverges from the state: it was restored from a backup."""
    damage: Corrupt | None = None
    """Damage that keeps the state from being newer. Left only by `load_whole_part`."""
    earlier: Broker = NO_BROKER
    """The owner that our fence replaced. Filled in only by `take_ownership`."""


class Posted(NamedTuple):
    """Objects for owners, beside the entries."""

    boundary: int
    """Number up to which entries may be deleted. 0 before the first."""
    claims: frozenset[ClaimName]
    """Claims on the tier. Their claimants may have won or died since."""


class JournalReader:
    """Reads the journal in `store`. Keeps nothing but its limits."""

    def __init__(
        self, store: ObjectStore, options: JournalOptions, *, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._options = options
        self._clock = clock or SystemClock()

    async def listed(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List a prefix. The result has the newest object, or a newer one. One request.

        A listing may miss objects that are created or deleted while it runs. A replaced object
        stays for longer than `listing_s_max`, so a faster listing does not miss both it and its
        successor.

        Raises:
            Unavailable: retry later. Also if every listing took longer than `listing_s_max`.
        """
        for _ in range(RELOADS_MAX):
            began_s = self._clock.monotonic_s()
            found = await self._store.list(prefix, after=after)
            if self._clock.monotonic_s() - began_s <= self._options.listing_s_max:
                return found
        raise Unavailable("listings take so long that they prove nothing", prefix)

    async def boundary(self) -> int:
        """Return the number up to which entries may be deleted. 0 before the first. One request.

        Raises:
            Unavailable: retry later.
        """
        return (await self.posted()).boundary

    async def posted(self) -> "Posted":
        """Return the boundary and the claims on the tier. One request.

        Raises:
            Unavailable: retry later.
        """
        listed = [entry.name for entry in await self.listed(BOUNDARY_PREFIX)]
        names = map(parse_name, listed)
        boundaries = (name.sequence for name in names if isinstance(name, BoundaryName))
        claims = (claim for name in listed if (claim := ClaimName.parse(name)) is not None)
        return Posted(max(boundaries, default=0), frozenset(claims))

    async def entry_crc(self, name: EntryName) -> int:
        """Return the CRC-32 of an entry without its copy. 0: deleted, or not readable.

        Raises:
            Unavailable: retry later.
        """
        try:
            return crc32(decode_entry(await self._store.read(str(name)), name)[1])
        except (NotFound, Corrupt, NewerVersion):
            return 0

    async def load(self) -> Loaded:
        """Load the present state.

        Costs a listing and a read of one snapshot, then as `catch_up`.

        Raises:
            Corrupt: an entry and its copy, or every usable snapshot, is damaged or missing.
            NewerVersion: a newer program wrote a required object.
            Unavailable: retry later.
        """
        loaded = await self.load_whole_part()
        if loaded.damage is not None:
            raise loaded.damage
        return loaded

    async def load_whole_part(self) -> Loaded:
        """Load the state before the first damaged entry, which `damage` names.

        Costs as `load`.

        Raises:
            NewerVersion, Unavailable: as `load`.
        """
        last: SnapshotName | None = None
        for attempt in range(RELOADS_MAX):
            loaded = await self._newest_snapshot()
            try:
                whole = await self._catch_up_while_it_gets_on(loaded)
            except Corrupt as damage:
                loaded.damage = damage
                return loaded
            if whole:
                return loaded
            if loaded.is_other_history and attempt == RELOADS_MAX - 1:
                path = str(EntryName(loaded.state.sequence + 1))
                loaded.damage = Corrupt("it follows another entry than the one before it", path)
                return loaded
            if loaded.is_other_history:  # a restore is in progress
                continue
            # A listing during which it was replaced shows neither the old nor the new one.
            if attempt >= UNREPLACED_MIN and loaded.snapshot == last:  # there is no other
                reason = "entries were deleted, and no snapshot holds them"
                lost = Corrupt(reason, SNAPSHOT_PREFIX)
                loaded.damage = loaded.damaged[0] if loaded.damaged else lost
                return loaded
            last = loaded.snapshot
        raise Unavailable("the journal is cut faster than it can be read", JOURNAL_PREFIX)

    async def _newest_snapshot(self) -> Loaded:
        for _ in range(RELOADS_MAX):
            names = [parse_name(entry.name) for entry in await self.listed(SNAPSHOT_PREFIX)]
            try:
                return await self._newest_of([n for n in names if isinstance(n, SnapshotName)])
            except NotFound:  # replaced by a newer one since; the others are older
                continue
        raise Unavailable("snapshots are replaced faster than they can be read", SNAPSHOT_PREFIX)

    async def _newest_of(self, names: list[SnapshotName]) -> Loaded:
        damaged: list[Corrupt] = []
        for name in reversed(names):
            try:
                raw = await self._store.read(str(name))
                state = await decode_in_turns(raw, name, self._clock)
            except Corrupt as damage:
                damaged.append(damage)
                continue
            return Loaded(state, name, tuple(damaged))
        return Loaded(TierState(), None, tuple(damaged))

    async def catch_up(self, loaded: Loaded, *, doubted: bool = False) -> bool:
        """Apply the entries after the state's. Return False if they were deleted: load again.

        One listing. If there are new entries, also a read of each, and a listing of the boundary
        per `catch_up_bytes_max`. Two more requests for each entry that is recovered from its copy.
        The state changes entry by entry, never within one.

        Also returns False if the journal lacks the state's own entry, or diverges from it
        (`is_other_history`): it was restored from a backup. The next entry names its
        predecessor. If there is none, only `doubted` compares the newest entry (one request).

        Raises:
            Corrupt: an entry and its copy are damaged or missing. The state is as before that
                entry.
            NewerVersion: a newer program wrote it.
            Unavailable: retry later.
        """
        held = loaded.state.sequence
        if not held:
            return await self._catch_up(loaded, await self._entries(after=0))
        found = await self._entries(after=held - 1)
        if not found:  # the newest entry is never deleted
            loaded.is_other_history = True
            return False
        newer = [one for one in found if one[0].sequence > held]
        tells = loaded.last if newer else not doubted
        if not tells and not await self._has(loaded):
            loaded.is_other_history = True
            return False
        return await self._catch_up(loaded, newer)

    async def _has(self, loaded: Loaded) -> bool:
        """Whether the state's newest entry is still in storage. A damaged entry counts as its own.

        If only a snapshot was read, its unique name identifies the history. A snapshot that was
        replaced counts as another history, which costs one load.
        """
        name = EntryName(loaded.state.sequence)
        try:
            if not loaded.last:
                await self._store.size(str(loaded.snapshot))
                return True
            return decode_entry(await self._store.read(str(name)), name)[1] == loaded.last
        except NotFound:
            return False
        except Corrupt:
            return True

    async def _catch_up_while_it_gets_on(self, loaded: Loaded) -> bool:
        """As `_catch_up_from_its_own`. A failed request repeats only its own batch.

        Otherwise thousands of entries could not be read from a storage with a failure rate of 1 %.
        """
        while True:
            before = loaded.state.sequence
            try:
                return await self._catch_up_from_its_own(loaded)
            except Unavailable:
                if loaded.state.sequence == before:
                    raise

    async def _catch_up_from_its_own(self, loaded: Loaded) -> bool:
        """As `catch_up`. A snapshot's own entry, or a newer one, must exist.

        Entries above the boundary are never deleted. If the last entry of the snapshot is missing
        too, newer ones may be lost with it.
        """
        held = loaded.state.sequence
        if not held:
            return await self.catch_up(loaded)
        found = await self._entries(after=held - 1)
        if not found:
            boundary = await self.boundary()
            if boundary < held:
                reason = f"the newest journal entries are missing, as is {held} before them"
                raise Corrupt(reason, str(EntryName(held + 1)))
            return boundary == held
        return await self._catch_up(loaded, [one for one in found if one[0].sequence > held])

    async def _entries(self, *, after: int) -> list[tuple[EntryName, int]]:
        """List names and sizes of the entries above a number. One request."""
        listed = await self._store.list(JOURNAL_PREFIX, after=str(EntryName(after)))
        return [(name, e.size_bytes) for e in listed if (name := _entry_name(e.name))]

    async def _catch_up(self, loaded: Loaded, found: list[tuple[EntryName, int]]) -> bool:
        state = loaded.state
        while found:
            batch = self._batch(found, state.sequence + 1)
            if not batch:
                if not await self._missing(loaded):
                    return False
                found = [one for one in found if one[0].sequence > state.sequence]
                continue
            if not await self._apply(loaded, batch):
                return False
            found = found[len(batch) :]
        return state.sequence > 0 or await self.boundary() == 0

    def _batch(
        self, found: list[tuple[EntryName, int]], sequence: int
    ) -> list[tuple[EntryName, int]]:
        """The next entries, without a hole from `sequence` on, within the limits."""
        batch: list[tuple[EntryName, int]] = []
        total = 0
        for name, size_bytes in found[: self._options.catch_up_entries_max]:
            total += size_bytes
            dense = name.sequence == sequence + len(batch)
            if not dense or (batch and total > self._options.catch_up_bytes_max):
                break
            batch.append((name, size_bytes))
        return batch

    async def _apply(self, loaded: Loaded, batch: list[tuple[EntryName, int]]) -> bool:
        """Read and apply some entries. False if they were deleted, even if recreated since."""
        wanted = [(str(name), ByteRange(0, size)) for name, size in batch if size > 0]
        try:
            raws = await self._store.read_many(wanted)
        except OutOfRange:  # deleted, and perhaps recreated with a shorter length
            raws = None
        if await self.boundary() >= batch[0][0].sequence:
            return False
        if raws is None:
            raise Corrupt("a journal entry was deleted above the boundary", str(batch[0][0]))
        read = iter(raws)
        for name, size in batch:
            raw = next(read) if size > 0 else b""
            if not follows(raw, name, loaded.last):
                loaded.is_other_history = True
                return False
            try:
                loaded.last = apply_entry(loaded.state, raw, name)
            except Corrupt as damage:
                if not await self._stand_in(loaded, name, damage):
                    return False
        return True

    async def _missing(self, loaded: Loaded) -> bool:
        """Read and apply an entry that a listing has not shown. False if it was deleted.

        A listing may miss an entry that is created while it runs, so it is read by name.
        """
        name = EntryName(loaded.state.sequence + 1)
        try:
            raw = await self._store.read(str(name))
        except NotFound:
            raw = None
        if await self.boundary() >= name.sequence:
            return False
        if raw is None:
            missing = Corrupt("a journal entry is missing, and later ones exist", str(name))
            return await self._stand_in(loaded, name, missing)
        if not follows(raw, name, loaded.last):
            loaded.is_other_history = True
            return False
        try:
            loaded.last = apply_entry(loaded.state, raw, name)
        except Corrupt as damage:
            return await self._stand_in(loaded, name, damage)
        return True

    async def _stand_in(self, loaded: Loaded, name: EntryName, damage: Corrupt) -> bool:
        """Apply the copy of a damaged or missing entry. False if the next entry was deleted.

        The copy is trusted like the entry that holds it: by a boundary that is listed later.

        Raises:
            Corrupt: `damage`, if there is no intact copy.
        """
        after = EntryName(name.sequence + 1)
        try:
            raw = await self._store.read(str(after))
            copy = copy_in(raw, after)
        except (NotFound, Corrupt):
            copy = None
        if await self.boundary() >= name.sequence:
            return False
        if copy is None:
            raise damage
        try:
            loaded.last = apply_entry(loaded.state, copy, name)
        except Corrupt:
            raise damage from None
        return True


def _entry_name(name: str) -> EntryName | None:
    parsed = parse_name(name)
    return parsed if isinstance(parsed, EntryName) else None


class JournalFollower:
    """State that follows a journal written by another process. Read-only."""

    def __init__(self, reader: JournalReader, loaded: Loaded) -> None:
        self._reader = reader
        self._loaded = loaded
        self._reloads = 0
        self._histories = 0
        self._refreshing = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        *,
        options: JournalOptions | None = None,
        clock: Clock | None = None,
        damaged: bool = False,
    ) -> Self:
        """Load the present state. Costs as `JournalReader.load`.

        `damaged`: of a damaged journal, load the intact part.

        Raises:
            NotFound: there is no tier.
            Corrupt, NewerVersion, Unavailable: see `JournalReader.load`.
        """
        reader = JournalReader(store, options or JournalOptions(), clock=clock)
        loaded = await reader.load_whole_part()
        if loaded.damage is not None and (loaded.state.sequence == 0 or not damaged):
            raise loaded.damage
        if loaded.state.sequence == 0:
            raise NotFound("there is no tier here: it has no journal", JOURNAL_PREFIX)
        return cls(reader, loaded)

    def __repr__(self) -> str:
        return f"<JournalFollower of {self.state!r}, loaded again {self._reloads} times>"

    @property
    def state(self) -> TierState:
        """Published state as of the last `refresh`, the only method that changes it."""
        return self._loaded.state

    @property
    def histories(self) -> int:
        """Number of restores of the tier from a backup, each of which began another history."""
        return self._histories

    async def entry_crc(self, sequence: int) -> int:
        """Return the CRC-32 of an entry without its copy. 0: deleted, or not readable.

        With the number it identifies the history of the tier. One request, and none for the newest
        entry that this object applied.

        Raises:
            Unavailable: retry later.
        """
        loaded, name = self._loaded, EntryName(sequence)
        if sequence == loaded.state.sequence and loaded.last:
            return crc32(loaded.last)
        return await self._reader.entry_crc(name)

    @property
    def damage(self) -> Corrupt | None:
        """Damage that kept the state from being newer when it was loaded. None without damage."""
        return self._loaded.damage

    @property
    def damaged_snapshots(self) -> tuple[Corrupt, ...]:
        """Unusable snapshots. An older snapshot and the entries after it replaced them."""
        return self._loaded.damaged

    async def refresh(self, *, doubted: bool = False) -> bool:
        """Apply new entries. Return whether there were any. One request if there are none.

        `doubted`: the storage contradicts the state. One more request detects a restored tier whose
        newest entry has the state's own number.

        Loads the newest snapshot if required entries were deleted, or if the tier was restored from
        a backup. The state may then be older than before. Only then is `state` another object. A
        failure leaves the state as of its last entry or a later one. Concurrent calls run one after
        another.

        Raises:
            Corrupt, NewerVersion, Unavailable: see `JournalReader.catch_up`.
        """
        async with self._refreshing:  # entries are applied in order, each once
            return await self._refresh(doubted=doubted)

    async def _refresh(self, *, doubted: bool) -> bool:
        before = self.state.sequence
        if await self._reader.catch_up(self._loaded, doubted=doubted):
            return self.state.sequence > before
        loaded = await self._reader.load()
        is_other = self._loaded.is_other_history and loaded.state.sequence > 0
        if is_other or loaded.state.sequence >= before:
            self._loaded = loaded
            self._reloads += 1
            self._histories += is_other
        return is_other or self.state.sequence > before
