"""Upkeep at scale: CPU of each step, and the longest stretch of it between two yields.

`python -m tests.bench.upkeep_scale [ROW ...] [--queues N]` prints each row beside its goal. CPU of
the loop's thread is measured, so that a busy machine changes little. Stores are in memory.
"""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from container.index.layout import KEY_ITEM_DTYPE
from container.index.options import IndexOptions
from container.journal.journal import Journal
from container.lookup.collector import KeyCollector
from container.metadata.operations import (
    AddTombstones,
    DropQueue,
    Operation,
    PutAttempt,
    PutIndexFile,
    PutQueue,
    PutTopic,
)
from container.metadata.records import (
    Attempt,
    Extent,
    IndexFile,
    ManifestRef,
    Queue,
    QueueBasis,
    Segment,
    Tombstone,
    Topic,
)
from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions, UpkeepOptions
from container.queue.commit_plan import CommitKeys
from container.queue.manifest import MANIFEST_SEGMENTS_MAX, name_manifest, write_manifest
from container.steps import OwnedTier
from container.upkeep.garbage import FirstFilesStep, OffloadedParts
from container.upkeep.index_files import IndexBuilding, IndexExpiryStep, IndexStep
from container.upkeep.index_merge import IndexMergeStep
from container.upkeep.offload import OffloadStep
from container.upkeep.retention import RetentionStep
from container.upkeep.snapshots import ManifestStep, SnapshotStep
from container.upkeep.tombstones import TombstoneStep
from provider.clock import SystemClock
from provider.ranges import QueueOffset
from provider.testing.memory import MemoryStore
from tests.bench.rows import Goal, goals_beside
from tests.support.journal_run import running
from tests.support.owned_tier import OwnedWorld
from tieredstore.lifetime import keep_opened

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
HELD_MS_MAX = 50
"""CPU between two yields."""
PER_TOPIC = 10
MANIFEST_SEGMENTS = 32_768
"""In one manifest, as programs before the bound have written."""


class FixedClock(SystemClock):
    """A wall clock that stands still, and can be set."""

    def __init__(self, now_ms: int = NOW_MS + 1000) -> None:
        self.wall_ms = now_ms

    def now_ms(self) -> int:
        return self.wall_ms


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU of one piece of work, in milliseconds."""

    total_ms: float
    held_ms: float


async def measured(work: Awaitable[object]) -> Measured:
    """Await work beside a task that notes the CPU of each turn of the loop."""
    worst_s, over = 0.0, False

    async def watch() -> None:
        nonlocal worst_s
        last_s = time.thread_time()
        while not over:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            worst_s = max(worst_s, now_s - last_s)
            last_s = now_s

    watching = asyncio.create_task(watch())
    keep_opened()  # as an owner's process does
    await asyncio.sleep(0)
    begun_s = time.thread_time()
    await work
    total_s = time.thread_time() - begun_s
    await asyncio.sleep(0)
    over = True
    await watching
    return Measured(1000 * total_s, 1000 * worst_s)


def some_queue(queue: QueueId) -> Queue:
    times = (NOW_MS, NOW_MS)
    log = Segment(
        SegmentType.COMMIT_LOG, 0, NOW_MS, 1, (Extent(0, 1000, 7, QueueOffset(0), *times),)
    )
    units = Extent(0, 200, 7, QueueOffset(0), *times)
    return Queue(
        queue,
        QueueOffset(0),
        QueueOffset(10),
        (log,),
        (Segment(SegmentType.CONSUME_QUEUE, 0, NOW_MS, 1, (units,)),),
    )


def names(count: int) -> Iterator[QueueId]:
    return (QueueId(f"Topic-{n // PER_TOPIC:06}", n % PER_TOPIC) for n in range(count))


@asynccontextmanager
async def filled(count: int, clock: FixedClock) -> AsyncIterator[tuple[Journal, MemoryStore]]:
    """A journal with so many queues."""
    store = MemoryStore()
    journal = await Journal.take_ownership(
        store, clock=clock, rng=random.Random(1), owner="o", cluster="c", broker="b"
    )
    async with running(journal):
        operations: list[Operation] = []
        for number, queue in enumerate(names(count)):
            if number % PER_TOPIC == 0:
                operations.append(PutTopic(Topic(queue.topic, number // PER_TOPIC)))
            operations.append(PutQueue(some_queue(queue)))
            if len(operations) > 2000 or number == count - 1:
                await journal.publish(operations)
                operations = []
        yield journal, store


async def retention(count: int) -> Measured:
    """A run with nothing to do, which is the second one."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        options = UpkeepOptions(expires=True)
        step = RetentionStep(OwnedTier(journal, store, clock, random.Random(2), options))
        await step.step()
        return await measured(step.step())


