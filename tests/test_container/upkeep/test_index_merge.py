"""Index files are merged: they stay few, and every query has the same answer all the while."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.names.tier_objects import INDEX_PREFIX
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.index_merge import MergeRules
from provider.errors import StoreError
from provider.ranges import QueueOffset
from provider.testing.faulty import Crashed, Fault, Kind
from provider.testing.manual_clock import settle
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.messages import TOPIC, batch_of, make_record
from tests.support.owned_tier import QUEUE, OwnedWorld, put

INDEX = IndexOptions(
    items_max=10,
    room_wait_s_max=0.0,
    age_s_max=1000.0,
    finish_items_min=1,
    merged_items_max=400,
    merge_growth=2.0,
)
GROWING = replace(INDEX, merge_growth=64.0)
UPKEEP = UpkeepOptions(interval_s=1.0, grace_s=30.0)
INDEX_ONLY = LookupLimits(scan_bytes_max=0)
QUEUES = [QueueId(TOPIC, number) for number in range(4)]


def world(index: IndexOptions = INDEX, upkeep: UpkeepOptions = UPKEEP) -> OwnedWorld:
    return OwnedWorld(TierOptions(cut_grace_hours=0), upkeep, index=index)


async def queues_of(
    tier: Tier | TierReader, offset: int, limits: LookupLimits = INDEX_ONLY
) -> list[int]:
    """Which queues have a message with the key of an offset, by the index."""
    unsealed = tier.unsealed if isinstance(tier, Tier) else ()
    query = KeyQuery(TOPIC, f"key-{offset}", 99)
    found = await find_messages(tier, query, unsealed=unsealed, limits=limits)
    assert found.damage == ()
    assert all(one.queue_offset == offset for one in found.messages)
    return sorted(one.queue_id for one in found.messages)


async def filled(over: OwnedWorld, tier: Tier, rounds: int = 12) -> None:
    """As many files as rounds, each with 3 messages of 4 queues."""
    for _ in range(rounds):
        await put(tier, 3, *QUEUES)
        await over.pass_time(2)


def rows(tier: Tier | TierReader) -> int:
    return sum(len(one.coverage) for one in tier.state.index_files.values())


def merged(tier: Tier) -> int:
    return tier.upkeep.statistics().figures["index_files_merged"]


async def test_files_and_rows_become_few_and_every_key_is_found() -> None:
    over = world()
    async with over.owned() as tier:
        await filled(over, tier, 40)
        items = sum(one.items for one in tier.state.index_files.values())
        assert items == 480
        rules = MergeRules(INDEX.merged_items_max, INDEX.merge_growth, None, 0)
        assert len(tier.state.index_files) <= min(rules.files_max(480, periods=1), 6)
        assert rows(tier) <= len(tier.state.index_files) * len(QUEUES)
        assert all(one.items <= 400 for one in tier.state.index_files.values())
        for view in (tier, await TierReader.open(over.memory)):
            for offset in (0, 59, 119):
                assert await queues_of(view, offset) == [0, 1, 2, 3]
        await over.pass_time(60)
        assert await over.names(INDEX_PREFIX) == tier.state.index_files.keys()
        assert not tier.state.tombstones
    assert await over.findings() == []


class Oracle:
    """What may be found: all messages from the first to the next offset of each queue."""

    def __init__(self, over: OwnedWorld, tier: Tier, rng: random.Random) -> None:
        self.over, self.tier, self.rng = over, tier, rng
        self.did: Counter[str] = Counter()

    async def ask(self) -> None:
        """Any key: by the owner, by a new reader, and by one that has not looked for a while."""
        state = self.tier.state.queues
        highest = max((one.next_offset for one in state.values()), default=0)
        offset = self.rng.randrange(highest + 2)
        wanted = sorted(
            queue.queue_id
            for queue, record in state.items()
            if record.min_offset <= offset < record.next_offset
        )
        everything = LookupLimits()
        assert await queues_of(self.tier, offset, everything) == wanted
        assert (
            await queues_of(await TierReader.open(self.over.memory), offset, everything) == wanted
        )
        self.did["found" if wanted else "not found"] += 1

    async def step(self) -> None:
        """One thing of many, while merges go on."""
        what = self.rng.choices(["put", "time", "cut", "drop", "late"], weights=[12, 8, 1, 0.3, 2])[
            0
        ]
        queue = self.rng.choice(QUEUES)
        record = self.tier.state.queues.get(queue)
        if what == "put":
            await put(self.tier, self.rng.randrange(1, 6), *self.rng.sample(QUEUES, 2))
        elif what == "time":
            await self.over.pass_time(self.rng.choice([1, 3, 40]))
        elif what == "late":  # a file that is being written while other things happen
            fault = Fault("delayed", "create", INDEX_PREFIX, delay_s=self.rng.choice([0.5, 4.0]))
            self.over.stores[-1].faults = self.rng.choice([(), (fault,)])
        elif what == "cut" and record is not None and record.min_offset < record.next_offset:
            to = self.rng.randrange(record.min_offset, record.next_offset)
            await self.tier.cut_queue(queue, QueueOffset(to), "test")
        elif what == "drop" and await self.tier.delete_topic(TOPIC):
            await self.over.pass_time(100)  # its files are deleted before it begins again
        self.did[what] += 1


@pytest.mark.parametrize("seed", range(6))
async def test_answers_are_the_same_whatever_is_merged_cut_and_deleted(seed: int) -> None:
    over = world()
    async with over.owned() as tier:
        oracle = Oracle(over, tier, random.Random(seed))
        for _ in range(50):
            await oracle.step()
            await oracle.ask()
        over.stores[-1].faults = ()
        await over.pass_time(100)
        assert merged(tier) > 3
        assert oracle.did["found"] > 10
        assert await over.findings() == []
        assert await over.names(INDEX_PREFIX) == tier.state.index_files.keys()


async def test_a_reader_goes_on_with_the_files_that_it_knows_and_then_with_the_merged_one() -> None:
    over = world(GROWING)
    async with over.owned() as tier:
        await filled(over, tier)
        await tier.close()
    over.kill_all()
    reader = await TierReader.open(over.memory)
    assert len(reader.state.index_files) == 12
    over.index = INDEX
    async with over.owned() as tier:
        await over.pass_time(10)
        assert len(tier.state.index_files) < 6
        names = await over.names(INDEX_PREFIX)
        assert reader.state.index_files.keys() <= names, "they stay for the grace time"
        assert await queues_of(reader, 7) == [0, 1, 2, 3]
        await over.pass_time(60)
        assert not reader.state.index_files.keys() <= await over.names(INDEX_PREFIX)
        assert await queues_of(reader, 7) == [0, 1, 2, 3]
        assert len(reader.state.index_files) < 6, "it has looked again"


async def left_unmerged() -> MemoryObjects:
    """A tier with twelve small files."""
    before = world(GROWING)
    async with before.owned() as tier:
        await filled(before, tier)
        await tier.close()
    before.kill_all()
    return before.memory._shared


def continued(objects: MemoryObjects) -> OwnedWorld:
    over = world(upkeep=replace(UPKEEP, grace_s=0.0))
    copy = MemoryObjects()
    copy.objects = {name: bytearray(raw) for name, raw in objects.objects.items()}
    over.memory = MemoryStore(copy)
    return over


@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lost_reply"])
async def test_what_a_merge_leaves_that_dies_at_any_request_the_next_owner_finishes(
    kind: Kind,
) -> None:
    before = await left_unmerged()
    number, struck = 0, True
    while struck:
        number += 1
        over = continued(before)
        with suppress(BaseExceptionGroup, Crashed, StoreError):
            async with over.owned() as tier:
                over.stores[-1].faults = (Fault(kind, calls=(number,)),)
                await over.pass_time(4)
                assert len(tier.state.index_files) < 12 or kind != "lost_reply" or number < 9
        struck = bool(over.stores[-1].struck)
        over.kill_all()
        async with over.owned() as tier:
            await over.pass_time(10)
            assert len(tier.state.index_files) < 6
            for offset in (0, 17, 35):
                assert await queues_of(tier, offset) == [0, 1, 2, 3]
            assert await over.names(INDEX_PREFIX) == tier.state.index_files.keys()
            assert await over.findings() == []
    assert number >= 8


async def test_a_rival_that_comes_while_a_merged_file_is_written_wins() -> None:
    over = continued(await left_unmerged())
    async with over.owned() as former:
        over.stores[-1].faults = (Fault("stalled", "create", INDEX_PREFIX),)
        await over.pass_time(2)
        slow = over.stores[-1]
        async with over.owned() as newer:
            await over.pass_time(10)
            assert len(newer.state.index_files) < 6
            slow.released.set()
            await settle(200)
            assert merged(former) == 0
            await put(newer, 1, QUEUE)
            assert await queues_of(newer, 36) == [0]
            for offset in (0, 35):
                assert await queues_of(newer, offset) == [0, 1, 2, 3]
        over.kill_all()
    async with over.owned():
        await over.pass_time(10)
    assert await over.findings() == []


async def test_a_cut_while_a_merged_file_is_written_keeps_it_from_being_published() -> None:
    over = continued(await left_unmerged())
    async with over.owned() as tier:
        over.stores[-1].faults = (Fault("delayed", "create", INDEX_PREFIX, delay_s=3.0),)
        await over.pass_time(2)
        await tier.cut_queue(QUEUE, QueueOffset(20), "test")
        over.stores[-1].faults = ()
        await put(tier, 30, QUEUE, body_bytes=33)
        await over.pass_time(20)
        cut = [one for one in tier.state.index_files.values() if one.cuts]
        assert [one.items for one in cut] == [12], "it covers 18 to 20, and stays by itself"
        for offset, queues in ((19, [0, 1, 2, 3]), (21, [0, 1, 2, 3]), (49, [0])):
            assert await queues_of(tier, offset) == queues
    assert await over.findings() == []


async def test_a_topic_that_is_made_again_finds_no_items_of_the_one_before() -> None:
    over = world(upkeep=replace(UPKEEP, grace_s=0.0))
    async with over.owned() as tier:
        other = QueueId("Other", 0)
        for _ in range(6):
            await put(tier, 6, QUEUE, other)
            await over.pass_time(2)
        assert await tier.delete_topic(TOPIC) == 1
        await over.pass_time(5)
        for _ in range(6):
            await put(tier, 6, QUEUE, other, body_bytes=33)
            await over.pass_time(2)
        assert await queues_of(tier, 35) == [0]
        assert await queues_of(tier, 36) == []
        items = sum(one.items for one in tier.state.index_files.values())
        assert items < 6 * 6 * 4, "those of the old topic went with a merge"
    assert await over.findings() == []


@pytest.mark.leaves_findings("checksum", why="one index file was damaged")
async def test_a_damaged_file_is_told_once_and_never_merged() -> None:
    over = continued(await left_unmerged())
    reader = await TierReader.open(over.memory)
    first = min(reader.state.index_files)
    over.memory._shared.objects[first][-1] ^= 1
    async with over.owned() as tier:
        await over.pass_time(3)
        await over.pass_time(60)
        assert tier.upkeep.statistics().steps["index-merge"].failures == 1
        assert first in tier.state.index_files
        assert len(tier.state.index_files) < 6


async def test_what_has_expired_is_left_out_and_ages_are_not_mixed() -> None:
    hours = 8
    expiring = UpkeepOptions(
        interval_s=60.0, grace_s=60.0, expires=True, retention_hours=hours, expiry_interval_s=600.0
    )
    index = IndexOptions(
        items_max=10_000, age_s_max=1200.0, merged_items_max=4_000, merge_growth=2.0
    )
    over = OwnedWorld(TierOptions(commit_log_bytes_max=3_000), expiring, index=index)
    period_ms = hours * 3_600_000 // 4
    async with over.owned() as tier:
        for _ in range(60):  # half an hour each
            await put_now(over, tier, 4)
            await over.pass_time(1800)
            for file in tier.state.index_files.values():
                assert file.end_timestamp - file.begin_timestamp <= period_ms
        assert merged(tier) > 10
        record = tier.state.queues[QUEUE]
        assert record.min_offset > 60
        oldest_ms = over.clock.now_ms() - (hours * 3_600_000 + 2 * period_ms)
        assert all(one.end_timestamp > oldest_ms for one in tier.state.index_files.values())
        assert len(tier.state.index_files) <= 4 + 2 + 3, "a file a period, and the newest"
        assert all(starts_late(one, record.min_offset) for one in tier.state.index_files.values())
    assert await over.findings() == []


def starts_late(file: IndexFile, first: int) -> bool:
    """Whether a file covers something that is there."""
    return any(end > first for _, _, end in file.coverage)


async def put_now(over: OwnedWorld, tier: Tier, count: int) -> None:
    """Messages that are stored now, with a key each."""
    record = tier.queue(QUEUE)
    first = record.next_offset if record else 0
    raws = [
        make_record(
            *QUEUE,
            offset,
            bytes(200),
            store_timestamp=over.clock.now_ms(),
            properties={"KEYS": f"key-{offset}"},
        )
        for offset in range(first, first + count)
    ]
    await tier.commit([tier.plan_commit(QUEUE, batch_of(raws))])


async def test_files_are_sealed_while_a_merge_takes_long() -> None:
    over = continued(await left_unmerged())
    async with over.owned() as tier:
        over.stores[-1].faults = (Fault("delayed", "read", INDEX_PREFIX, delay_s=0.2),)
        for _ in range(10):
            await put(tier, 3, *QUEUES)
            await over.pass_time(3)
        over.stores[-1].faults = ()
        await over.pass_time(20)
        async with asyncio.timeout(5):
            await tier.close()
        assert tier.upkeep.statistics().figures["index_messages_read"] == 0
        assert await queues_of(tier, 65) == [0, 1, 2, 3]
    assert await over.findings() == []
