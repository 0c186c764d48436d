"""Index files that RocketMQ wrote, and those that we build of the same messages."""

from functools import cache

import numpy as np
import pytest

from container.index.keys import index_key, items_of_records
from container.index.layout import (
    BEGIN_MAGIC,
    KEY_ITEM_DTYPE,
    OPEN_ITEM_DTYPE,
    OPEN_SLOT_DTYPE,
    IndexHeader,
    KeyItems,
    joined,
)
from container.index.sealed import OpenIndex, SealedIndex, decode_sealed, seal_index
from container.java.metadata import parse_java_metadata
from container.record.batch import decode_units, store_timestamps
from container.record.properties import key_hash
from provider.errors import Corrupt
from tests.support.golden import (
    GOLDEN_TREES,
    ROCKETMQ_533,
    ROCKETMQ_550,
    GoldenSet,
    GoldenTree,
    tree_name,
    unpacked,
)

NAMES = ["key_hash", "topic_id", "queue_id", "position", "size"]


@cache
def java_files(tree: GoldenTree) -> dict[str, tuple[SealedIndex, KeyItems, bytes]]:
    directory = tree.broker_directory / "rmq_sys_INDEX" / "0" / "INDEX"
    raws = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    return {name: (*decode_sealed(raw, path=name), raw) for name, raw in raws.items()}


def open_items(tree: GoldenTree) -> list[KeyItems]:
    files = (tree.store / "tiered_index_file").glob("[0-9]*")
    slots = tree.golden.index_slots
    return [OpenIndex.of(path.read_bytes(), slots=slots, path=path.name).items() for path in files]


@cache
def our_items(tree: GoldenTree) -> KeyItems:
    """All keys of all messages of the tier, from the records."""
    metadata = parse_java_metadata(tree.java_metadata.read_bytes(), path="metadata")
    topic_ids = {topic.topic: topic.topic_id for topic in metadata.topics}
    found: list[KeyItems] = []
    for queue in tree.queues():
        units = decode_units(tree.flat_bytes(queue, "CONSUME_QUEUE"))
        log = np.frombuffer(tree.flat_bytes(queue, "COMMIT_LOG"), np.uint8)
        base = tree.segments(queue, "COMMIT_LOG")[0][0]
        starts = units["position"].astype(np.int64) - base
        items = items_of_records(
            log,
            starts,
            units["size"].astype(np.int64),
            topic=queue.topic,
            queue_id=queue.queue_id,
            positions=starts + base,
            store_timestamps=store_timestamps(log, starts),
        )
        items["topic_id"] = topic_ids[queue.topic]
        found.append(items)
    return joined(found)


def rows_of(items: KeyItems) -> set[tuple[int, ...]]:
    return set(items[NAMES].tolist())


def empty_keys(tree: GoldenTree) -> set[int]:
    """Hashes of the empty pieces between doubled blanks, which Java takes for keys."""
    topics = {queue.topic for queue in tree.queues()}
    return {key_hash(index_key(topic, "")) for topic in topics}


@pytest.mark.slow
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_java_s_files_have_the_items_that_we_find_in_the_records(
    golden: GoldenSet, kind: str
) -> None:
    tree = unpacked(golden, kind)
    sealed = [items for _, items, _ in java_files(tree).values()]
    java = rows_of(joined([*sealed, *open_items(tree)]))
    without_empty = {row for row in java if row[0] not in empty_keys(tree)}
    ours = rows_of(our_items(tree))
    assert without_empty <= ours
    if golden in (ROCKETMQ_533, ROCKETMQ_550):  # the others lack keys that Java never indexed
        assert ours == without_empty


