"""Every query that a Java broker answered, from its index files, from ours, and without any."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from container.index.layout import IndexHeader, joined
from container.index.sealed import OpenIndex, fitting_slots, seal_index
from container.java.metadata import parse_java_metadata
from container.java.tier import load_java_tier
from container.lookup.find import OpenFileItems, find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.metadata.records import IndexFile
from container.queue.lenient_scan import key_items_of, read_sound_records
from container.tier_view import FixedMetadata, TierReader
from provider.object_store import Buffer, ForwardingStore
from provider.posix.store import PosixStore
from provider.ranges import ByteRange, QueueOffset
from tests.support.golden import (
    GOLDEN_TREES,
    ROCKETMQ_533,
    ROCKETMQ_550,
    GoldenSet,
    GoldenTree,
    expected,
    tree_name,
    unpacked,
)

INDEX_ONLY = LookupLimits(scan_bytes_max=0)
EVERY = 10_000
JAVA_CUTS_AT = 64
"""The queries asked for so many; RocketMQ then gives any of those that there are."""


class WithObjects(ForwardingStore):
    """A store that has some objects more."""

    def __init__(self, inner: PosixStore) -> None:
        super().__init__(inner)
        self.more: dict[str, bytes] = {}

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        return [
            self.more[name][place.start : place.end]
            if name in self.more
            else (await self.inner.read_many([(name, place)]))[0]
            for name, place in wanted
        ]


@asynccontextmanager
async def opened(tree: GoldenTree) -> AsyncIterator[TierReader]:
    golden = tree.golden
    store = WithObjects(PosixStore(tree.broker_directory))
    metadata = parse_java_metadata(tree.java_metadata.read_bytes(), path="metadata")
    java = await load_java_tier(store, metadata, cluster=golden.cluster, broker=golden.broker)
    yield TierReader(store, FixedMetadata(java.state))
    await store.close()


def open_files(tree: GoldenTree) -> list[OpenFileItems]:
    paths = (tree.store / "tiered_index_file").glob("[0-9]*")
    slots = tree.golden.index_slots
    files = [OpenIndex.of(path.read_bytes(), slots=slots, path=path.name) for path in paths]
    return [OpenFileItems(files)]


async def index_ourselves(tier: TierReader, files: int) -> None:
    """Replace Java's index files by ours, each over a part of every queue."""
    store = tier.store
    assert isinstance(store, WithObjects)
    tier.state.index_files.clear()
    for part in range(files):
        parts, coverage = [], []
        for queue in tier.state.queues.values():
            container = tier.container(queue.id)
            assert container is not None
            length = queue.next_offset - queue.min_offset
            start, end = (
                QueueOffset(queue.min_offset + length * n // files) for n in (part, part + 1)
            )
            coverage.append((queue.id, start, end))
            while start < end:
                found = await read_sound_records(container, start, end, bytes_max=1 << 20)
                assert not found.damage
                topic_id = tier.state.topics[queue.id.topic].topic_id
                parts.append(key_items_of(found, queue.id, topic_id))
                start = found.end
        items = joined(parts)
        begin = int(items["store_timestamp"].min())
        raw = seal_index(items, slots=fitting_slots(len(items)), begin_timestamp=begin).tobytes()
        said = IndexHeader.decode(raw, path="")
        store.more[f"index-{part}"] = raw
        tier.state.index_files[f"index-{part}"] = IndexFile(
            f"index-{part}",
            part,
            len(raw),
            said.begin_timestamp,
            said.end_timestamp,
            said.used_slots,
            said.items,
            tuple(sorted(coverage)),
        )


async def answers(
    tier: TierReader, tree: GoldenTree, unsealed: Sequence[OpenFileItems] = ()
) -> None:
    for row in expected(tree.golden, "queries"):
        query = KeyQuery(row["topic"], row["key"], EVERY)
        answer = await find_messages(tier, query, unsealed=unsealed, limits=INDEX_ONLY)
        assert answer.damage == ()
        found = [[one.queue_id, one.queue_offset] for one in answer.messages]
        stamps = [one.store_timestamp for one in answer.messages]
        assert stamps == sorted(stamps, reverse=True)
        if row["key"] == "":
            assert found == []  # RocketMQ takes the text between two blanks for a key; nobody asks
        elif "found" not in row or not row["found"]:
            # The hash of these is -2**31, for which RocketMQ's slot is negative: it finds none, and
            # stops indexing the batch. The records have the keys.
            assert found == []
        elif len(row["found"]) == JAVA_CUTS_AT:
            assert all(place in found for place in row["found"])
        else:
            assert sorted(found) == sorted(row["found"])


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
async def test_java_s_index_files_sealed_and_open(golden: GoldenSet, kind: str) -> None:
    tree = unpacked(golden, kind)
    async with opened(tree) as tier:
        await answers(tier, tree, open_files(tree))


@pytest.mark.parametrize("golden", [ROCKETMQ_533, ROCKETMQ_550], ids=str)
@pytest.mark.parametrize("files", [1, 3])
async def test_index_files_that_we_build_of_the_same_messages(
    golden: GoldenSet, files: int
) -> None:
    tree = unpacked(golden)
    async with opened(tree) as tier:
        await index_ourselves(tier, files)
        await answers(tier, tree)
        query = KeyQuery("G_Orders", "order-1007", 5)
        assert (await find_messages(tier, query, limits=INDEX_ONLY)).is_complete


async def test_messages_that_no_index_has_are_read() -> None:
    tree = unpacked(ROCKETMQ_550)
    async with opened(tree) as tier:
        tier.state.index_files.clear()
        query = KeyQuery("N_Orders", "order-108", 5)
        answer = await find_messages(tier, query)
        assert [(one.queue_id, one.queue_offset) for one in answer.messages] == [(3, 27)]
        assert (answer.is_complete, answer.unsearched) == (True, 0)
        answer = await find_messages(tier, query, limits=INDEX_ONLY)
        everything = sum(
            queue.next_offset - queue.min_offset
            for queue in tier.state.queues.values()
            if queue.id.topic == "N_Orders"
        )
        assert answer == ([], False, everything, ())


async def test_a_damaged_index_file_is_told_and_hides_no_other() -> None:
    tree = unpacked(ROCKETMQ_533)
    async with opened(tree) as tier:
        await index_ourselves(tier, 3)
        store = tier.store
        assert isinstance(store, WithObjects)
        store.more["index-1"] = store.more["index-1"][:28] + bytes(
            b ^ 0x55 for b in store.more["index-1"][28:]
        )
        rows = [row for row in expected(ROCKETMQ_533, "queries") if len(row["found"]) == 1][::9]
        found = 0
        for row in rows:
            answer = await find_messages(tier, KeyQuery(row["topic"], row["key"], 9))
            assert not answer.is_complete
            assert [error.path for error in answer.damage] == ["index-1"]
            found += len(answer.messages)
        assert 0 < found < len(rows)
        tier.state.index_files["index-1"] = replace(tier.state.index_files["index-1"], size=7)
        answer = await find_messages(tier, KeyQuery(rows[0]["topic"], rows[0]["key"], 9))
        assert [error.path for error in answer.damage] == ["index-1"]
        assert np.all(np.array([one.size for one in answer.messages]) > 0)