async def first_retention(count: int) -> Measured:
    """The first run of an owner, which looks at all queues once."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        options = UpkeepOptions(expires=True)
        step = RetentionStep(OwnedTier(journal, store, clock, random.Random(2), options))
        return await measured(step.step())


async def first_offload(count: int) -> Measured:
    """The first run of an owner, with nothing old enough."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        options = UpkeepOptions(offloads=True, offload_age_hours=24)
        tier = OwnedTier(journal, store, clock, random.Random(2), options)
        return await measured(OffloadStep(tier, OffloadedParts(tier)).step())


async def first_files(count: int) -> Measured:
    """1,000 announcements of a dead owner."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        tier = OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions())
        attempts = (
            Attempt(f"first files: New/{n}", "first files", NOW_MS, 0, f"New/{n}/")
            for n in range(1000)
        )
        await journal.publish([PutAttempt(one) for one in attempts])
        snapshots = SnapshotStep(tier)
        snapshots.written = 1
        return await measured(FirstFilesStep(tier, snapshots, None).step())


async def dropped_topic(count: int) -> Measured:
    """64 queues are dropped at once, where ten index files cover all queues."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, _):
        cover = tuple((queue, QueueOffset(0), QueueOffset(10)) for queue in names(count))
        for n in range(10):
            file = IndexFile(f"x/{n}", n, 10, NOW_MS, NOW_MS, 1, 1, cover)
            await journal.publish([PutIndexFile(file)])
        gone = [journal.state.queues[queue] for queue in islice(names(count), 64)]
        drops = [DropQueue(one.id, (), QueueBasis.of(one)) for one in gone]
        return await measured(journal.publish(drops))


async def index_expiry(count: int) -> Measured:
    """A run after one queue lost messages, where ten index files cover all queues."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        cover = tuple((queue, QueueOffset(0), QueueOffset(10)) for queue in names(count))
        for n in range(10):
            file = IndexFile(f"x/{n}", n, 10, NOW_MS, NOW_MS, 1, 1, cover)
            await journal.publish([PutIndexFile(file)])
        tier = OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions())
        step = IndexExpiryStep(tier)
        journal.subscribe(step.published)
        await step.step()
        one = journal.state.queues[next(names(count))]
        await journal.publish([DropQueue(one.id, (), QueueBasis.of(one))])
        return await measured(step.step())


async def missing_keys(count: int) -> Measured:
    """A search for missing keys after ten index files of all queues came."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        keys = KeyCollector(journal, options=IndexOptions(), clock=clock)
        tier = OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions())
        step = IndexStep(tier, keys, IndexBuilding())
        cover = tuple((queue, QueueOffset(0), QueueOffset(10)) for queue in names(count))
        for n in range(10):
            file = IndexFile(f"x/{n}", n, 10, NOW_MS, NOW_MS, 1, 1, cover)
            await journal.publish([PutIndexFile(file)])
        return await measured(step.step())


class Indexing:
    """Keys of all queues, and what makes index files of them."""

    def __init__(self, journal: Journal, store: MemoryStore, clock: FixedClock) -> None:
        options = IndexOptions(age_s_max=0.0)
        self.keys = KeyCollector(journal, options=options, clock=clock)
        tier = OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions())
        building = IndexBuilding()
        self.seals, self.merges = (
            IndexStep(tier, self.keys, building),
            IndexMergeStep(tier, options, building),
        )

    async def seal(self, count: int, number: int) -> Measured:
        """Seal a message of each queue."""
        items = np.zeros(1, KEY_ITEM_DTYPE)
        items["store_timestamp"] = NOW_MS
        items["size"] = 100
        for queue in names(count):
            keys = CommitKeys(items.copy(), 100, 0)
            assert self.keys.take(queue, (2 * number, 2 * number + 1), keys)
        return await measured(self.seals._seal_due(is_worth_it=True))


