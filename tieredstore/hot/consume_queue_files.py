"""The units of one local ConsumeQueue, over its files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.consume_queue_unit import ConsumeQueueUnit
from container.record_batch import UNIT_DTYPE, Units
from container.rocketmq_names import local_file_name
from container.tier_records import UNIT_BYTES
from provider.errors import Corrupt, NotFound
from tieredstore.hot.mapped_files import MappedFiles
from tieredstore.hot.store_layout import FileRun, scan_run

LOOK_UNITS = 64
"""Units behind the known end that are looked at together: a hole shows by what follows it."""


def first_where(start: int, end: int, is_so: Callable[[int], bool]) -> int:
    """The first number of `[start, end)` for which `is_so`; `end` if there is none.

    `is_so` never turns false again behind it. O(log(end - start)) calls.
    """
    while start < end:
        middle = (start + end) // 2
        if is_so(middle):
            end = middle
        else:
            start = middle + 1
    return start


def _end_of_run(sizes: NDArray[np.int32], start: int) -> int:
    """First index from `start` on whose size is 0; doubles its steps, then halves them.

    A search from the middle would touch pages far behind the end, where the file is sparse: each
    such touch reads ahead (measured: 7 ms for a queue of ten messages, against 0.1 ms).
    """
    low, step = start, 1
    while low < len(sizes) and sizes[low] != 0:
        start, low, step = low + 1, low + step, step * 2
    return first_where(start, min(low, len(sizes)), lambda k: bool(sizes[k] == 0))


def without_holes(run: FileRun) -> FileRun:
    """The files that touch, up to the last one: what lies before a missing file is out of reach."""
    bases = list(run.bases)
    for index in range(len(bases) - 1, 0, -1):
        if bases[index] - bases[index - 1] != run.file_bytes:
            return FileRun(run.directory, tuple(bases[index:]), run.file_bytes)
    return run


class ConsumeQueueFiles:
    """Units by queue offset. The file table is replaced whole, so threads may read."""

    def __init__(self, files: MappedFiles, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._last = (-1, directory)
        self.run = FileRun(directory, (), 0)
        self.rescan()

    def __repr__(self) -> str:
        return f"<ConsumeQueueFiles {self._directory}: {len(self.run.bases)} files>"

    @property
    def first_offset(self) -> int:
        """Offset of the first unit of the first file; 0 while there is none."""
        return self.run.bases[0] // UNIT_BYTES if self.run.bases else 0

    @property
    def end_offset(self) -> int:
        """Offset behind the last unit for which there is room."""
        return self.run.end // UNIT_BYTES

    def rescan(self) -> None:
        """Look at the directory again: one scan and a `stat` per file.

        Where nothing is left, the topic was deleted, or the directory is away for a moment: the
        table stays as it was, and who reads what is missing finds that out.

        Raises:
            Unavailable, Denied: it cannot be read.
        """
        found = without_holes(scan_run(self._directory, UNIT_BYTES))
        if found.bases or not self.run.bases:
            self.run = found

    def path_of(self, offset: int) -> tuple[Path, int]:
        """The file that holds a unit, and the unit's first byte in it."""
        byte = offset * UNIT_BYTES
        base = byte - byte % self.run.file_bytes
        known, path = self._last
        if known != base:  # making a path costs more than reading a unit
            path = self._directory / local_file_name(base)
            self._last = (base, path)
        return path, byte - base

    def has_later(self, offset: int) -> bool:
        """Whether there is a file behind the one that holds a unit."""
        return bool(self.run.bases) and self.run.bases[-1] > offset * UNIT_BYTES

    def look(self, offset: int) -> Units:
        """Up to 64 units from `offset` on, not beyond a file; none where there is no file.

        Units that are not written yet are zero.

        Raises:
            Corrupt, Unavailable, Denied: as `look_raw`.
        """
        return np.frombuffer(self.look_raw(offset), UNIT_DTYPE)

    def heads(self, offset: int) -> Iterator[tuple[int, Units]]:
        """The first units, and the first one's offset, of each file behind the one of a unit.

        Up to 64 of each; one of a truncated file, or none. One `pread` for each file.

        Raises:
            Unavailable, Denied: as `look_raw`.
        """
        for base in self.run.bases:
            first = base // UNIT_BYTES
            if first <= offset:
                continue
            for units_max in (LOOK_UNITS, 1):
                try:
                    yield first, np.frombuffer(self.look_raw(first, units_max), UNIT_DTYPE)
                    break
                except Corrupt:
                    continue

    def look_raw(self, offset: int, units_max: int = LOOK_UNITS) -> bytes:
        """The bytes that `look` shows. One `pread`, or less where the file is mapped.

        Raises:
            Corrupt: the file was truncated.
            Unavailable, Denied: it cannot be opened.
        """
        if not self.run.file_bytes:
            return b""
        path, place = self.path_of(offset)
        length = min(units_max * UNIT_BYTES, self.run.file_bytes - place)
        try:
            return self._files.peek(path, place, length)
        except NotFound:
            return b""

    def unit(self, offset: int) -> ConsumeQueueUnit:
        """One unit, whatever it says: it may be zero, a filler or damaged.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.peek`.
        """
        path, place = self.path_of(offset)
        raw = self._files.peek(path, place, UNIT_BYTES)
        return ConsumeQueueUnit(*ConsumeQueueUnit.LAYOUT.unpack(raw))

    def units(self, start: int, end: int) -> Units:
        """A copy of the units `[start, end)`, across files.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        pieces: list[Units] = []
        while start < end:
            units, first = self._file_units(start)
            stop = min(end, first + self.run.file_bytes // UNIT_BYTES)
            if stop - first > len(units):
                path, _ = self.path_of(start)
                raise Corrupt("the file was truncated", str(path), len(units) * UNIT_BYTES)
            pieces.append(units[start - first : stop - first])
            start = stop
        # without the dtype, numpy would turn the columns into native byte order
        return np.concatenate([np.empty(0, UNIT_DTYPE), *pieces], dtype=UNIT_DTYPE)

    def written_end(self, start: int) -> int:
        """First offset from `start` on whose unit is not there: O(files + log(units of a file)).

        Relies on units being written one after the other.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        while start < self.end_offset:
            units, first = self._file_units(start)
            sizes = units["size"]
            whole = self.run.file_bytes // UNIT_BYTES
            end = _end_of_run(sizes, start - first)
            if end == whole:
                start = first + whole
                continue
            empty = np.flatnonzero(sizes[start - first : end] == 0)
            if len(empty):  # a hole, which the search jumped over
                return start + int(empty[0])
            if end == len(sizes) < whole:
                path, _ = self.path_of(start)
                raise Corrupt("the file was truncated", str(path), len(sizes) * UNIT_BYTES)
            return first + end
        return start

    def _file_units(self, offset: int) -> tuple[Units, int]:
        path, place = self.path_of(offset)
        view = self._files.view(path)
        self._files.touched(LOOK_UNITS, 0, len(view))
        units = view[: len(view) // UNIT_BYTES * UNIT_BYTES].view(UNIT_DTYPE)
        return units, offset - place // UNIT_BYTES
