"""`durableEnds`: how far the hot log is durable, and the next offset of each queue there.

The file is ours. It lies beside RocketMQ's `checkpoint`; a Java broker does not look at it. Two
copies are written in turn, so that one of them is whole whenever power fails. The older copy is as
true as the newer one, but its position is lower.

D1  Everything below `position` was synced: records, their units, the files' directory entries.
D2  `next_offsets` has every queue with a record below `position`, with its next offset there.
D3  Where another program may have written the `checkpoint` since, the records of the log have to
    reach `position` exactly, or the file is not believed: that program went on.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from container.names.queue_id import QueueId
from provider.names import is_there
from provider.posix.files import sync_data
from tieredstore.hot.checked_json import NotSound, copy_of, decode_checked, encode_checked
from tieredstore.hot.files import FLAGS, sync_directories, write_all

FORMAT = 1
SMALL_QUEUES = 1000
"""So many queues are written with every checkpoint: some 30 KB."""
QUEUE_BYTES = 40
"""Bytes that one queue takes in the file, about."""
GROWTH = 64
"""How many times its own size the log has grown before a larger file is written again."""


@dataclass(frozen=True, slots=True)
class DurableEnds:
    """The durable end of a log and of its queues."""

    position: int
    """First byte of the CommitLog that may not be durable."""
    next_offsets: Mapping[QueueId, int] = field(default_factory=dict[QueueId, int])
    """The offset after the last durable message of each queue."""
    min_position: int = 0
    """First byte of the CommitLog that was not deleted, or is not being deleted."""
    number: int = 0
    """How many were written before it: the newer of two copies has the higher one."""

    def encode(self) -> bytes:
        """The file's bytes."""
        topics: dict[str, list[tuple[int, int]]] = {}
        for (topic, queue_id), offset in self.next_offsets.items():
            topics.setdefault(topic, []).append((queue_id, offset))
        return encode_checked(
            {
                "format": FORMAT,
                "number": self.number,
                "position": self.position,
                "minPosition": self.min_position,
                "nextOffsets": topics,
            }
        )

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Read one copy.

        Raises:
            NotSound: it is damaged, or of a format that this version does not know.
        """
        document = decode_checked(raw)
        if document.get("format") != FORMAT:
            raise NotSound("this version does not know its format")
        topics: dict[str, list[tuple[int, int]]] = document["nextOffsets"]
        return cls(
            document["position"],
            {QueueId(topic, n): end for topic, queues in topics.items() for n, end in queues},
            document["minPosition"],
            document["number"],
        )

    def is_due(self, position: int) -> bool:
        """Whether a log that is durable up to `position` is worth another write."""
        count = len(self.next_offsets)
        grown = position - self.position
        return grown > 0 and (count <= SMALL_QUEUES or grown >= count * QUEUE_BYTES * GROWTH)


class DurableEndsFile:
    """The two copies. One thread at a time writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = 0
        self._number = 0

    def __repr__(self) -> str:
        return f"<DurableEndsFile {self._path}>"

    def read(self) -> DurableEnds | None:
        """The newer copy that is whole; None if there is none.

        The next `write` replaces the other one.

        Raises:
            OSError: a copy cannot be read.
        """
        found: list[DurableEnds] = []
        for turn, path in enumerate(self._copies):
            try:
                one = DurableEnds.decode(path.read_bytes())
            except (NotSound, FileNotFoundError):
                continue
            if not found or one.number > found[0].number:
                found = [one]
                self._turn, self._number = 1 - turn, one.number + 1
        return found[0] if found else None

    def write(self, ends: DurableEnds) -> None:
        """Replace the older copy. Durable afterwards. A write, and a sync.

        Raises:
            OSError: it cannot be written; the newer copy is whole.
        """
        path = self._copies[self._turn]
        is_new = not is_there(path)
        numbered = DurableEnds(ends.position, ends.next_offsets, ends.min_position, self._number)
        raw = numbered.encode()
        fd = os.open(path, FLAGS | os.O_CREAT, 0o644)
        try:
            write_all(fd, 0, raw)
            if os.fstat(fd).st_size != len(raw):
                os.ftruncate(fd, len(raw))
            sync_data(fd)
        finally:
            os.close(fd)
        if is_new:
            sync_directories([path.parent])
        self._turn, self._number = 1 - self._turn, self._number + 1

    def write_both(self, ends: DurableEnds) -> None:
        """Replace both copies, the older one first. Durable afterwards.

        Raises:
            OSError: one cannot be written; the other is whole.
        """
        self.write(ends)
        self.write(ends)

    @property
    def _copies(self) -> tuple[Path, Path]:
        return self._path, copy_of(self._path)
