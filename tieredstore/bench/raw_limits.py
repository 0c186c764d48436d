"""Raw limits of the machine: the sequential bandwidth of a file on the same volume."""

import os
from collections.abc import Iterator
from pathlib import Path

from tieredstore.bench.figure import Figure, settle, stopwatch

RAW_WRITE, RAW_READ = "raw_write", "raw_read"
PIECE_BYTES = 4 << 20


def raw_limits(directory: Path, total_bytes: int) -> Iterator[Figure]:
    """Write a fresh file of about `total_bytes`, read it back, remove it.

    Written in pieces of 4 MiB, each followed by fdatasync; read in pieces of 4 MiB into one
    buffer, mostly from the page cache, as our own reads in the same run are.
    """
    path = directory / "raw-limit"
    count = max(1, total_bytes // PIECE_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    try:
        yield _raw_write(descriptor, count)
        yield _raw_read(descriptor, count)
    finally:
        os.close(descriptor)
        path.unlink()


def _raw_write(descriptor: int, count: int) -> Figure:
    piece = os.urandom(PIECE_BYTES)
    settle(count * PIECE_BYTES)
    with stopwatch() as elapsed:
        for number in range(count):
            os.pwrite(descriptor, piece, number * PIECE_BYTES)
            os.fdatasync(descriptor)
    return Figure(RAW_WRITE, 0, count * PIECE_BYTES, elapsed.seconds, elapsed.cpu_seconds)


def _raw_read(descriptor: int, count: int) -> Figure:
    buffer = bytearray(PIECE_BYTES)
    with stopwatch() as elapsed:
        for number in range(count):
            os.preadv(descriptor, [buffer], number * PIECE_BYTES)
    return Figure(RAW_READ, 0, count * PIECE_BYTES, elapsed.seconds, elapsed.cpu_seconds)
