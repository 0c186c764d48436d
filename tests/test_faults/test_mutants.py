"""The simulations notice every changed rule of the protocol: each mutant dies within some seeds.

`tests/support/killing_seeds.py` names one seed for each; where that one does not kill any more, as
after a change of the simulation, others are tried.
"""

from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.support import deletion_mutants, killing_seeds, protocol_mutants, upkeep_mutants
from tests.support.journal_simulation import simulate
from tests.support.level import by_level
from tests.support.owner_mutants import OF_OWNERS
from tests.support.owner_simulation import simulate_owners
from tests.support.protocol_mutants import Mutant
from tests.support.store_simulation import simulate_files, simulate_objects

SEEDS_MAX = 250
OF_STORES = [
    *protocol_mutants.OF_STORES,
    *upkeep_mutants.OF_STORES,
    *deletion_mutants.OF_STORES,
]
OF_FILES = [*upkeep_mutants.OF_FILES, *deletion_mutants.OF_FILES]
OF_JOURNALS = [
    *protocol_mutants.OF_JOURNALS,
    *upkeep_mutants.OF_JOURNALS,
    *deletion_mutants.OF_JOURNALS,
]
WANTED = 46


def test_there_are_as_many_mutants_as_were_wanted() -> None:
    assert len({*OF_STORES, *OF_FILES, *OF_JOURNALS, *OF_OWNERS}) >= WANTED


def test_a_seed_is_named_for_each_mutant_and_for_nothing_else() -> None:
    for mutants, seeds in (
        (OF_STORES, killing_seeds.OF_STORES),
        (OF_FILES, killing_seeds.OF_FILES),
        (OF_JOURNALS, killing_seeds.OF_JOURNALS),
        (OF_OWNERS, killing_seeds.OF_OWNERS),
    ):
        assert seeds.keys() == {one.__name__ for one in mutants}


@pytest.fixture(autouse=True)
def tiers_are_sound() -> None:
    """A mutant leaves what it leaves."""


def assert_is_no_slip(error: BaseException) -> None:
    """A mutant dies of what it breaks, not of a slip of the pen in it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            assert_is_no_slip(one)
    assert not isinstance(error, NameError | AttributeError | TypeError), repr(error)


def seeds_of(mutant: Mutant, named: Mapping[str, int], seeds_max: int) -> Iterator[int]:
    """The seed that is named first, then all others."""
    first = named[mutant.__name__]
    yield first
    yield from (seed for seed in range(seeds_max) if seed != first)


def assert_dies(mutant: Mutant, seeds: Iterator[int], run: Callable[[int], object]) -> None:
    """One of the seeds must notice."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in seeds:
            try:
                run(seed)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it was noticed
                assert_is_no_slip(error)
                print(f"{mutant.__name__}: seed {seed}")
                return
    pytest.fail(f"lives: {mutant.__doc__}")


def some_by_day(mutants: list[Mutant]) -> pytest.MarkDecorator:
    """Every seventh by day: the night, and `make mutants`, have them all."""
    given = [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.nightly] if number % 7 else [])
        for number, one in enumerate(mutants)
    ]
    return pytest.mark.parametrize("mutant", given)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@some_by_day(OF_STORES)
def test_the_simulation_of_stores_kills(mutant: Mutant) -> None:
    seeds = seeds_of(mutant, killing_seeds.OF_STORES, SEEDS_MAX)
    assert_dies(mutant, seeds, simulate_objects)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@some_by_day(OF_FILES)
def test_the_simulation_of_files_that_grow_kills(mutant: Mutant) -> None:
    assert_dies(mutant, seeds_of(mutant, killing_seeds.OF_FILES, SEEDS_MAX), simulate_files)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@some_by_day(OF_JOURNALS)
def test_the_simulation_of_the_journal_kills(mutant: Mutant) -> None:
    seeds = seeds_of(mutant, killing_seeds.OF_JOURNALS, 4 * SEEDS_MAX)
    assert_dies(mutant, seeds, lambda seed: simulate(seed, owners=2 + seed % 2))


@pytest.mark.parametrize("mutant", OF_OWNERS, ids=lambda one: one.__name__)
def test_the_simulation_of_owners_kills(mutant: Mutant) -> None:
    assert_dies(mutant, seeds_of(mutant, killing_seeds.OF_OWNERS, SEEDS_MAX), simulate_owners)


@pytest.mark.scales
@pytest.mark.parametrize("seed", range(by_level(quick=10, full=25, nightly=2_000)))
def test_a_living_owner_keeps_its_tier_and_all_others_are_replaced_in_time(seed: int) -> None:
    simulate_owners(seed)
