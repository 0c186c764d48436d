"""What happens before something is timed."""

import mmap
import os
import resource
from pathlib import Path

import pytest

from tieredstore.bench.figure import settle
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
