"""The assertions of IndexItemTest, IndexStoreFileTest and IndexStoreServiceTest."""

import struct

import numpy as np

from container.index.keys import index_key
from container.index.layout import (
    BEGIN_MAGIC,
    END_MAGIC,
    KEY_ITEM_DTYPE,
    IndexHeader,
    IndexItem,
    KeyItems,
    OpenIndexItem,
)
from container.index.options import IndexOptions
from container.index.sealed import SealedIndex, seal_index
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery
from container.options import TierOptions, UpkeepOptions
from container.record.properties import key_hash
from tests.support.messages import batch_of, make_record
from tests.support.owned_tier import OwnedWorld, put
from tests.support.read_tier import QUEUE

SLOTS = 5


def test_index_item_places_of_fields() -> None:
    raw = OpenIndexItem.LAYOUT.pack(1, 2, 3, 4, 5, 6, 7)
    assert len(raw) == 32
    places = (0, 4, 8, 20, 24, 28)
    assert [struct.unpack_from(">i", raw, at)[0] for at in places] == [1, 2, 3, 5, 6, 7]
    assert struct.unpack_from(">q", raw, 12) == (4,)
    assert raw[: IndexItem.SIZE] == IndexItem.LAYOUT.pack(1, 2, 3, 4, 5, 6)


def test_1_and_2_header_hash_and_places() -> None:
    assert IndexHeader.SIZE == 28
    raw = IndexHeader(END_MAGIC, 11, 12, 13, 14).encode()
    assert struct.unpack_from(">q", raw, 4) == (11,)
    assert struct.unpack_from(">q", raw, 12) == (12,)
    assert struct.unpack_from(">ii", raw, 20) == (13, 14)
    signed = [magic - 2**32 for magic in (BEGIN_MAGIC, END_MAGIC)]
    assert signed == [-1127939447, -1127939451]
    assert key_hash(index_key("TopicTest", "MessageKey")) == 638347386
    items = items_of(["MessageKey"], ["TopicTest"])
    raw = seal_index(items, slots=SLOTS, begin_timestamp=0)
    index = SealedIndex.of(raw.data, len(raw), path="")
    assert [index.slot_range(slot).start for slot in range(3)] == [28, 36, 44]
    assert index.first_item == 28 + 8 * SLOTS


def items_of(keys: list[str], topics: list[str], each: int = 1) -> KeyItems:
    rows = [
        (key_hash(index_key(topic, key)), number, 2, 0, 100 * copy, 1_000, 150)
        for number, topic in enumerate(topics)
        for key in keys
        for copy in range(each)
    ]
    return np.array(rows, KEY_ITEM_DTYPE)


def found(raw: bytes, topic: str, key: str) -> int:
    index = SealedIndex.of(raw, len(raw), path="x")
    wanted = key_hash(index_key(topic, key))
    slot = index.slot_of(wanted)
    place = index.slot_range(slot)
    run = index.run(slot, raw[place.start : place.end])
    if run is None:
        return 0
    items = index.items(raw[run.start : run.end], position=run.start, slot=slot)
    return int((items["key_hash"] == wanted).sum())


def test_4_and_7_items_of_five_topics() -> None:
    topics = [f"TopicTest{number}" for number in range(5)]
    raw = seal_index(items_of(["MessageKey"], topics, 3), slots=SLOTS, begin_timestamp=0).tobytes()
    header = IndexHeader.decode(raw, path="x")
    assert (header.used_slots, header.items) == (5, 15)
    assert found(raw, "TopicTest1", "MessageKey") == 3
    assert found(raw, "TopicTest9", "MessageKey") == 0
    assert found(raw, "TopicTest1", "OtherKey") == 0


def world(**options: object) -> OwnedWorld:
    index = IndexOptions(items_max=20, **options)  # type: ignore[arg-type]
    return OwnedWorld(TierOptions(), UpkeepOptions(interval_s=1.0), index=index)


async def test_service_files_of_twenty_keys() -> None:
    over = world(merge_growth=1000.0)
    async with over.owned() as tier:
        for _ in range(5):
            await put(tier, 10)
            await over.pass_time(2)
        assert [one.items for one in tier.state.index_files.values()] == [20, 20]
        assert tier.upkeep.statistics().figures["index_items_unsealed"] == 10


async def test_service_a_key_in_three_files() -> None:
    over = world(merge_growth=1000.0)
    async with over.owned() as tier:
        for number in range(3):
            raws = [
                make_record(
                    *QUEUE,
                    20 * number + offset,
                    b"body",
                    properties={"KEYS": "key" if offset == 7 else f"other-{offset}"},
                )
                for offset in range(20)
            ]
            await tier.commit([tier.plan_commit(QUEUE, batch_of(raws))])
            await over.pass_time(2)
        assert len(tier.state.index_files) == 3
        for most, wanted in ((1, [47]), (3, [47, 27, 7]), (5, [47, 27, 7])):
            answer = await find_messages(tier, KeyQuery(QUEUE.topic, "key", most))
            assert [one.queue_offset for one in answer.messages] == wanted
