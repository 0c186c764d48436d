"""CommitLog of a store as one range of positions over many files, of which some are only pinned."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from container.record.header import RecordHeader, locate_parts
from container.record.properties import TAGS, decode_properties, tag_hash
from container.record.unit import ConsumeQueueUnit
from provider.errors import Corrupt, OutOfRange, StoreError
from tieredstore.following.directory.layout import FileRun, translated
from tieredstore.following.log.mapped_files import MappedFiles, Places

FILES_OPEN_MAX = 8
"""Maximum of cached descriptors for reads. A round reads few files at a time."""


@dataclass(frozen=True, slots=True)
class CommitLogTable:
    """Files of the CommitLog at one moment."""

    directory: Path
    file_bytes: int
    paths: Mapping[int, Path]
    """Paths by first byte. A pinned file has the path of its pin."""

    min_position: int
    """First readable position; 0 while there is no file."""
    live_position: int
    """First position of the broker's own files. Files missing below it were deleted."""
    end: int
    """First position after the last file."""

    def base_of(self, position: int) -> int:
        """Return the first byte of the file that holds `position`, existing or not."""
        return position - position % self.file_bytes if self.file_bytes else 0


def table_of(live: FileRun, pinned: Mapping[int, Path]) -> CommitLogTable:
    """Join the broker's files and their pins. A pin has precedence, for it stays."""
    paths = {base: live.path_of(base) for base in live.bases}
    paths.update(pinned)
    low = min(paths, default=0)
    end = max(paths) + live.file_bytes if paths else 0
    begin = min(live.bases, default=end)
    return CommitLogTable(live.directory, live.file_bytes, paths, low, begin, end)


