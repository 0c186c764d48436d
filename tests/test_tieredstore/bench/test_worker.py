"""The process that is measured: its errors arrive, and so does its death."""

import os
from pathlib import Path

import numpy as np
import pytest

from provider.errors import StoreError
from tieredstore.bench.measure import READ_SHAPES, TIER, TIER_INDEXED, Worker
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store

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
