"""Two or three whole stores that believe they own one tier: seeded pauses, kills and lost replies.

The oracle: what is published is what the hot log says, never changes, and never goes; an owner
that somebody newer has fenced stops with `Fenced` at its next commit. Two that live never write to
one file: most of what they write is equal, so it would often not show in the bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import NamedTuple

from container.lookup.find import find_messages
from container.lookup.query import KeyQuery
from container.names.queue_id import QueueId
from container.names.tier_objects import INDEX_PREFIX, JOURNAL_PREFIX
from container.options import UpkeepOptions
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.compaction import CompactionLimits
from provider.errors import Corrupt, Fenced, StoreError
from provider.ranges import QueueOffset
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore, Kind
from tests.support.simulated_stores import SimulatedStores
from tests.support.simulated_time import SimulatedClock, simulated
from tests.support.sleepy_readers import SleepyReaders
from tests.support.store_harness import (
    INDEX_OPTIONS,
    TIER_OPTIONS,
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
)
from tests.support.store_reader import Follower, assert_follows, findings, orphan_manifests
from tests.support.watched_store import WatchedHotLog

FAST_HOUR = 6_000.0
"""Speed of the wall clock at which an hour is over in less than a second."""
GRACE_S = (0.0, 0.4, 1.2)
NAPS_AT = (
    ("delete", ""),  # the ownership is verified, and the deletion not begun
    ("list", "@journal/"),  # the deletions are planned, and the ownership not verified
    ("create", "@journal/"),
    ("create", "@parts/"),
    ("create", "@manifest/"),
    ("create", INDEX_PREFIX),
    ("list", "@boundary/"),
    ("read", ""),
)
SLOW: tuple[Kind, ...] = ("delayed", "slow_reply")
NAPS_OF_SECOND = (("create", "@offload/"), ("read", ""), ("delete", ""), ("list", ""))
NAP_S_MAX = 2.5
OUTAGE = Fault("refused")
"""Of a store that does not answer for a while."""


class Settings(NamedTuple):
    """How all owners of one seed are set."""

    upkeep: UpkeepOptions
    by_age: bool
    """Whether messages expire by age, for which the wall clock is fast."""


def settings(rng: Random, *, expires: bool) -> Settings:
    """The settings of a seed."""
    by_age = expires and rng.random() < 0.5
    upkeep = replace(
        UPKEEP_OPTIONS,
        grace_s=0.0 if by_age else rng.choice(GRACE_S),
        scrubs=rng.random() < 0.3,
        scrub_interval_s=0.4,
        scrub_operations_max=12,
    )
    if rng.random() < 0.5:
        upkeep = replace(
            upkeep,
            offloads=True,
            offload_place="the second store",
            offload_topic_bytes=rng.choice([1, 1_500]),
            offload_lag_s=max(upkeep.grace_s, 0.0 if by_age else rng.choice([0.0, 0.5])),
            offload_interval_s=0.3,
        )
    if expires:
        upkeep = replace(
            upkeep,
            expires=True,
            retention_hours=1 if by_age else 10**6,
            topic_bytes_max=0 if by_age else rng.choice([600, 3_000]),
            expiry_interval_s=rng.choice([0.2, 0.7]),
        )
    return Settings(upkeep, by_age)


def faults_of(rng: Random, naps_at: Sequence[tuple[str, str]] = NAPS_AT) -> Sequence[Fault]:
    """What one owner meets at its requests; some sleep at requests of one kind."""
    often = rng.choice([0.0, 0.03, 0.1])
    faults: list[Fault] = []
    for verb, prefix in rng.sample(naps_at, rng.choice([0, 1, 2])):
        nap_s = rng.uniform(0.3, NAP_S_MAX)
        kind = rng.choice(SLOW)
        faults.append(Fault(kind, verb, prefix, rng.choice([0.1, 0.5]), delay_s=nap_s))
    faults += [
        Fault(kind, probability=often) for kind in ("lost_reply", "refused", "late", "short")
    ]
    faults += [Fault(kind, probability=often, delay_s=rng.choice([0.05, 0.7])) for kind in SLOW]
    slow, slow_s = rng.choice([(0.1, 0.004), (0.4, 0.03)])  # so that others come first
    faults.append(Fault("delayed", probability=slow, delay_s=slow_s))
    return faults


def toggle_outage(store: FaultyObjectStore) -> bool:
    """Take a store away from one owner, or give it back; whether it is away now."""
    others = [one for one in store.faults if one != OUTAGE]
    is_away = len(others) == len(store.faults)
    store.faults = [*others, OUTAGE] if is_away else others
    return is_away


QUEUES = [QueueId("T", 0), QueueId("T", 1), QueueId("U", 0)]
STEPS = 16
STEPS_OF_OBJECTS = 6
STEPS_OF_FILES = 8
AT_ONCE = replace(TIER_OPTIONS, cut_grace_hours=0)
"""What is never published may go at once."""
BURST_MAX = 3
CUT_MESSAGES_MAX = 12
SLOW_READS = (Fault("delayed", "read", probability=0.3, delay_s=0.4),)
"""So that upkeep publishes something while a cut is planned."""
PATIENCE_S = 60.0
FIGURES = (
    "orphans",
    "repack_jobs",
    "extents_saved",
    "parts_unreferenced",
    "offloaded_segments",
    "scrub_rounds",
)
"""Of upkeep, which are added up."""
LIVES_MAX = 4  # quiet ones, after which nothing is left over
BODY_BYTES_MAX = 120
HOUSEKEEPING_S = 1.0


class StoreSimulation:
    """One seeded run."""

    def __init__(
        self,
        seed: int,
        *,
        packed: bool = False,
        expires: bool = False,
        cuts: bool = False,
        put_back: bool = False,
        steps: int = STEPS,
    ) -> None:
        self.steps = steps
        self.packed = packed
        self.expires = expires
        self.cuts = Random(f"cuts {seed}") if cuts else None
        self.copied_at, self.put_back_at = -1, -1
        if put_back:
            moments = Random(f"copies {seed}").sample(range(steps), 2)
            self.copied_at, self.put_back_at = sorted(moments)
        self.copy: list[dict[str, bytes]] = []
        self.rng = Random(seed)
        self.seed = seed
        self.upkeep, by_age = settings(self.rng, expires=expires)
        self.clock = SimulatedClock(wall_speed=FAST_HOUR if by_age else 1.0)
        self.memory = SimulatedStores(offloads=self.upkeep.offloads)
        self.hot = StoreHotLog(self.clock, batch_messages_max=self.rng.choice([1, 3, 50]))
        self.follower = Follower(self.memory.another_client(), self.hot)
        self.follower.may_expire = self.follower.may_delete = expires
        self.follower.may_cut = cuts
        self.deleted: set[str] = set()
        """Topics that somebody was told to delete."""
        self.cut: set[str] = set()
        """Topics of queues that somebody was told to cut."""
        self.may_go: set[str] = set()
        """Topics that somebody was told to delete or to cut."""
        self.readers = SleepyReaders(
            self.memory,
            self.hot,
            clock=self.clock,
            rng=Random(seed),
            grace_s=self.upkeep.grace_s,
            deleted=self.may_go,
            names_come_again=not packed,
        )
        self.handles: list[StoreHotLog] = []
        self.processes: list[StoreProcess] = []
        self.begun = 0
        self.counts: Counter[str] = Counter()
        self.steps_to_overtake = -1
        self.loses_local = self.rng.random() < 0.4

    async def run(self) -> Counter[str]:
        self._write()
        try:
            await self._live()
        finally:
            await self.readers.close()
        return self.counts + self.readers.counts

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._begin(group)
            for step in range(self.steps):
                self._copy(group, step)
                self._disturb(group)
                if self.expires and self.rng.random() < 0.3:
                    self._delete_topic(group)
                if self.rng.random() < 0.1:
                    self._compact(group)
                await asyncio.sleep(self.rng.choice([0.01, 0.1, 0.4]))
                await self._land_late()
                await self._read(group)
            await self._end()
        await self._finish()

    async def _read(self, group: asyncio.TaskGroup) -> None:
        if self.rng.random() < 0.25:
            await self.follower.look()
        if self.rng.random() < 0.5:
            group.create_task(self.readers.hold())
        if self.rng.random() < 0.5:
            await self.readers.fetch()

    def _write(self) -> None:
        for queue in QUEUES:
            bodies = [
                self.rng.randbytes(self.rng.randint(0, BODY_BYTES_MAX))
                for _ in range(self.rng.randint(0, BURST_MAX))
            ]
            self.hot.append(queue, *bodies)

    def _begin(self, group: asyncio.TaskGroup) -> None:
        number = self.begun
        self.begun += 1
        cuts = self.cuts is not None and number > 0
        handle = WatchedHotLog.of(self.hot)
        self.handles.append(handle)
        process = StoreProcess(
            self.memory.first,
            handle,
            self.clock,
            1000 * self.seed + number,
            faults=[*(SLOW_READS if cuts else ()), *faults_of(self.rng)],
            tier=AT_ONCE,
            packed=self.packed,
            upkeep=self.upkeep,
            index=INDEX_OPTIONS,
            second=self.memory.second,
            second_faults=faults_of(self.rng, NAPS_OF_SECOND) if self.memory.second else (),
            before=self._cut if cuts else None,
        )
        handle.tier = lambda: process.tier
        for store in process.stores:
            store.lists_late = self.rng.random() < 0.5
        self.processes.append(process)
        process.start(group)

    def _disturb(self, group: asyncio.TaskGroup) -> None:
        if self.rng.random() < 0.5:
            self._write()
        if len(self.processes) < 3 and self.rng.random() < 0.2:
            self._begin(group)
        for process in self.processes:
            self._disturb_one(process)
        if self.loses_local and self.rng.random() < 0.25:
            queue = self.rng.choice(QUEUES)
            low = self.hot.queues[queue].min_offset
            self.hot.delete_below(queue, low + self.rng.randint(0, 20))
        self.steps_to_overtake -= 1
        if self.steps_to_overtake == 0:
            self._overtake(group)

    def _disturb_one(self, process: StoreProcess) -> None:
        """Put an owner to sleep, wake it, kill it, or take the second store away from it."""
        awake = process.store.awake
        if awake.is_set() and self.rng.random() < 0.08:
            awake.clear()
            self.counts["pauses"] += 1
            if self.loses_local and self.steps_to_overtake < 0:
                self.steps_to_overtake = self.rng.randint(2, 4)
                self._write()
        elif not awake.is_set() and self.rng.random() < 0.2:
            awake.set()
        if process.second is not None and self.rng.random() < 0.1:
            self.counts["outages"] += toggle_outage(process.second)
        if not process.killed and self.rng.random() < 0.01:
            process.kill()
            self.counts["kills"] += 1

    def _copy(self, group: asyncio.TaskGroup, step: int) -> None:
        """Take a copy of the tier, or put it back: all that live have ended, and another begins.

        A place that has no journal yet holds no tier to copy.
        """
        if step == self.copied_at:
            self.copy = self.memory.copy()
        has_journal = any(name.startswith(JOURNAL_PREFIX) for part in self.copy for name in part)
        if step != self.put_back_at or not has_journal:
            return
        for process in self.processes:
            process.kill()
            self._count(process)
        self.processes.clear()
        self.handles.clear()  # of what was acknowledged since, the tier may have nothing
        self.memory.put_back(self.copy)
        self.follower.forget()
        self.readers.histories += 1
        self.counts["put back"] += 1
        self._begin(group)

    def _overtake(self, group: asyncio.TaskGroup) -> None:
        """Somebody sleeps over messages that it has read: they go, others come, another begins."""
        for queue in QUEUES:
            self.hot.delete_below(queue, len(self.hot.queues[queue].records))
        self._write()
        if len(self.processes) < 3:
            self._begin(group)

    async def _land_late(self) -> None:
        for process in self.processes:
            for store in process.stores:
                if self.rng.random() < 0.3:
                    await store.land_late()

    async def _end(self) -> None:
        """Wake everybody; all but the newest owner must stop by themselves, and it goes on."""
        for process in self.processes:
            process.store.awake.set()
            for store in process.stores:
                store.faults = []
        await self._until(
            lambda: all(one.killed or one.error or one.dispatcher for one in self.processes)
        )
        newest = max(self.processes, key=lambda process: process.epoch)
        for queue in QUEUES:
            self.hot.append(queue, b"the last one")
        older = [one for one in self.processes if one is not newest and not one.killed]
        await self._until(lambda: all(one.error for one in older))
        for process in older:
            assert isinstance(process.error, Fenced), process
            process.kill()  # it stopped, so it exits, and what it holds is free
            self.counts["fenced"] += 1
        if not newest.killed:
            await self._until(lambda: newest.error is not None or self._is_done(newest))
            died_early = any(one.killed and one.tier is None for one in self.processes)
            fenced_by_the_dead = isinstance(newest.error, Fenced) and died_early
            assert newest.error is None or fenced_by_the_dead, newest
            self.counts["caught up"] += newest.error is None
            newest.kill()
        await self.follower.look()

    def _delete_topic(self, group: asyncio.TaskGroup) -> None:
        """Have somebody who believes to own the tier delete a topic."""
        owners = [one for one in self.processes if one.dispatcher and not one.killed]
        if not owners:
            return
        owner, topic = self.rng.choice(owners), self.rng.choice(QUEUES).topic
        self.deleted.add(topic)
        self.may_go.add(topic)

        async def delete() -> None:
            assert owner.tier is not None
            # Nobody answers once its owner was killed.
            with suppress(StoreError, Crashed, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    self.counts["deleted"] += await owner.tier.delete_topic(topic)

        group.create_task(delete())

    async def _cut(self, process: StoreProcess) -> None:
        """Take the newest messages of queues away before anything is tiered, as a repair does.

        The tier is compacted at the same time. The hot log has the messages still, or has lost
        them: then a gap is recorded.
        """
        assert self.cuts is not None
        assert process.tier is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._compacted(process.tier))
            await self._cut_some(process.tier)

    async def _cut_some(self, tier: Tier) -> None:
        assert self.cuts is not None
        for _ in range(self.cuts.randint(1, 6)):
            await asyncio.sleep(self.cuts.choice([0.0, 0.1, 0.4]))  # upkeep goes on meanwhile
            queue = self.cuts.choice(QUEUES)
            record = tier.queue(queue)
            if record is None or record.min_offset == record.next_offset:
                continue
            newest = min(record.next_offset - record.min_offset, CUT_MESSAGES_MAX)
            offset = QueueOffset(record.next_offset - self.cuts.randint(1, newest))
            self.cut.add(queue.topic)
            self.may_go.add(queue.topic)
            try:
                await tier.cut_queue(queue, offset, "rewritten")
            except StoreError as error:
                if isinstance(error, Corrupt):
                    raise
            else:
                self.counts["cut"] += 1

    def _compact(self, group: asyncio.TaskGroup) -> None:
        """Have somebody who believes to own the tier compact it."""
        owners = [one for one in self.processes if one.dispatcher and not one.killed]
        if not owners:
            return
        tier = self.rng.choice(owners).tier
        assert tier is not None
        group.create_task(self._compacted(tier))

    async def _compacted(self, tier: Tier) -> None:
        limits = CompactionLimits(self.upkeep, AT_ONCE.extent_bytes_max, self.packed, INDEX_OPTIONS)
        with suppress(StoreError, Crashed, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await tier.upkeep.compact(limits, jobs_max=2, on_progress=lambda _: None)
                self.counts["compacted"] += 1

    async def _until(self, done: Callable[[], bool]) -> None:
        end_s = self.clock.monotonic_s() + PATIENCE_S
        while not done():
            await asyncio.sleep(0.1)
            await self._land_late()
            assert self.clock.monotonic_s() < end_s, f"it does not come to an end: {self.processes}"

    def _is_done(self, owner: StoreProcess) -> bool:
        """Whether an owner has tiered all that there is."""
        assert owner.tier is not None
        seen = {queue: owner.tier.queue(queue) for queue in QUEUES}
        return all(
            one is not None and one.next_offset == len(self.hot.queues[queue].records)
            for queue, one in seen.items()
        )

    async def _finish(self) -> None:
        """The next owner is alone: it goes on, and everything is there."""
        for process in self.processes:
            self._count(process)
        for handle in self.handles:
            for queue, offset in handle.released.items():
                if queue.topic in self.deleted | self.cut:
                    continue
                if queue not in self.follower.seen:
                    assert self.loses_local or offset == 0  # where a queue begins is released, too
                    continue
                seen = self.follower.seen[queue].record.next_offset
                assert offset <= seen, f"{queue} was acknowledged to {offset}, {seen} are there"
        await self._last_life(98)
        await self.follower.look()
        reader = await TierReader.open(self.memory.another_client())
        self.counts["index files"] += len(reader.state.index_files)
        for queue, seen in self.follower.seen.items():
            hot = self.hot.queues[queue]
            assert seen.record.next_offset == len(hot.records)
            assert_follows(seen, hot)
            first = seen.record.min_offset
            lost = sum(max(0, gap.end - max(gap.start, first)) for gap in seen.record.gaps)
            assert len(seen.offsets) + lost == seen.record.next_offset - first
            assert self.loses_local or lost == 0 or queue.topic in self.deleted
            assert self.loses_local or self.expires or first == 0
            self.counts["expired"] += self.expires and first > 0
            self.counts["gaps"] += len(seen.record.gaps)
            self.counts["messages"] += len(seen.offsets)
            await self._find(reader, queue, seen.offsets)
        found = await findings(self.memory.another_client())
        if found:  # files of a queue that was not published yet when that owner began
            assert all("orphan" in one for one in found), found
            await self._last_life(99)
            assert await findings(self.memory.another_client()) == []
        assert await orphan_manifests(self.memory.another_client()) == set()
        if self.packed:
            await self._assert_nothing_is_left_over()
        self.counts["runs"] += 1

    async def _assert_nothing_is_left_over(self) -> None:
        """The set of objects is the set of referenced ones: no part too few, and none too many."""
        left, state = set[str](), None
        for attempt in range(LIVES_MAX):
            state = (await TierReader.open(self.memory.another_client())).state
            left = await self.memory.unreferenced(state)
            if not left and not state.tombstones:
                self.counts["levels"] += max((one.level for one in state.parts.values()), default=0)
                return
            await self._last_life(100 + attempt)
        raise AssertionError(f"nothing refers to {left}; {state and state.tombstones}")

    async def _find(self, reader: TierReader, queue: QueueId, offsets: Sequence[int]) -> None:
        """Keys find exactly the messages that have them, of memory nothing being left."""
        for offset in self.rng.sample(offsets, min(2, len(offsets))):
            answer = await find_messages(reader, KeyQuery(queue.topic, f"key-{offset}", 99))
            places = [one.queue_offset for one in answer.messages if one.queue_id == queue.queue_id]
            assert (places, answer.is_complete) == ([offset], True), (queue, answer)
        unknown = KeyQuery(queue.topic, f"key-{max(offsets, default=0) + 100}", 99)
        assert not (await find_messages(reader, unknown)).messages

    async def _last_life(self, number: int) -> None:
        """An owner without faults, alone: it tiers everything, keeps house, ends cleanly."""
        last = StoreProcess(
            self.memory.first,
            self.hot.reopened(),
            self.clock,
            1000 * self.seed + number,
            tier=AT_ONCE,
            packed=self.packed,
            upkeep=self.upkeep,
            index=INDEX_OPTIONS,
            second=self.memory.second,
        )
        async with asyncio.timeout(PATIENCE_S):
            await last.live(self._keeps_house)
        assert last.error is None, last.error
        assert last.tier is not None
        self._count(last)
        last.kill()

    async def _keeps_house(self, process: StoreProcess) -> None:
        """Tier everything, and stay until what is freed meanwhile may go."""
        assert process.dispatcher is not None
        await process.dispatcher.drain()
        await self.clock.sleep(HOUSEKEEPING_S + self.upkeep.grace_s)

    def _count(self, process: StoreProcess) -> None:
        """Add up what an owner's upkeep did."""
        if process.tier is not None:
            figures = process.tier.upkeep.statistics().figures
            for name in FIGURES:
                self.counts[name] += figures.get(name, 0)