class _OpenFile:
    """Descriptor for reads, closed with its last reference: reads may outlive the cache entry.

    The bytes of a file that the broker deletes can be read until the next scan of the directory.
    """

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class CommitLogFiles:
    """CommitLog bytes by position. Threads may share one: `table` is replaced as a whole.

    Keeps up to `FILES_OPEN_MAX` files open beside the mapped ones.
    """

    def __init__(
        self,
        files: MappedFiles,
        table: CommitLogTable,
        look: Callable[[], CommitLogTable] | None = None,
    ) -> None:
        """`look` scans for the present files. Without it, only the owner updates `table`."""
        self._files = files
        self._look = look
        self._lock = threading.Lock()
        self._open: LRUCache[Path, _OpenFile] = LRUCache(FILES_OPEN_MAX)
        self._table = table

    def __repr__(self) -> str:
        table = self.table
        return (
            f"<CommitLogFiles {table.directory}: {len(table.paths)} files of {table.file_bytes} "
            f"bytes, [{table.min_position}, {table.end})>"
        )

    @property
    def table(self) -> CommitLogTable:
        """Files of the CommitLog as of the last scan."""
        return self._table

    @table.setter
    def table(self, table: CommitLogTable) -> None:
        before, self._table = self._table, table
        there = set(table.paths.values())
        # else a deleted file would keep its disk space
        self._files.forget(set(before.paths.values()) - there)
        with self._lock:
            for path in [path for path in self._open if path not in there]:
                del self._open[path]

    def reach(self, position: int) -> None:
        """Scan for files if `position` is beyond the last known one.

        A unit that was just read may point to a newer file of the log.

        Raises:
            Unavailable, Denied: the directories cannot be read.
        """
        if position >= self.table.end and self._look is not None:
            self.table = self._look()

    def view(self, base: int) -> NDArray[np.uint8]:
        """Map the file whose first byte is `base`; short if it was truncated.

        Raises:
            OutOfRange: it does not exist any more, or not yet.
            Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        path = self.table.paths.get(base)
        if path is None:
            raise OutOfRange("no such file in the CommitLog", self.path_of(base))
        return self._files.view(path)

    def path_of(self, position: int) -> str:
        """Return the path of the file that holds `position`, for messages.

        Any position is allowed.
        """
        base = self.table.base_of(max(position, 0))
        return str(self.table.paths.get(base) or self.table.directory / local_file_name(base))

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Read as many bytes from `position` on as there are, at most the length of `target`.

        Stays in one file.

        Raises:
            OutOfRange: there is no such file any more, or not yet.
            Unavailable, Denied: it cannot be read.
        """
        whole = Places(target, np.zeros(1, np.int64), np.array([len(target)]))
        return self.fill(whole, position, len(target), 0, 1)

    def fill(self, places: Places, position: int, length: int, first: int, last: int) -> int:
        """Read into places as `Places.fill`, through a cached descriptor.

        Stays in one file. Errors as `read_into`.
        """
        table = self.table
        base = table.base_of(position)
        path = table.paths.get(base)
        if path is None:
            raise OutOfRange("no such file in the CommitLog", self.path_of(position))
        try:
            file = self._open_file(path)
            count = places.fill(file.descriptor, position - base, length, first, last)
        except OSError as error:
            raise translated(error, path) from error
        return min(count, max(base + table.file_bytes - position, 0))

    def forget(self) -> None:
        """Open each file again at its next use."""
        with self._lock:
            self._open.clear()

    def close(self) -> None:
        """Close the files, once no read uses them. Idempotent."""
        with self._lock:
            self._open.clear()

    def _open_file(self, path: Path) -> "_OpenFile":
        with self._lock:
            file = self._open.get(path)
            if file is None:
                file = self._open[path] = _OpenFile(path)
            return file

    def record(self, position: int, size: int) -> memoryview:
        """Return the bytes of one record, mapped and not copied.

        Raises:
            Corrupt: it would lie across files or beyond the end of a truncated one.
            OutOfRange, Unavailable, Denied: as `view`.
        """
        base = self.table.base_of(position)
        view = self.view(base)
        start = position - base
        if start + size > len(view):
            raise Corrupt(
                f"a record of {size} bytes does not fit before the file's end at {len(view)}",
                self.path_of(position),
                start,
            )
        return view.data[start : start + size]

    def peek(self, position: int, length: int) -> bytes:
        """Read a few bytes through `MappedFiles.peek`; empty if there is no file.

        Raises:
            Corrupt, NotFound, Unavailable, Denied: as there.
        """
        base = self.table.base_of(position)
        path = self.table.paths.get(base)
        return self._files.peek(path, position - base, length) if path is not None else b""

    def queue_of(self, position: int, size: int) -> QueueId | None:
        """Return the queue that a record names; None if it cannot be read. O(1)."""
        try:
            header, parts = locate_parts(raw := self.record(position, size), path="", position=0)
            topic = bytes(raw[parts.topic : parts.topic_end]).decode()
        except (StoreError, UnicodeDecodeError):
            return None  # only a hint: a full scan of the queues finds what this misses
        return QueueId(topic, header.queue_id)

    def check(self, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> RecordHeader:
        """Read the record that a unit points to and compare all fields that both have. O(record).

        Raises:
            Corrupt: there is no such record; path and position are the CommitLog's.
            OutOfRange: its file was deleted, or does not exist yet.
            Unavailable, Denied: the file cannot be opened.
        """
        header, _ = self._checked(queue, offset, unit)
        return header

    def tags_code(self, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> int:
        """Return the hash of the record's TAGS property. O(record).

        Raises:
            Corrupt, OutOfRange, Unavailable, Denied: as `check`.
        """
        _, properties = self._checked(queue, offset, unit)
        return tag_hash(decode_properties(bytes(properties)).get(TAGS, ""))

    def _checked(
        self, queue: QueueId, offset: int, unit: ConsumeQueueUnit
    ) -> tuple[RecordHeader, memoryview]:
        raw = self.record(unit.position, unit.size)
        path = self.path_of(unit.position)
        place = unit.position - self.table.base_of(unit.position)
        header, parts = locate_parts(raw, path=path, position=place)
        said = (header.queue_id, header.queue_offset, header.physical_offset)
        if said != (queue.queue_id, offset, unit.position):
            raise Corrupt(
                f"the record of {queue} at {offset} says queue {said[0]}, offset {said[1]}, "
                f"physical offset {said[2]}",
                path,
                place,
            )
        if bytes(raw[parts.topic : parts.topic_end]) != queue.topic.encode():
            raise Corrupt(f"the record of {queue} at {offset} is of another topic", path, place)
        return header, raw[parts.properties :]
