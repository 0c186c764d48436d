"""The crash matrix: the whole store dies before, in or after every request that it makes.

A first life leaves history, a second one dies at its n-th request for every n, a third one goes
on. What is published then equals an undisturbed run's, file by file; what was acknowledged is
there although the hot log deleted it; nothing is there twice; nothing is left over.

Rows of the matrix about compaction and migration between providers have no test: neither exists.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.errors import Fenced
from provider.testing.faulty import Fault, Kind
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.level import by_level
from tests.support.store_harness import (
    StoreHotLog,
    StoreProcess,
    drained,
    while_time_passes,
)
from tests.support.store_reader import Follower, contents, findings, orphan_manifests

QUEUES = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Refunds", 0)]
HISTORY = range(3)
BURSTS = range(3, 7)
LATER = range(7, 9)
STRIDE = by_level(quick=16, full=16, nightly=1)
"""By day, tests of all requests strike every sixteenth or 32nd."""


class Run:
    """One tier and its lives; every run writes the same messages."""

    def __init__(self, begun: "Run | None" = None, *, packed: bool = False) -> None:
        """Begin an empty tier, of files or `packed` into parts; or where `begun` ended."""
        self.packed = begun.packed if begun is not None else packed
        objects = MemoryObjects()
        self.clock = ManualClock()
        self.hot = StoreHotLog(self.clock, batch_messages_max=3)
        self.acknowledged: dict[QueueId, int] = {}
        self.written = 0
        if begun is not None:
            objects.objects = {name: bytearray(raw) for name, raw in begun.objects.objects.items()}
            self.acknowledged = dict(begun.acknowledged)
            self.write(begun.written)
        self.objects = objects
        self.memory = MemoryStore(objects)
        self.follower = Follower(self.memory.another_client(), self.hot)

    def write(self, upto: int) -> None:
        """Append every burst of messages below `upto` that is not there yet."""
        for burst in range(self.written, upto):
            for number, queue in enumerate(QUEUES[: 1 + burst % 3]):
                bodies = [bytes([burst, number, n]) * (20 + 31 * n) for n in range(3 + 2 * number)]
                self.hot.append(queue, *bodies)
        self.written = max(self.written, upto)

    async def life(self, number: int, bursts: range, faults: Sequence[Fault] = ()) -> StoreProcess:
        hot = self.hot.reopened()
        process = StoreProcess(
            self.memory, hot, self.clock, number, faults=faults, packed=self.packed
        )

        async def job(process: StoreProcess) -> None:
            for burst in bursts:
                self.write(burst + 1)
                assert process.dispatcher is not None
                await process.dispatcher.drain(patience_s=None)
                await self.clock.sleep(0.5)

        await while_time_passes(self.clock, process.live(job), shown=process)
        for queue, offset in hot.released.items():
            self.acknowledged[queue] = max(self.acknowledged.get(queue, 0), offset)
        if not process.killed:
            await process.client.close()
        return process

    async def finish(self, *, lose_local: bool) -> "Published":
        """Check what was acknowledged, tier the rest in a last life, and look at all of it."""
        await self.follower.look()
        for queue, offset in self.acknowledged.items():
            assert self.follower.seen[queue].record.next_offset >= offset, "acknowledged, and lost"
            if lose_local:
                self.hot.delete_below(queue, offset)
        self.write(LATER.stop)
        await drained(self.memory, self.hot, self.clock, 99, packed=self.packed)
        await self.follower.look()
        assert await findings(self.memory.another_client()) == []
        assert await orphan_manifests(self.memory.another_client()) == set()
        return await published(self.memory)


@dataclass
class Published:
    """What must not depend on who died when."""

    logs: dict[QueueId, bytes]
    units: dict[QueueId, bytes]
    segments: dict[QueueId, list[tuple[int, int, int]]]
    files: dict[str, bytes]


async def published(memory: MemoryStore) -> Published:
    reader = await TierReader.open(memory.another_client(), verify=True)
    seen = await contents(reader)
    names = [entry.name for entry in await memory.list("") if not entry.name.startswith("@")]
    return Published(
        {queue: one.log for queue, one in seen.items()},
        {queue: one.units for queue, one in seen.items()},
        {queue: one.segments for queue, one in seen.items()},
        {name: bytes(await memory.read(name)) for name in names},
    )


PACKED = pytest.mark.parametrize("history", [True], ids=["packed"], indirect=True)
"""The test is run on a tier of parts."""


@pytest.fixture(scope="module")
def history(request: pytest.FixtureRequest) -> Run:
    """What the first life left; every test goes on from copies of it."""
    run = Run(packed=getattr(request, "param", False))
    asyncio.run(run.life(1, HISTORY))
    return run


@pytest.fixture(scope="module")
def undisturbed(history: Run) -> Published:
    """What is published if no process dies."""
    return asyncio.run(without_deaths(Run(history)))


async def without_deaths(run: Run) -> Published:
    second = await run.life(2, BURSTS)
    assert second.error is None
    result = await run.finish(lose_local=False)
    assert {q: len(units) // 20 for q, units in result.units.items()} == {
        queue: len(run.hot.queues[queue].records) for queue in QUEUES
    }
    assert sum(map(len, result.segments.values())) > 12
    return result


async def die_at_every(
    history: Run,
    undisturbed: Published,
    kind: Kind,
    *,
    verb: str = "",
    prefix: str = "",
    step: int = 1,
) -> int:
    """Kill the second life at its n-th matching request, for every n; returns how many."""
    call, deaths = 1, 0
    while True:
        run = Run(history)
        second = await run.life(2, BURSTS, [Fault(kind, verb, prefix, calls=(call,))])
        assert await run.finish(lose_local=call % 2 == 0) == undisturbed
        if not second.store.struck:
            return deaths
        deaths += second.killed  # a request that fails by itself is survived
        call += step


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
async def test_death_at_any_request_changes_no_byte(
    kind: Kind, history: Run, undisturbed: Published
) -> None:
    deaths = await die_at_every(history, undisturbed, kind, step=STRIDE)
    assert deaths * STRIDE > 60


# One test for each row of the matrix: what is struck, and how often that must have happened.
ROWS: list[tuple[str, Kind, str, str, int]] = [
    ("before the data write", "crash_before", "append", "", 4),
    ("during the data write", "crash_torn", "append", "", 4),
    ("after the data, before the journal", "crash_before", "create", "@journal/", 5),
    ("in the journal, before it is known", "crash_after", "create", "@journal/", 5),
    ("during the delete of a tombstone's object", "crash_before", "delete", "@manifest/", 1),
    ("after the delete of a tombstone's object", "crash_after", "delete", "@manifest/", 1),
    ("snapshot written, boundary not", "crash_after", "create", "@snapshot/", 1),
    ("boundary written, journal not deleted", "crash_before", "delete", "@journal/", 1),
    ("journal deleted, and not known to be", "crash_after", "delete", "@journal/", 1),
    ("manifest written, and not published", "crash_after", "create", "@manifest/", 1),
]


LONG_ROWS = {ROWS[2], ROWS[3], ROWS[-1]}
LONG_STEP = by_level(quick=3, full=3, nightly=1)
"""By day, every third request of these rows is struck."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=row[0].replace(" ", "-"),
            marks=[pytest.mark.slow, pytest.mark.scales] if row in LONG_ROWS else [],
        )
        for row in ROWS
    ],
)
async def test_a_row_of_the_crash_matrix(
    row: tuple[str, Kind, str, str, int], history: Run, undisturbed: Published
) -> None:
    _, kind, verb, prefix, deaths_min = row
    step = LONG_STEP if row in LONG_ROWS else 1
    deaths = await die_at_every(history, undisturbed, kind, verb=verb, prefix=prefix, step=step)
    assert deaths * step >= deaths_min, f"only {deaths}"


