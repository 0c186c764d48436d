"""Ownership of a tier: claims, the writer of one entry, the fence at the first free number."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from container.errors import Refused
from container.journal.frame import (
    NONCE_BYTES,
    Frame,
    FrameKind,
    apply_entry,
    copy_in,
    encode_entry,
)
from container.journal.reader import JournalReader, Loaded
from container.metadata.codec import encode_operations, join_operations
from container.metadata.operations import Operation, TakeOwnership
from container.metadata.records import Broker
from container.metadata.state import TierState
from container.names.tier_objects import JOURNAL_PREFIX, ClaimName, EntryName
from container.options import JournalOptions
from provider.clock import Clock, RandomSource, backoff_s, wait_at_most
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, StoreError, Unavailable
from provider.object_store import Buffer, ObjectStore

HELD_UP_AFTER = 3
"""Failed attempts in a row at an entry that count as an outage."""


class Outcome(Enum):
    """Outcome of writing an entry."""

    LANDED = "landed"
    """The journal has it, and this owner wrote it."""
    TAKEN = "taken"
    """Another entry has the number."""
    STALE = "stale"
    """The number is at or below the boundary: other owners continued the journal long ago."""


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of writing an entry, and the bytes under its number."""

    outcome: Outcome
    found: Buffer
    claims: frozenset[ClaimName] = frozenset()
    """Claims on the tier at that time."""


class EntryWriter:
    """Writes entries, one at a time.

    After a store error the outcome is unknown. The writer then reads the object under the number,
    and sends the same bytes again unless another entry is there. Only a reply of the store ends the
    retries. Cancelling `write` leaves the outcome unknown too; calling it again with the same bytes
    settles it.
    """

    def __init__(
        self, store: ObjectStore, *, clock: Clock, rng: RandomSource, options: JournalOptions
    ) -> None:
        self._store = store
        self._reader = JournalReader(store, options, clock=clock)
        self._clock = clock
        self._rng = rng
        self._options = options
        self.last_error: StoreError | None = None
        """Error that leaves the entry in flight unsettled. None if no entry is."""
        self.retries = 0
        """Number of entries read or sent again."""
        self.failures = 0
        """Failed attempts in a row at the entry in flight."""

    @property
    def trouble(self) -> StoreError | None:
        """Error that holds the entry in flight up; None before `HELD_UP_AFTER` attempts failed."""
        return self.last_error if self.failures >= HELD_UP_AFTER else None

    async def write(self, name: EntryName, raw: bytes) -> Written:
        """Create the entry and determine its outcome. Two requests if none fails.

        Each retry costs two more, one of which verifies that the previous entry still exists.

        An outcome counts only together with a boundary that was listed after the create: a number
        at or below the boundary was deleted, so a second create of it proves nothing.

        Raises:
            Closed: the store was closed during the call. The outcome is unknown.
        """
        self.failures = 0
        suspect = False
        while True:
            try:
                if suspect:
                    await self._check_predecessor(name)
                found = await self._read_or_none(name) if suspect else None
                suspect = True
                if found is None or bytes(found) == raw:
                    # Ours may be visible before it is durable: only a create proves it (P9).
                    found = await self._create(name, raw)
                if found is not None:
                    posted = await self._reader.posted()
                    ours = bytes(found) == raw
                    self.last_error, self.failures = None, 0
                    if posted.boundary >= name.sequence:
                        return Written(Outcome.STALE, found)
                    outcome = Outcome.LANDED if ours else Outcome.TAKEN
                    return Written(outcome, found, posted.claims)
            except (Unavailable, Denied) as error:
                self.last_error = error
            self.retries += 1
            self.failures += 1
            await self._clock.sleep(self._backoff_s(self.failures))

    async def _check_predecessor(self, name: EntryName) -> None:
        """Raise if the last entry is gone: no reader could reach an entry after it.

        Called only after a failure: a call on a directory that was moved, removed or replaced
        fails. One request, two if the entry is gone.

        Raises:
            Unavailable: the entry is gone, and truncation did not delete it.
        """
        before = EntryName(name.sequence - 1)
        if before.sequence == 0:
            return
        try:
            await self._store.size(str(before))
        except NotFound as error:
            if await self._reader.boundary() < before.sequence:
                raise Unavailable(
                    "the journal's last entry is not there any more; put its directory back as it "
                    "was and it goes on",
                    str(before),
                ) from error

    async def _create(self, name: EntryName, raw: bytes) -> Buffer | None:
        """Create the object and return the bytes under its number. None if deleted since."""
        try:
            await self._store.create(str(name), [raw])
        except AlreadyExists:
            return await self._read_or_none(name)
        return raw

    async def _read_or_none(self, name: EntryName) -> Buffer | None:
        try:
            return await self._store.read(str(name))
        except NotFound:
            return None

    def _backoff_s(self, failures: int) -> float:
        options = self._options
        longest_s = backoff_s(failures, s_min=options.retry_s_min, s_max=options.retry_s_max)
        return longest_s * (0.5 + self._rng.random() / 2)


