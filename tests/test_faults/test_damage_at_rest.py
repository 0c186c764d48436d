"""Damage at rest, with figures: what `check` finds, what readers serve, what a restart does.

Damage matters if it changes what a read can return (the queues that are loaded, or any answer of a
reader in any mode) or what a restart would do (whether an owner starts, and what it has published
once it has tiered everything again). `check` must find each that matters. `DAMAGES=5000` tries
more than the 300 of every run; `DAMAGE_FIGURES=FILE` keeps the figures.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from container.check.tier import check_tier
from container.errors import Finding
from container.journal.reader import JournalReader
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory
from container.names.tier_objects import (
    BoundaryName,
    EntryName,
    KeptName,
    SnapshotName,
    parse_name,
)
from container.options import JournalOptions
from container.record.message import StoredMessage
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchStatus
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.stores.in_place_segments import LOCK_NAME
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.damage_at_rest import (
    CLASSES,
    LOST,
    QUEUES,
    Damage,
    Objects,
    RestingTier,
    damage_of,
    golden_tier,
    kind_of,
    memory_of,
    resting_tier,
)
from tests.support.golden import GOLDEN, extract
from tests.support.golden import VARIANTS_533 as OF
from tests.support.left_tiers import made_memories
from tests.support.level import by_level
from tests.support.store_harness import (
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    while_time_passes,
)
from tests.support.store_reader import PHYSICAL_OFFSET

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


OLD_TIER = GOLDEN / "tier-0.1.0-95830d4" / "tier.tar.xz"
DAMAGES = int(os.environ.get("DAMAGES") or by_level(quick=60, full=60, nightly=2_000))
PARTS = 4
"""Tests that share the damages, so that none takes long."""
MODES = ("plain", "filtered", "strict", "stale", "refreshed")
FOUND, UNNOTICED = "found", "unnoticed"


class Figures:
    """How many damages of each class were seen how."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[str]] = {kind: Counter() for kind in CLASSES}

    def __str__(self) -> str:
        """A table of all classes, and of why damage did not matter and was not found."""
        lines = [f"{'':14}{'damages':>8}{'matter':>8}{FOUND:>8}{'not':>6}{FOUND:>8}"]
        columns = ("damages", "matter", "matter, found", "harmless", "harmless, found")
        for kind, row in [*self.rows.items(), ("together", self.together)]:
            lines.append(f"{kind:14}" + "".join(f"{row[name]:8,}" for name in columns))
        rest = {name: n for name, n in self.together.items() if name not in columns}
        lines += [f"{count:8,} {name}" for name, count in sorted(rest.items())]
        return "\n".join(lines)

    @property
    def together(self) -> Counter[str]:
        return sum(self.rows.values(), Counter[str]())


@pytest.fixture(scope="module")
def figures() -> Iterable[Figures]:
    figures = Figures()
    yield figures
    print(f"\n{figures}")
    if path := os.environ.get("DAMAGE_FIGURES"):
        Path(path).write_text(json.dumps(figures.rows, indent=1))


async def whole_tier() -> tuple[RestingTier, Seen]:
    """The tier, and what is seen of it before it is damaged."""
    tier = await resting_tier()
    whole = await seen_of(tier, tier.now)
    assert whole.findings == []
    assert tier.hot is not None
    assert_is_the_hot_logs(tier.hot, whole.strict.records)
    return tier, whole


def assert_is_the_hot_logs(hot: StoreHotLog, records: Records) -> None:
    """The truth itself: every message of the hot log, but for those that its broker deleted."""
    lossy, low, end = LOST
    for queue in QUEUES:
        wanted = hot.queues[queue].records
        offsets = [n for n in range(len(wanted)) if queue != lossy or not low <= n < end]
        assert list(records[queue]) == offsets
        for offset in offsets:
            tiered, written = bytearray(records[queue][offset]), bytearray(wanted[offset])
            tiered[PHYSICAL_OFFSET] = written[PHYSICAL_OFFSET] = bytes(8)
            assert tiered == written


def matters(seen: Seen, whole: Seen) -> list[str]:
    """What of the definition above the damage changes."""
    reads = any(getattr(seen, mode) != getattr(whole, mode) for mode in MODES[:3])
    found = [
        f"what is {word}"
        for word, so in (("loaded", seen.state != whole.state), ("read", reads))
        if so
    ]
    return found + ["a restart"] * (seen.restarted != whole.restarted)


def why_unnoticed(tier: RestingTier, name: str) -> str:
    """Why an object that differs changes nothing and is not told; "" if nothing explains it."""
    if name == LOCK_NAME:
        return "the lock's bytes, which nobody reads"
    if KeptName.parse(name) is not None:
        return "what a repair has cut off, which lies for some days for people alone"
    parsed = parse_name(name)
    boundaries = [n.sequence for one in tier.now if isinstance(n := parse_name(one), BoundaryName)]
    newest = max(boundaries)
    match parsed:
        case EntryName() if parsed.sequence <= newest:
            return "an entry that a boundary has made meaningless is back"
        case SnapshotName() if parsed.sequence < newest:
            return "a snapshot that newer ones replaced is back"
        case BoundaryName() if parsed.sequence < newest:
            return "a boundary that a newer one replaced is gone or back"
        case _:
            return ""


