"""One wrong bit anywhere, at rest or on the way: it is found, and never served for a message."""

from random import Random

import pytest

from container.journal.frame import Frame
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.options import JournalOptions, UpkeepOptions
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.errors import Corrupt
from provider.testing.faulty import Fault, FaultyObjectStore, flipped
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.level import by_level
from tests.support.store_harness import (
    JOURNAL_OPTIONS,
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    drained,
)
from tests.support.store_reader import (
    QueueContents,
    assert_follows,
    contents,
    findings,
    queue_contents,
)

QUEUES = [QueueId("T", 0), QueueId("U", 0)]
MESSAGES = 40
SEEDS = 30


FLIPPED = pytest.mark.leaves_findings(
    "body-crc",
    "checksum",
    "entry-damaged",
    "journal",
    "manifest",
    "manifest-damaged",
    "orphan",
    "record-crc",
    "snapshot-damaged",
    "tag-hash",
    "unit-outside-log",
    "units-do-not-join",
    "log-outruns-units",
    "unreadable",
    why="a bit is flipped",
)


@pytest.fixture
async def hot() -> StoreHotLog:
    hot = StoreHotLog(ManualClock())
    for queue in QUEUES:
        hot.append(queue, *(bytes([n]) * 3 * n for n in range(MESSAGES)))
    return hot


@pytest.fixture
async def objects(hot: StoreHotLog) -> MemoryObjects:
    """A tier at rest, its owner gone."""
    objects = MemoryObjects()
    await drained(MemoryStore(objects), hot, ManualClock(), 1)
    hot.append(QUEUES[0], b"one more, so that an entry lies behind the snapshot")
    await drained(MemoryStore(objects), hot, ManualClock(), 2)
    return objects


def with_a_flipped_bit(objects: MemoryObjects, name: str, rng: Random) -> MemoryStore:
    """Another storage with the same objects, but for one bit."""
    copies = MemoryObjects()
    copies.objects = {key: bytearray(raw) for key, raw in objects.objects.items()}
    copies.objects[name] = bytearray(flipped(copies.objects[name], rng))
    return MemoryStore(copies)


def named(objects: MemoryObjects, *, own: bool) -> list[str]:
    """Objects of the tier's own metadata, or those that hold messages."""
    return sorted(name for name in objects.objects if name.startswith("@") == own)


def memory_bytes(memory: MemoryStore) -> dict[str, bytes]:
    """Every object and its bytes."""
    return {name: bytes(raw) for name, raw in memory._shared.objects.items()}


async def state_of(memory: MemoryStore) -> TierState:
    return (await TierReader.open(memory)).state


@FLIPPED
async def test_a_flipped_bit_in_any_file_is_found_and_not_read_by_a_verifying_reader(
    hot: StoreHotLog, objects: MemoryObjects
) -> None:
    names = named(objects, own=False)
    assert len(names) > 10
    for number, name in enumerate(names):
        memory = with_a_flipped_bit(objects, name, Random(number))
        found = await findings(memory)
        assert any("checksum" in one and name in one for one in found), f"{name}: {found}"
        reader = await TierReader.open(memory, verify=True)
        with pytest.raises(Corrupt) as caught:
            await contents(reader)
        assert caught.value.path == name


@FLIPPED
@pytest.mark.scales
@pytest.mark.parametrize("snapshots", [True, False])
async def test_a_flipped_bit_in_the_metadata_is_never_believed(
    hot: StoreHotLog, *, snapshots: bool
) -> None:
    """Snapshots and entries stand in for one another, and entries for entries: it is reported.

    Only the newest entry, if no snapshot has it, is refused.
    """
    objects = MemoryObjects()
    given = (JOURNAL_OPTIONS, UPKEEP_OPTIONS) if snapshots else (JournalOptions(), UpkeepOptions())
    journal, upkeep = given
    await drained(MemoryStore(objects), hot, ManualClock(), 1, journal=journal, upkeep=upkeep)
    truth = await state_of(MemoryStore(objects))
    found, refused = 0, set[tuple[str, str]]()
    newest = max(name for name in objects.objects if name.startswith("@journal/"))
    for name in named(objects, own=True):
        for seed in range(by_level(quick=5 if snapshots else 8, full=8, nightly=64)):
            memory = with_a_flipped_bit(objects, name, Random(seed))
            try:
                state = await state_of(memory)
            except Corrupt as error:
                refused.add((name, error.path))
                continue
            assert state == truth, f"{name} with a wrong bit is believed"
            sentences = await findings(memory)
            assert any(name in one for one in sentences), f"{name}: {sentences}"
            found += 1
    assert found > 40
    assert refused == (set() if snapshots else {(newest, newest)})


