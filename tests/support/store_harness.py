"""A whole store in one process for fault tests: hot log, tier, dispatcher, and what must hold.

Everything is in memory, on a clock that the test moves, from a seed. A `StoreProcess` is one
life of the program: it can sleep, be killed, and be fenced by another one over the same objects.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from container.index.options import IndexOptions
from container.names.queue_id import QueueId
from container.options import JournalOptions, TierOptions, UpkeepOptions
from container.record.batch import MessageBatch
from container.record.properties import tag_hash
from container.record.unit import Units
from container.tier import Tier, TierIdentity
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from provider.clock import Clock
from provider.errors import Corrupt, Fenced, StoreError
from provider.object_store import ObjectEntry
from provider.ranges import QueueOffset
from provider.stores.in_place_segments import InPlaceDriver
from provider.stores.packed_segments import PackedDriver
from provider.stores.two_stores import TwoStores
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.fake_hot_log import FakeHotLog, FakeQueue
from tests.support.inline_store import InlineStore
from tests.support.memory_tier import InlineExecutor
from tests.support.messages import make_record
from tests.support.part_recount import PartRecount
from tests.support.simulated_time import note

TIER_OPTIONS = TierOptions(
    commit_log_bytes_max=1_000,
    consume_queue_bytes_max=200,
    extent_bytes_max=400,
)
JOURNAL_OPTIONS = JournalOptions(
    entry_transactions_max=2, retry_s_min=0.05, retry_s_max=0.2, close_s_max=1.0
)
UPKEEP_OPTIONS = UpkeepOptions(
    interval_s=0.2,
    backoff_s_max=0.4,
    finish_s_max=1.0,
    snapshot_entries_max=10,
    snapshot_age_s_max=1.0,
    grace_s=0.0,
    sealed_segments_max=1,
    manifests_per_level_max=2,
    extents_max=4,
    merge_fan=2,
    merge_extents_min=6,
    seal_bytes_min=700,
    seal_wait_s_max=0.5,
    repack_bytes_max=1_500,
    repack_runs_max=5,
)
INDEX_OPTIONS = IndexOptions(
    items_max=12,
    covered_bytes_max=3_000,
    age_s_max=2.0,
    room_wait_s_max=0.5,
    finish_items_min=5,
    finish_bytes_min=1_000,
    catch_up_bytes_max=2_000,
    merged_items_max=100,
    merge_growth=2.0,
)
DISPATCH_OPTIONS = DispatchOptions(
    batch_messages_max=4,
    batch_bytes_max=1_200,
    batch_age_s_max=0.3,
    batches_per_commit_max=2,
    bytes_in_flight_max=4_000,
    references_max=40,
    poll_s_max=0.1,
    backoff_s_min=0.05,
    backoff_s_max=0.4,
    close_s_max=2.0,
)
TAGS = ("TagA", "TagB", "TagC")
TAG_HASHES = [tag_hash(tag) for tag in TAGS]
HANGS_AFTER_S = 600.0


class StoreHotLog(FakeHotLog):
    """The fake hot log with RocketMQ's records; their bytes depend on queue, offset and body."""

    def append(self, queue: QueueId, *bodies: bytes) -> None:
        records = self.queues.setdefault(queue, FakeQueue()).records
        for body in bodies:
            offset = len(records)
            properties = {"TAGS": TAGS[offset % 3], "KEYS": f"key-{offset}"}
            records.append(
                make_record(queue.topic, queue.queue_id, offset, body, properties=properties)
            )
        self._alarm.ring()

    def reopened(self) -> "StoreHotLog":
        other = StoreHotLog(self._clock, batch_messages_max=self._batch_messages_max)
        other.queues = self.queues
        return other

    def records(self, queue: QueueId, start: QueueOffset, references: Units) -> MessageBatch:
        batch = super().records(queue, start, references)
        offsets = np.arange(batch.first_offset, batch.next_offset)
        times = [
            int.from_bytes(record[56:64])
            for record in self.queues[queue].records[batch.first_offset : batch.next_offset]
        ]
        return replace(
            batch,
            tag_hashes=np.array(TAG_HASHES, np.int64)[offsets % 3],
            store_timestamps=np.array(times, np.int64),
        )


