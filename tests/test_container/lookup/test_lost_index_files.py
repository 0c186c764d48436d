"""Queries and checks where index files are lost, or come and go with their messages."""

import pytest

from container.check.index_files import check_index_files
from container.errors import BytesMissing
from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.metadata.operations import DropQueue
from container.metadata.records import QueueBasis
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.names.tier_objects import INDEX_PREFIX
from container.options import TierOptions, UpkeepOptions
from container.tier_view import TierReader
from provider.ranges import QueueOffset
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put

OTHER = QueueId(TOPIC, 1)


def world() -> OwnedWorld:
    upkeep = UpkeepOptions(interval_s=1.0, grace_s=0.0)
    return OwnedWorld(TierOptions(), upkeep, index=IndexOptions(items_max=100))


@pytest.mark.leaves_findings("object-missing", "object-short", why="an index file was damaged")
@pytest.mark.parametrize("bytes_left", [None, 0, 40])
async def test_a_lost_index_file_is_damage_and_its_messages_are_found_all_the_same(
    bytes_left: int | None,
) -> None:
    over = world()
    async with over.owned() as tier:
        for _ in range(3):
            await put(tier, 120)
            await over.pass_time(2)
        lost = sorted(tier.state.index_files)[1]
        if bytes_left is None:
            await over.memory.delete([lost])
        else:
            del over.memory._shared.objects[lost][bytes_left:]
        for view in (tier, await TierReader.open(over.memory)):
            for offset in (5, 130, 300):
                found = await find_messages(view, KeyQuery(TOPIC, f"key-{offset}", 9))
                assert [one.queue_offset for one in found.messages] == [offset]
                assert [one.path for one in found.damage] == [lost]
                assert not found.is_complete
            little = LookupLimits(scan_bytes_max=1)
            found = await find_messages(view, KeyQuery(TOPIC, "key-200", 9), limits=little)
            assert found.unsearched == 119


@pytest.mark.parametrize("index_of_reader", [True, False])
async def test_a_reader_looks_again_where_an_index_file_went_with_its_messages(
    *, index_of_reader: bool
) -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 60, QUEUE, OTHER)
        await over.pass_time(2)
        view = await TierReader.open(over.memory) if index_of_reader else tier
        for queue in (QUEUE, OTHER):
            record = tier.state.queues[queue]
            await tier.journal.publish([DropQueue(queue, planned_on=QueueBasis.of(record))])
        await over.pass_time(5)
        assert await over.names(INDEX_PREFIX) == set()
        found = await find_messages(view, KeyQuery(TOPIC, "key-5", 9))
        assert (found.messages, found.is_complete, found.damage) == ([], True, ())


async def test_a_check_tells_nothing_of_index_files_that_come_and_go() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 60, QUEUE, OTHER)
        await over.pass_time(2)
        assert len(tier.state.index_files) == 1
        before_cut, before_drop = [await TierReader.open(over.memory) for _ in range(2)]
        await tier.cut_queue(QUEUE, QueueOffset(30), "test")
        await put(tier, 60, body_bytes=33)
        assert await over.findings(before_cut) == []
        assert before_cut.state.sequence == tier.state.sequence, "it has looked again"
        for queue in (QUEUE, OTHER):
            record = tier.state.queues[queue]
            await tier.journal.publish([DropQueue(queue, planned_on=QueueBasis.of(record))])
        await over.pass_time(5)
        assert not [one for one in await over.findings(before_drop) if INDEX_PREFIX in one]


async def test_a_check_looks_for_an_index_file_that_was_not_listed_yet() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 120)
        sizes = {entry.name: entry.size_bytes for entry in await over.memory.list("")}
        await over.pass_time(2)
        assert len(tier.state.index_files) == 1
        assert [one async for one in check_index_files(tier, sizes)] == []


@pytest.mark.leaves_findings("object-missing", "unreadable", why="a file was deleted")
@pytest.mark.parametrize("index", [None, IndexOptions(items_max=100)])
async def test_a_lost_file_of_the_log_hides_its_own_messages_only(
    index: IndexOptions | None,
) -> None:
    over = world()
    over.options, over.index = TierOptions(commit_log_bytes_max=4_000), index
    async with over.owned() as tier:
        for _ in range(6):
            await put(tier, 20, QUEUE, OTHER)
        await over.pass_time(2)
        record = tier.state.queues[QUEUE]
        first, lost = record.commit_log[:2]
        hidden = lost.extents[0].first_offset
        assert first.extents[0].first_offset < hidden < record.commit_log[2].extents[0].first_offset
        await over.memory.delete([segment_name(QUEUE, SegmentType.COMMIT_LOG, lost.base)])
        for view in (tier, await TierReader.open(over.memory)):
            for offset, queues in ((3, [1, 0]), (hidden, [1]), (100, [1, 0])):
                found = await find_messages(view, KeyQuery(TOPIC, f"key-{offset}", 9))
                assert [one.queue_id for one in found.messages] == queues
                if index is None or offset == hidden:
                    assert {type(one) for one in found.damage} == {BytesMissing}
                    assert not found.is_complete
