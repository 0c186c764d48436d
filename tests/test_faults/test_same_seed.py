"""The same seed gives the same run: every request, its moment and its outcome."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.journal_simulation import JournalSimulation
from tests.support.patience import communicated
from tests.support.simulated_time import traced
from tests.support.store_simulation import StoreSimulation

ROOT = Path(__file__).parents[2]
SEEDS = range(3)


async def journal(seed: int) -> None:
    await JournalSimulation(seed, owners=2 + seed % 2).run()


async def store(seed: int, *, packed: bool = False, expires: bool = False) -> None:
    await StoreSimulation(seed, packed=packed, expires=expires).run()


@pytest.mark.parametrize("seed", range(12))
def test_rival_journals_do_the_same_twice(seed: int) -> None:
    first, second = traced(journal(seed)), traced(journal(seed))
    assert len(first) > 20
    assert first == second


@pytest.mark.parametrize("seed", SEEDS)
def test_rival_stores_do_the_same_twice(seed: int) -> None:
    first, second = traced(store(seed)), traced(store(seed))
    assert len(first) > 20
    assert first == second


@pytest.mark.slow
def test_rivals_do_the_same_in_processes_that_hash_differently() -> None:
    """Names in a set have another order in each process; nothing may follow that order."""
    program = "from tests.test_faults.test_same_seed import digests; print(*digests(), sep='\\n')"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (communicated(process)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(first.splitlines()) == 5 * len(SEEDS)
    assert first == second


def digests() -> list[str]:
    """What each run of this process was, in a line."""
    runs = [
        *(journal(seed) for seed in SEEDS),
        *(store(seed) for seed in SEEDS),
        *(store(seed, packed=True) for seed in SEEDS),
        *(store(seed, packed=True, expires=True) for seed in SEEDS),
        *(store(seed, expires=True) for seed in SEEDS),
    ]
    return [sha256(repr(traced(run)).encode()).hexdigest() for run in runs]