class SleepingStore(FaultyObjectStore):
    """A faulty store of a process that can be put to sleep around any request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.awake = asyncio.Event()
        self.awake.set()
        self.lists_late = False
        """Whether a listing shows any part of what changed while it was made (P4)."""

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """Objects by name; `ObjectStore.list`."""
        if not self.lists_late or self.crashed:
            return await super().list(prefix, after=after)
        before = {one.name: one for one in await self.inner.list(prefix, after=after)}
        now = {one.name: one for one in await super().list(prefix, after=after)}
        seen, sure = {**before, **now}, before.keys() & now.keys()
        return [seen[name] for name in sorted(seen) if name in sure or self._rng.random() < 0.5]

    async def _call(self, verb: str, names: Sequence[str], *args: Any, **options: Any) -> Any:
        await self.awake.wait()
        note(verb, tuple(names))
        try:
            result = await super()._call(verb, names, *args, **options)
        except StoreError as error:
            note(verb, str(error))
            await self.awake.wait()
            raise
        note(verb, result if isinstance(result, list | bytes | int) else "done")
        await self.awake.wait()
        return result


class StoreProcess:
    """One life of the program: `live` until it is told to stop, is killed, or cannot go on."""

    def __init__(
        self,
        memory: MemoryStore | InlineStore,
        hot: FakeHotLog,
        clock: Clock,
        number: int,
        *,
        faults: Sequence[Fault] = (),
        tier: TierOptions = TIER_OPTIONS,
        dispatch: DispatchOptions = DISPATCH_OPTIONS,
        journal: JournalOptions = JOURNAL_OPTIONS,
        upkeep: UpkeepOptions = UPKEEP_OPTIONS,
        packed: bool = False,
        index: IndexOptions | None = None,
        second: MemoryStore | None = None,
        second_faults: Sequence[Fault] = (),
        before: Callable[["StoreProcess"], Awaitable[None]] | None = None,
    ) -> None:
        """`packed`: segments lie in parts, as on an object store; else each is a file.

        `second`: where segments are offloaded to; the process's sleep is that of both stores.
        `before`: what the owner does before it tiers anything.
        """
        self.number = number
        self.packed = packed
        self.clock = clock
        self.hot = hot
        self.client = memory.another_client()
        rng = Random(f"store {number}")
        self.store = SleepingStore(self.client, rng=rng, faults=faults, clock=clock)
        self.second: SleepingStore | None = None
        if second is not None:
            self._second_client = second.another_client()
            self.second = SleepingStore(
                self._second_client,
                rng=Random(f"second store {number}"),
                faults=second_faults,
                clock=clock,
            )
            self.second.awake = self.store.awake
        self.tier: Tier | None = None
        self.dispatcher: TieredDispatcher | None = None
        self.error: BaseException | None = None
        """What ended it; None while it lives, and after a clean end."""
        self.killed = False
        self._tier_options = tier
        self._dispatch = dispatch
        self._journal = journal
        self._upkeep = upkeep
        self._index = index
        self._before = before
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<StoreProcess {self.number}: {self.error!r}, {self.tier!r}, {self.dispatcher!r}>"

    @property
    def epoch(self) -> int:
        return self.tier.journal.epoch if self.tier else 0

    @property
    def stores(self) -> list[SleepingStore]:
        """The first one, and the second one if there is any."""
        return [self.store] if self.second is None else [self.store, self.second]

    async def open(self) -> None:
        """Own the tier, trying again for as long as it is unavailable."""
        rng = Random(f"owner {self.number}")
        while True:
            try:
                self.tier = await Tier.own(
                    self.store if self.second is None else TwoStores(self.store, self.second),
                    TierIdentity("Cluster", "broker-a", f"owner {self.number}"),
                    segments=PackedDriver(self.store, rng=rng)
                    if self.packed
                    else InPlaceDriver(self.store, clock=self.clock, takeover_wait_s_max=0),
                    clock=self.clock,
                    rng=rng,
                    options=self._tier_options,
                    journal_options=self._journal,
                    upkeep_options=self._upkeep,
                    index=self._index,
                )
                break
            except StoreError as error:
                if isinstance(error, Corrupt | Fenced):
                    raise
                await self.clock.sleep(0.1)
        if self.packed and isinstance(self.client, MemoryStore):
            self.tier.journal.subscribe(PartRecount(self.client, self.tier))
        self.dispatcher = TieredDispatcher(
            self.hot, self.tier, options=self._dispatch, clock=self.clock, executor=InlineExecutor()
        )

    async def live(self, job: Callable[["StoreProcess"], Awaitable[None]] | None = None) -> None:
        """Tier until killed, or until `job` is done; notes what ended it."""
        try:
            await self.open()
            assert self.tier is not None
            assert self.dispatcher is not None
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.tier.run())]
                if self._before is not None:
                    await self._before(self)
                tasks.append(group.create_task(self.dispatcher.run()))
                if job is not None:
                    await job(self)
                    await self.dispatcher.close()
                    await self.tier.close()
                    for task in tasks:
                        task.cancel()
        except BaseExceptionGroup as errors:
            self.error = _leaf(errors)
        except (StoreError, Crashed) as error:
            self.error = error
        if self.killed:
            return
        if isinstance(self.error, Crashed):
            self.kill()
        elif self.error is not None and not isinstance(self.error, StoreError):
            raise self.error

    def start(self, group: asyncio.TaskGroup) -> None:
        self._task = group.create_task(self.live())

    def kill(self) -> None:
        """Die as by `kill -9`: nothing of it can land any more, and what it holds is free."""
        self.killed = True
        self.client.kill()
        if self.second is not None:
            self._second_client.kill()
        if self._task is not None:
            self._task.cancel()


def _leaf(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one reason of a group; `Crashed` and `Fenced` say more than what followed from them."""
    leaves = [
        _leaf(error) if isinstance(error, BaseExceptionGroup) else error
        for error in errors.exceptions
    ]
    for kind in (AssertionError, Crashed, Fenced):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