async def sealed_keys(count: int) -> Measured:
    """A file of a key of each queue."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        found = await Indexing(journal, store, clock).seal(count, 0)
        assert len(journal.state.index_files) == 1
        return found


async def merged_index_files(count: int) -> Measured:
    """Four files of all queues become one."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        indexing = Indexing(journal, store, clock)
        for number in range(4):
            await indexing.seal(count, number)
        found = await measured(indexing.merges.step())
        assert len(journal.state.index_files) == 1
        return found


async def new_queues(count: int) -> Measured:
    """1,000 queues begin beside as many tombstones as there are queues."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, _):
        dead = (Tombstone(f"{one}/COMMIT_LOG/{0:020}", NOW_MS, "expired") for one in names(count))
        await journal.publish([AddTombstones(tuple(dead))])
        fresh: list[Operation] = [PutTopic(Topic("Fresh", 10**6))]
        zero = QueueOffset(0)
        fresh += [PutQueue(Queue(QueueId("Fresh", n), zero, zero)) for n in range(1000)]
        return await measured(journal.publish(fresh))


async def tombstones(count: int) -> Measured:
    """A run that deletes 1,000 of as many due tombstones as there are queues."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        dead = (Tombstone(f"@parts/{n:010}/{n:032}", NOW_MS, "freed") for n in range(count))
        await journal.publish([AddTombstones(tuple(dead))])
        clock.wall_ms += 10**9
        step = TombstoneStep(OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions()))
        journal.subscribe(step.published)
        await step.step()
        return await measured(step.step())


async def waiting_tombstones(count: int) -> Measured:
    """A run with nothing due, beside as many tombstones as there are queues."""
    clock = FixedClock()
    async with filled(count, clock) as (journal, store):
        dead = (Tombstone(f"@parts/{n:010}/{n:032}", NOW_MS * 2, "freed") for n in range(count))
        await journal.publish([AddTombstones(tuple(dead))])
        step = TombstoneStep(OwnedTier(journal, store, clock, random.Random(2), UpkeepOptions()))
        await step.step()
        return await measured(step.step())


async def new_topics(count: int) -> Measured:
    """The last thousand of 30,000 new topics; of fewer in proportion beside fewer queues."""
    last, each = 3 * count // 10, min(1000, count // 5)
    world = OwnedWorld(TierOptions(), UpkeepOptions(interval_s=1e9), packed=True)
    async with world.owned() as tier:
        tier.journal._listeners.clear()
        for start in range(0, last - each, each):
            await tier.journal.publish(_beginnings(tier, range(start, start + each)))
        return await measured(tier.journal.publish(_beginnings(tier, range(last - each, last))))


def _beginnings(tier: Any, numbers: range) -> list[Operation]:
    begin: Callable[[QueueId, QueueOffset], Sequence[Operation]] = tier._beginning_of
    queues = (QueueId(f"T{n}", 0) for n in numbers)
    return [one for queue in queues for one in begin(queue, QueueOffset(0))]


