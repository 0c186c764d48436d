"""An owner that writes and offloads dies, or loses one of its stores, at every request.

A first life leaves history, of which some is offloaded. A second one tiers and offloads on, and its
n-th request to one of the stores is struck, for every n: the process dies there, or that store is
away from there on for a while. The next life goes on. Nothing that was acknowledged is lost, both
stores hold what is referred to and nothing else, and no more is copied again than was under way.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import NoneType
from unittest.mock import patch

import pytest

from container.metadata.objects import is_away
from container.metadata.records import Extent
from container.move import offload_copies
from container.names.queue_id import FLAT_FILES, QueueId
from container.tier_view import TierReader
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore, Kind
from provider.testing.manual_clock import ManualClock
from tests.support.level import LEVEL
from tests.support.simulated_stores import SimulatedStores
from tests.support.store_harness import (
    TIER_OPTIONS,
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    while_time_passes,
)
from tests.support.store_reader import Follower, assert_follows, findings

QUEUES = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Refunds", 0)]
HISTORY = range(2)
BURSTS = range(2, 5)
LATER = range(5, 6)
TIER = replace(TIER_OPTIONS, cut_grace_hours=0)
OFFLOADS = replace(
    UPKEEP_OPTIONS,
    offloads=True,
    offload_place="the second store",
    offload_topic_bytes=1_500,
    offload_lag_s=0.4,
    offload_interval_s=0.3,
    offload_copies_max=2,
)
FIRST, SECOND = 0, 1
AWAY_S = 1.5
"""How long a store is away: several tries of all who need it."""
SETTLED_S_MAX = 30.0
BATCH_BYTES = 1_500
"""So many bytes of a queue are published together."""
COPIED_AGAIN_MAX = BATCH_BYTES + (1 + OFFLOADS.offload_copies_max) * TIER.commit_log_bytes_max
"""Bytes that an interruption may have copied in vain: a batch, and the copies ahead of it."""
TRIES_MAX = 1 + round(AWAY_S / OFFLOADS.offload_interval_s)
LAST = 99
FOR_EVER = 10**9
EVERY = LEVEL == "nightly"
"""Strike every request; by day every so many."""
MORE_REQUESTS_MAX = 20
"""Of an interruption: the next life opens, and looks for what the struck one left in vain."""


class Run:
    """Two stores, one hot log, and the owners of the tier, one after the other."""

    def __init__(self, begun: "Run | None" = None, *, packed: bool = False) -> None:
        """Begin an empty tier, or go on where `begun` ended; that stays as it is."""
        self.packed = packed if begun is None else begun.packed
        self.clock = ManualClock()
        self.hot = StoreHotLog(self.clock, batch_messages_max=3)
        self.stores = SimulatedStores(offloads=True)
        self.written = 0
        self.copied_bytes = self.requests = 0
        self.acknowledged: dict[QueueId, int] = {}
        if begun is not None:
            self.write(begun.written)
            self.acknowledged = dict(begun.acknowledged)
            for mine, others in zip(self._memories, begun._memories, strict=True):
                objects = others._shared.objects
                mine._shared.objects = {name: bytearray(raw) for name, raw in objects.items()}
        self.follower = Follower(self.stores.another_client(), self.hot)

    @property
    def _memories(self):
        assert self.stores.second is not None
        return self.stores.first, self.stores.second

    def write(self, upto: int) -> None:
        """Append every burst of messages below `upto` that is not there yet."""
        for burst in range(self.written, upto):
            for number, queue in enumerate(QUEUES[: 1 + burst % 3]):
                bodies = [bytes([burst, number, n]) * (20 + 31 * n) for n in range(4 + number)]
                self.hot.append(queue, *bodies)
        self.written = max(self.written, upto)

    async def life(
        self, number: int, bursts: range, faults: Sequence[Fault] = (), of: int = FIRST
    ) -> StoreProcess:
        """One owner: it tiers what is written meanwhile, and offloads in the background."""
        hot = self.hot.reopened()
        process = StoreProcess(
            self.stores.first,
            hot,
            self.clock,
            number,
            tier=TIER,
            upkeep=OFFLOADS,
            packed=self.packed,
            second=self.stores.second,
            faults=faults if of == FIRST else (),
            second_faults=faults if of == SECOND else (),
        )

        async def job(process: StoreProcess) -> None:
            assert process.dispatcher is not None
            for burst in bursts:
                self.write(burst + 1)
                await process.dispatcher.drain(patience_s=None)
                await self.clock.sleep(0.7)
            await self.clock.sleep(2.0)
            if number == LAST:
                await self._settled()

        async def lived() -> None:
            async with asyncio.TaskGroup() as group:
                back = group.create_task(self._comes_back(process.stores[of]))
                await process.live(job)
                back.cancel()

        await while_time_passes(self.clock, lived(), shown=process)
        self._count(process)
        for queue, offset in hot.released.items():
            self.acknowledged[queue] = max(self.acknowledged.get(queue, 0), offset)
            self.hot.delete_below(queue, offset)
        process.kill()
        return process

    async def _comes_back(self, store: FaultyObjectStore) -> None:
        """Let a store that is away answer again after a while."""
        while not store.struck:
            await self.clock.sleep(0.1)
        await self.clock.sleep(AWAY_S)
        store.faults = ()

    def _count(self, process: StoreProcess) -> None:
        first, second = process.stores
        self.requests += first.calls.total() + second.calls.total()
        self.copied_bytes += second.bytes["create"]

    async def _settled(self) -> None:
        """Wait until nothing is left over in either store."""
        end_s = self.clock.monotonic_s() + SETTLED_S_MAX
        while left := await self.left_over():
            assert self.clock.monotonic_s() < end_s, left
            await self.clock.sleep(0.3)

    async def left_over(self) -> set[str]:
        """Objects that nothing refers to, and tombstones of others."""
        reader = await TierReader.open(self.stores.another_client())
        left = set(reader.state.tombstones)
        if self.packed:
            return left | await self.stores.unreferenced(reader.state)
        assert self.stores.second is not None
        known = {one.object_name for one in await self.extents(reader)}
        names = {one.name for one in await self.stores.second.list("@offload/")}
        assert known - {""} <= names
        return left | {name for name in names - known if not name.endswith("/@store")}

    async def extents(self, reader: TierReader) -> list[Extent]:
        """Those in the second store."""
        containers = [reader.container(queue) for queue in reader.state.queues]
        return [
            extent
            for container in containers
            if container is not None
            for kind in FLAT_FILES
            for segment in await container.segments(kind)
            for extent in segment.extents
            if is_away(segment)
        ]

    async def finish(self) -> None:
        """Look at what the struck life left, go on in another one, and look at all of it."""
        await self.follower.look()
        for queue, offset in self.acknowledged.items():
            seen = self.follower.seen.get(queue)
            assert offset <= (seen.record.next_offset if seen else 0), "acknowledged, and lost"
        assert await findings(self.stores.another_client()) == []
        last = await self.life(LAST, LATER)
        assert last.error is None, last.error
        await self.follower.look()
        for queue, seen in self.follower.seen.items():
            assert seen.offsets == list(range(len(self.hot.queues[queue].records)))
            assert_follows(seen, self.hot.queues[queue])
        assert await findings(self.stores.another_client()) == []


@pytest.fixture(scope="module", autouse=True)
def _small_batches() -> Iterator[None]:
    with patch.object(offload_copies, "BATCH_BYTES", BATCH_BYTES):
        yield


@pytest.fixture(scope="module")
def history(request: pytest.FixtureRequest) -> Run:
    """What the first life left; every test goes on from copies of it."""
    run = Run(packed=request.param)
    first = asyncio.run(run.life(1, HISTORY))
    assert first.error is None
    return run


@pytest.fixture(scope="module")
def undisturbed(history: Run) -> Run:
    """What it costs if nothing is struck."""
    run = Run(history)
    second = asyncio.run(run.life(2, BURSTS))
    assert second.error is None
    asyncio.run(run.finish())
    assert run.copied_bytes > 8_000, "the second life copies, too"
    return run


ROWS: list[tuple[Kind, int, int]] = [
    ("crash_before", FIRST, 23),
    ("crash_before", SECOND, 5),
    ("crash_after", SECOND, 7),
    ("refused", FIRST, 29),
    ("refused", SECOND, 7),
]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("history", [False, True], ids=["from files", "from parts"], indirect=True)
@pytest.mark.parametrize(("kind", "of", "step"), ROWS)
async def test_nothing_is_lost_whichever_request_is_struck(
    history: Run,
    undisturbed: Run,
    kind: Kind,
    of: int,
    step: int,
) -> None:
    is_death, call, struck = kind.startswith("crash"), 1, True
    while struck:
        run = Run(history)
        calls = (call,) if is_death else range(call, FOR_EVER)
        second = await run.life(2, BURSTS, [Fault(kind, calls=calls)], of)
        struck = bool(second.stores[of].struck)
        assert not struck or isinstance(second.error, Crashed if is_death else NoneType)
        await run.finish()
        tries = 1 if is_death else TRIES_MAX
        assert run.copied_bytes <= undisturbed.copied_bytes + tries * COPIED_AGAIN_MAX
        assert run.requests <= undisturbed.requests + tries * MORE_REQUESTS_MAX
        call += 1 if EVERY else step
    assert call > (60 if of == FIRST else 20)
