"""Owners, merges, deletions and readers over a faulty object store, twenty times a second.

The oracle is that of `tests/support/store_simulation.py`: what was acknowledged is readable, byte
for byte, always; nobody acknowledges after being fenced; and once everything is quiet the set of
objects equals the set of referenced objects. `SEEDS=N make simulate` runs more; a seed that fails
says its number, and runs alone with `SEEDS=1 FIRST=number make simulate`.
"""

import os
from collections import Counter

import pytest

from tests.support.level import by_level
from tests.support.store_simulation import simulate_objects

CHUNKS = 8
SEEDS = int(os.environ.get("SEEDS") or by_level(quick=56, full=160, nightly=2_000))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.mark.scales
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_objects_are_what_is_referenced_and_acknowledged_is_readable(chunk: int) -> None:
    totals: Counter[str] = Counter()
    seeds = range(FIRST + chunk, FIRST + SEEDS, CHUNKS)
    for seed in seeds:
        try:
            totals.update(simulate_objects(seed))
        except BaseException as error:
            error.add_note(f"SEEDS=1 FIRST={seed} make simulate")
            raise
    if len(seeds) < 20:
        return
    assert totals["runs"] == len(seeds)
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
