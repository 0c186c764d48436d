"""Rival owners over a failing store, hundreds of seeds: what was acknowledged is what is read."""

from collections import Counter

import pytest

from tests.support.journal_simulation import simulate

SEEDS = 300
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
async def test_acknowledged_history_is_replayed_history(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        result = await simulate(seed, owners=2 + seed % 2)
        totals["acknowledged"] += len(result.acknowledged)
        totals["followed"] += len(result.followed)
        totals["deleted"] += result.deleted
        totals["fenced"] += result.errors.get("Fenced", 0)
        totals["strays"] += result.strays
    assert totals["acknowledged"] > 10 * CHUNK, f"the simulation does too little: {totals}"
    assert totals["deleted"] > 2 * CHUNK, f"nothing was ever cut: {totals}"
    assert totals["fenced"] > CHUNK / 25, f"hardly anybody was ever fenced: {totals}"
