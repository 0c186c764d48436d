"""Takes the ownership of a tier: writes a fence at the first free number."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from container.errors import Refused
from container.journal.claims import Claims
from container.journal.entry import apply_entry, encode_entry
from container.journal.entry_writer import EntryWriter, Outcome
from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.journal.options import JournalOptions, RandomSource
from container.journal.reader import JournalReader, Loaded
from container.metadata.codec import encode_operations, join_operations
from container.metadata.operations import Operation, TakeOwnership
from container.metadata.records import Broker
from container.metadata.state import TierState
from container.names.tier_objects import JOURNAL_PREFIX, EntryName
from provider.clock import Clock
from provider.errors import Denied
from provider.object_store import ObjectStore

Permit = Callable[[Broker], Awaitable[None]]
"""Called with what the tier says of its owner just before each fence; raises to forbid it."""


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
    """Read the journal and write `fence` with the next epoch; returns the state after it.

    The epoch and the time of `fence` are filled in here. See `Journal.take_ownership`.
    """
    import_payload = encode_operations(imported)
    if len(import_payload) > options.transaction_bytes_max:
        limit = options.transaction_bytes_max
        raise Refused(f"{len(import_payload)} bytes, the limit is {limit}", JOURNAL_PREFIX)
    reader = JournalReader(store, options, clock=clock)
    writer = EntryWriter(store, clock=clock, rng=rng, options=options)
    loaded = await reader.load()
    claims = Claims(store, fence.owner, rng=rng)
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
        nonce = rng.randbytes(NONCE_BYTES)
        frame = Frame(FrameKind.ENTRY, epoch, name.sequence, nonce, payload)
        raw, _ = encode_entry(frame, loaded.last)
        written = await writer.write(name, raw)
        if written.outcome == Outcome.LANDED:
            loaded.last = apply_entry(state, written.found, name)
            await claims.withdraw()
            return loaded
        if written.outcome == Outcome.TAKEN:
            loaded.last = apply_entry(state, written.found, name)
        # An owner that is busy would always be faster: it stands back once it sees the claim.
        await claims.make(state.broker.epoch + 1)
        # After `STALE` the journal was cut while we read it.
        if written.outcome == Outcome.STALE or not await reader.catch_up(loaded):
            loaded = await reader.load()


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
