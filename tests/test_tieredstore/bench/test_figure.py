"""What happens before something is timed."""

import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from provider.errors import StoreError
from tieredstore.bench.measure import READ_SHAPES, TIER, TIER_INDEXED, Worker, settle
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store

MIB = 1 << 20


def faults() -> int:
    """Pages that this process has touched for the first time so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_bytes() -> int:
    """What this process occupies now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each `sync` of the machine, which tests have no time for."""
    seen: list[int] = []
    monkeypatch.setattr(os, "sync", lambda: seen.append(1))
    return seen


def test_memory_is_touched_and_given_back(syncs: list[int]) -> None:
    settle()
    before, occupied = faults(), resident_bytes()
    settle(64 * MIB)
    assert faults() - before >= 64 * MIB // (2 * MIB), "a fault for each huge page at least"
    assert resident_bytes() < occupied + 32 * MIB
    assert len(syncs) == 2


def test_no_more_than_half_of_the_free_memory_is_touched(
    monkeypatch: pytest.MonkeyPatch, syncs: list[int]
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda _: 8)
    before = faults()
    settle(1 << 50)
    assert faults() - before < 1000
    assert syncs


def test_a_store_says_more_memory_than_its_bytes(tmp_path: Path) -> None:
    made = SyntheticStore(messages=50, body_bytes=100, queues=2)
    assert write_synthetic_store(tmp_path / "store", made) < made.memory_bytes // 2


MADE = SyntheticStore(messages=200, body_bytes=100, queues=2)


@pytest.mark.slow
def test_one_process_tiers_and_reads_everything(tmp_path: Path) -> None:
    size = write_synthetic_store(tmp_path / "store", MADE)
    with Worker() as worker:
        process = worker._call(os.getpid)
        tiered = worker.tier(tmp_path / "store", tmp_path / "tier", MADE)
        read = worker.read(tmp_path / "tier", MADE)
        indexed = worker.tier(tmp_path / "store", tmp_path / "indexed", MADE, indexed=True)
        assert worker._call(os.getpid) == process != os.getpid()
        assert worker.peak_bytes() > 1 << 20
    assert (tiered.metric, tiered.messages, tiered.bytes) == (TIER, 200, size + 20 * 200)
    assert (indexed.metric, indexed.messages) == (TIER_INDEXED, 200)
    assert [figure.metric for figure in read] == [shape.metric for shape in READ_SHAPES]
    assert [figure.messages for figure in read] == [200 * shape.readers for shape in READ_SHAPES]
    for figure in (tiered, *read):
        assert figure.cpu_us == pytest.approx(1e6 * figure.cpu_seconds / figure.messages)


@pytest.mark.slow
def test_its_peak_holds_none_of_the_memory_of_the_process_that_started_it() -> None:
    touched = np.ones(1 << 29, np.uint8)
    with Worker() as worker:
        assert worker.peak_bytes() < touched.nbytes
        assert worker.peak_bytes() > 1 << 20


@pytest.mark.slow
def test_what_the_measured_code_raises_arrives(tmp_path: Path) -> None:
    with Worker() as worker, pytest.raises(StoreError):
        worker.read(tmp_path / "none", MADE)


def test_a_process_that_dies_is_a_runtime_error() -> None:
    with Worker() as worker, pytest.raises(RuntimeError):
        worker._call(os._exit, 3)
