"""Power failures under the real store on a directory: what `disk_model` says a disk may hold then.

By day some hundred states; thousands in `make test-nightly`. The harness must find what
is wrong with a provider that leaves out, or takes for granted, any one sync.
"""

import inspect
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import ModuleType
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from container.options import TierOptions
from container.tier_view import TierReader
from provider.errors import NotFound
from provider.options import PosixOptions
from provider.posix import directories, files, store
from provider.ranges import QueueOffset
from tests.support.disk_model import Disk
from tests.support.inline_store import InlineStore
from tests.support.level import by_level
from tests.support.simulated_time import SimulatedClock, simulated
from tests.support.store_harness import (
    DISPATCH_OPTIONS,
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    tiers_all,
)
from tests.support.store_reader import assert_follows, contents, findings
from tests.support.traced_calls import CallFaults, TracedCalls

KIB = 1 << 10
QUEUES = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Refunds", 0)]
POSIX = PosixOptions(reserve_bytes=16 * KIB)
TIER = TierOptions(
    commit_log_bytes_max=24 * KIB,
    consume_queue_bytes_max=300,
    extent_bytes_max=10 * KIB,
)
DISPATCH = replace(
    DISPATCH_OPTIONS, batch_messages_max=6, batch_bytes_max=16 * KIB, bytes_in_flight_max=64 * KIB
)
UPKEEP = replace(UPKEEP_OPTIONS, snapshot_entries_max=6)
FAULTS = CallFaults(fdatasync=0.05, fsync_file=0.03, fsync_directory=0.05, full=0.03)
LIVES = 3
BURSTS = 4
"""Of messages in each life."""
BODY_BYTES_MAX = 5 * KIB
GOES_ON_EVERY = 4
"""In every so many-th state a new owner goes on."""


class AcknowledgedHotLog(StoreHotLog):
    """Notes which messages the dispatcher was told to be safe: the broker may delete them."""

    def __init__(self, clock: SimulatedClock, note: Callable[[QueueId, int], None]) -> None:
        super().__init__(clock)
        self._note = note

    def reopened(self) -> "AcknowledgedHotLog":
        other = AcknowledgedHotLog(self._clock, self._note)  # type: ignore[arg-type]
        other.queues = self.queues
        return other

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        await super().release(queue, offset)
        if offset > 0:  # where a queue begins is released, too
            self._note(queue, offset)


class Violation(AssertionError):
    """A power failure lost or changed what it must not."""


