"""A file system of few bytes below one directory: writes beyond them meet ENOSPC."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

BLOCK_BYTES = 4096


def used_bytes(directory: Path) -> int:
    """What the files below a directory take, in whole blocks; hard links count once."""
    sizes: dict[int, int] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            status = os.lstat(f"{folder}/{name}")
            sizes[status.st_ino] = -(-status.st_size // BLOCK_BYTES) * BLOCK_BYTES
    return sum(sizes.values())


class SmallDisk:
    """How large the file system is; a test may change that while it runs."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.directory = directory
        self.size_bytes = size_bytes
        self.refusals = 0
        """How often a call met a full disk."""

    def _room(self, fd: int, end: int) -> int:
        """Bytes up to which the file of `fd` may reach, if it shall reach `end`."""
        size = os.fstat(fd).st_size
        blocks = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        free = self.size_bytes - used_bytes(self.directory)
        return min(end, blocks + max(0, free) // BLOCK_BYTES * BLOCK_BYTES)

    def _refuse(self) -> OSError:
        self.refusals += 1
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Within the block every write below the directory is bounded."""
        pwrite, allocate = os.pwrite, os.posix_fallocate

        def small_pwrite(fd: int, data: bytes, position: int) -> int:
            end = position + len(data)
            room = self._room(fd, end)
            if position >= room < end:
                raise self._refuse()
            return pwrite(fd, memoryview(data)[: room - position], position)

        def small_allocate(fd: int, start: int, length: int) -> None:
            if self._room(fd, start + length) < start + length:
                raise self._refuse()
            allocate(fd, start, length)

        with (
            patch.object(os, "pwrite", small_pwrite),
            patch.object(os, "posix_fallocate", small_allocate),
        ):
            yield