async def pass_time(clock: ManualClock, seconds: float, *, step_s: float = 0.1) -> None:
    """Move the clock in small steps, with time enough to run for everybody at each."""
    end_s = clock.monotonic_s() + seconds
    while clock.monotonic_s() < end_s:
        await clock.advance(step_s)
        await settle(40)


async def while_time_passes(
    clock: ManualClock, work: Awaitable[None], *, step_s: float = 0.1, shown: object = None
) -> None:
    """Await `work` while the clock goes on; something that hangs fails."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_awaited(work))
        end_s = clock.monotonic_s() + HANGS_AFTER_S
        while not task.done():
            await clock.advance(step_s)
            if clock.monotonic_s() > end_s:
                task.cancel()
                raise AssertionError(f"it hangs: {shown!r}")


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def tiers_all(process: StoreProcess) -> None:
    """A job: tier everything, and stay for a while to keep house."""
    assert process.dispatcher is not None
    await process.dispatcher.drain()
    await process.clock.sleep(3.0)  # snapshots, deletions


async def drained(
    memory: MemoryStore,
    hot: FakeHotLog,
    clock: ManualClock,
    number: int,
    *,
    journal: JournalOptions = JOURNAL_OPTIONS,
    upkeep: UpkeepOptions = UPKEEP_OPTIONS,
    packed: bool = False,
) -> StoreProcess:
    """A last life without faults, alone: tier everything, keep house, end cleanly."""
    process = StoreProcess(
        memory, hot.reopened(), clock, number, journal=journal, upkeep=upkeep, packed=packed
    )
    await while_time_passes(clock, process.live(tiers_all), shown=process)
    assert process.error is None, process.error
    with suppress(StoreError):
        await process.client.close()
    return process
