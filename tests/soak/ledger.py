"""What was written, kept as one small digest for each message, in files: memory stays flat."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.checksum import crc32c

DIGEST_BYTES = 4
PHYSICAL_OFFSET = slice(28, 36)
"""Bytes of a record that tiering rewrites."""
_REWRITTEN = bytes(8)


def digest_of(record: memoryview) -> int:
    """CRC-32C of a record without the position that tiering rewrites. About 0.5 us."""
    crc = crc32c(record[: PHYSICAL_OFFSET.start])
    return crc32c(record[PHYSICAL_OFFSET.stop :], crc32c(_REWRITTEN, crc))


class Ledger:
    """Digests by queue and offset. One thread writes, any reads what is below `ends`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._files: dict[QueueId, int] = {}
        self._ends: dict[QueueId, int] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Ledger: {self.messages} messages of {len(self._ends)} queues>"

    @property
    def messages(self) -> int:
        """How many were written."""
        return sum(self.ends().values())

    def ends(self) -> dict[QueueId, int]:
        """Behind the last offset of each queue."""
        with self._lock:
            return dict(self._ends)

    def end(self, queue: QueueId) -> int:
        """Behind the last offset of one queue."""
        return self._ends.get(queue, 0)

    def add(self, queue: QueueId, records: Iterable[memoryview]) -> None:
        """Enter the next messages of a queue."""
        digests = np.array([digest_of(record) for record in records], np.uint32)
        with self._lock:
            if queue not in self._files:
                path = self._directory / f"{queue.topic}-{queue.queue_id}"
                self._files[queue] = os.open(path, os.O_RDWR | os.O_CREAT)
            end = self._ends.get(queue, 0)
            os.pwrite(self._files[queue], digests.tobytes(), end * DIGEST_BYTES)
            self._ends[queue] = end + len(digests)

    def expected(self, queue: QueueId, start: int, end: int) -> NDArray[np.uint32]:
        """Digests of `[start, end)`."""
        raw = os.pread(self._files[queue], (end - start) * DIGEST_BYTES, start * DIGEST_BYTES)
        return np.frombuffer(raw, np.uint32)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
