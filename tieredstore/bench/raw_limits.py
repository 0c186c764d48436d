"""What the machine can do without us: the sequential bandwidth of one file on the same volume."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PIECE_BYTES = 4 << 20


@contextmanager
def stopwatch() -> Generator[list[float]]:
    """Yields a list that holds the seconds of the block, once it is left."""
    seconds: list[float] = []
    started = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - started)


def raw_write_bytes_s(directory: Path, total_bytes: int) -> float:
    """Bytes a second of writing a fresh file in 4 MiB pieces, each followed by fdatasync."""
    piece = os.urandom(PIECE_BYTES)
    path = directory / "raw-limit"
    count = max(1, total_bytes // PIECE_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        with stopwatch() as seconds:
            for number in range(count):
                os.pwrite(descriptor, piece, number * PIECE_BYTES)
                os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return count * PIECE_BYTES / seconds[0]


def raw_read_bytes_s(directory: Path) -> float:
    """Bytes a second of reading that file back in 4 MiB pieces into one buffer; removes it.

    Mostly from the page cache, as our own reads in the same run are.
    """
    path = directory / "raw-limit"
    buffer = bytearray(PIECE_BYTES)
    total = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with stopwatch() as seconds:
            for at in range(0, total, PIECE_BYTES):
                os.preadv(descriptor, [buffer], at)
    finally:
        os.close(descriptor)
        path.unlink()
    return total / seconds[0]
