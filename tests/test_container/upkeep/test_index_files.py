"""Keys of commits: found at once, sealed, read again after a crash, forgotten with a cut."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from container.errors import BytesMissing
from container.index.layout import KEY_ITEM_DTYPE
from container.index.options import IndexOptions
from container.lookup.collector import UnsealedIndex
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.metadata.operations import DropQueue
from container.metadata.records import IndexFile, QueueBasis
from container.names.queue_id import QueueId
from container.names.rocketmq import index_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.index_files import bare_expired
from provider.disk_cache.use import current_use
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset
from provider.testing.faulty import Fault
from provider.testing.manual_clock import settle
from provider.testing.memory import MemoryStore
from tests.support.messages import FIRST_STORE_TIMESTAMP, TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, planned, put

INDEX = IndexOptions(items_max=100, age_s_max=1000.0, finish_items_min=50, finish_bytes_min=1 << 30)
UPKEEP = UpkeepOptions(interval_s=1.0, grace_s=0.0)
INDEX_ONLY = LookupLimits(scan_bytes_max=0)
OTHER = QueueId(TOPIC, 1)


def world(index: IndexOptions = INDEX) -> OwnedWorld:
    return OwnedWorld(TierOptions(cut_grace_hours=0), UPKEEP, index=index)


async def offsets(tier: Tier | TierReader, key: str, **limits: int) -> list[tuple[int, int]]:
    """What an index has of a key, without reading messages that none has."""
    unsealed = tier.unsealed if isinstance(tier, Tier) else ()
    found = await find_messages(
        tier, KeyQuery(TOPIC, key, 99), unsealed=unsealed, limits=replace(INDEX_ONLY, **limits)
    )
    assert found.damage == ()
    return [(one.queue_id, one.queue_offset) for one in found.messages]


def figures(tier: Tier) -> dict[str, int]:
    names = ("index_files_sealed", "index_items_unsealed", "index_messages_read")
    return {name: tier.upkeep.statistics().figures[name] for name in names}


async def test_keys_are_found_as_soon_as_their_commit_is_published() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 10, QUEUE, OTHER)
        assert await offsets(tier, "key-7") == [(1, 7), (0, 7)]
        assert figures(tier) == {
            "index_files_sealed": 0,
            "index_items_unsealed": 20,
            "index_messages_read": 0,
        }
        reader = await TierReader.open(over.memory)
        assert await offsets(reader, "key-7") == []
        assert await offsets(reader, "key-7", scan_bytes_max=1 << 20) == [(1, 7), (0, 7)]


async def test_a_full_memory_becomes_a_file_that_every_reader_finds() -> None:
    over = world()
    async with over.owned() as tier:
        for _ in range(5):
            await put(tier, 10, QUEUE, OTHER)
        await over.pass_time(1)
        assert figures(tier)["index_files_sealed"] == 1
        (file,) = tier.state.index_files.values()
        assert {queue: (a, b) for queue, a, b in file.coverage} == {
            QUEUE: (0, 50),
            OTHER: (0, 50),
        }
        assert file.items == 100
        assert file.size == 28 + 100 * 28 + 8 * 128
        await put(tier, 3)
        assert await offsets(tier, "key-49") == [(1, 49), (0, 49)]
        assert await offsets(tier, "key-51") == [(0, 51)]
    reader = await TierReader.open(over.memory)
    assert await offsets(reader, "key-49") == [(1, 49), (0, 49)]
    assert await over.findings() == []


@pytest.mark.parametrize(
    "early", [replace(INDEX, age_s_max=30.0), replace(INDEX, covered_bytes_max=1000)]
)
async def test_age_and_bytes_seal_too(early: IndexOptions) -> None:
    over = world(early)
    async with over.owned() as tier:
        await put(tier, 10)
        await over.pass_time(60)
        assert len(tier.state.index_files) == 1
        await over.pass_time(60)
        assert len(tier.state.index_files) == 1, "nothing new, no file"


async def test_after_a_crash_only_what_no_file_has_is_read_again() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 120)
        await over.pass_time(1)
        await put(tier, 7)
    over.kill_all()
    async with over.owned() as tier:
        assert await offsets(tier, "key-125") == []
        await over.pass_time(2)
        assert await offsets(tier, "key-125") == [(0, 125)]
        assert figures(tier) == {
            "index_files_sealed": 0,
            "index_items_unsealed": 7,
            "index_messages_read": 7,
        }
        await put(tier, 1)
        assert await offsets(tier, "key-127") == [(0, 127)]


async def test_a_tier_that_had_no_index_gets_one() -> None:
    over = world()
    over.index = None
    async with over.owned() as tier:
        await put(tier, 130, QUEUE, OTHER)
    over.kill_all()
    over.index = INDEX
    async with over.owned() as tier:
        await over.pass_time(3)
        assert figures(tier)["index_messages_read"] == 260
        assert await offsets(tier, "key-3") == [(1, 3), (0, 3)]
    assert await over.findings() == []


async def test_a_clean_end_seals_only_what_is_worth_it() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 49)
        await tier.close()
        assert await over.names(INDEX_PREFIX) == set()
    over.kill_all()
    async with over.owned() as tier:
        await over.pass_time(2)
        await put(tier, 1)
        await tier.close()
        assert len(await over.names(INDEX_PREFIX)) == 1
    assert await offsets(await TierReader.open(over.memory), "key-49") == [(0, 49)]


async def test_a_cancelled_commit_that_lands_is_read_again_for_its_keys() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 2)
        over.stores[-1].faults = [Fault("delayed", "create", "@journal/", delay_s=1.0)]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(tier.commit([planned(tier, 5)]))
            await settle(100)
            assert tier.journal.planned.queues[QUEUE].next_offset == 7
            task.cancel()
        over.stores[-1].faults = []
        await over.clock.advance(2)
        await tier.settle(QUEUE)
        assert tier.state.queues[QUEUE].next_offset == 7
        await put(tier, 1)
        await over.pass_time(2)
        assert await offsets(tier, "key-4") == [(0, 4)]
        assert figures(tier)["index_messages_read"] == 5


async def test_a_cut_takes_keys_from_memory_and_from_the_coverage_of_files() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 120)
        await over.pass_time(1)
        await put(tier, 10)
        await tier.cut_queue(QUEUE, QueueOffset(100), "test")
        (file,) = tier.state.index_files.values()
        assert file.coverage == ((QUEUE, 0, 100),)
        assert figures(tier)["index_items_unsealed"] == 0
        for key in ("key-99", "key-100", "key-125"):
            assert await offsets(tier, key) == ([(0, 99)] if key == "key-99" else [])
        await put(tier, 30, body_bytes=33)  # other messages at the same offsets
        for key in ("key-99", "key-100", "key-125"):
            assert await offsets(tier, key) == [(0, int(key[4:]))]
        await over.pass_time(2)
        assert await over.findings() == []


async def test_a_cut_while_a_file_is_written_keeps_it_from_being_published() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 99, QUEUE)
        await put(tier, 1, OTHER)
        store = over.stores[-1]
        store.faults = [Fault("delayed", "create", INDEX_PREFIX, delay_s=5.0)]
        await over.pass_time(2)
        assert not tier.state.index_files
        store.faults = []
        await tier.cut_queue(QUEUE, QueueOffset(50), "test")
        await put(tier, 5, body_bytes=33)
        await over.pass_time(20)
        covered = {
            queue: (a, b) for f in tier.state.index_files.values() for queue, a, b in f.coverage
        }
        assert covered[QUEUE] in {(0, 50), (0, 55)}
        assert await offsets(tier, "key-52") == [(0, 52)]
        assert await offsets(tier, "key-60") == []
        await over.pass_time(20)
    assert await over.findings() == []


async def test_a_file_that_could_not_be_written_is_written_under_another_name() -> None:
    over = world()
    async with over.owned() as tier:
        over.stores[-1].faults = [Fault("lost_reply", "create", INDEX_PREFIX)]
        await put(tier, 120)
        await over.pass_time(3)
        assert "index" in tier.upkeep.statistics().errors
        assert await offsets(tier, "key-7") == [(0, 7)]
        over.stores[-1].faults = []
        await over.pass_time(60)
        assert "index" not in tier.upkeep.statistics().errors
        assert await over.names(INDEX_PREFIX) == tier.state.index_files.keys()
        assert len(tier.state.index_files) == 1


async def test_a_file_that_a_dead_owner_did_not_publish_is_deleted_by_the_next() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 1)
        name = index_name(IndexBase(tier.journal.epoch, 1).number)
        await over.stores[-1].create(name, [b"x" * 100])
    over.kill_all()
    assert await over.findings() == [], "its owner might publish it yet"
    async with over.owned():
        assert [one for one in await over.findings() if name in one], "now nobody will"
        await over.pass_time(5)
        assert await over.names(INDEX_PREFIX) == set()


async def test_names_that_are_taken_are_passed_over() -> None:
    over = world()
    async with over.owned() as tier:
        taken = [index_name(IndexBase(1, number).number) for number in (1, 2)]
        for name in taken:
            await over.stores[-1].create(name, [b"of a journal that was lost"])
        await put(tier, 120)
        await over.pass_time(1)
        assert [*tier.state.index_files] == [index_name(IndexBase(1, 3).number)]
        assert await offsets(tier, "key-7") == [(0, 7)]


async def test_a_file_goes_with_the_last_of_its_messages() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 60, QUEUE, OTHER)
        await over.pass_time(1)
        assert len(await over.names(INDEX_PREFIX)) == 1
        for queue, left in ((QUEUE, 1), (OTHER, 0)):
            record = tier.state.queues[queue]
            await tier.journal.publish([DropQueue(queue, planned_on=QueueBasis.of(record))])
            await over.pass_time(5)
            assert len(await over.names(INDEX_PREFIX)) == left
            assert len(tier.state.index_files) == left
            assert await offsets(tier, "key-3") == [(1, 3)][:left]


async def test_memory_is_bounded_while_no_file_can_be_written() -> None:
    over = world(replace(INDEX, room_wait_s_max=0.0))
    async with over.owned() as tier:
        over.stores[-1].faults = [Fault("refused", "create", INDEX_PREFIX)]
        for _ in range(10):
            await put(tier, 60)
            await over.pass_time(2)
        assert figures(tier)["index_items_unsealed"] == 300
        over.stores[-1].faults = []
        await over.pass_time(60)
        await settle(100)
        for offset in (5, 300, 599):
            assert await offsets(tier, f"key-{offset}") == [(0, offset)]
    assert await over.findings() == []


async def test_files_are_written_while_nothing_can_be_listed() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 1)
    over.kill_all()
    async with over.owned() as tier:
        over.stores[-1].faults = [Fault("refused", "list", INDEX_PREFIX)]
        for _ in range(10):
            await put(tier, 60)
            await over.pass_time(2)
            assert figures(tier)["index_items_unsealed"] < 2 * (100 + 60)
        await over.pass_time(200)
        assert "index" in tier.upkeep.statistics().errors
        assert figures(tier)["index_items_unsealed"] < 100
        for offset in (0, 300, 600):
            assert await offsets(tier, f"key-{offset}") == [(0, offset)]


def test_a_full_buffer_waits_while_a_file_is_built() -> None:
    unsealed = UnsealedIndex(items_max=100)
    for n in range(10):
        unsealed.add(QUEUE, (30 * n, 30 * n + 30), np.zeros(30, KEY_ITEM_DTYPE), 1, 0.0)
    assert unsealed.items == 300
    sealing = unsealed.begin_sealing()
    assert sealing.spans == {QUEUE: [(0, 120)]}
    assert [one.spans for one in unsealed.full] == [{QUEUE: [(120, 240)]}]
    assert unsealed.spans(QUEUE) == [(0, 120), (120, 240), (240, 300)]
    assert unsealed.has_room(0)
    assert not unsealed.has_room(1)
    unsealed.forget(QUEUE, 0, 130, 0)
    assert unsealed.spans(QUEUE) == [(0, 120), (120, 130)]
    unsealed.sealed()
    assert unsealed.begin_sealing().spans == {QUEUE: [(120, 130)]}


async def test_a_commit_waits_until_a_file_makes_room() -> None:
    """No key is dropped: 300 items fit, and one commit of more than that if nothing else waits."""
    over = world()
    async with over.owned() as tier:
        over.stores[-1].faults = [Fault("delayed", "create", INDEX_PREFIX, delay_s=1.5)]
        for _ in range(3):
            await put(tier, 100)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(put(tier, 10))
            await settle(100)
            assert tier.state.queues[QUEUE].next_offset == 300
            assert not waiting.done()
            over.stores[-1].faults = []
            await over.clock.advance(20)
        await put(tier, 400)
        await over.pass_time(20)
        assert figures(tier)["index_messages_read"] == 0
        assert tier.state.queues[QUEUE].next_offset == 710
        for offset in (0, 99, 100, 299, 300, 309, 310, 709):
            assert await offsets(tier, f"key-{offset}") == [(0, offset)]
    assert await over.findings() == []


async def test_commits_wait_once_while_no_file_can_be_written() -> None:
    over = world()
    async with over.owned() as tier:
        over.stores[-1].faults = [Fault("refused", "create", INDEX_PREFIX)]
        await put(tier, 300)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(put(tier, 10))
            await settle(100)
            await over.clock.advance(INDEX.room_wait_s_max - 0.1)
            assert not waiting.done()
            await over.clock.advance(0.2)
        await put(tier, 10)  # time stands still
        assert figures(tier)["index_items_unsealed"] == 300
        over.stores[-1].faults = []
        await over.pass_time(60)
        assert figures(tier)["index_messages_read"] == 20
        for offset in (5, 299, 300, 319):
            assert await offsets(tier, f"key-{offset}") == [(0, offset)]


async def test_a_cancelled_or_failed_commit_gives_its_room_back() -> None:
    over = world()
    async with over.owned() as tier:
        over.stores[-1].faults = [Fault("refused", "create", INDEX_PREFIX)]
        await put(tier, 299)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(put(tier, 10))
            await settle(100)
            waiting.cancel()
        await put(tier, 1)
        assert figures(tier)["index_items_unsealed"] == 300
        assert tier.state.queues[QUEUE].next_offset == 300


async def test_what_a_failed_file_was_to_have_is_not_read_again() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 120)
        await over.pass_time(2)
        assert figures(tier)["index_files_sealed"] == 1
        over.stores[-1].faults = [Fault("refused", "create", INDEX_PREFIX)]
        await put(tier, 120)
        await over.pass_time(3)
        assert "index" in tier.upkeep.statistics().errors
        over.stores[-1].faults = []
        await over.pass_time(60)
        assert figures(tier) == {
            "index_files_sealed": 2,
            "index_items_unsealed": 0,
            "index_messages_read": 0,
        }


@pytest.mark.leaves_findings("body-crc", "checksum", why="one message was damaged")
@pytest.mark.parametrize("bytes_max", [1, 1 << 20], ids=["one message a run", "all in one run"])
async def test_what_is_around_a_damaged_extent_is_read_by_the_next_run(bytes_max: int) -> None:
    over = OwnedWorld(TierOptions(extent_bytes_max=500), UPKEEP, index=None)
    async with over.owned() as tier:
        await put(tier, 8)
    over.kill_all()
    (name,) = await over.names(f"{TOPIC}/0/COMMIT_LOG/")
    raw = over.memory._shared.objects[name]
    raw[4 * len(raw) // 8 + 100] ^= 1
    over.index = replace(INDEX, catch_up_bytes_max=bytes_max)
    async with over.owned() as tier:
        (segment,) = tier.state.queues[QUEUE].commit_log
        assert [one.first_offset for one in segment.extents] == [0, 2, 4, 6]
        await over.pass_time(40)
        assert figures(tier)["index_messages_read"] == 6
        assert await offsets(tier, "key-3") == [(0, 3)]
        assert await offsets(tier, "key-7") == [(0, 7)]
        assert "index" not in tier.upkeep.statistics().errors


class RottenCache(MemoryStore):
    """Answers one file with a wrong key, but to those who ask the storage itself."""

    is_rotten = True

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        found = await super().read_many(wanted)
        use = current_use()
        if use is not None and use.is_past:
            return found
        if not self.is_rotten:
            return found
        return [bytes(one).replace(b"key-3", b"kez-3") for one in found]


@pytest.mark.parametrize("rotten", ["storage", "cache"])
async def test_keys_are_derived_of_bytes_that_were_verified(
    rotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record does not vouch for its keys: a wrong one would get a valid checksum in the index."""
    over = world()
    if rotten == "cache":
        over.memory = RottenCache()
    over.index = None
    async with over.owned() as tier:
        await put(tier, 10)
    over.kill_all()
    (name,) = await over.names(f"{TOPIC}/0/COMMIT_LOG/")
    raw = over.memory._shared.objects[name]
    sound = bytes(raw)
    if rotten == "storage":
        raw[:] = sound.replace(b"key-3", b"kez-3")
    over.index = replace(INDEX, finish_items_min=1)
    async with over.owned() as tier:
        await over.pass_time(20)
        await tier.close()
    raw[:] = sound  # put back, as the checker advises
    monkeypatch.setattr(RottenCache, "is_rotten", False)
    over.kill_all()
    async with over.owned() as tier:
        await over.pass_time(20)
        assert await offsets(tier, "key-3") == [(0, 3)]
    assert await over.findings() == []