@FLIPPED
async def test_an_owner_goes_on_from_an_older_snapshot_and_loses_nothing(
    hot: StoreHotLog, objects: MemoryObjects
) -> None:
    for name in named(objects, own=True):
        memory = with_a_flipped_bit(objects, name, Random(name))
        process = await drained(memory, hot, ManualClock(), 3)
        assert process.tier is not None
        for queue in QUEUES:
            published = process.tier.queue(queue)
            assert published is not None
            assert published.next_offset == len(hot.queues[queue].records)
            assert published.gaps == ()


@FLIPPED
async def test_an_owner_without_a_snapshot_goes_on_unless_the_newest_entry_is_damaged(
    hot: StoreHotLog,
) -> None:
    objects, clock = MemoryObjects(), ManualClock()
    await drained(
        MemoryStore(objects), hot, clock, 1, journal=JournalOptions(), upkeep=UpkeepOptions()
    )
    *older, newest = named(objects, own=True)
    assert len(older) > 3
    for name in older:
        process = await drained(
            with_a_flipped_bit(objects, name, Random(name)), hot, ManualClock(), 3
        )
        assert process.tier is not None
        assert process.tier.state.queues.keys() == set(QUEUES)
    objects.objects[newest][Frame.SIZE] ^= 1  # not in its copy of the one before
    memory = MemoryStore(objects)
    before = memory_bytes(memory)
    process = StoreProcess(memory, hot.reopened(), clock, 3)
    await process.live()
    assert isinstance(process.error, Corrupt)
    assert process.error.path == newest
    assert memory_bytes(memory) == before, "it wrote to a tier that it cannot read"


@pytest.mark.parametrize("cached", [True, False])
async def test_bits_that_flip_on_the_way_are_errors_and_never_messages(
    hot: StoreHotLog, objects: MemoryObjects, *, cached: bool
) -> None:
    served = refused = 0
    for seed in range(SEEDS):
        memory = MemoryStore(objects)
        faulty = FaultyObjectStore(memory, rng=Random(seed))
        reader = await TierReader.open(faulty, verify=True)
        faulty.faults = [Fault("bit_flip", probability=0.2)]
        options = FetcherOptions(cache_enabled=cached)
        async with TieredMessageFetcher(reader, options=options, clock=ManualClock()) as fetcher:
            at = 0
            for _ in range(20):
                try:
                    found = await fetcher.get_message("g", "T", 0, at, messages_max=8)
                except Corrupt:
                    refused += 1
                    continue
                for raw, offset in zip(
                    found.messages, found.messages.offsets.tolist(), strict=True
                ):
                    record = hot.queues[QUEUES[0]].records[offset]
                    assert (raw[:28], raw[36:]) == (record[:28], record[36:])
                    served += 1
                at = found.next_offset
    assert served > 10 * SEEDS
    assert refused > SEEDS / 2


@FLIPPED
async def test_what_is_not_damaged_is_served_beside_what_is(
    hot: StoreHotLog, objects: MemoryObjects
) -> None:
    names = [name for name in named(objects, own=False) if name.startswith("T/")]
    memory = with_a_flipped_bit(objects, names[0], Random(0))
    reader = await TierReader.open(memory, verify=True)
    seen = await contents_of_undamaged(reader)
    assert [queue.topic for queue in seen] == ["U"]
    for queue in seen:
        assert_follows(seen[queue], hot.queues[queue])


async def contents_of_undamaged(reader: TierReader) -> dict[QueueId, QueueContents]:
    seen: dict[QueueId, QueueContents] = {}
    for queue in sorted(reader.state.queues):
        try:
            seen[queue] = await queue_contents(reader, queue)
        except Corrupt:
            continue
    return seen
