"""A tier that is put back from a copy while readers follow it: epochs and numbers come again."""

import pytest

from container.journal.reader import JournalFollower
from container.names.queue_id import QueueId
from container.options import TierOptions
from container.steps.options import UpkeepOptions
from container.tier_reader import TierReader
from provider.errors import Corrupt
from tests.support.owned_tier import OwnedWorld, put

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