DOUBLINGS_MAX = 3
"""Limit of doublings of an owner's pause."""


class Claims:
    """Claims posted by one claimant."""

    def __init__(
        self, store: ObjectStore, owner: str, *, clock: Clock, rng: RandomSource, pause_s: float
    ) -> None:
        """`owner`: the claimant, for display; the content of the claim.

        `pause_s`: an owner's pause.
        """
        self._store = store
        self._owner = owner
        self._clock = clock
        self._rng = rng
        self._pause_s = pause_s
        self._made: list[ClaimName] = []
        self._posted: tuple[int, float] = (0, 0.0)
        """Epoch and monotonic time, in seconds, of the last claim."""

    async def make(self, epoch: int) -> bool:
        """Announce a fence of this epoch, unless an owner still pauses for the last claim of it.

        Each race lost after that pause makes another claim. At most one request. Returns whether a
        claim was made. A claim with unknown outcome is followed by another.
        """
        posted, since_s = self._posted
        now_s = self._clock.monotonic_s()
        if posted == epoch and now_s - since_s < self._pause_s:
            return False
        claim = ClaimName(epoch, self._rng.randbytes(NONCE_BYTES).hex())
        self._made.append(claim)
        with suppress(Unavailable):
            await self._store.create(str(claim), [f"{self._owner}\n".encode()])
            self._posted = epoch, self._clock.monotonic_s()
        return True

    async def withdraw(self) -> None:
        """Delete the posted claims. A remaining one has no effect on an owner of that epoch."""
        if self._made:
            with suppress(Unavailable, Denied):
                await self._store.delete([str(one) for one in self._made])


class StandingBack:
    """Reaction of an owner of one epoch to claims."""

    def __init__(self, epoch: int, *, clock: Clock, seconds_max: float) -> None:
        self._epoch = epoch
        self._clock = clock
        self._seconds_max = seconds_max
        self._seen: set[ClaimName] = set()
        self.is_due = False
        """Whether another process has claimed the tier since the last pause."""
        self.count = 0
        """Number of pauses."""

    def note(self, claims: Collection[ClaimName]) -> None:
        """Record the claims posted when an entry landed. Only newer epochs count, each once."""
        new = {one for one in claims if one.epoch > self._epoch} - self._seen
        self._seen |= new
        self.is_due = self.is_due or bool(new)

    async def wait(self, closing: asyncio.Event) -> None:
        """Pause, twice as long for each further claim. Ends early if the journal closes."""
        self.is_due = False
        self.count += 1
        doublings = min(len(self._seen) - 1, DOUBLINGS_MAX)
        await wait_at_most(self._clock, self._seconds_max * 2**doublings, closing.wait())


READ_AHEAD = 64
"""Entries that a claimant reads by name at once. Four times as many if all of them exist."""
READ_AHEAD_MAX = 1024
Permit = Callable[[Broker], Awaitable[None]]
"""Callback before each fence, with the tier's present owner. It raises to forbid the takeover."""


async def take_ownership(
    store: ObjectStore,
    fence: TakeOwnership,
    *,
    clock: Clock,
    rng: RandomSource,
    options: JournalOptions,
    imported: Sequence[Operation] = (),
    permit: Permit | None = None,
) -> Loaded:
    """Read the journal and write `fence` with the next epoch. Return the state after it.

    The epoch and the time of `fence` are filled in here. See `Journal.take_ownership`.
    """
    import_payload = encode_operations(imported)
    if len(import_payload) > options.transaction_bytes_max:
        limit = options.transaction_bytes_max
        raise Refused(f"{len(import_payload)} bytes, the limit is {limit}", JOURNAL_PREFIX)
    reader = JournalReader(store, options, clock=clock)
    race = _Race(store, reader, EntryWriter(store, clock=clock, rng=rng, options=options))
    loaded = await reader.load()
    claims = Claims(store, fence.owner, clock=clock, rng=rng, pause_s=options.claim_s_max)
    while True:
        state = loaded.state
        _refuse_other_broker(state.broker, fence)
        if permit is not None:
            await permit(state.broker)
        epoch = state.broker.epoch + 1
        numbered = replace(fence, epoch=epoch, taken_ms=clock.now_ms())
        _refuse_inapplicable(state, [numbered, *imported])
        payload = join_operations([encode_operations([numbered]), import_payload])
        name = EntryName(state.sequence + 1)
        frame = Frame(FrameKind.ENTRY, epoch, name.sequence, rng.randbytes(NONCE_BYTES), payload)
        raw, _ = encode_entry(frame, loaded.last)
        earlier = state.broker
        outcome = await race.enter(loaded, name, raw)
        if outcome == Outcome.LANDED:
            loaded.earlier = earlier
            await claims.withdraw()
            return loaded
        # A busy owner would always win the race: it pauses once it sees the claim.
        is_claimed = await claims.make(state.broker.epoch + 1)
        if is_claimed and outcome == Outcome.TAKEN:
            outcome = await race.follow(loaded)
        if outcome == Outcome.STALE:  # the journal was truncated during the read
            loaded = await reader.load()


