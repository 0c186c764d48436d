"""Defects of RocketMQ's tiered store that no other test names."""

import asyncio
import struct
from pathlib import Path

from container.index.keys import index_key
from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.names.tier_objects import INDEX_PREFIX
from container.options import TierOptions, UpkeepOptions
from container.record.properties import java_hash
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from provider.ranges import ByteRange
from provider.testing.faulty import Fault, FaultyObjectStore
from tests.support.messages import TOPIC, batch_of, make_record
from tests.support.owned_tier import QUEUE, OwnedWorld, put

INDEX_ONLY = LookupLimits(scan_bytes_max=0)


def world() -> OwnedWorld:
    upkeep = UpkeepOptions(interval_s=1.0, finish_s_max=5.0)
    return OwnedWorld(TierOptions(), upkeep, index=IndexOptions(items_max=10, finish_items_min=1))


async def test_10268_a_file_that_begins_before_the_range() -> None:
    """RocketMQ asks only files that were made within the range."""
    over = world()
    async with over.owned() as tier:
        raws = [
            make_record(
                *QUEUE,
                offset,
                store_timestamp=1_000_000 + 60_000 * offset,
                properties={"KEYS": "k"},
            )
            for offset in range(20)
        ]
        await tier.commit([tier.plan_commit(QUEUE, batch_of(raws))])
        await over.pass_time(2)
        (file,) = tier.state.index_files.values()
        begin_ms, end_ms = 1_000_000 + 60_000 * 7, 1_000_000 + 60_000 * 9
        assert file.begin_timestamp < begin_ms < end_ms < file.end_timestamp
        query = KeyQuery(TOPIC, "k", 99, begin_ms, end_ms)
        found = await find_messages(tier, query, limits=INDEX_ONLY)
        assert [one.queue_offset for one in found.messages] == [9, 8, 7]


async def test_9838_the_end_comes_though_no_index_file_can_be_written() -> None:
    """RocketMQ tries for ever to upload the last index file."""
    over = world()
    async with over.owned() as tier:
        await put(tier, 5)
        over.stores[-1].faults = (Fault("refused", "create", INDEX_PREFIX),)
        await tier.close()
        assert "index" in tier.upkeep.statistics().errors
    over.kill_all()
    async with over.owned() as tier:
        await over.pass_time(3)
        found = await find_messages(tier, KeyQuery(TOPIC, "key-3", 9), unsealed=tier.unsealed)
        assert [one.queue_offset for one in found.messages] == [3]


async def test_10223_a_topic_that_is_never_tiered_costs_no_request() -> None:
    """RocketMQ looks for keys of system topics in every index file."""
    over = world()
    async with over.owned() as tier:
        await put(tier, 20)
        await over.pass_time(2)
    store = FaultyObjectStore(over.memory)
    reader = await TierReader.open(store)
    asked = store.calls.total()
    found = await find_messages(reader, KeyQuery("RMQ_SYS_TRANS_HALF_TOPIC", "key-3", 9))
    assert (found.messages, found.is_complete) == ((), True)
    assert store.calls.total() == asked


async def test_5_3_18_two_keys_of_one_hash() -> None:
    """RocketMQ gives every message whose key has the same hash."""
    assert java_hash(index_key(TOPIC, "Aa")) == java_hash(index_key(TOPIC, "BB"))
    over = world()
    async with over.owned() as tier:
        keys = ["Aa", "BB"] * 10
        raws = [
            make_record(*QUEUE, offset, properties={"KEYS": key}) for offset, key in enumerate(keys)
        ]
        await tier.commit([tier.plan_commit(QUEUE, batch_of(raws))])
        await over.pass_time(2)
        found = await find_messages(tier, KeyQuery(TOPIC, "BB", 99), limits=INDEX_ONLY)
        assert [one.queue_offset for one in found.messages] == list(range(19, 0, -2))


async def test_10470_reads_of_one_file_at_once(tmp_path: Path) -> None:
    """RocketMQ sets the place of a file that all reads share, and reads then."""
    data = b"".join(struct.pack(">I", number) for number in range(100_000))
    store = PosixStore(tmp_path)
    await store.create("one", [data])
    ranges = [ByteRange(at, at + 4_000) for at in range(0, len(data), 4_000)]
    reads = [store.read("one", wanted) for wanted in ranges]
    for wanted, found in zip(ranges, await asyncio.gather(*reads), strict=True):
        assert bytes(found) == data[wanted.start : wanted.end]
    await store.close()
