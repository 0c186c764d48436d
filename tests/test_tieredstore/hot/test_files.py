"""Zeros from a place on, in files that are nearly all holes, and the identity of files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tieredstore.hot.log import directory, files
from tieredstore.hot.log.directory import is_copy, remember_place
from tieredstore.hot.log.files import CHUNK_BYTES, birth_of, open_file, write_all, zero_from

FILE_BYTES = 8 * CHUNK_BYTES


@contextmanager
def sparse(path: Path) -> Iterator[int]:
    """A file of holes."""
    fd, _ = open_file(path, FILE_BYTES)
    try:
        yield fd
    finally:
        os.close(fd)


def test_holes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, real = list[int](), files.read_all

    def counted(fd: int, position: int, length: int) -> bytes:
        read.append(length)
        return real(fd, position, length)

    monkeypatch.setattr(files, "read_all", counted)
    with sparse(tmp_path / "f") as fd:
        write_all(fd, CHUNK_BYTES // 2, b"unit" * 5)
        os.fsync(fd)
        assert not zero_from(fd, CHUNK_BYTES // 2 + 20)
        assert sum(read) <= 128 << 10, "the block with the units, of whatever size"


def test_what_is_written_beyond_becomes_zeros_and_nothing_else(tmp_path: Path) -> None:
    rng = Random(11)
    with sparse(tmp_path / "f") as fd:
        expected = bytearray(FILE_BYTES)
        for _ in range(12):
            place, raw = rng.randrange(FILE_BYTES - 5000), rng.randbytes(rng.randrange(1, 5000))
            write_all(fd, place, raw)
            expected[place : place + len(raw)] = raw
        cut = FILE_BYTES // 3
        assert zero_from(fd, cut)
        expected[cut:] = bytes(FILE_BYTES - cut)
        assert os.pread(fd, FILE_BYTES, 0) == expected
        assert not zero_from(fd, cut)


def test_a_file_that_gets_the_inode_of_a_deleted_one_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "durableEnds"
    path.write_bytes(b"1")
    first = birth_of(path)
    with path.open("r+b") as file:
        file.write(b"2")
    path.rename(tmp_path / "moved")
    assert birth_of(tmp_path / "moved") == first
    (tmp_path / "moved").unlink()
    path.write_bytes(b"1")
    assert birth_of(path) != first
    monkeypatch.setattr(files, "_calls", lambda: None)  # such as a C library without `statx`
    assert birth_of(path) == (path.stat().st_ino, 0)


def test_a_birth_that_one_process_does_not_know_makes_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "durableEnds").write_bytes(b"1")
    for first, second in ((0, 7), (7, 0)):
        monkeypatch.setattr(directory, "birth_of", lambda _, birth=first: (5, birth))
        remember_place(tmp_path)
        monkeypatch.setattr(directory, "birth_of", lambda _, birth=second: (5, birth))
        assert not is_copy(tmp_path)
    monkeypatch.setattr(directory, "birth_of", lambda _: (5, 8))
    assert is_copy(tmp_path)
