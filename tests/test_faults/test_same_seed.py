"""The same seed gives the same run: every request, its moment and its outcome."""

import pytest

from tests.support.journal_simulation import JournalSimulation
from tests.support.simulated_time import traced
from tests.support.store_simulation import StoreSimulation


async def journal(seed: int) -> None:
    await JournalSimulation(seed, owners=2 + seed % 2).run()


async def store(seed: int) -> None:
    await StoreSimulation(seed).run()


@pytest.mark.parametrize("seed", range(12))
def test_rival_journals_do_the_same_twice(seed: int) -> None:
    first, second = traced(journal(seed)), traced(journal(seed))
    assert len(first) > 20
    assert first == second


@pytest.mark.parametrize("seed", range(3))
def test_rival_stores_do_the_same_twice(seed: int) -> None:
    first, second = traced(store(seed)), traced(store(seed))
    assert len(first) > 20
    assert first == second
