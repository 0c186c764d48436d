"""The simulations notice every changed rule of the protocol: each mutant dies within some seeds."""

import pytest

from tests.support import protocol_mutants, upkeep_mutants
from tests.support.journal_simulation import simulate
from tests.support.protocol_mutants import Mutant
from tests.support.store_simulation import simulate_store

SEEDS_MAX = 150
OF_STORES = [*protocol_mutants.OF_STORES, *upkeep_mutants.OF_STORES]
OF_JOURNALS = [*protocol_mutants.OF_JOURNALS, *upkeep_mutants.OF_JOURNALS]
WANTED = 30


def test_there_are_as_many_mutants_as_were_wanted() -> None:
    assert len({*OF_STORES, *upkeep_mutants.OF_FILES, *OF_JOURNALS}) >= WANTED


@pytest.fixture(autouse=True)
def tiers_are_sound() -> None:
    """A mutant leaves what it leaves."""


def assert_is_no_slip(error: BaseException) -> None:
    """A mutant dies of what it breaks, not of a slip of the pen in it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            assert_is_no_slip(one)
    assert not isinstance(error, NameError | AttributeError | TypeError), repr(error)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mutant", OF_STORES, ids=lambda one: one.__name__)
def test_the_simulation_of_stores_kills(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(SEEDS_MAX):
            try:
                simulate_store(seed, packed=True, expires=seed % 2 == 1, steps=6)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it was noticed
                assert_is_no_slip(error)
                return
    pytest.fail(f"lives: {mutant.__doc__}")


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mutant", upkeep_mutants.OF_FILES, ids=lambda one: one.__name__)
def test_the_simulation_of_files_that_grow_kills(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(SEEDS_MAX):
            try:
                simulate_store(seed, expires=seed % 2 == 1, steps=8)
            except BaseException as error:  # noqa: BLE001 - as above
                assert_is_no_slip(error)
                return
    pytest.fail(f"lives: {mutant.__doc__}")


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mutant", OF_JOURNALS, ids=lambda one: one.__name__)
def test_the_simulation_of_the_journal_kills(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(4 * SEEDS_MAX):
            try:
                simulate(seed, owners=2 + seed % 2)
            except BaseException as error:  # noqa: BLE001 - as above
                assert_is_no_slip(error)
                return
    pytest.fail(f"lives: {mutant.__doc__}")
