"""Taking the ownership of a tier: the fence at the first free number."""

from dataclasses import replace

from container.entry_writer import EntryWriter, Outcome
from container.journal_entry import NONCE_BYTES, Frame, FrameKind
from container.journal_options import Chance, JournalOptions
from container.journal_reader import JournalReader, Loaded, apply_entry
from container.tier_codec import encode_operations, join_operations
from container.tier_names import JOURNAL_PREFIX, EntryName
from container.tier_operations import TakeOwnership
from container.tier_records import Broker
from provider.clock import Clock
from provider.errors import Denied
from provider.object_store import ObjectStore


async def take_ownership(
    store: ObjectStore,
    fence: TakeOwnership,
    *,
    clock: Clock,
    rng: Chance,
    options: JournalOptions,
) -> Loaded:
    """Read the journal and write `fence` with the next epoch; the state after it.

    The epoch and the time of `fence` are filled in here. See `Journal.take_ownership`.
    """
    reader = JournalReader(store, options, clock=clock)
    writer = EntryWriter(store, clock=clock, rng=rng, options=options)
    loaded = await reader.load()
    while True:
        state = loaded.state
        _refuse_a_stranger(state.broker, fence)
        epoch = state.broker.epoch + 1
        numbered = replace(fence, epoch=epoch, taken_ms=clock.now_ms())
        payload = join_operations([encode_operations([numbered])])
        name = EntryName(state.sequence + 1)
        nonce = rng.randbytes(NONCE_BYTES)
        raw = Frame(FrameKind.ENTRY, epoch, name.sequence, nonce, payload).encode()
        written = await writer.write(name, raw)
        if written.outcome == Outcome.STALE:  # the journal was cut while we read it
            loaded = await reader.load()
            continue
        apply_entry(state, written.found, name)  # ours, or somebody else's that was faster
        if written.outcome == Outcome.LANDED:
            return loaded
        if not await reader.catch_up(state):
            loaded = await reader.load()


def _refuse_a_stranger(known: Broker, fence: TakeOwnership) -> None:
    if known.epoch and (known.cluster, known.name) != (fence.cluster, fence.broker):
        raise Denied(
            f"this tier belongs to broker {known.name!r} of cluster {known.cluster!r}, not to"
            f" {fence.broker!r} of {fence.cluster!r}; give each broker a place of its own",
            JOURNAL_PREFIX,
        )
