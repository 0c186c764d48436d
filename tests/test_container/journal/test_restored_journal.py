"""A tier that is put back from a copy while readers follow it: epochs and numbers come again."""

from dataclasses import replace

import pytest

from container.journal.reader import JournalFollower, JournalReader
from container.names.queue_id import QueueId
from container.names.tier_objects import SNAPSHOT_PREFIX, EntryName, SnapshotName, parse_name
from container.options import JournalOptions, TierOptions, UpkeepOptions
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchStatus
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from tests.support.owned_tier import NotedStore, OwnedWorld, put

A, B, C = QueueId("A", 0), QueueId("B", 0), QueueId("C", 0)


async def copied() -> tuple[OwnedWorld, dict[str, bytes]]:
    """A tier with five messages of two queues, and a copy of it."""
    world = OwnedWorld(TierOptions(), UpkeepOptions(interval_s=1e6), packed=True)
    async with world.owned() as tier:
        await put(tier, 5, A)
        await put(tier, 5, B)
    world.kill_all()
    return world, {name: bytes(raw) for name, raw in world.memory._shared.objects.items()}


def put_back(world: OwnedWorld, copy: dict[str, bytes]) -> None:
    objects = world.memory._shared.objects
    objects.clear()
    objects.update({name: bytearray(raw) for name, raw in copy.items()})


async def test_a_reader_follows_the_history_that_the_journal_has() -> None:
    world, copy = await copied()
    async with world.owned() as tier:
        for _ in range(3):
            await put(tier, 1, A)
        await put(tier, 3, B)
    world.kill_all()
    reader = await TierReader.open(world.memory)
    container = reader.container(A)
    assert container is not None
    before = container.generation
    put_back(world, copy)
    async with world.owned() as tier:  # with the same epoch and numbers
        for _ in range(3):
            await put(tier, 1, A)
        await put(tier, 4, C)
        for _ in range(3):
            await put(tier, 1, A)
            await reader.refresh()
            fresh = await TierReader.open(world.memory)
            assert reader.state == fresh.state
        assert await world.findings(reader) == []
        assert container.generation != before, "no cache may hold bytes of the other history"
        again = container.generation
        assert not await reader.refresh()
        assert container.generation == again


async def test_an_entry_of_one_number_has_another_checksum_in_another_history() -> None:
    world, copy = await copied()
    async with world.owned() as tier:
        await put(tier, 3, B)
        await put(tier, 3, B)
    world.kill_all()
    reader = await TierReader.open(world.memory)
    at = reader.state.sequence
    applied, before = await reader.entry_crc(at), await reader.entry_crc(at - 1)
    stored = await JournalReader(world.memory, JournalOptions()).entry_crc(EntryName(at))
    assert (stored, len({applied, before, 0})) == (applied, 3)
    assert await reader.entry_crc(at + 1) == 0
    put_back(world, copy)
    for _ in range(3):  # a longer history, of owners of their own
        async with world.owned() as tier:
            await put(tier, 3, C)
        world.kill_all()
    longer = await TierReader.open(world.memory)
    assert longer.state.sequence > at
    assert len({await longer.entry_crc(at), applied, 0}) == 3


async def test_a_reader_that_is_ahead_of_the_copy_goes_back() -> None:
    world, copy = await copied()
    async with world.owned() as tier:
        await put(tier, 3, B)
    world.kill_all()
    follower = await JournalFollower.open(world.memory)
    ahead = follower.state.sequence
    put_back(world, copy)
    assert await follower.refresh()
    assert follower.state.sequence < ahead
    assert follower.state.queues[B].next_offset == 5
    assert follower.histories == 1
    assert not await follower.refresh()


async def of_one_length(reader_entries: int) -> tuple[OwnedWorld, TierReader, NotedStore]:
    """A reader of a tier which was put back, and goes on otherwise up to the reader's number.

    `reader_entries`: how many entries the reader has applied itself; the others are a snapshot's.
    """
    world, copy = await copied()
    async with world.owned(replace(world.upkeep, snapshot_entries_max=1)) as tier:
        for _ in range(4 - reader_entries):
            await put(tier, 1, A)
        await tier.upkeep.finish()  # with a snapshot of all
        noted = NotedStore(world.memory, world.clock)
        reader = await TierReader.open(noted)
        snapshots = [parse_name(one.name) for one in await world.memory.list(SNAPSHOT_PREFIX)]
        assert isinstance(snapshots[-1], SnapshotName)
        assert snapshots[-1].sequence == reader.state.sequence
        for _ in range(reader_entries):
            await put(tier, 1, A)
    world.kill_all()
    await reader.refresh()
    assert not await reader.refresh(doubted=True)
    put_back(world, copy)
    async with world.owned() as tier:
        while tier.state.sequence < reader.state.sequence:
            await put(tier, 2, C)
        assert tier.state.sequence == reader.state.sequence
    world.kill_all()
    return world, reader, noted


@pytest.mark.parametrize("reader_entries", [0, 1])
async def test_another_history_of_the_same_length_is_known_by_a_look_that_doubts(
    reader_entries: int,
) -> None:
    world, reader, noted = await of_one_length(reader_entries)
    calls = noted.calls.total()
    assert not await reader.refresh()
    assert noted.calls.total() == calls + 1, "a look that finds nothing costs a listing"
    assert await reader.refresh(doubted=True)
    assert reader.state == (await TierReader.open(world.memory)).state
    calls = noted.calls.total()
    assert not await reader.refresh(doubted=True)
    assert noted.calls.total() == calls + 2


async def test_a_read_of_another_history_of_the_same_length_is_answered_by_it() -> None:
    world, reader, _ = await of_one_length(1)
    gone = reader.queue(A)
    assert gone is not None
    async with TieredMessageFetcher(reader, clock=world.clock) as fetcher:
        last = QueueOffset(gone.next_offset - 1)
        found = await fetcher.get_message("g", "A", 0, last, messages_max=1)
        assert found.status is not FetchStatus.FOUND
        assert reader.queue(C) is not None


async def test_a_longer_history_is_known_to_a_reader_of_a_snapshot_alone() -> None:
    world, reader, _ = await of_one_length(0)
    async with world.owned() as tier:
        await put(tier, 1, B)
    world.kill_all()
    assert await reader.refresh()
    assert reader.state == (await TierReader.open(world.memory)).state


@pytest.mark.leaves_findings("entry-damaged", "journal", why="it mixes two histories")
async def test_parts_of_two_histories_are_damage() -> None:
    world, copy = await copied()
    async with world.owned() as tier:
        await put(tier, 1, A)
        await put(tier, 1, A)
    world.kill_all()
    first = {name: bytes(raw) for name, raw in world.memory._shared.objects.items()}
    put_back(world, copy)
    async with world.owned() as tier:
        await put(tier, 2, A)
        await put(tier, 2, A)
    world.kill_all()
    newest = max(name for name in first if name.startswith("@journal/"))
    world.memory._shared.objects[newest] = bytearray(first[newest])
    with pytest.raises(Corrupt, match="follows another entry"):
        await TierReader.open(world.memory)
