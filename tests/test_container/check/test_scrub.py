"""A scrub in many small runs finds what one check finds, and reads every byte once a round."""

import random

import pytest

from container.check.scrub import (
    Scrubber,
    ScrubMark,
    ScrubPlace,
    may_be_deleted,
    read_mark,
    unclaimed_since,
    write_mark,
)
from container.check.tier import check_tier, published_names
from container.errors import Finding
from container.names.queue_id import QueueId
from container.names.tier_objects import ScrubName
from container.options import TierOptions, UpkeepOptions
from container.record.unit import UNIT_BYTES
from container.tier_view import TierReader
from provider.clock import Clock, SystemClock
from provider.errors import AlreadyExists
from provider.stores.packed_segments import PartName
from provider.testing.memory import MemoryStore
from tests.support.damage_at_rest import held, memory_of
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put

OTHER = QueueId(TOPIC, 1)
OPTIONS = TierOptions(
    commit_log_bytes_max=4_000, consume_queue_bytes_max=25 * UNIT_BYTES, extent_bytes_max=1_500
)
UPKEEP = UpkeepOptions(
    interval_s=1, sealed_segments_max=1, manifests_per_level_max=2, snapshot_entries_max=4
)
BY_SCRUB = ("object-missing", "object-short", "unreadable", "checksum", "manifest", "orphan",
            "journal-hole", "entry-damaged", "snapshot-damaged", "manifest-damaged")  # fmt: skip
DAMAGED = 8
"""Objects of which each is damaged in three ways."""
WHY = "objects are cut short, removed and changed"


async def history(*, packed: bool) -> OwnedWorld:
    """Two queues in several segments, of two owners."""
    world = OwnedWorld(OPTIONS, UPKEEP, packed=packed)
    for _ in range(2):
        async with world.owned() as tier:
            for _ in range(4):
                await put(tier, 10, QUEUE, OTHER)
                await world.pass_time(30)
            await tier.close()
        world.kill_all()
    return world


async def run(
    memory: MemoryStore, mark: ScrubMark, operations_max: int, clock: Clock | None = None
) -> tuple[list[Finding], Scrubber]:
    reader = await TierReader.open(memory)
    clock = clock or SystemClock()
    scrubber = Scrubber(reader, mark, operations_max=operations_max, clock=clock, settle_s=0)
    return [finding async for finding in scrubber.run()], scrubber


async def one_round(
    memory: MemoryStore, operations_max: int
) -> tuple[list[Finding], list[Scrubber]]:
    """Runs until a round is over, with the mark in storage between them."""
    found: list[Finding] = []
    runs: list[Scrubber] = []
    while not runs or not runs[-1].is_round_over:
        some, scrubber = await run(memory, await read_mark(memory), operations_max)
        await write_mark(memory, scrubber.mark)
        found += some
        runs.append(scrubber)
    return found, runs


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
@pytest.mark.parametrize("operations_max", [1, 7, 10_000])
async def test_a_round_reads_every_published_byte_once_in_runs_of_bounded_cost(
    *, packed: bool, operations_max: int
) -> None:
    world = await history(packed=packed)
    reader = await TierReader.open(world.memory)
    published = 0
    for queue in (QUEUE, OTHER):
        segments = reader.segments(queue)
        assert segments is not None
        published += sum(one.size_bytes or 0 for one in await segments.listed())
    found, runs = await one_round(world.memory, operations_max)
    assert found == []
    assert sum(scrubber.bytes_read for scrubber in runs) == published
    assert (len(runs) > 5) == (operations_max < 10)
    manifests = sum(len(queue.manifests) for queue in reader.state.queues.values())
    queues = reader.state.queues.values()
    segments = [one for queue in queues for one in (*queue.commit_log, *queue.consume_queue)]
    longest = 1 + max(len(segment.extents) for segment in segments)
    for scrubber in runs[:-1]:
        assert scrubber.operations < operations_max + manifests + longest
    mark = await read_mark(world.memory)
    assert (mark.number, mark.round, mark.place) == (len(runs), 2, ScrubPlace())
    assert len(await world.memory.list("@scrub/")) == 1


