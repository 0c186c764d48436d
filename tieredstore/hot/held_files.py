"""Files of a hot log that one search keeps open, for it reads a few bytes many times."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from tieredstore.hot.appender import Appender
from tieredstore.hot.files import read_all

UNITS_AT_ONCE = 1024
"""Units around the one that is asked for that are read with it, and kept."""

_unpack = ConsumeQueueUnit.LAYOUT.unpack_from


class HeldFiles:
    """Reads units of one queue, and parts of records. Leaving the block closes the files.

    What is deleted meanwhile may still be read. Errors are `OSError`s.
    """

    def __init__(self, appender: Appender, queue: QueueId) -> None:
        self.appender = appender
        self.queue = queue
        self._open: dict[Path, int | None] = {}
        self._logs: dict[int, Path] = {}
        self._first = 0
        self._units = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self._open.values():
            if fd is not None:
                os.close(fd)

    def unit(self, offset: int) -> ConsumeQueueUnit:
        """One unit; its fields are 0 where nothing is."""
        at = (offset - self._first) * UNIT_BYTES
        if not 0 <= at < len(self._units):
            self._read_around(offset)
            at = (offset - self._first) * UNIT_BYTES
            if at >= len(self._units):
                return ConsumeQueueUnit(0, 0, 0)
        return ConsumeQueueUnit(*_unpack(self._units, at))

    def log(self, position: int, length: int) -> bytes | None:
        """Bytes of the CommitLog, within one file; None if that is deleted."""
        log = self.appender.log
        fd = self._fd(self.log_path(position))
        return None if fd is None else read_all(fd, position - log.base_of(position), length)

    def log_path(self, position: int) -> Path:
        """The CommitLog file that holds `position`."""
        base = self.appender.log.base_of(position)
        if base not in self._logs:
            self._logs[base] = self.appender.log.path(base)
        return self._logs[base]

    def _read_around(self, offset: int) -> None:
        """Read `UNITS_AT_ONCE` units, as far as one file has them; `offset` is in their middle."""
        queues = self.appender.queues
        place = offset * UNIT_BYTES
        base = place - place % queues.file_bytes
        start = max(base, place - UNITS_AT_ONCE // 2 * UNIT_BYTES)
        length = min(UNITS_AT_ONCE * UNIT_BYTES, base + queues.file_bytes - start)
        fd = self._fd(queues.path(self.queue, base))
        raw = b"" if fd is None else read_all(fd, start - base, length)
        self._first, self._units = start // UNIT_BYTES, raw[: len(raw) - len(raw) % UNIT_BYTES]

    def _fd(self, path: Path) -> int | None:
        if path not in self._open:
            try:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._open[path] = None
        return self._open[path]
