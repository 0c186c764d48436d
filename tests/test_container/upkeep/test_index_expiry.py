"""Index files go with their last message, also where it goes while another one is unpublished."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from container.journal.journal import Journal
from container.metadata.operations import DropIndexFile, DropQueue, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import Coverage, IndexFile, Queue, Topic
from container.names.queue_id import QueueId
from container.names.rocketmq import index_name
from container.names.tier_objects import IndexBase
from container.options import UpkeepOptions
from container.steps import OwnedTier
from container.upkeep import index_files
from container.upkeep.index_files import IndexExpiryStep
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.journal_run import running

QUEUES = [QueueId("T", number) for number in range(12)]


def covering(number: int, *queues: QueueId) -> IndexFile:
    rows: Coverage = tuple((queue, QueueOffset(0), QueueOffset(5)) for queue in queues)
    base = IndexBase(1, number).number
    return IndexFile(index_name(base), base, 1, 0, 0, 1, 1, rows)


@asynccontextmanager
async def begun(*files: IndexFile) -> AsyncIterator[tuple[Journal, IndexExpiryStep]]:
    """A tier with queues and index files, and the step, which hears of all entries."""
    store, clock = MemoryStore(), ManualClock()
    journal = await Journal.take_ownership(
        store, clock=clock, rng=random.Random(1), owner="o", cluster="c", broker="b"
    )
    async with running(journal):
        queues = [PutQueue(Queue(queue, QueueOffset(0), QueueOffset(0))) for queue in QUEUES]
        await journal.publish([PutTopic(Topic("T", 0)), *queues, *map(PutIndexFile, files)])
        tier = OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions())
        step = IndexExpiryStep(tier)
        journal.subscribe(step.published)
        yield journal, step


@pytest.mark.parametrize("rows_per_turn", [1, 5_000])
async def test_a_file_goes_with_its_last_queue_and_not_before(
    rows_per_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_files, "ROWS_PER_TURN", rows_per_turn)
    files = [covering(0, *QUEUES), covering(1, QUEUES[3]), covering(2, *QUEUES[:2])]
    async with begun(*files) as (journal, step):
        for number, queue in enumerate(QUEUES):
            await step.step()
            left = {
                one.object_name
                for one in files
                if any(name in QUEUES[number:] for name, _, _ in one.coverage)
            }
            assert journal.state.index_files.keys() == left
            await journal.publish([DropQueue(queue)])
        await step.step()
        assert not journal.state.index_files
        assert step.figures == {"index_files_expired": 3}


async def test_a_deletion_while_another_file_is_unpublished_is_seen_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, other = covering(0, QUEUES[0]), covering(1, QUEUES[1])
    async with begun(first, other) as (journal, step):
        publish = journal.publish
        await step.step()
        await publish([DropQueue(QUEUES[0])])

        async def beside_a_deletion(operations: Any) -> int:
            kept = list(operations)
            sequence = await publish(kept)
            if QUEUES[1] in journal.planned.queues and isinstance(kept[0], DropIndexFile):
                await publish([DropQueue(QUEUES[1])])
            return sequence

        monkeypatch.setattr(journal, "publish", beside_a_deletion)
        await step.step()
        assert list(journal.state.index_files) == [other.object_name]
        await step.step()
        assert not journal.state.index_files


@pytest.mark.leaves_findings("object-missing", why="the index file is a record alone")
async def test_a_run_looks_at_no_row_where_no_witness_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with begun(covering(0, *QUEUES)) as (journal, step):
        await step.step()
        looks: list[QueueId] = []
        bounds_of = journal.state.queues.bounds_of
        table = type(journal.state.queues)
        monkeypatch.setattr(
            table, "bounds_of", lambda _self, queue: looks.append(queue) or bounds_of(queue)
        )
        await journal.publish([DropQueue(QUEUES[5])])
        await step.step()
        assert looks == [QUEUES[0]], "once, for the file has other rows now"
        looks.clear()
        await step.step()
        assert not looks
