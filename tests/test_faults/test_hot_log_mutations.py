"""A hot log whose files were mutated: what is lacking is said, and no offset is given twice."""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from container.queue.positions import Boundary
from provider.clock import SystemClock
from provider.errors import StoreError
from tests.support.hot_mutations import MUTATIONS as KINDS
from tests.support.hot_mutations import OPTIONS, QUEUES, Judge, write
from tests.support.level import by_level
from tieredstore.store.local import LocalMessageStore

MUTATIONS = (1, 1, 2, 4)
"""How many there are in one store, in turn."""
BY_DAY = Counter(lacking=11, refused=6, opened=31)
"""At least so many stores of seed 0 end so; of other seeds, at least one. Few are refused."""


@pytest.mark.scales
@pytest.mark.parametrize("seed", range(by_level(quick=1, full=3, nightly=50)))
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


@pytest.mark.scales
@pytest.mark.parametrize("seed", range(by_level(quick=10, full=20, nightly=600)))
async def test_each_verb_over_damaged_files_answers_or_says_so(seed: int, tmp_path: Path) -> None:
    """Damaged before the store is opened, or while it is open."""
    rng, root = Random(seed), tmp_path / "store"
    end, is_open = rng.choice(["closed", "durable"]), rng.random() < 0.5
    await asyncio.to_thread(write, root, rng, end=end, older=tmp_path / "older")
    if not is_open:
        await asyncio.to_thread(harm_units_and_records, root, rng)
    with suppress(StoreError):  # damage that only a repair may pass over
        async with LocalMessageStore(root, options=OPTIONS) as store:
            if is_open:
                await asyncio.to_thread(harm_units_and_records, root, rng)
            for queue in QUEUES * 6:
                now_ms = SystemClock().now_ms()
                offset, messages = rng.randint(0, 60), rng.choice([1, 8, 32, 100])
                boundary = rng.choice(list(Boundary))
                for asked in (
                    store.is_in_memory(*queue, offset, messages),
                    store.is_in_store(*queue, offset),
                    store.get_message("g", *queue, offset, messages_max=messages),
                    store.message_store_time(*queue, offset),
                    store.earliest_message_time(*queue),
                    store.offset_by_time(*queue, rng.choice([0, now_ms, 1 << 62]), boundary),
                    store.min_offset(*queue),
                    store.max_offset(*queue),
                    store.query_message(queue.topic, f"key-{rng.randint(0, 160)}"),
                ):
                    with suppress(StoreError):
                        await asked


def harm_units_and_records(root: Path, rng: Random) -> None:
    for _ in range(rng.randint(1, 3)):
        pattern = rng.choice(["consumequeue/*/*/*", "consumequeue/*/*/*", "commitlog/*", "index/*"])
        files = sorted(root.glob(pattern))
        if files:
            path, harm = rng.choice(files), rng.choice(sorted(KINDS))
            KINDS[harm](path, rng)
