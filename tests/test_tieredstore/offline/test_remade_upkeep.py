"""A tier whose metadata were made again stays right whatever comes next, and what comes before."""

from itertools import pairwise
from typing import Any

import pytest

from container.check.tier import check_tier
from container.metadata.records import Queue
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import FOLLOWED_PREFIX
from container.queue.positions import Boundary, TimeRules
from container.tier_view import TierReader
from tests.support.cli import invoke
from tests.support.golden import ROCKETMQ_533, expected
from tests.support.packed_objects import PackedTier, in_thread
from tests.support.time_oracle import offset_by_scan
from tests.test_tieredstore.offline.test_packed_remake import without_metadata
from tests.test_tieredstore.offline.test_rebuild import Killed
from tieredstore import open as open_tier
from tieredstore.offline import dataset
from tieredstore.offline.jobs import rebuild_metadata
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_metadata import remake

QUEUE = QueueId("G_Orders", 1)


@pytest.fixture
def tier(packed_tier: PackedTier) -> PackedTier:
    return packed_tier


async def queue_in(tier: PackedTier) -> Queue:
    async def read(reader: TierReader) -> Queue:
        assert [str(one) async for one in check_tier(reader)] == []
        return reader.state.queues[QUEUE]

    return await tier.read(read)


async def lose_some(tier: PackedTier) -> None:
    """Zeros in the place of every fifth extent of the logs, and no metadata."""
    objects = {name: bytearray(raw) for name, raw in without_metadata(tier).items()}
    for number, one in enumerate(await tier.extents(SegmentType.COMMIT_LOG)):
        if number % 5 == 2:
            end = one.object_offset + one.length
            objects[one.object_name][one.object_offset : end] = bytes(one.length)
    tier.put({name: bytes(raw) for name, raw in objects.items()})


def rows_of(queue: Queue) -> dict[int, dict[str, Any]]:
    """The messages that are left."""
    lost = {offset for gap in queue.gaps for offset in range(gap.start, gap.end)}
    return {
        row["queue_offset"]: row
        for row in expected(ROCKETMQ_533, "messages")
        if (row["topic"], row["queue_id"]) == QUEUE and row["queue_offset"] not in lost
    }


async def answers_are_right(tier: PackedTier, queue: Queue) -> None:
    rows = {
        offset: row
        for offset, row in rows_of(queue).items()
        if queue.min_offset <= offset < queue.next_offset
    }
    times = {offset: row["store_timestamp"] for offset, row in rows.items()}
    async with open_tier(tier.url) as opened:
        assert [one.offset async for one in opened.messages(*QUEUE)] == sorted(rows)
        for moment in {*times.values()}:
            for boundary in Boundary:
                at = await opened.offset_by_time(*QUEUE, moment, boundary)
                wanted = offset_by_scan(
                    times, moment, boundary, TimeRules.LOCAL,
                    first=queue.min_offset, end=queue.next_offset,
                )  # fmt: skip
                assert at == wanted, (moment, boundary)
    table = await in_thread(
        lambda: dataset(tier.url, QUEUE.topic, queues=[QUEUE.queue_id]).read_all()
    )
    assert table.column("queue_offset").to_pylist() == sorted(rows)
    found = await in_thread(lambda: audit(tier.config, OneProcess()))
    assert list(found.findings) == []


@pytest.mark.slow
async def test_a_compaction_of_a_log_with_holes_changes_no_answer(tier: PackedTier) -> None:
    await lose_some(tier)
    await in_thread(lambda: remake(tier.config, OneProcess()))
    before = await queue_in(tier)
    assert before.gaps
    await answers_are_right(tier, before)
    said = (await in_thread(lambda: invoke(tier.url, *tier.options, "compact"))).output
    after = await queue_in(tier)
    assert after.repacks > before.repacks, said
    assert after.gaps == before.gaps
    for segment in after.commit_log:
        assert all(one.end == other.position for one, other in pairwise(segment.extents))
    await answers_are_right(tier, after)


def test_a_run_that_is_killed_when_it_publishes_leaves_no_mark_that_the_next_owner_believes(
    tier: PackedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"{FOLLOWED_PREFIX}{1:010}-{1:020}-{4096:020}"
    tier.put({**without_metadata(tier), mark: b"left"})

    def dies(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(rebuild_metadata, "running_owner", dies)
    with pytest.raises(Killed):
        remake(tier.config, OneProcess())
    assert not any(name.startswith("@journal") for name in tier.objects)
    assert mark not in tier.objects