@dataclass(frozen=True)
class PowerRun:
    """The calls of a run in order, acknowledgements among them, and the broker's messages."""

    seed: int
    base: str
    calls: list[tuple[object, ...]]
    hot: StoreHotLog
    struck: Counter[str]

    def judge(self, states: int, scratch: Path, *, seed: int = 0) -> Counter[str]:
        """Judge `states` power failures, spread over the run by chance; what they showed.

        Raises:
            Violation: with the seeds that show it again.
        """
        rng = Random(f"{self.seed} {seed}")
        moments = sorted(rng.randrange(len(self.calls)) for _ in range(states))
        disk = Disk(self.base, rng)
        acknowledged: dict[QueueId, int] = {}
        counts: Counter[str] = Counter()
        made = 0
        for number, moment in enumerate(moments):
            for call in self.calls[made:moment]:
                if call[0] == "note":
                    _, queue, offset = call
                    acknowledged[queue] = max(offset, acknowledged.get(queue, 0))  # type: ignore[index,type-var]
                else:
                    disk.apply(call)
            made = moment
            state = scratch / f"state-{number}"
            disk.lose_power(state, rng)
            goes_on = number % GOES_ON_EVERY == 0
            try:
                simulated(self._judge(state, acknowledged, counts, goes_on=goes_on))
            except Exception as error:
                raise Violation(
                    f"seed {self.seed}, {states} states of seed {seed}: state {number}, after"
                    f" {moment} of {len(self.calls)} calls: {error!r}"
                ) from error
            finally:
                shutil.rmtree(state)
        return counts

    async def _judge(
        self, state: Path, acknowledged: dict[QueueId, int], counts: Counter[str], *, goes_on: bool
    ) -> None:
        counts["states"] += 1
        counts["acknowledged"] += sum(acknowledged.values())
        counts["tiers"] += await self._look(state / "tier", acknowledged)
        if not goes_on:
            return
        clock = SimulatedClock()
        store = InlineStore(state / "tier", options=POSIX, clock=clock)
        process = StoreProcess(
            store,
            self.hot.reopened(),
            clock,
            self.seed,
            tier=TIER,
            dispatch=DISPATCH,
            upkeep=UPKEEP,
        )
        await process.live(tiers_all)
        process.client.kill()
        assert process.error is None, process.error
        everything = {queue: len(self.hot.queues[queue].records) for queue in QUEUES}
        assert await self._look(state / "tier", everything)
        counts["went on"] += 1

    async def _look(self, root: Path, acknowledged: dict[QueueId, int]) -> bool:
        """Compare what a reader sees with what it must; whether there is a tier."""
        store = InlineStore(root)
        try:
            try:
                reader = await TierReader.open(store, verify=True)
            except NotFound:
                assert not acknowledged, "the whole tier is lost"
                return False
            seen = await contents(reader)
            for queue, offset in acknowledged.items():
                assert queue in seen, f"{queue} was acknowledged and is lost"
                end = seen[queue].record.next_offset
                assert end >= offset, f"{queue} was acknowledged to {offset} and ends at {end}"
            for queue, one in seen.items():
                assert_follows(one, self.hot.queues[queue])
                assert len(one.offsets) == one.record.next_offset, f"{queue} has a gap"
            found = await findings(store)
            assert found == [], found
        finally:
            store.kill()
        return True


def record(seed: int, base: Path, *, faults: CallFaults = FAULTS) -> PowerRun:
    """Tier some messages below `base`, a new directory, and record the calls of it."""
    rng = Random(seed)
    base.mkdir()
    calls = TracedCalls(str(base), faults, rng)

    async def run() -> StoreHotLog:
        clock = SimulatedClock()
        hot = AcknowledgedHotLog(clock, calls.note)
        store = InlineStore(base / "tier", options=POSIX, clock=clock)
        for life in range(LIVES):
            process = StoreProcess(
                store.another_client(),
                hot.reopened(),
                clock,
                1000 * seed + life,
                tier=TIER,
                dispatch=DISPATCH,
                upkeep=UPKEEP,
            )
            dies = life == 1

            async def lives(process: StoreProcess, *, dies: bool = dies) -> None:
                assert process.dispatcher is not None
                for _ in range(BURSTS):
                    _write(hot, rng)
                    await clock.sleep(0.4)
                if dies:
                    process.kill()
                else:
                    await process.dispatcher.drain(patience_s=None)

            await process.live(lives)
            if not dies:
                assert process.error is None, process.error
            process.client.kill()
        return hot

    with calls.traced():
        hot = simulated(run())
    return PowerRun(seed, str(base), calls.calls, hot, calls.struck)


def _write(hot: StoreHotLog, rng: Random) -> None:
    for queue in QUEUES:
        sizes = [rng.choice([20, 700, BODY_BYTES_MAX]) for _ in range(rng.randint(0, 5))]
        hot.append(queue, *[rng.randbytes(rng.randint(0, size)) for size in sizes])


RUNS = by_level(quick=2, full=2, nightly=200)
STATES = 50
"""Power failures that are judged in one run."""
MUTANT_RUNS_MAX = 12


@pytest.fixture
def nothing_blocks_the_loop() -> None:
    """Calls block here: the loop's time is simulated, and the store has no threads."""


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_power_failure_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    run = record(seed, tmp_path / "run")
    counts = run.judge(STATES, tmp_path)
    assert counts["states"] == STATES
    assert counts["went on"] >= STATES // GOES_ON_EVERY
    assert counts["tiers"] > STATES // 2
    assert counts["acknowledged"] > 10 * STATES, f"the run does too little: {counts}"
    assert run.struck.total() > 5, f"hardly any call failed: {run.struck}"