def assert_right(seen: Served, whole: Served, *, strict: bool) -> int:
    """No message is wrong and none is passed over; returns how many differ where none compares."""
    assert seen.passed_over <= whole.passed_over, seen.passed_over - whole.passed_over
    uncovered = 0
    for queue, records in seen.records.items():
        for offset, raw in records.items():
            how = differs(raw, whole.records[queue][offset])
            assert how != "covered", f"{queue} at {offset} is another message"
            assert not how or not strict, f"{queue} at {offset} differs"
            uncovered += bool(how)
    return uncovered


def assert_little_is_lost(damage: Damage, tier: RestingTier, seen: Seen, whole: Seen) -> None:
    """One damaged journal entry costs at most what only it says; one object, no other queue."""
    entries = [n for one in damage.names if isinstance(n := parse_name(one), EntryName)]
    newest = max(n.sequence for one in tier.now if isinstance(n := parse_name(one), EntryName))
    if len(damage.names) == 1 and entries and tier.hot is not None:  # else entries have no copies
        lost = entries[0].sequence == newest
        assert seen.sequence >= whole.sequence - lost
        assert seen.plain.refused == set()
    if all(name[0] != "@" or name.startswith("@manifest/") for name in damage.names):
        touched = {_queue_of(name) for name in damage.names}
        for queue in whole.plain.records.keys() - touched:
            assert seen.plain.records[queue] == whole.plain.records[queue]


def _queue_of(name: str) -> QueueId:
    parts = name.removeprefix("@manifest/").split("/")
    return QueueId(parts[0], int(parts[1]))


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize("part", range(PARTS))
async def test_damage_at_rest_is_found_where_it_matters_and_never_served(
    part: int, figures: Figures
) -> None:
    tier, whole = await whole_tier()
    await poll_all(tier, whole, range(part, DAMAGES, PARTS), figures)


@pytest.mark.slow
@pytest.mark.scales
async def test_damage_to_a_tier_of_a_real_brokers_messages_is_found_and_never_served(
    tmp_path: Path, figures: Figures
) -> None:
    """One that version 0.1.0 wrote, with gaps, a cut and entries without copies."""
    extract(OLD_TIER, tmp_path)
    tier = golden_tier(tmp_path / "tier" / broker_directory(OF.cluster, OF.broker))
    whole = await seen_of(tier, tier.now)
    assert whole.findings == []
    assert sum(map(len, whole.strict.records.values())) > 300
    await poll_all(tier, whole, range(DAMAGES // 5), figures)


async def poll_all(tier: RestingTier, whole: Seen, seeds: Iterable[int], figures: Figures) -> None:
    """Damage the tier by each seed; all that must hold, does."""
    for seed in seeds:
        damage = damage_of(tier, seed)
        seen = await seen_of(tier, damage.objects)
        what = f"seed {seed}: {damage.kind}, {damage.detail}: {', '.join(damage.names[:3])}"
        row = figures.rows[damage.kind]
        try:
            changed = sum(
                assert_right(
                    getattr(seen, mode),
                    whole.filtered if mode == "filtered" else whole.plain,
                    strict=mode == "strict",
                )
                for mode in MODES
            )
            assert_little_is_lost(damage, tier, seen, whole)
        except AssertionError as error:
            raise AssertionError(what) from error
        row["damages"] += 1
        row["a default read served a changed time, host, flag or property: found"] += changed > 0
        reasons = matters(seen, whole)
        if reasons:
            row["matter"] += 1
            assert seen.findings, f"{what} changes {' and '.join(reasons)}, and is not found"
            row["matter, found"] += 1
            for reason in reasons:
                row[f"changed {reason}"] += 1
        else:
            row["harmless"] += 1
            row["harmless, found"] += bool(seen.findings)
            assert not changed
            if not seen.findings:
                why = {why_unnoticed(tier, name) for name in damage.names}
                assert "" not in why, f"{what} is not found, and nothing says why not"
                row[f"harmless, not found: {', '.join(sorted(why))}"] += 1


async def test_the_damages_are_of_every_class_and_kind_of_object() -> None:
    """So that the figures mean something."""
    tier = await resting_tier()
    hit = Counter((d.kind, kind_of(d.names[0])) for d in (damage_of(tier, n) for n in range(300)))
    kinds = {kind_of(name) for name in tier.now}
    assert kinds == {
        "COMMIT_LOG",
        "CONSUME_QUEUE",
        "@journal",
        "@snapshot",
        "@boundary",
        "@manifest",
    }
    for kind in CLASSES:
        assert {name for damage, name in hit if damage == kind} >= kinds - {
            "@boundary",
            "@manifest",
        }
    entries = [name for name in tier.now if name.startswith("@journal/")]
    assert len(entries) >= 5, "entries lie behind the newest snapshot"
