"""Owners, merges, deletions and readers over a faulty store, twenty times a second.

The oracle is that of `tests/support/store_simulation.py`: what was acknowledged is readable, byte
for byte, always; nobody acknowledges after being fenced; and once everything is quiet the set of
objects equals the set of referenced objects. Files that grow have fewer seeds: most of them are in
`test_store_owners.py`. `SEEDS=N make simulate` runs more; a seed that fails says its number, and
runs alone with `SEEDS=1 FIRST=number make simulate`.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from provider.testing.faulty import Fault
from tests.support import store_simulation
from tests.support.level import by_level
from tests.support.store_simulation import simulate_files, simulate_objects

CHUNKS = 8
CHUNKS_OF_OBJECTS = 3
"""Odd, for every fourth seed cuts queues: each chunk has some."""
SEEDS = int(os.environ.get("SEEDS") or by_level(quick=36, full=66, nightly=2_000))
SEEDS_OF_FILES = int(os.environ.get("SEEDS") or by_level(quick=16, full=32, nightly=1_000))
FIRST = int(os.environ.get("FIRST", "0"))


def simulated(simulate: Callable[[int], Counter[str]], seeds: Sequence[int]) -> Counter[str]:
    """What all seeds did together; one that fails says how it runs alone."""
    totals: Counter[str] = Counter()
    for seed in seeds:
        try:
            totals.update(simulate(seed))
        except BaseException as error:
            error.add_note(f"SEEDS=1 FIRST={seed} make simulate")
            raise
    assert totals["runs"] == len(seeds)
    return totals


@pytest.mark.scales
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(CHUNKS_OF_OBJECTS))
def test_objects_are_what_is_referenced_and_acknowledged_is_readable(chunk: int) -> None:
    seeds = range(FIRST + chunk, FIRST + SEEDS, CHUNKS_OF_OBJECTS)
    totals = simulated(simulate_objects, seeds)
    if len(seeds) < 20:
        return
    assert totals["repack_jobs"] > len(seeds), f"hardly anything is merged: {totals}"
    assert totals["fenced"] > len(seeds) / 8, totals
    assert totals["expired"] > 0, totals
    assert totals["parts_unreferenced"] > 0, totals
    assert totals["held"] > len(seeds), f"hardly anybody slept over a deletion: {totals}"
    assert totals["fetched"] > len(seeds) / 4, totals
    assert totals["cut"] > len(seeds) / 16, f"hardly a queue was cut: {totals}"
    if len(seeds) < 200:
        return
    seldom = ("held too long", "offloaded_segments", "compacted", "scrub_rounds", "deleted")
    for actor in (*seldom, "outages", "put back"):
        assert totals[actor] > 0, f"{actor}: {totals}"


@pytest.mark.scales
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_files_are_what_is_referenced_and_acknowledged_is_readable(chunk: int) -> None:
    seeds = range(FIRST + chunk, FIRST + SEEDS_OF_FILES, CHUNKS)
    totals = simulated(simulate_files, seeds)
    if len(seeds) < 10:
        return
    assert totals["fenced"] > len(seeds) / 8, totals
    assert totals["held"] > len(seeds) / 2, f"hardly anybody slept over a deletion: {totals}"
    if len(seeds) < 100:
        return
    by_kind = {1: ("expired", "deleted"), 6: ("cut",), 7: ("expired", "deleted", "cut", "put back")}
    for actor in ("compacted", "fetched", *by_kind.get(seeds[0] % CHUNKS, ())):
        assert totals[actor] > 0, f"{actor}: {totals}"


def test_a_queue_that_is_deleted_while_it_is_tiered_again_begins_at_its_oldest_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was cut, and the hot log loses messages amid its commit: what is released goes back."""
    slow = Fault("delayed", "create", "@manifest/", 0.5, delay_s=0.5)
    monkeypatch.setattr(store_simulation, "SLOW_READS", (slow,))
    assert simulate_files(479)["deleted"]