def test_a_power_failure_of_a_short_run_loses_nothing_acknowledged(tmp_path: Path) -> None:
    assert record(1_000, tmp_path / "run").judge(12, tmp_path)["states"] == 12


@dataclass(frozen=True)
class Mutant:
    """A provider with one mistake: `old` of a module's source is `new`, in one of its names."""

    module: ModuleType
    name: str
    """What is taken from the changed module, `Class.method` or a function."""
    used_by: ModuleType
    old: str
    new: str

    @contextmanager
    def installed(self) -> Iterator[None]:
        source = inspect.getsource(self.module)
        assert source.count(self.old) == 1, "the source has changed: change the mutant"
        changed = ModuleType(self.module.__name__)
        exec(compile(source.replace(self.old, self.new), self.name, "exec"), changed.__dict__)
        owner, _, leaf = self.name.rpartition(".")
        target = getattr(self.used_by, owner) if owner else self.used_by
        wrong = getattr(getattr(changed, owner) if owner else changed, leaf)
        with patch.object(target, leaf, wrong):
            yield


MUTANTS = {
    "directories-are-not-synced": Mutant(
        files,
        "sync_directory",
        directories,
        "            os.fsync(fd)\n        except OSError as error:\n",
        "            os.fstat(fd)\n        except OSError as error:\n",
    ),
    "new-directories-are-not-synced": Mutant(
        directories,
        "Directories.unsynced",
        directories,
        "        return sorted({_parent(path) for path in placed if path != self.root})\n",
        "        return []\n",
    ),
    "a-failed-sync-of-directories-is-not-made-again": Mutant(
        store,
        "AppendRounds._sync_directories",
        store,
        "        self._in_parallel(sync, sorted(folders))\n"
        "        self._directories.settle(placed)\n",
        "        self._directories.settle(placed)\n"
        "        self._in_parallel(sync, sorted(folders))\n",
    ),
    "data-is-not-synced": Mutant(
        store,
        "_sync",
        store,
        "            sync_data(fd)\n",
        "            os.fstat(fd)\n",
    ),
    "a-failed-sync-is-made-again": Mutant(
        store,
        "_sync",
        store,
        "            sync_data(fd)\n",
        "            try:\n"
        "                sync_data(fd)\n"
        "            except OSError:\n"
        "                sync_data(fd)\n",
    ),
    "a-failed-sync-is-ignored": Mutant(
        store,
        "_sync",
        store,
        "            sync_data(fd)\n",
        "            with suppress(OSError):\n                sync_data(fd)\n",
    ),
    "an-object-has-its-name-before-it-is-synced": Mutant(
        store,
        "PosixWork._create",
        store,
        "                    os.fsync(fd)\n"
        "                finally:\n"
        "                    os.close(fd)\n"
        "                os.link(temporary, path)\n",
        "                    os.link(temporary, path)\n"
        "                    os.fsync(fd)\n"
        "                finally:\n"
        "                    os.close(fd)\n",
    ),
    "an-object-is-not-synced": Mutant(
        store,
        "PosixWork._create",
        store,
        "                    os.fsync(fd)\n",
        "",
    ),
}


MUTANTS_BY_DAY = ("directories-are-not-synced", "data-is-not-synced", "an-object-is-not-synced")
"""One of each kind of sync; the night, and `make mutants`, have them all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[] if one in MUTANTS_BY_DAY else [pytest.mark.nightly])
        for one in MUTANTS
    ],
)
def test_a_provider_with_a_mistake_is_found_out(tmp_path: Path, name: str) -> None:
    def judge_runs() -> None:
        for seed in range(MUTANT_RUNS_MAX):
            with MUTANTS[name].installed():
                run = record(seed, tmp_path / f"run-{seed}")
            run.judge(STATES, tmp_path)

    with pytest.raises(Violation):
        judge_runs()
