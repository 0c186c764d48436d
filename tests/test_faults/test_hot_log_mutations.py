"""A hot log whose files were mutated: what is lacking is said, and no offset is given twice."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.hot_mutations import Judge
from tests.support.level import by_level

MUTATIONS = (1, 1, 2, 4)
"""How many there are in one store, in turn."""
BY_DAY = Counter(lacking=11, refused=6, opened=31)
"""At least so many stores of seed 0 end so; of other seeds, at least one. Few are refused."""


@pytest.mark.scales
@pytest.mark.parametrize("seed", range(by_level(quick=1, full=5, nightly=50)))
def test_mutations_of_every_file(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # no power failure here
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    judge = Judge(tmp_path, seed)
    for number in range(60):
        judge.judge(number, mutations=MUTATIONS[number % 4])
    assert judge.failures == []
    assert judge.counts >= (Counter(set(BY_DAY)) if seed else BY_DAY)


STATE = ("durableEnds", "durableEnds.copy", "checkpoint")


@pytest.mark.parametrize("end", ["closed", "durable", "killed"])
def test_older_copies_of_each_file_and_of_some_together(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    judge = Judge(tmp_path, 0)
    older = tmp_path / f"older {end}"
    files = [str(one.relative_to(older)) for one in sorted(older.rglob("*")) if one.is_file()]
    for name in files:
        if name not in {"lock", "abort"}:
            judge.judge_older(end, [name])
    for names in (["config"], ["consumequeue"], ["commitlog"], STATE, ["commitlog", *STATE]):
        judge.judge_older(end, names)
    assert judge.failures == []
    assert judge.counts["opened"] > len(files)
    assert judge.counts["refused"] or end != "closed"


def test_a_last_file_that_lost_its_records_beside_their_units_is_told(tmp_path: Path) -> None:
    """Two mutations at once leave what a crash before the append would, but for the length."""
    judge = Judge(tmp_path, 33)
    judge.judge(14, mutations=MUTATIONS[14 % 4])
    assert judge.failures == []


def test_a_store_that_is_not_mutated_has_everything(tmp_path: Path) -> None:
    judge = Judge(tmp_path, 0)
    for number in range(8):
        judge.judge(number, mutations=0)
    assert judge.failures == []
    assert judge.counts["lacking"] == judge.counts["refused"] == 0
