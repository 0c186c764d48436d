"""Owners, merges, deletions and readers over a faulty object store, a second a hundred times over.

The oracle is that of `tests/support/store_simulation.py`: what was acknowledged is readable, byte
for byte, always; nobody acknowledges after being fenced; and once everything is quiet the set of
objects equals the set of referenced objects. `SEEDS=N make simulate` runs more; a seed that fails
says its number, and runs alone with `SEEDS=1 FIRST=number make simulate`.
"""

import os
from collections import Counter

import pytest

from tests.support.store_simulation import simulate_store

CHUNKS = 8
STEPS = 6
SEEDS = int(os.environ.get("SEEDS", "800" if os.environ.get("CI") else "80"))
FIRST = int(os.environ.get("FIRST", "0"))


def _expires(seed: int) -> bool:
    """Whether messages expire under a seed: under every other one of each chunk."""
    return seed // CHUNKS % 2 == 1


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_objects_are_what_is_referenced_and_acknowledged_is_readable(chunk: int) -> None:
    totals: Counter[str] = Counter()
    seeds = range(FIRST + chunk, FIRST + SEEDS, CHUNKS)
    for seed in seeds:
        try:
            totals.update(simulate_store(seed, packed=True, expires=_expires(seed), steps=STEPS))
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
