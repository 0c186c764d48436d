"""Index files for a Java broker have its number of slots, and every key of every message."""

import itertools
from struct import unpack_from

import pytest

from container.index.keys import index_key
from container.index.layout import END_MAGIC, IndexHeader, IndexItem
from container.index.options import IndexOptions
from container.java.metadata import FileKey, parse_java_metadata
from container.java.migration import JavaIndexLimits, java_metadata_of, rebuild_index
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INDEX_QUEUE
from container.names.tier_objects import INDEX_PREFIX
from container.options import TierOptions, UpkeepOptions
from container.record.properties import key_hash
from container.tier_view import FixedMetadata, TierReader
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put
from tests.support.store_reader import findings

OTHER = QueueId(TOPIC, 1)
SLOTS = 7
INDEX = IndexOptions(items_max=40, age_s_max=1000.0, merge_growth=64.0, finish_items_min=10**6)


async def a_tier() -> OwnedWorld:
    """Messages in files, in none, in one that was cut, and others in their place."""
    over = OwnedWorld(TierOptions(cut_grace_hours=0), UpkeepOptions(interval_s=1.0), index=INDEX)
    async with over.owned() as tier:
        for _ in range(4):
            await put(tier, 20, QUEUE, OTHER)
            await over.pass_time(2)
        await tier.cut_queue(QUEUE, QueueOffset(70), "test")
        await put(tier, 15, QUEUE, body_bytes=33)
        await tier.close()
    over.kill_all()
    return over


def java_finds(raw: bytes, key: str) -> list[tuple[int, int, int]]:
    """Queue, position and size of the items of a key, as IndexStoreFile looks for them."""
    assert unpack_from(">I", raw) == (END_MAGIC,)
    wanted = key_hash(index_key(TOPIC, key))
    position, length = unpack_from(">ii", raw, IndexHeader.SIZE + 8 * (wanted % SLOTS))
    found = [
        IndexItem(*IndexItem.LAYOUT.unpack_from(raw, at))
        for at in range(position, position + length, IndexItem.SIZE)
    ]
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    return [(one.queue_id, one.position, one.size) for one in found if one.key_hash == wanted]


@pytest.mark.parametrize("items_max", [10, 100, 10_000])
async def test_a_broker_finds_every_message_and_nothing_else(items_max: int) -> None:
    over = await a_tier()
    reader = await TierReader.open(over.memory)
    assert any(one.cuts for one in reader.state.index_files.values())
    files = await rebuild_index(reader, JavaIndexLimits(SLOTS, items_max))
    assert sum(one.items for one in files) == 80 + 85
    assert len({one.begin_timestamp for one in files}) == len(files), "Java keeps one of each"
    raws = [bytes(await over.memory.read(one.object_name)) for one in files]
    for one, after in itertools.pairwise(files):
        assert one.base + one.size == after.base
    for offset in range(86):
        places = [place for raw in raws for place in java_finds(raw, f"key-{offset}")]
        assert len(places) == len(set(places))
        answer = await find_messages(reader, KeyQuery(TOPIC, f"key-{offset}", 9))
        records = {(one.queue_id, one.physical_offset, one.size) for one in answer.messages}
        assert set(places) == records
        assert len(records) == (offset < 80) + (offset < 85)


async def test_our_own_reader_reads_them_as_files_of_rocketmq() -> None:
    over = await a_tier()
    reader = await TierReader.open(over.memory)
    files = await rebuild_index(reader, JavaIndexLimits(SLOTS, 50))
    state = reader.state.copy()
    state.index_files = {one.object_name: one for one in files}
    java = TierReader(over.memory, FixedMetadata(state))
    for offset in (0, 69, 70, 79, 84, 85):
        answer = await find_messages(
            java, KeyQuery(TOPIC, f"key-{offset}", 9), limits=LookupLimits(scan_bytes_max=0)
        )
        assert len(answer.messages) == (offset < 80) + (offset < 85)


async def test_the_metadata_names_them_and_a_second_export_writes_nothing() -> None:
    over = await a_tier()
    reader = await TierReader.open(over.memory)
    limits = JavaIndexLimits(SLOTS, 50)
    files = await rebuild_index(reader, limits)
    names = await over.names(INDEX_PREFIX)
    raw = await java_metadata_of(reader, clock=ManualClock(), index_files=files)
    metadata = parse_java_metadata(raw, path="java.json")
    rows = metadata.segments[SegmentType.INDEX][FileKey("broker-a", INDEX_QUEUE)]
    assert [(one.base_offset, one.size, one.begin_timestamp) for one in rows] == [
        (one.base, one.size, one.begin_timestamp) for one in files
    ]
    again = await rebuild_index(await TierReader.open(over.memory), limits)
    assert again == files
    assert await over.names(INDEX_PREFIX) == names


@pytest.mark.leaves_findings("orphan", why="one was damaged")
async def test_a_check_tells_of_one_only_where_it_is_none_any_more() -> None:
    over = await a_tier()
    files = await rebuild_index(await TierReader.open(over.memory), JavaIndexLimits(SLOTS, 50))
    assert len(files) > 1
    assert await findings(over.memory.another_client()) == []
    over.memory._shared.objects[files[0].object_name][3] ^= 1
    (finding,) = await findings(over.memory.another_client())
    assert "orphan" in finding
    assert files[0].object_name in finding


@pytest.mark.leaves_findings("checksum", why="an index file was damaged")
async def test_a_damaged_file_costs_no_key() -> None:
    over = await a_tier()
    reader = await TierReader.open(over.memory)
    over.memory._shared.objects[min(reader.state.index_files)][-1] ^= 1
    files = await rebuild_index(reader, JavaIndexLimits(SLOTS, 10_000))
    assert sum(one.items for one in files) == 80 + 85


async def test_files_of_the_broker_itself_stay_before_ours() -> None:
    over = await a_tier()
    reader = await TierReader.open(over.memory)
    state = reader.state.copy()
    begin = min(one.begin_timestamp for one in state.index_files.values())
    theirs = IndexFile("x", 3_000, 500, begin, begin, 1, 1)
    state.index_files[theirs.object_name] = theirs
    files = await rebuild_index(
        TierReader(over.memory, FixedMetadata(state)), JavaIndexLimits(SLOTS, 10_000)
    )
    assert files[0].base == 3_500
    assert files[0].begin_timestamp == begin - 1