@asynccontextmanager
async def long_queue(
    clock: FixedClock, each: int = MANIFEST_SEGMENTS
) -> AsyncIterator[tuple[Journal, MemoryStore]]:
    """A queue of nine manifests of `each` segments: 294,912 as programs before the bound wrote."""
    async with filled(0, clock) as (journal, store):
        rng, queue = random.Random(3), QueueId("T", 0)
        refs: list[ManifestRef] = []
        for n in range(9):
            segments = [
                Segment(
                    SegmentType.COMMIT_LOG,
                    at * 1000,
                    NOW_MS,
                    1,
                    (Extent(0, 1000, 7, QueueOffset(at), NOW_MS + at, NOW_MS + at),),
                    NOW_MS,
                )
                for at in range(n * each, (n + 1) * each)
            ]
            name = name_manifest(queue, segments, 4, epoch=1, rng=rng)
            refs.append(await write_manifest(store, name, segments, sequence=1))
        end = 9 * each
        times = (NOW_MS + end, NOW_MS + end)
        log = Segment(
            SegmentType.COMMIT_LOG,
            end * 1000,
            NOW_MS,
            1,
            (Extent(0, 1000, 7, QueueOffset(end), *times),),
        )
        units = Extent(0, 20 * (end + 1), 7, QueueOffset(0), NOW_MS, NOW_MS)
        unit_file = Segment(SegmentType.CONSUME_QUEUE, 0, NOW_MS, 1, (units,))
        record = Queue(
            queue, QueueOffset(0), QueueOffset(end + 1), (log,), (unit_file,), tuple(refs)
        )
        await journal.publish([PutTopic(Topic("T", 0)), PutQueue(record)])
        yield journal, store


async def merged_manifests(count: int) -> Measured:
    """Eight of nine manifests become one of as many segments as a manifest may have."""
    assert count
    clock, options = FixedClock(), UpkeepOptions()
    each = MANIFEST_SEGMENTS_MAX // options.manifests_per_level_max
    async with long_queue(clock, each) as (journal, store):
        step = ManifestStep(OwnedTier(journal, store, clock, random.Random(2), options))
        found = await measured(step.step())
        assert step.figures == {"manifests": 1}
        return found


async def trimmed_manifests(count: int) -> Measured:
    """A trim of 1,500 of its segments; the first one splits a long manifest of an old program."""
    assert count
    clock = FixedClock(NOW_MS + HOUR_MS + 1500)
    async with long_queue(clock) as (journal, store):
        options = UpkeepOptions(expires=True, retention_hours=1)
        step = RetentionStep(OwnedTier(journal, store, clock, random.Random(2), options))
        journal.subscribe(step.published)
        return await measured(step.step())


async def trimmed_again(count: int) -> Measured:
    """The next trim of 1,500 segments."""
    assert count
    clock = FixedClock(NOW_MS + HOUR_MS + 1500)
    async with long_queue(clock) as (journal, store):
        options = UpkeepOptions(expires=True, retention_hours=1)
        step = RetentionStep(OwnedTier(journal, store, clock, random.Random(2), options))
        journal.subscribe(step.published)
        await step.step()
        clock.wall_ms += 1500
        return await measured(step.step())


ROWS: dict[str, tuple[Callable[[int], Awaitable[Measured]], float]] = {
    "retention": (retention, 5),
    "first retention": (first_retention, 5_000),
    "first offload": (first_offload, 5_000),
    "first files": (first_files, 200),
    "dropped topic": (dropped_topic, 100),
    "index expiry": (index_expiry, 10),
    "missing keys": (missing_keys, 5_000),
    "sealed keys": (sealed_keys, 2_000),
    "merged index files": (merged_index_files, 20_000),
    "new queues": (new_queues, 200),
    "tombstones": (tombstones, 200),
    "waiting tombstones": (waiting_tombstones, 5),
    "new topics": (new_topics, 200),
    "merged manifests": (merged_manifests, 100),
    "first trim": (trimmed_manifests, 5_000),
    "next trim": (trimmed_again, 200),
}
"""Each with its goal of CPU in all, milliseconds. The goal of each stretch is `HELD_MS_MAX`."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all by default")
    parser.add_argument("--queues", type=int, default=100_000)
    given = parser.parse_args()
    print(f"{given.queues:,} queues, 1 round without warm-up; CPU time of the loop's thread")
    for name in given.rows or ROWS:
        work, goal_ms = ROWS[name]
        found = asdict(await work(given.queues))
        goals = [
            Goal("total_ms", "in all", most=goal_ms),
            Goal("held_ms", "between yields", most=HELD_MS_MAX),
        ]
        print(
            f"{name:20} {found['total_ms']:8.1f} ms, {found['held_ms']:7.1f} between yields;"
            f" {goals_beside(found, goals)}",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