@pytest.mark.leaves_findings(*BY_SCRUB, why=WHY)
@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
async def test_what_a_check_finds_in_storage_small_runs_find_too(*, packed: bool) -> None:
    world = await history(packed=packed)
    objects = held(world.memory)
    rng, tried = random.Random(packed), 0
    for name in rng.sample(sorted(objects), DAMAGED):
        whole = objects[name]
        at = rng.randrange(max(1, len(whole)))
        flipped = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] if whole else None
        for damaged in (None, whole[:at], flipped):
            changed = {**objects, name: damaged} if damaged is not None else dict(objects)
            if damaged is None:
                del changed[name]
            try:
                reader = await TierReader.open(memory_of(changed))
            except Exception:  # noqa: BLE001 - a tier that cannot be opened is not scrubbed
                continue
            checked = [one async for one in check_tier(reader)]
            found, _ = await one_round(memory_of(changed), 50)
            wanted = {(one.finding, one.path) for one in checked if one.finding in BY_SCRUB}
            wanted -= {one for one in wanted if one[0] == "unreadable" and one[1][0] != "@"}
            assert wanted <= {(one.finding, one.path) for one in found}, (name, at)
            tried += bool(wanted)
    assert tried > DAMAGED


@pytest.mark.leaves_findings("orphan", why="a stray part")
async def test_the_first_sight_of_what_nothing_refers_to_is_kept_over_rounds() -> None:
    world = await history(packed=True)
    stray = str(PartName(1, "ab" * 16))
    await world.memory.create(stray, [b"never published"])
    found, scrubber = await run(world.memory, ScrubMark(), 10_000, world.clock)
    assert [(one.finding, one.path) for one in found] == [("orphan", stray)]
    seen_ms = world.clock.now_ms()
    assert dict(scrubber.mark.unclaimed) == {stray: seen_ms}
    await world.pass_time(100)
    _, again = await run(world.memory, scrubber.mark, 10_000, world.clock)
    assert unclaimed_since(again.mark, seen_ms) == [stray]
    assert unclaimed_since(again.mark, seen_ms - 1) == []
    await world.memory.delete([stray])
    _, gone = await run(world.memory, again.mark, 10_000, world.clock)
    assert unclaimed_since(gone.mark, world.clock.now_ms()) == []


async def test_of_two_runs_at_once_the_second_to_end_is_told() -> None:
    world = await history(packed=True)
    mark = await read_mark(world.memory)
    (_, one), (_, other) = await run(world.memory, mark, 1), await run(world.memory, mark, 5)
    await write_mark(world.memory, one.mark)
    with pytest.raises(AlreadyExists):
        await write_mark(world.memory, other.mark)
    assert await read_mark(world.memory) == one.mark


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"{}", b'{"number": 3, "round": "x", "place": []}', b"\xff", b"3"]
)
def test_a_damaged_mark_lets_a_round_begin_again(raw: bytes) -> None:
    assert ScrubMark.decode(raw, ScrubName(3)) == ScrubMark(3)


def test_a_mark_reads_back() -> None:
    mark = ScrubMark(3, 2, ScrubPlace(0, "T", 1, 0, 4711), 17, 1, {"@parts/x": 5})
    assert ScrubMark.decode(mark.encode(), ScrubName(3)) == mark
    assert ScrubMark.decode(mark.encode(), ScrubName(4)) == ScrubMark(4), "it is another one's"


async def test_only_names_that_a_tier_makes_may_be_deleted() -> None:
    world = await history(packed=False)
    reader = await TierReader.open(world.memory)
    names, lost = await published_names(reader, reader.state.queues)
    assert lost is None
    assert {name for name in names if name.startswith(TOPIC)} == await world.names()
    segment = next(iter(await world.names()))
    assert may_be_deleted(reader.state, segment)
    assert may_be_deleted(reader.state, str(PartName(1, "ab" * 16)))
    for name in (f"{TOPIC}/0/notes", segment.replace(TOPIC, "Unknown"), "notes", "@lock"):
        assert not may_be_deleted(reader.state, name)


@pytest.mark.leaves_findings("manifest-missing", "manifest", "orphan", why="it is removed")
async def test_what_a_lost_manifest_named_is_not_known() -> None:
    world = await history(packed=False)
    objects = held(world.memory)
    queue = (await TierReader.open(world.memory)).queue(QUEUE)
    assert queue is not None
    lost = queue.manifests[0].object_name
    del objects[lost]
    reader = await TierReader.open(memory_of(objects))
    _, error = await published_names(reader, reader.state.queues)
    assert error is not None
    assert error.path == lost