PART_ROWS: list[tuple[Kind, int]] = [("crash_before", 4), ("crash_after", 4), ("lost_reply", 0)]


@pytest.mark.slow
@PACKED
@pytest.mark.parametrize(("kind", "deaths_min"), PART_ROWS)
async def test_a_part_is_whole_or_nothing_whatever_becomes_of_its_writer(
    kind: Kind, deaths_min: int, history: Run, undisturbed: Published
) -> None:
    deaths = await die_at_every(history, undisturbed, kind, verb="create", prefix="@parts/")
    assert deaths >= deaths_min, f"only {deaths}"


@PACKED
@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "late"])
async def test_a_tier_of_parts_is_the_same_whatever_becomes_of_any_request(
    kind: Kind, history: Run, undisturbed: Published
) -> None:
    step = 1 if STRIDE == 1 else 2 * STRIDE
    deaths = await die_at_every(history, undisturbed, kind, step=step)
    assert kind == "late" or deaths * step > 60


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", ["lost_reply", "refused", "late", "short"])
async def test_a_failed_request_of_any_kind_is_settled_by_the_same_owner(
    kind: Kind, history: Run, undisturbed: Published
) -> None:
    call, step = 1, 1 if STRIDE == 1 or kind == "short" else 2 * STRIDE
    while True:
        run = Run(history)
        second = await run.life(2, BURSTS, [Fault(kind, calls=(call,))])
        assert second.error is None
        await second.store.land_late()
        assert await run.finish(lose_local=call % 2 == 0) == undisturbed
        if not second.store.struck:
            break
        call += step
    assert call > (4 if kind == "short" else 60 if kind != "late" else 15)


@pytest.mark.parametrize("kind", ["lost_reply", "late", "refused"])
async def test_an_unknown_journal_entry_is_in_it_once(
    kind: Kind, history: Run, undisturbed: Published
) -> None:
    run = Run(history)
    second = await run.life(2, BURSTS, [Fault(kind, "create", "@journal/", probability=0.5)])
    assert second.error is None
    assert second.store.struck[kind] >= 5
    assert await run.finish(lose_local=True) == undisturbed


async def test_a_fence_written_meanwhile_stops_the_writer_and_hides_its_round(
    history: Run, undisturbed: Published
) -> None:
    run = Run(history)
    old = StoreProcess(run.memory, run.hot.reopened(), run.clock, 2)

    async def sleeps_after_its_data(process: StoreProcess) -> None:
        process.store.faults = [Fault("stalled", "create", "@journal/")]
        run.write(BURSTS.stop)
        await run.clock.sleep(5.0)  # its bytes are written, its entry is on its way
        before = await contents(await TierReader.open(run.memory.another_client()))
        new = await run.life(3, range(0))
        assert new.epoch == process.epoch + 1
        process.store.faults = []
        process.store.released.set()
        await settle(100)
        after = await contents(await TierReader.open(run.memory.another_client()))
        assert {q: c.record.next_offset >= before[q].record.next_offset for q, c in after.items()}
        await run.clock.sleep(5.0)

    await while_time_passes(run.clock, old.live(sleeps_after_its_data), shown=old)
    assert isinstance(old.error, Fenced)
    old.kill()
    result = await run.finish(lose_local=False)
    assert (result.logs, result.units) == (undisturbed.logs, undisturbed.units)
