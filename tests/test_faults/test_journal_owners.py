"""Rival owners over a failing store, many seeds: what was acknowledged is what is read."""

from collections import Counter

import pytest

from tests.support.journal_simulation import simulate
from tests.support.level import LEVEL, by_level

CHUNK = by_level(quick=25, full=90, nightly=300)
CHUNKS = by_level(quick=2, full=1, nightly=20)


@pytest.mark.scales
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_acknowledged_history_is_replayed_history(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        try:
            totals.update(simulate(seed, owners=2 + seed % 2))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert totals["acknowledged"] > 10 * CHUNK, f"the simulation does too little: {totals}"
    if LEVEL == "quick":  # too few seeds for what happens seldom
        return
    assert totals["deleted"] > 8 * CHUNK, f"nothing was ever cut: {totals}"
    assert totals["fenced"] > CHUNK / 4, f"hardly anybody was ever fenced: {totals}"
    assert totals["naps"] > 2 * CHUNK, totals
    assert totals["created again"] > CHUNK / 15, f"nobody wrote below the boundary: {totals}"
    assert totals["landed late"] > CHUNK / 4, totals
    assert totals["lost"] > 0, f"the power took nothing: {totals}"


def test_a_snapshot_that_is_replaced_while_it_is_listed_is_not_missing() -> None:
    """The listing shows neither the old one nor the new one."""
    assert simulate(15_136, owners=2)["acknowledged"] > 10
