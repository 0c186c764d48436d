"""Ownership of a tier: claims, and the fence at the first free entry number."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from container.errors import Refused
from container.journal.entry_writer import EntryWriter, Outcome
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
from provider.clock import Clock, RandomSource, wait_at_most
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, Unavailable
from provider.object_store import Buffer, ObjectStore

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
