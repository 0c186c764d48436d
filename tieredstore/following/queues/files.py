"""ConsumeQueue of a broker: units over its files, and rebuilt ones where files are missing."""

from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from container.record.unit import (
    FILLER_SIZE,
    UNIT_BYTES,
    UNIT_DTYPE,
    ConsumeQueueUnit,
    Units,
)
from provider.errors import Corrupt, NotFound, OutOfRange
from tieredstore.following.directory.layout import FileRun, scan_run
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.record_units import units_in

MADE_BYTES_MAX = 256 << 20
"""Memory in bytes for rebuilt files of a whole store: 44 files of RocketMQ's usual length. Missing
files are an exception, and rebuilt ones are released once they are tiered."""


class RebuildBudget:
    """Memory budget of the rebuilt units of all queues. Guarded by its callers."""

    def __init__(self, bytes_max: int = MADE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.taken = 0

    def __repr__(self) -> str:
        return f"<RebuildBudget: {self.taken} of {self._bytes_max}>"

    @property
    def room(self) -> int:
        """Bytes that may still be taken."""
        return self._bytes_max - self.taken


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets `[start, end)` of one queue whose files are missing, and their neighbours."""

    start: int
    end: int
    before: ConsumeQueueUnit
    """Unit before the hole."""
    after: ConsumeQueueUnit
    """Good unit after it."""


class MadeFiles:
    """Rebuilt files of one queue, by first byte, within the budget of the store."""

    def __init__(self, budget: RebuildBudget) -> None:
        self.budget = budget
        self._files: dict[int, NDArray[np.uint8]] = {}
        self.findings: list[str] = []
        """Sentences for operators. The poll takes them."""

    def __repr__(self) -> str:
        return f"<MadeFiles: {len(self._files)} files, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._files)

    @property
    def bases(self) -> KeysView[int]:
        """First bytes of the rebuilt files."""
        return self._files.keys()

    @property
    def bytes(self) -> int:
        """Memory of the rebuilt files in bytes."""
        return sum(file.nbytes for file in self._files.values())

    def get(self, base: int) -> NDArray[np.uint8] | None:
        """Return the bytes of one rebuilt file; None if there is none."""
        return self._files.get(base)

    def position_max(self, base: int) -> int:
        """Return the highest record position in one rebuilt file."""
        return int(self._files[base].view(UNIT_DTYPE)["position"].max())

    def make(self, log: CommitLogFiles, queue: QueueId, hole: Hole, file_bytes: int) -> list[int]:
        """Rebuild the files of a hole that begins at a file boundary, up to the last found unit.

        Returns:
            Their first bytes; none if there is no room, or the hole's first record is not found.

        Raises:
            Unavailable, Denied: a CommitLog file cannot be read.
        """
        assert (hole.end - hole.start) * UNIT_BYTES % file_bytes == 0, "holes are of whole files"
        units = units_of_hole(log, queue, hole, self.findings)
        if units is None:
            return []
        last = int(np.flatnonzero(units["size"])[-1])
        raw = units.view(np.uint8)
        start = hole.start * UNIT_BYTES
        bases = list(range(start, start + (last + 1) * UNIT_BYTES, file_bytes))
        for base in bases:
            # one copy each, for a view of them all would keep the memory of dropped ones
            self._files[base] = raw[base - start : base - start + file_bytes].copy()
        self.budget.taken += len(bases) * file_bytes
        assert self.budget.room >= 0, "a hole is no longer than there is room"
        return bases

    def drop(self, base: int) -> None:
        """Release the memory of one rebuilt file."""
        self.budget.taken -= self._files.pop(base).nbytes


def units_of_hole(
    log: CommitLogFiles, queue: QueueId, hole: Hole, findings: list[str]
) -> Units | None:
    """Return the units of a hole up to the first without a record, then zeros; None without any.

    Messages that the broker deleted from the CommitLog have fillers. Reads only the CommitLog files
    between the records before and after the hole; see `units_in` for the cost, and for `findings`.

    Raises:
        Unavailable, Denied: a CommitLog file cannot be read.
    """
    table = log.table
    made: Units = np.zeros(hole.end - hole.start, UNIT_DTYPE)
    was_deleted = hole.before.is_filler or hole.before.position < table.min_position
    low = table.min_position if was_deleted else hole.before.position + hole.before.size
    low = max(low, table.min_position)
    for base in range(table.base_of(low), hole.after.position + 1, table.file_bytes):
        try:
            found_in = units_in(log, base, frozenset({queue}), findings)
        except OutOfRange:
            continue  # its units stay zero
        offsets, units = found_in.get(queue, ((), made[:0]))
        places = np.asarray(offsets, np.int64) - hole.start
        inside = (places >= 0) & (places < len(made))
        made[places[inside]] = units[inside]
        if made["size"][-1]:
            break
    found = np.flatnonzero(made["size"])
    if was_deleted:
        made[: found[0] if len(found) else len(made)] = (0, FILLER_SIZE, 0)
    missing = np.flatnonzero(made["size"] == 0)
    made[missing[0] if len(missing) else len(made) :] = (0, 0, 0)  # a queue stops at its damage
    return made if made["size"][0] else None


def partition_point(start: int, end: int, is_so: Callable[[int], bool]) -> int:
    """Return the first number of `[start, end)` for which `is_so` holds; `end` if there is none.

    `is_so` must hold for every number after one for which it holds. O(log(end - start)) calls.
    """
    while start < end:
        middle = (start + end) // 2
        if is_so(middle):
            end = middle
        else:
            start = middle + 1
    return start


def end_of_run(sizes: NDArray[np.int32], start: int) -> int:
    """Return the first index from `start` on whose size is 0. Doubles its steps, then bisects.

    A search from the middle would touch pages far beyond the end, where the file is sparse. Each
    such touch reads ahead (measured: 7 ms for a queue of ten messages, against 0.1 ms).
    """
    low, step = start, 1
    while low < len(sizes) and sizes[low] != 0:
        start, low, step = low + 1, low + step, step * 2
    return partition_point(start, min(low, len(sizes)), lambda k: bool(sizes[k] == 0))


POLL_UNITS = 64
"""Units read together from the known end on. A hole shows by the units after it."""
AHEAD_UNITS_MIN = 1024
"""Smallest copy, in units, that is read ahead: 5 pages, which a disk would read one by one."""


class ConsumeQueueFiles:
    """Units by queue offset. The file table is replaced as a whole, so threads may read.

    Bytes rebuilt from the CommitLog replace a file that is missing amid others, or full of zeros.
    """

    def __init__(
        self, files: MappedFiles, directory: Path, budget: RebuildBudget | None = None
    ) -> None:
        self._files = files
        self._made = MadeFiles(budget if budget is not None else RebuildBudget())
        self._there: frozenset[int] = frozenset()
        """Existing files that are not blank."""
        self._blank: frozenset[int] = frozenset()
        """Blank files, full of zeros, that rebuilt bytes replace."""
        self.log_min = 0
        """First position of the CommitLog when it was last polled."""
        self._low = 0
        """First byte of the files still in use. Earlier rebuilt files are released."""
        self._directory = directory
        self._last = (-1, directory)
        self.run = FileRun(directory, (), 0)
        self.rescan()

    def __repr__(self) -> str:
        return f"<ConsumeQueueFiles {self._directory}: {len(self.run.bases)} files, {self._made!r}>"

    def check(self) -> None:
        """Assert the invariants between two calls. O(files).

        F1  A file is present, blank or neither. All that are one of them are in the run.
        F2  Bytes are rebuilt only for blank and for missing files.
        F3  Released files are in no table.
        """
        bases = frozenset(self.run.bases)
        assert self._there | self._blank == bases, f"F1: {self}"
        assert not self._there & self._blank, f"F1: {self}"
        assert not self._there & self._made.bases, f"F2: {self}"
        assert all(base >= self._low for base in bases | self._made.bases), f"F3: {self}"

    @property
    def made(self) -> MadeFiles:
        """Rebuilt files."""
        return self._made

    @property
    def first_offset(self) -> int:
        """Offset of the first unit of the first file; 0 while there is none."""
        return min([*self.run.bases[:1], *self._made.bases], default=0) // UNIT_BYTES

    @property
    def end_offset(self) -> int:
        """Offset after the last unit that the files have room for."""
        return self.run.end // UNIT_BYTES

    def rescan(self) -> None:
        """Scan the directory again: one scan and a `stat` per file.

        If no file is left, the topic was deleted, or the directory is away for a moment. The table
        then stays as it was, and readers of missing files get an error.

        Raises:
            Unavailable, Denied: it cannot be read.
        """
        found = scan_run(self._directory, UNIT_BYTES)
        if found.bases or not self.run.bases:
            self.run = replace(found, bases=tuple(b for b in found.bases if b >= self._low))
            bases = frozenset(self.run.bases)
            self._blank &= bases
            self._there = bases - self._blank
            filled = frozenset(base for base in self._blank if self._is_filled(base))
            self._blank -= filled
            self._there |= filled
            self._drop_needless(found.bases[0] if found.bases else 0)

    def path_of(self, offset: int) -> tuple[Path, int]:
        """Return the file that holds a unit, and the unit's first byte in it."""
        base = self._base_of(offset)
        known, path = self._last
        if known != base:  # building a path costs more than reading a unit
            path = self._directory / local_file_name(base)
            self._last = (base, path)
        return path, offset * UNIT_BYTES - base

    def _base_of(self, offset: int) -> int:
        byte = offset * UNIT_BYTES
        return byte - byte % self.run.file_bytes if self.run.file_bytes else 0

    def has_file(self, offset: int) -> bool:
        """Whether the file that holds a unit exists, or was rebuilt."""
        base = self._base_of(offset)
        return base in self._there or base in self._made.bases

    def is_made(self, offset: int) -> bool:
        """Whether a unit is in a rebuilt file."""
        return self._base_of(offset) in self._made.bases

    def is_next(self, first: int, offset: int) -> bool:
        """Whether the file that begins at `first` adjoins the one that holds `offset`."""
        length = self.run.file_bytes // UNIT_BYTES
        return first - length <= offset < first

    @property
    def has_missing(self) -> bool:
        """Whether a file between others is missing or blank, or rebuilt files are kept."""
        run = self.run
        if len(self._made):
            return True
        return run.end - run.bases[0] > len(run.bases) * run.file_bytes if run.bases else False

    def is_missing(self, offset: int) -> bool:
        """Whether the file that holds a unit is missing amid others."""
        if not self.has_later(offset) or self.has_file(offset):
            return False
        return self.first_offset <= offset

    @property
    def has_room(self) -> bool:
        """Whether the memory budget allows to rebuild one more file."""
        return self._made.budget.room >= self.run.file_bytes

    def hole_start(self, offset: int) -> int:
        """Return the offset after the last existing or rebuilt file before the missing one."""
        before = max(base for base in self._there | self._made.bases if base <= offset * UNIT_BYTES)
        return (before + self.run.file_bytes) // UNIT_BYTES

    def blank_start(self, offset: int) -> int | None:
        """Return the first offset of the file of `offset` if it is full of zeros amid others.

        Reads the whole file if its first unit is zero, else that unit.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        if not self.has_later(offset):
            return None
        path, place = self.path_of(offset)
        base = offset * UNIT_BYTES - place
        before = base - self.run.file_bytes
        if base not in self._there or (
            before not in self._there and before not in self._made.bases
        ):
            return None
        if any(self._files.peek(path, 0, UNIT_BYTES)) or self._files.view(path).any():
            return None
        return base // UNIT_BYTES

    def _is_filled(self, base: int) -> bool:
        """Whether every unit of a formerly blank file is written by now."""
        try:
            view = self._files.view(self._directory / local_file_name(base))
        except (NotFound, Corrupt):
            return False
        has_first = len(view) == self.run.file_bytes and view[:UNIT_BYTES].any()
        return bool(has_first) and bool(view.view(UNIT_DTYPE)["size"].all())

    def make(self, log: CommitLogFiles, queue: QueueId, offset: int, after: int) -> list[Path]:
        """Rebuild the missing or blank files from `offset` on, as far as the memory budget allows.

        Args:
            log: the CommitLog.
            queue: the queue of these files.
            offset: the first offset of a missing or blank file.
            after: offset of a good unit after it.

        Returns:
            Paths of the files that were rebuilt; none if it cannot be done, or there is no room.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: the units around it cannot be read.
        """
        file_bytes = self.run.file_bytes
        start = offset * UNIT_BYTES
        end = min(base for base in self.run.bases if base > start)
        end = min(end, start + self._made.budget.room // file_bytes * file_bytes)
        if start == end:
            return []
        before, good = self.unit(offset - 1), self.unit(after)
        hole = Hole(offset, end // UNIT_BYTES, before=before, after=good)
        bases = self._made.make(log, queue, hole, file_bytes)
        self._blank |= self._there.intersection(bases)
        self._there -= self._blank
        return [self._directory / local_file_name(base) for base in bases]

    def release(self, offset: int) -> None:
        """Drop rebuilt files of units below `offset`, which are tiered.

        The last file before one that is still missing stays: the search for the next one begins
        there.
        """
        end = offset * UNIT_BYTES - self.run.file_bytes
        for base in sorted(base for base in self._made.bases if base <= end):
            following = base + self.run.file_bytes
            if not self.has_file(following // UNIT_BYTES):
                break
            self._low = following
            self._made.drop(base)
        bases = tuple(base for base in self.run.bases if base >= self._low)
        self.run = replace(self.run, bases=bases)
        self._there = self._there.intersection(bases)
        self._blank = self._blank.intersection(bases)

    def _drop_needless(self, low: int) -> None:
        """Drop rebuilt files that exist again, and those whose records the broker deleted.

        A broker that deletes the files before a hole does not know of the hole, and leaves its
        records. So a rebuilt file that does not adjoin the broker's first one, at `low`, is dropped
        only after its own records are gone.
        """
        while low - self.run.file_bytes in self._made.bases:
            low -= self.run.file_bytes
        for base in list(self._made.bases):
            is_gone = base < low and self._made.position_max(base) < self.log_min
            if is_gone or base in self._there:
                self._made.drop(base)

    def forget(self) -> None:
        """Open the files again at their next use, for others may have their names."""
        self._files.forget(self._directory / local_file_name(base) for base in self.run.bases)

    def give_up(self) -> None:
        """Release mappings and rebuilt files of a deleted queue."""
        self.forget()
        for base in list(self._made.bases):
            self._made.drop(base)

    def has_later(self, offset: int) -> bool:
        """Whether there is a file after the one that holds a unit."""
        return bool(self.run.bases) and self.run.bases[-1] > offset * UNIT_BYTES

    def units_at(self, offset: int, units_max: int = POLL_UNITS) -> Units:
        """Read up to `units_max` units from `offset` on within a file; none if there is no file.

        Units that are not written yet are zero.

        Raises:
            Corrupt, Unavailable, Denied: as `read_raw`.
        """
        return np.frombuffer(self.read_raw(offset, units_max), UNIT_DTYPE)

    def heads(self, offset: int) -> Iterator[tuple[int, Units]]:
        """Yield first offset and first units of each file after that of `offset`.

        Up to 64 of each file; one of a truncated file, or none. One `pread` for each file.

        Raises:
            Unavailable, Denied: as `read_raw`.
        """
        for base in self.run.bases:
            first = base // UNIT_BYTES
            if first <= offset:
                continue
            for units_max in (POLL_UNITS, 1):
                try:
                    yield first, np.frombuffer(self.read_raw(first, units_max), UNIT_DTYPE)
                    break
                except Corrupt:
                    continue
            else:
                yield first, np.empty(0, UNIT_DTYPE)

    def read_raw(self, offset: int, units_max: int = POLL_UNITS) -> bytes:
        """Read the bytes of `look`. One `pread`, or none if the file is mapped.

        Raises:
            Corrupt: the file was truncated.
            Unavailable, Denied: it cannot be opened.
        """
        if not self.run.file_bytes or self.is_missing(offset):
            return b""
        _, place = self.path_of(offset)
        length = min(units_max * UNIT_BYTES, self.run.file_bytes - place)
        try:
            return self._peek(offset, length)
        except NotFound:
            return b""

    def unit(self, offset: int) -> ConsumeQueueUnit:
        """Read one unit as it is: it may be zero, a filler or damaged.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.peek`.
        """
        return ConsumeQueueUnit(*ConsumeQueueUnit.LAYOUT.unpack(self._peek(offset, UNIT_BYTES)))

    def unit_now(self, offset: int) -> ConsumeQueueUnit:
        """Read one unit of the file now of that name: a mapped one may be a deleted queue's."""
        path, place = self.path_of(offset)
        if self.is_made(offset):
            return self.unit(offset)
        raw = self._files.read(path, place, UNIT_BYTES)
        return ConsumeQueueUnit(*ConsumeQueueUnit.LAYOUT.unpack(raw))

    def _peek(self, offset: int, length: int) -> bytes:
        path, place = self.path_of(offset)
        made = self._made.get(offset * UNIT_BYTES - place)
        if made is not None:
            return made[place : place + length].tobytes()
        return self._files.peek(path, place, length)

    def units(self, start: int, end: int) -> Units:
        """Copy the units `[start, end)` across files; fewer if a later file is missing.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        pieces: list[Units] = []
        while start < end:
            try:
                units, first = self._file_units(start)
            except NotFound:
                if pieces:
                    break
                raise
            stop = min(end, first + self.run.file_bytes // UNIT_BYTES)
            if stop - first > len(units):
                path, _ = self.path_of(start)
                raise Corrupt("the file was truncated", str(path), len(units) * UNIT_BYTES)
            if stop - start >= AHEAD_UNITS_MIN:
                path, place = self.path_of(start)
                self._files.will_read(path, place, (stop - start) * UNIT_BYTES)
            pieces.append(units[start - first : stop - first])
            start = stop
        # without the dtype, numpy would convert the columns to native byte order
        return np.concatenate([np.empty(0, UNIT_DTYPE), *pieces], dtype=UNIT_DTYPE)

    def written_end(self, start: int) -> int:
        """Return the first offset from `start` on without a unit. O(files + log(units of a file)).

        Ends at a missing file. Relies on units being written in order.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        while start < self.end_offset and self.has_file(start):
            units, first = self._file_units(start)
            sizes = units["size"]
            whole = self.run.file_bytes // UNIT_BYTES
            end = end_of_run(sizes, start - first)
            if end == whole:
                start = first + whole
                continue
            empty = np.flatnonzero(sizes[start - first : end] == 0)
            if len(empty):  # a hole, which the search skipped
                return start + int(empty[0])
            if end == len(sizes) < whole:
                path, _ = self.path_of(start)
                raise Corrupt("the file was truncated", str(path), len(sizes) * UNIT_BYTES)
            return first + end
        return start

    def after_fillers(self, start: int, end: int) -> int:
        """Return the first offset of `[start, end)` whose unit is no filler; or `end`.

        O(skipped units).

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `MappedFiles.view`.
        """
        while start < end and self.has_file(start) and self.unit(start).is_filler:
            units, first = self._file_units(start)
            part = units[start - first : end - first]
            others = np.flatnonzero((part["size"] != FILLER_SIZE) | (part["position"] != 0))
            start += int(others[0]) if len(others) else len(part)
        return start

    def _file_units(self, offset: int) -> tuple[Units, int]:
        path, place = self.path_of(offset)
        made = self._made.get(offset * UNIT_BYTES - place)
        if made is not None:
            return made.view(UNIT_DTYPE), offset - place // UNIT_BYTES
        view = self._files.view(path, reads_ahead=False)
        self._files.touched(POLL_UNITS, len(view))
        units = view[: len(view) // UNIT_BYTES * UNIT_BYTES].view(UNIT_DTYPE)
        return units, offset - place // UNIT_BYTES


class IgnoredFiles:
    """Ignored files of one queue that were reported. One thread at a time."""

    def __init__(self) -> None:
        self._said: set[int] = set()
        """First bytes of the reported files."""

    def __repr__(self) -> str:
        return f"<IgnoredFiles: {len(self._said)}>"

    def beyond(self, files: ConsumeQueueFiles, end: int) -> Iterator[str]:
        """Yield a sentence for each new file after the queue's end, except for a just added one.

        Raises:
            Unavailable, Denied: one cannot be read now.
        """
        for first, units in files.heads(end):
            is_new = files.is_next(first, end) and len(units) > 0 and not units["size"].any()
            if first * UNIT_BYTES not in self._said and not is_new:
                self._said.add(first * UNIT_BYTES)
                path, _ = files.path_of(first)
                yield (
                    f"{path} lies beyond the queue's end at offset {end} and holds no unit of a "
                    "message that is there: it is ignored."
                )

    def misplaced(self, files: ConsumeQueueFiles) -> list[str]:
        """Return a sentence for each new file whose name no file of this queue can have."""
        run = files.run
        new = [base for base in run.foreign if base not in self._said]
        self._said.update(new)
        return [
            f"{run.directory / local_file_name(base)} is no file of this queue, whose files have "
            f"{run.file_bytes or 'no'} bytes and names that are multiples of that: it is ignored."
            for base in new
        ]