def simulate_store(
    seed: int,
    *,
    packed: bool = False,
    expires: bool = False,
    cuts: bool = False,
    put_back: bool = False,
    steps: int = STEPS,
) -> Counter[str]:
    """Run one seed; what it did, by name.

    `packed`: over a store of immutable objects. `expires`: messages expire, and topics are deleted.
    `cuts`: queues lose their newest messages, and are tiered again. `put_back`: an older copy
    replaces the tier.
    """

    async def run() -> Counter[str]:
        one = StoreSimulation(
            seed, packed=packed, expires=expires, cuts=cuts, put_back=put_back, steps=steps
        )
        return await one.run()

    return simulated(run())


def simulate_objects(seed: int) -> Counter[str]:
    """Run one seed of an object store; under every other eight of them messages expire.

    In every fourth one queues are cut, and in every eighth the tier is put back from a copy.
    """
    return simulate_store(
        seed,
        packed=True,
        expires=seed // 8 % 2 == 1,
        cuts=seed % 4 == 3,
        put_back=seed % 8 == 7,
        steps=STEPS_OF_OBJECTS,
    )


def simulate_files(seed: int) -> Counter[str]:
    """Run one seed of files that grow; messages expire under every other one.

    In every fourth one queues are cut, and in every eighth the tier is put back from a copy.
    """
    return simulate_store(
        seed,
        expires=seed % 2 == 1,
        cuts=seed // 2 % 4 == 3,
        put_back=seed % 8 == 7,
        steps=STEPS_OF_FILES,
    )
