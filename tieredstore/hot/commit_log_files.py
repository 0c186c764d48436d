"""The CommitLog of a store as one run of positions over many files, some of them only pinned."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.consume_queue_unit import ConsumeQueueUnit
from container.java_hash import tag_hash
from container.message_properties import TAGS, decode_properties
from container.message_record import RecordHeader, locate_parts
from container.rocketmq_names import local_file_name
from container.tier_records import QueueId
from provider.errors import Corrupt, OutOfRange
from tieredstore.hot.mapped_files import MappedFiles
from tieredstore.hot.store_layout import FileRun


@dataclass(frozen=True, slots=True)
class CommitLogTable:
    """Which files there are, at one moment."""

    directory: Path
    file_bytes: int
    paths: Mapping[int, Path]
    """By first byte; a pinned file by its pin."""

    min_position: int
    """First byte that can be read; 0 while there is no file."""
    end: int
    """First byte behind the last file."""

    def base_of(self, position: int) -> int:
        """First byte of the file that holds `position`, whether it is there or not."""
        return position - position % self.file_bytes if self.file_bytes else 0


def table_of(live: FileRun, pinned: Mapping[int, Path]) -> CommitLogTable:
    """The broker's files and our pins of them: a pin is preferred, for it stays."""
    paths = {base: live.directory / local_file_name(base) for base in live.bases}
    paths.update(pinned)
    low = min(paths, default=0)
    end = max(paths) + live.file_bytes if paths else 0
    return CommitLogTable(live.directory, live.file_bytes, paths, low, end)


class CommitLogFiles:
    """Bytes of the CommitLog by position. Threads may share one; `table` is replaced whole."""

    def __init__(self, files: MappedFiles, table: CommitLogTable) -> None:
        self._files = files
        self.table = table

    def __repr__(self) -> str:
        table = self.table
        return (
            f"<CommitLogFiles {table.directory}: {len(table.paths)} files of {table.file_bytes} "
            f"bytes, [{table.min_position}, {table.end})>"
        )

    def view(self, base: int) -> NDArray[np.uint8]:
        """The file whose first byte is `base`; short where it was truncated.

        Raises:
            OutOfRange: it is not there any more, or not yet.
            Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        path = self.table.paths.get(base)
        if path is None:
            raise OutOfRange("no such file in the CommitLog", self.path_of(base))
        return self._files.view(path)

    def path_of(self, position: int) -> str:
        """Path of the file that holds `position`, for people; damage may say any position."""
        base = self.table.base_of(max(position, 0))
        return str(self.table.paths.get(base) or self.table.directory / local_file_name(base))

    def record(self, position: int, size: int) -> memoryview:
        """The bytes of one record, mapped and not copied.

        Raises:
            Corrupt: it would lie across files or behind the end of a truncated one.
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
        """A few bytes, through `MappedFiles.peek`; empty where there is no file.

        Raises:
            Corrupt, NotFound, Unavailable, Denied: as there.
        """
        base = self.table.base_of(position)
        path = self.table.paths.get(base)
        return self._files.peek(path, position - base, length) if path is not None else b""

    def check(self, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> RecordHeader:
        """Read the record that a unit points to and compare everything that both say. O(record).

        Raises:
            Corrupt: there is no such record; path and position are the CommitLog's.
            OutOfRange: its file was deleted, or is not there yet.
            Unavailable, Denied: the file cannot be opened.
        """
        header, _ = self._checked(queue, offset, unit)
        return header

    def tags_code(self, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> int:
        """What the record's TAGS property hashes to. O(record).

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
