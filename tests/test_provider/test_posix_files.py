"""How bytes reach a file: in which system calls, and when the device begins."""

import os
from pathlib import Path

import numpy as np
import pytest

from provider.clock import SystemClock
from provider.options import PosixOptions
from provider.posix import files
from provider.posix.files import write_waiting
from provider.posix.store import PosixWork
from provider.ranges import ByteRange

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Every `pwrite` and `sync_file_range` from now on: position and length, in order."""
    seen: list[tuple[str, int, int]] = []
    real = os.pwrite

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        count = real(fd, data, position)
        seen.append(("write", position, count))
        return count

    def sync_file_range(_fd: int, start: int, length: int, _flags: int) -> int:
        seen.append(("begin", start, length))
        return 0

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(files, "_sync_file_range", sync_file_range)
    return seen


def written(path: Path, position: int, sizes: list[int], *, writes_back: bool) -> None:
    """Write random buffers of these sizes, and see that they are there."""
    rng = np.random.default_rng(1)
    buffers = [rng.integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    path.write_bytes(bytes(position))
    fd = os.open(path, os.O_RDWR)
    try:
        end = write_waiting(fd, position, buffers, MIB, writes_back=writes_back)
    finally:
        os.close(fd)
    assert end == position + sum(sizes)
    assert path.read_bytes() == bytes(position) + b"".join(buffers)


def test_a_large_buffer_is_copied_in_pieces_and_the_device_begins_with_each_full_mebibyte(
    tmp_path: Path, calls: list[tuple[str, int, int]]
) -> None:
    written(tmp_path / "log", 100, [2 * MIB + 300 * KIB], writes_back=True)
    assert [call for call in calls if call[0] == "begin"] == [
        ("begin", 100, MIB),
        ("begin", 100 + MIB, MIB),
    ]
    writes = [length for name, _, length in calls if name == "write"]
    assert writes == [256 * KIB] * 9 + [44 * KIB]
    assert calls.index(("begin", 100, MIB)) == 4, "it begins before the next is copied"


def test_small_buffers_share_a_write_and_the_device_does_not_begin(
    tmp_path: Path, calls: list[tuple[str, int, int]]
) -> None:
    written(tmp_path / "log", 0, [KIB] * 200, writes_back=True)
    assert calls == [("write", 0, 200 * KIB)]


def test_an_object_is_written_without_beginning_early(
    tmp_path: Path, calls: list[tuple[str, int, int]]
) -> None:
    written(tmp_path / "object", 0, [3 * MIB], writes_back=False)
    assert {name for name, _, _ in calls} == {"write"}
    assert len(calls) == 12


def test_long_reads_use_the_memory_of_those_that_nobody_looks_at_any_more(tmp_path: Path) -> None:
    raw = np.random.default_rng(2).integers(0, 256, 4 * MIB, np.uint8).tobytes()
    work = PosixWork(str(tmp_path), PosixOptions(reserve_bytes=0), SystemClock())
    try:
        work.create("log", [raw])
        kept = work.read("log", ByteRange(0, MIB))
        for at in range(0, 3 * MIB, 10 * KIB):
            assert work.read("log", ByteRange(at, at + MIB)) == raw[at : at + MIB]
        assert kept == raw[:MIB], "what somebody looks at is never written to"
        assert work.buffers.made == 2
        assert work.read("log", ByteRange(0, KIB)) == raw[:KIB]
        assert work.buffers.made == 2, "short ones come from the allocator"
    finally:
        work.close()


def test_no_more_memory_is_kept_than_the_option_says(tmp_path: Path) -> None:
    options = PosixOptions(reserve_bytes=0, buffer_bytes_max=2 * MIB)
    work = PosixWork(str(tmp_path), options, SystemClock())
    try:
        work.create("log", [bytes(4 * MIB)])
        held = [work.read("log", ByteRange(at * KIB, MIB)) for at in range(100)]
        held.clear()
        assert 0 < work.buffers.free_bytes <= 2 * MIB
        work.buffers.check()
    finally:
        work.close()
