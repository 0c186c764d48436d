"""What is seen of a damaged tier: by readers, fresh and stale, by a new owner, by `check`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from container.check.tier import check_tier
from container.errors import Finding
from container.journal.reader import JournalReader
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.options import JournalOptions
from container.record.message import StoredMessage
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchStatus
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.damage_at_rest import Objects, RestingTier, memory_of
from tests.support.left_tiers import made_memories
from tests.support.store_harness import (
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    while_time_passes,
)

AT_ONCE = 8
"""Messages that a reader asks for: damage hides no more of those beside it."""
TAG = "TagA"
Records = Mapping[QueueId, Mapping[int, bytes]]


BEHIND_THE_END = {FetchStatus.OFFSET_OVERFLOW_ONE, FetchStatus.OFFSET_OVERFLOW_BADLY}
"""What a reader tells once the whole journal was put back from an older copy."""


@dataclass
class Served:
    """What a reader got of all queues, reading on behind what it was refused."""

    records: dict[QueueId, dict[int, bytes]] = field(default_factory=dict)
    refused: set[tuple[QueueId, int]] = field(default_factory=set)
    """Queue and offset of each call that raised, or told that the queue ends before it."""
    passed_over: set[tuple[QueueId, int]] = field(default_factory=set)
    """Offsets that a call has passed over without a word."""


async def served(
    fetcher: TieredMessageFetcher, reader: TierReader, *, tag: str | None = None
) -> Served:
    """Read every queue whole, a few messages a call."""
    found = Served()
    for queue, record in sorted(reader.state.queues.items()):
        mine = found.records.setdefault(queue, {})
        at = record.min_offset
        while at < record.next_offset:
            try:
                result = await fetcher.get_message(
                    "g", *queue, at, messages_max=AT_ONCE, subscription=tag, exact_tags=True
                )
            except (Corrupt, OutOfRange):
                result = None
            if result is None or result.status in BEHIND_THE_END:
                found.refused.add((queue, at))
                at += 1
                continue
            offsets = result.messages.offsets.tolist()
            mine.update(zip(offsets, map(bytes, result.messages), strict=True))
            after = max(result.next_offset, at + 1)
            found.passed_over |= {(queue, n) for n in {*range(at, after)} - {*offsets}}
            at = after
    return found


async def opened(store: MemoryStore, *, verify: bool = False) -> TierReader | StoreError:
    """A reader as commands open it, or why there is none."""
    try:
        return await TierReader.open(store, verify=verify, damaged=True)
    except StoreError as error:
        return error


@dataclass
class Seen:
    """Everything that is compared."""

    state: object
    """What was loaded, as far as it decides what is read; an error's class where there is none."""
    plain: Served
    filtered: Served
    strict: Served
    stale: Served
    """A reader that was open, and had cached half, before the damage."""
    refreshed: Served
    """The same after it has looked at the journal."""
    sequence: int
    """The last entry that was loaded; 0 if none was."""
    damage: StoreError | None
    restarted: object = None
    """What an owner that starts leaves: an error's class, or messages by queue."""
    findings: list[Finding] = field(default_factory=list)


def state_key(state: TierState) -> object:
    """What of the metadata decides what is read and where tiering goes on."""
    return (dict(state.queues), dict(state.topics), dict(state.index_files))


async def seen_of(tier: RestingTier, objects: Objects) -> Seen:
    """Look at the tier, damaged as `objects` says, in every way."""
    with made_memories() as made:
        seen = await _seen_of(tier, objects)
    for memory in made:  # what is left was judged here
        memory.objects.clear()
    return seen


async def _seen_of(tier: RestingTier, objects: Objects) -> Seen:
    stale_store = memory_of(tier.now)
    stale = await TierReader.open(stale_store)
    async with TieredMessageFetcher(stale, clock=ManualClock()) as fetcher:
        for queue in sorted(stale.state.queues)[::2]:
            await fetcher.get_message("g", *queue, 0, messages_max=AT_ONCE)
        stale_store._shared.objects.clear()
        stale_store._shared.objects.update({n: bytearray(raw) for n, raw in objects.items()})
        before = await served(fetcher, stale)
        with suppress(StoreError):
            await stale.refresh()
        after = await served(fetcher, stale)
    reader = await opened(memory_of(objects))
    strict = await opened(memory_of(objects), verify=True)
    if isinstance(reader, StoreError) or isinstance(strict, StoreError):
        nothing = Served()
        error = reader if isinstance(reader, StoreError) else None
        seen = Seen(type(reader), nothing, nothing, nothing, before, after, 0, error)
        seen.findings = [Finding("journal", error.path if error else "", 0, str(error))]
    else:
        async with TieredMessageFetcher(reader, clock=ManualClock()) as fetcher:
            plain = await served(fetcher, reader)
        async with TieredMessageFetcher(reader, clock=ManualClock()) as fetcher:
            filtered = await served(fetcher, reader, tag=TAG)
        async with TieredMessageFetcher(strict, clock=ManualClock()) as fetcher:
            every = await served(fetcher, strict)
        sequence = reader.state.sequence
        key = (state_key(reader.state), type(reader.damage))
        seen = Seen(key, plain, filtered, every, before, after, sequence, reader.damage)
        seen.findings = await findings(memory_of(objects))
    if tier.hot is not None:
        seen.restarted = await restarted(tier.hot, objects)
    return seen


async def findings(store: MemoryStore) -> list[Finding]:
    """As `tieredstore check` finds them."""
    reader = await TierReader.open(store, damaged=True)
    told = [one async for one in check_tier(reader, clock=ManualClock())]
    if reader.damage is not None:
        told.append(Finding("journal", reader.damage.path, 0, reader.damage.reason))
    return told


async def restarted(hot: StoreHotLog, objects: Objects) -> object:
    """What the next owner leaves, tiering from the same broker: an error, or what it published."""
    clock = ManualClock()
    memory = memory_of(objects)
    quiet = replace(UPKEEP_OPTIONS, snapshot_entries_max=1_000, snapshot_age_s_max=1e6)
    process = StoreProcess(memory, hot.reopened(), clock, 9, upkeep=quiet)

    async def job(living: StoreProcess) -> None:
        assert living.dispatcher is not None
        await living.dispatcher.drain()

    await while_time_passes(clock, process.live(job), shown=process)
    if process.error is not None:
        return type(process.error)
    loaded = await JournalReader(memory.another_client(), JournalOptions()).load()
    reader = await TierReader.open(memory.another_client(), verify=True)
    async with TieredMessageFetcher(reader, clock=ManualClock()) as fetcher:
        return (loaded.state.queues.keys(), (await served(fetcher, reader)).records)


def differs(raw: bytes, truth: bytes) -> str:
    """How a record that was served differs: "", "covered", or "uncovered" if no mode but the
    strict one compares what differs."""
    if raw == truth:
        return ""
    return "uncovered" if covered(raw) == covered(truth) else "covered"


def covered(raw: bytes) -> tuple[object, ...]:
    """What of a record a default read compares; the rest has no checksum of RocketMQ's."""
    try:
        message = StoredMessage.decode(raw, path="", position=0)
    except StoreError as error:
        return (error,)
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        len(raw),
        message.body,
    )