def test_a_file_of_rocketmq_with_a_part_of_an_address_as_its_newest_time_stays() -> None:
    oldest_ms = FIRST_STORE_TIMESTAMP
    made = IndexFile(index_name(7), 7, 100, oldest_ms, oldest_ms, 1, 1)
    for end_ms in (1, oldest_ms, 720619920815974049):
        assert bare_expired([replace(made, end_timestamp=end_ms)], oldest_ms) == []
    gone = replace(made, begin_timestamp=oldest_ms - 1, end_timestamp=oldest_ms - 1)
    assert bare_expired([gone], oldest_ms) == [made.object_name]
    assert bare_expired([gone], None) == [], "no queue has a message that could tell"


async def test_messages_behind_a_lost_file_are_read_and_the_file_is_tried_again() -> None:
    options = TierOptions(
        cut_grace_hours=0, commit_log_bytes_max=2_000, consume_queue_bytes_max=600
    )
    over = OwnedWorld(options, UPKEEP, index=None)
    async with over.owned() as tier:
        for _ in range(6):
            await put(tier, 10, QUEUE, OTHER)
    over.kill_all()
    lost = [
        sorted(await over.names(f"{TOPIC}/0/COMMIT_LOG/"))[1],
        max(await over.names(f"{TOPIC}/0/CONSUME_QUEUE/")),
    ]
    objects = over.memory._shared.objects
    kept = {name: objects.pop(name) for name in lost}
    over.index = INDEX
    async with over.owned() as tier:
        await over.pass_time(30)
        read = figures(tier)["index_messages_read"]
        kinds = [type(error) for error in tier.upkeep.statistics().errors.values()]
        objects.update(kept)
        await over.pass_time(700)
        assert 60 + 10 < read < 110, "the other queue, and what is around the lost files"
        assert kinds == [BytesMissing]
        assert figures(tier)["index_messages_read"] == 120, "each once"
        assert "index" not in tier.upkeep.statistics().errors
        assert await offsets(tier, "key-59") == [(1, 59), (0, 59)]
    assert await over.findings() == []


async def test_completing_the_index_reads_missing_keys_at_once() -> None:
    """After a crash the keys of no file are missing. Time stands still: upkeep is not due."""
    over = world()
    async with over.owned() as tier:
        await put(tier, 20, QUEUE, OTHER)
    over.kill_all()
    async with over.owned() as tier:
        assert await offsets(tier, "key-19") == []
        await tier.complete_index()
        assert await offsets(tier, "key-19") == [(1, 19), (0, 19)]
        before = figures(tier)
        await tier.complete_index()
        assert figures(tier) == before


async def test_without_an_index_there_is_nothing_to_complete() -> None:
    over = OwnedWorld(TierOptions(cut_grace_hours=0), UPKEEP)
    async with over.owned() as tier:
        await put(tier, 10)
        await tier.complete_index()