class _Race:
    """Attempts of one claimant at the number after the newest entry, in few round trips.

    An attempt is one create. If the number is taken, one round of parallel reads by name follows.
    Entries that are read without a later listing of the boundary are trusted only as one chain:
    each holds a copy of the previous entry. The newest entry of a journal is never deleted. So a
    fence that lands above the boundary follows a real entry, and with it the chain that its epoch
    was counted from. After a failure or a break of the chain, `JournalReader` reads with listings.
    """

    def __init__(self, store: ObjectStore, reader: JournalReader, writer: EntryWriter) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._width = READ_AHEAD

    async def enter(self, loaded: Loaded, name: EntryName, raw: bytes) -> Outcome:
        """Try to create the fence. Apply it, or the entries that are there instead."""
        try:
            await self._store.create(str(name), [raw])
            if (await self._reader.posted()).boundary >= name.sequence:
                return Outcome.STALE
        except AlreadyExists:
            ahead = await self._ahead(name)
            if not ahead or bytes(ahead[0]) != raw:
                return await self._apply(loaded, ahead)
        except (Unavailable, Denied):
            pass  # unknown; settled below
        else:
            loaded.last = apply_entry(loaded.state, raw, name)
            return Outcome.LANDED
        written = await self._writer.write(name, raw)
        if written.outcome != Outcome.STALE:
            loaded.last = apply_entry(loaded.state, written.found, name)
        return written.outcome

    async def follow(self, loaded: Loaded) -> Outcome:
        """Apply the entries that were written since."""
        ahead = await self._ahead(EntryName(loaded.state.sequence + 1))
        return await self._apply(loaded, ahead) if ahead else Outcome.TAKEN

    async def _ahead(self, first: EntryName) -> list[Buffer]:
        """Entries from a number on, up to the first missing one. Parallel reads, no listing."""
        entries: list[Buffer] = []
        while True:
            found = await self._side_by_side(first.sequence + len(entries), self._width)
            dense = list(itertools.takewhile(lambda raw: raw is not None, found))
            entries += [raw for raw in dense if raw is not None]
            if len(dense) < len(found):
                return entries
            self._width = min(4 * self._width, READ_AHEAD_MAX)

    async def _side_by_side(self, first: int, count: int) -> list[Buffer | None]:
        async def read(sequence: int) -> Buffer | None:
            try:
                return await self._store.read(str(EntryName(sequence)))
            except (NotFound, Unavailable):
                return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(first + number)) for number in range(count)]
        return [task.result() for task in tasks]

    async def _apply(self, loaded: Loaded, entries: Sequence[Buffer]) -> Outcome:
        """Apply a chain of entries. `STALE` if they are no chain, or if there are none."""
        if not entries:
            return Outcome.STALE
        for raw in entries:
            name = EntryName(loaded.state.sequence + 1)
            try:
                copy = copy_in(raw, name)
                is_chained = not loaded.last or copy == loaded.last
                if not is_chained:
                    return Outcome.STALE
                loaded.last = apply_entry(loaded.state, raw, name)
            except Corrupt:  # the next entry may hold a copy
                is_whole = await self._reader.catch_up(loaded)
                return Outcome.TAKEN if is_whole else Outcome.STALE
        return Outcome.TAKEN


def _refuse_other_broker(known: Broker, fence: TakeOwnership) -> None:
    if known.epoch and (known.cluster, known.name) != (fence.cluster, fence.broker):
        raise Denied(
            f"this tier belongs to broker {known.name!r} of cluster {known.cluster!r}, not to"
            f" {fence.broker!r} of {fence.cluster!r}; give each broker a place of its own",
            JOURNAL_PREFIX,
        )


def _refuse_inapplicable(state: TierState, operations: Sequence[Operation]) -> None:
    """Validate a fence before it is written: an entry that cannot be applied ends the journal."""
    if len(operations) > 1 and state.queues:
        raise Refused("the tier has queues already: nothing is to be imported", JOURNAL_PREFIX)
    state.plan(operations)