@pytest.mark.parametrize("golden", [ROCKETMQ_533, ROCKETMQ_550], ids=str)
def test_our_bytes_are_java_s_but_for_the_order_inside_a_slot(golden: GoldenSet) -> None:
    tree = unpacked(golden)
    exact = {row[:-1]: row[-1] for row in our_items(tree)[[*NAMES, "store_timestamp"]].tolist()}
    of_record = {row[1:4]: stamp for row, stamp in exact.items()}
    for name, (index, items, raw) in java_files(tree).items():
        mine = items.copy()
        mine["store_timestamp"] = [of_record[row] for row in mine[NAMES[1:4]].tolist()]
        begin = index.header.begin_timestamp
        ours = seal_index(mine, slots=index.slots, begin_timestamp=begin).tobytes()
        assert len(ours) == len(raw)
        assert ours[: index.first_item] == raw[: index.first_item], name
        again, our_order = decode_sealed(ours, path=name)
        slots = our_order["key_hash"] % again.slots
        for column in (*NAMES, "store_timestamp"):
            for slot in np.unique(slots):
                inside = slots == slot
                assert sorted(our_order[column][inside]) == sorted(items[column][inside])


@pytest.mark.parametrize("golden", [ROCKETMQ_533], ids=str)
def test_an_open_file_becomes_the_sealed_one_that_java_made_of_it(golden: GoldenSet) -> None:
    (still_open,) = open_items(unpacked(golden, "running"))
    closed = java_files(unpacked(golden))
    newest = max(closed, key=lambda name: int(name[8:]))
    _, sealed, _ = closed[newest]
    assert sorted(still_open[NAMES].tolist()) == sorted(sealed[NAMES].tolist())


def test_a_damaged_open_file_names_itself() -> None:
    (path,) = (unpacked(ROCKETMQ_533, "running").store / "tiered_index_file").glob("[0-9]*")
    raw = bytearray(path.read_bytes())
    slots = ROCKETMQ_533.index_slots
    for bad, place in [(raw[:-1], 0), (raw[:20], 0), (b"\0" + raw[1:], 0)]:
        with pytest.raises(Corrupt) as caught:
            OpenIndex.of(bytes(bad), slots=slots, path="p")
        assert (caught.value.path, caught.value.position) == ("p", place)
    first = 28 + 8 * slots
    heads = np.frombuffer(raw, OPEN_SLOT_DTYPE, slots, 28)["newest"]
    used = int(np.flatnonzero(heads)[0])
    for at in (28 + 8 * used, first + 32 + 28, first + 32, 24):
        damaged = bytearray(raw)
        damaged[at : at + 4] = b"\x7f\xff\xff\xf0"
        with pytest.raises(Corrupt) as caught:
            OpenIndex.of(damaged, slots=slots, path="p").items()
        assert caught.value.path == "p"


def test_an_open_file_of_rocketmq_5_1_has_items_from_0_and_milliseconds() -> None:
    slots, places = 2, 3
    heads = np.array([(1, 0), (-1, 0)], OPEN_SLOT_DTYPE)
    rows = np.zeros(places, OPEN_ITEM_DTYPE)
    rows[0] = (4, 1, 0, 0, 91, 0, -1)
    rows[1] = (6, 1, 0, 91, 91, 17, 0)
    raw = IndexHeader(BEGIN_MAGIC, 5000, 5017, 0, 2).encode() + heads.tobytes() + rows.tobytes()
    raw += bytes(12) + b"\xff" * 4
    assert len(raw) == 40 + slots * 8 + places * 32 + 4
    index = OpenIndex.of(raw, slots=slots, path="p")
    items = index.items()
    assert index.chain(6, items_max=9)["position"].tolist() == [91]
    assert index.chain(7, items_max=9)["position"].tolist() == []
    assert items.dtype == KEY_ITEM_DTYPE
    assert items[["key_hash", "position", "store_timestamp"]].tolist() == [
        (4, 0, 5000),
        (6, 91, 5017),
    ]


def test_the_chain_of_a_hash_has_its_items_newest_first() -> None:
    (path,) = (unpacked(ROCKETMQ_533, "running").store / "tiered_index_file").glob("[0-9]*")
    index = OpenIndex.of(path.read_bytes(), slots=ROCKETMQ_533.index_slots, path="p")
    items = index.items()
    for wanted in np.unique(items["key_hash"]).tolist():
        mine = items[items["key_hash"] == wanted][::-1]
        assert index.chain(wanted, items_max=1000).tolist() == mine.tolist()
