"""Writer of the ConsumeQueue files: units in place, by queue offset."""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from container.names.queue_id import QueueId
from container.names.rocketmq import INT32_MAX, local_file_name, parse_local_file_name
from container.record.unit import FILLER_SIZE, UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Denied
from provider.names import is_directory, is_there
from tieredstore.hot.log.files import (
    PASSING,
    Check,
    FileGone,
    Identity,
    NotSynced,
    ReadFiles,
    end_of_data,
    identity_of,
    open_file,
    opened_to_sync,
    refuse_if_gone,
    sync_directories,
    sync_written,
    unchecked,
    write_all,
    zero_from,
)

READ_FILES_MAX = 64
"""Maximum of cached descriptors for reads, besides those for writes."""
FILLER = ConsumeQueueUnit(0, FILLER_SIZE, 0).encode()
_unpack = ConsumeQueueUnit.LAYOUT.unpack


class QueueFiles:
    """ConsumeQueue files `<topic>/<queue id>/<first byte>` of one length, sparse beyond the units.

    One thread at a time writes. Any thread may `read`, and another one may `sync` meanwhile.
    """

    def __init__(
        self, directory: Path, file_bytes: int, files_open_max: int, check: Check = unchecked
    ) -> None:
        """List the files of an existing directory. `check`: as of `CommitLogWriter`.

        Raises:
            Denied: a file has another length than `file_bytes`.
            OSError: a directory cannot be listed.
        """
        self.directory = directory
        self.file_bytes = file_bytes
        self._files_open_max = files_open_max
        self.bases: dict[QueueId, list[int]] = {}
        """First bytes of each queue's files, ascending and without a hole."""
        self._deletions_due: set[QueueId] = set()
        """Queues of which the deletion of a file may not be durable yet."""
        self.irregular: dict[QueueId, list[int]] = {}
        """Queues with a short or missing file, with their files below the last hole."""
        self.filled: dict[QueueId, int] = {}
        """Offset of each queue before which units may be fillers. Any other filler is damage."""
        self._open: OrderedDict[QueueId, tuple[int, int]] = OrderedDict()
        self._prefix = f"{directory}/"
        self._check = check
        self._reads = ReadFiles(min(files_open_max, READ_FILES_MAX), check)
        self._dirty: set[tuple[QueueId, int]] = set()
        self._dirty_directories: set[Path] = set()
        self._identities: dict[tuple[QueueId, int], Identity] = {}
        """Identities of the files that are open or to be synced."""
        self._dropping: set[QueueId] = set()
        self._lock = threading.Lock()
        """Guards the state that the writing thread shares with a syncing one."""
        for topic in _directories_in(directory):
            for queue in _directories_in(topic):
                if (number := _queue_number(queue.name)) is not None:
                    self._look_at(QueueId(topic.name, number), queue)

    def __repr__(self) -> str:
        return f"<QueueFiles {self.directory}: {len(self.bases)} queues>"

    def _look_at(self, queue: QueueId, directory: Path) -> None:
        found = {
            base: path.stat().st_size
            for path in directory.iterdir()
            if (base := parse_local_file_name(path.name)) is not None
        }
        for base, size in found.items():
            if base % self.file_bytes or size > self.file_bytes:
                raise Denied(
                    f"the file has {size} bytes, but mappedFileSizeConsumeQueue is"
                    f" {self.file_bytes}; configure the length that the directory was written with",
                    str(self.path(queue, base)),
                )
        bases = sorted(found)
        holes = [at for at in range(1, len(bases)) if bases[at] - bases[at - 1] != self.file_bytes]
        first = holes[-1] if holes else 0
        if first or any(size < self.file_bytes for size in found.values()):
            self.irregular[queue] = bases[:first]
        self.bases[queue] = bases[first:]

    def settle(self) -> None:
        """Delete the files of `irregular` that do not adjoin the others of their queue.

        Durable on return.

        Raises:
            OSError: one cannot be deleted.
        """
        for queue, cut_off in self.irregular.items():
            for base in cut_off:
                if base not in self.bases[queue]:
                    self._unlink(queue, base)
        self.irregular.clear()

    def _unlink(self, queue: QueueId, base: int) -> None:
        """Delete a file. Durable on return: in order, so that no power failure leaves a hole."""
        self.path(queue, base).unlink(missing_ok=True)
        self._reads.forget(self._name(queue, base))
        self._deletions_due.add(queue)
        self._sync_deletion(queue)

    def _sync_deletion(self, queue: QueueId) -> None:
        if queue in self._deletions_due:
            sync_directories([self.path(queue, 0).parent])
            self._deletions_due.discard(queue)  # it may be dropped meanwhile

    def path(self, queue: QueueId, base: int) -> Path:
        """Return the path of a queue's file that begins at `base`."""
        return self.directory / queue.topic / str(queue.queue_id) / local_file_name(base)

    def first_offset(self, queue: QueueId) -> int:
        """Return the queue offset of the first unit of the first file; 0 if there is none."""
        bases = self.bases.get(queue)
        return bases[0] // UNIT_BYTES if bases else 0

    def is_open_at(self, queue: QueueId, first_offset: int, length: int) -> bool:
        """Whether `length` bytes of units from `first_offset` on go to an open file."""
        place = first_offset * UNIT_BYTES
        known = self._open.get(queue)
        return known is not None and known[0] <= place <= known[0] + self.file_bytes - length

    def write(self, queue: QueueId, first_offset: int, units: bytes | bytearray) -> None:
        """Write units from `first_offset` on. They may reach into the next file.

        Raises:
            OSError: some may be written; undo them by `undo`.
        """
        place, at = first_offset * UNIT_BYTES, 0
        while at < len(units):
            base = place - place % self.file_bytes
            known = self._open.get(queue)
            fd = known[1] if known is not None and known[0] == base else self._use(queue, base)
            count = min(len(units) - at, base + self.file_bytes - place)
            write_all(fd, place - base, units[at : at + count] if count < len(units) else units)
            if (queue, base) not in self._dirty:  # else the next `sync` covers it, after the write
                with self._lock:
                    self._dirty.add((queue, base))
            place += count
            at += count

    def write_one(self, queue: QueueId, offset: int, unit: bytes) -> None:
        """Write one unit to an open file (`is_open_at`), faster than `write`.

        Raises:
            OSError: it may be written; undo it by `undo`.
        """
        base, fd = self._open[queue]
        write_all(fd, offset * UNIT_BYTES - base, unit)
        if (queue, base) not in self._dirty:  # checked after the write, as in `write`
            with self._lock:
                self._dirty.add((queue, base))

    def begin(self, queue: QueueId, offset: int) -> None:
        """Begin a queue at `offset`, with fillers before it in its first file, as in Java.

        The next `settle` deletes earlier files, which have units of deleted records.

        Raises:
            OSError: some may be written.
        """
        first = offset * UNIT_BYTES // self.file_bytes * self.file_bytes // UNIT_BYTES
        bases = self.bases.get(queue, [])
        if bases and bases[0] < first * UNIT_BYTES:
            with self._lock:
                self.bases[queue] = [base for base in bases if base >= first * UNIT_BYTES]
                self.irregular.setdefault(queue, []).extend(set(bases) - set(self.bases[queue]))
        self._use(queue, first * UNIT_BYTES)  # there are no fillers before a file's first unit
        self.fill(queue, first, offset)

    def fill(self, queue: QueueId, offset: int, end: int) -> None:
        """Write the units of `[offset, end)`, which have no message, as fillers.

        Raises:
            OSError: some may be written.
        """
        if offset < end:
            self.write(queue, offset, FILLER * (end - offset))
            self.filled[queue] = max(end, self.filled.get(queue, 0))

    def is_lost(self, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> bool:
        """Whether a unit of a message was replaced by a filler."""
        return unit.is_filler and offset >= self.filled.get(queue, 0)

    def touch(self, queue: QueueId) -> None:
        """Include the directory entries of a queue's files in the next `sync`."""
        parent = self.path(queue, 0).parent
        with self._lock:
            self._dirty_directories |= {parent, parent.parent, self.directory}

    def undo(self, queue: QueueId, offset: int) -> int:
        """Zero all units from `offset` on.

        Return the offset after the last one there; 0 if there was none.

        Raises:
            OSError: the device cannot do even that; the log must not be written any more.
        """
        place, dropped = offset * UNIT_BYTES, 0
        for base in self.bases.get(queue, []):
            reaches = base + self.file_bytes > place and is_there(self.path(queue, base))
            if reaches and (end := zero_from(self._use(queue, base), max(place - base, 0))):
                dropped = -(-(base + end) // UNIT_BYTES)
                with self._lock:
                    self._dirty.add((queue, base))
        return dropped

    def data_end(self, queue: QueueId, offset: int) -> int:
        """Return the offset after the last unit that is not zeros; at least `offset`.

        Raises:
            OSError: a file cannot be read.
        """
        for base in reversed(self.bases.get(queue, [])):
            fd = os.open(self.path(queue, base), os.O_RDONLY | os.O_CLOEXEC)
            try:
                end = end_of_data(fd, max(offset * UNIT_BYTES - base, 0))
            finally:
                os.close(fd)
            if end:
                return -(-(base + end) // UNIT_BYTES)
        return offset

    def read(self, queue: QueueId, offset: int, count: int, *, waits: bool = True) -> bytes:
        """Read up to `count` units from `offset` on, within one file; b"" if there is no file.

        Raises:
            BlockingIOError: `waits` is false, and the read might wait.
            OSError: they cannot be read.
        """
        place = offset * UNIT_BYTES
        base = place - place % self.file_bytes
        length = min(count * UNIT_BYTES, base + self.file_bytes - place)
        try:
            raw = self._reads.read(self._name(queue, base), place - base, length, waits=waits)
        except FileNotFoundError:
            return b""
        return raw[: len(raw) - len(raw) % UNIT_BYTES]

    def _name(self, queue: QueueId, base: int) -> str:
        return f"{self._prefix}{queue.topic}/{queue.queue_id}/{local_file_name(base)}"

    def unit(self, queue: QueueId, offset: int) -> ConsumeQueueUnit:
        """Read one unit. Its fields are 0 if none is written.

        Raises:
            OSError: it cannot be read.
        """
        raw = self.read(queue, offset, 1)
        return ConsumeQueueUnit(*_unpack(raw)) if raw else ConsumeQueueUnit(0, 0, 0)

    def unit_if_there(self, queue: QueueId, offset: int) -> ConsumeQueueUnit:
        """Read one unit of any queue and offset. Its fields are 0 if there is no file for it.

        Raises:
            OSError: it cannot be read.
        """
        place = offset * UNIT_BYTES
        has_file = place - place % self.file_bytes in self.bases.get(queue, ())
        return self.unit(queue, offset) if has_file else ConsumeQueueUnit(0, 0, 0)

    def partition_point(self, queue: QueueId, holds: Callable[[ConsumeQueueUnit], bool]) -> int:
        """Return the first offset whose unit does not satisfy `holds`.

        All earlier units must satisfy it. Reads some 20 units, and again if files are deleted or
        begun meanwhile.

        Raises:
            OSError: they cannot be read.
        """
        while bases := self.bases.get(queue):
            low, high = bases[0] // UNIT_BYTES, (bases[-1] + self.file_bytes) // UNIT_BYTES
            while low < high:
                middle = (low + high) // 2
                if holds(self.unit(queue, middle)):
                    low = middle + 1
                else:
                    high = middle
            if self.bases.get(queue) is bases:
                return low
        return 0

    def sync(self) -> None:
        """Make all writes before the call durable. Any thread.

        Raises:
            NotSynced: there is no descriptor for a file now; the next call syncs it, too.
            FileGone: a file was renamed or deleted.
            OSError: a device failed; written bytes may be lost.
        """
        with self._lock:
            files, self._dirty = self._dirty, set()
            directories, self._dirty_directories = self._dirty_directories, set()
        left = set(files)
        try:
            for queue, base in files:
                self._sync_one(queue, base)
                left.discard((queue, base))
            sync_directories(directories)
        except NotSynced:
            with self._lock:
                self._dirty |= left
                self._dirty_directories |= directories
            raise

    def _sync_one(self, queue: QueueId, base: int) -> None:
        """Sync a file by the descriptor that writes it, or by another one if that was closed."""
        with self._lock:
            identity = self._identities.get((queue, base))
            known = self._open.get(queue)
            is_open = known is not None and known[0] == base
            try:
                fd = os.dup(known[1]) if known is not None and is_open else -1
            except OSError as error:
                raise NotSynced(error.errno, error.strerror) from error
        try:
            if fd < 0:
                fd = opened_to_sync(self.path(queue, base))
            sync_written(fd, self._name(queue, base), identity or identity_of(fd))
        except (FileGone, FileNotFoundError) as error:
            if base in self.bases.get(queue, ()) and queue not in self._dropping:
                raise FileGone(self._name(queue, base)) from error
        finally:
            if fd >= 0:
                os.close(fd)
        if not is_open:
            with self._lock:
                if (queue, base) not in self._dirty:
                    self._identities.pop((queue, base), None)

    def delete_below(self, queue: QueueId, offset: int) -> int:
        """Delete the files with no unit at or above `offset - 1`, never the last.

        Return their number. One unit below `offset` stays, so that a start sees that none is
        missing.

        Raises:
            OSError: one cannot be deleted, or that cannot be made durable; the next call does it.
        """
        bases, deleted = self.bases.get(queue, []), 0
        self._sync_deletion(queue)
        while len(bases) > 1 and bases[0] + self.file_bytes < offset * UNIT_BYTES:
            base = bases[0]
            with self._lock:  # first, so that a search that misses the file starts again
                if queue not in self.bases:  # deleted as a whole meanwhile
                    return deleted
                bases = self.bases[queue] = self.bases[queue][1:]
            try:
                self._unlink(queue, base)
            except OSError:
                with self._lock:
                    if queue in self.bases and queue not in self._deletions_due:  # it is there
                        self.bases[queue] = [base, *self.bases[queue]]
                raise
            deleted += 1
        return deleted

    def drop(self, queues: Collection[QueueId]) -> None:
        """Delete all files of queues, and the directories that are then empty. Durable on return.

        Raises:
            OSError: files of some are left; those queues stay known.
        """
        self._dropping |= set(queues)
        try:
            self._drop(queues)
        finally:
            self._dropping.clear()

    def _drop(self, queues: Collection[QueueId]) -> None:
        for queue in sorted(queues):
            self._close_of(queue)
            directory = self.path(queue, 0).parent
            for base in [*self.irregular.get(queue, []), *self.bases.get(queue, [])]:
                self.path(queue, base).unlink(missing_ok=True)
                self._reads.forget(self._name(queue, base))
            _remove_if_empty(directory)
            _remove_if_empty(directory.parent)
            with self._lock:
                self.bases.pop(queue, None)
                self.irregular.pop(queue, None)
                self.filled.pop(queue, None)
                self._deletions_due.discard(queue)
                self._dirty = {one for one in self._dirty if one[0] != queue}
                for one in [one for one in self._identities if one[0] == queue]:
                    del self._identities[one]
        sync_directories(
            {self.directory, *(self.directory / queue.topic for queue in queues)} if queues else ()
        )

    def remove_empty(self, topics: Collection[str]) -> None:
        """Delete the empty directories of these topics.

        Raises:
            OSError: one cannot be deleted.
        """
        for topic in topics:
            _remove_if_empty(self.directory / topic)

    def close(self) -> None:
        """Close all files. Idempotent."""
        self._reads.close()
        for queue in list(self._open):
            self._close_of(queue)

    def _close_of(self, queue: QueueId) -> None:
        """Close the written file of a queue, if one is open."""
        with self._lock:
            if (known := self._open.pop(queue, None)) is not None:
                os.close(known[1])
                if (queue, known[0]) not in self._dirty:
                    self._identities.pop((queue, known[0]), None)

    def _use(self, queue: QueueId, base: int) -> int:
        """Return the descriptor of a queue's file, opened or created."""
        known = self._open.get(queue)
        if known is not None and known[0] == base:
            self._open.move_to_end(queue)
            return known[1]
        fd, is_new = self._opened(queue, base)
        self._close_of(queue)
        with self._lock:
            self._open[queue] = (base, fd)
            self._identities[queue, base] = identity_of(fd)
        while len(self._open) > self._files_open_max:
            self._close_of(next(iter(self._open)))
        with self._lock:
            bases = self.bases.setdefault(queue, [])
            if base not in bases:
                self.bases[queue] = sorted({*bases, base})
        if is_new:
            self.touch(queue)
        return fd

    def _opened(self, queue: QueueId, base: int) -> tuple[int, bool]:
        """Open or create a file. Close others if descriptors are short."""
        path, is_known = self.path(queue, base), base in self.bases.get(queue, ())
        refuse_if_gone(self._check, self.directory)
        while True:
            try:
                if not is_known:
                    self._make_directories(path.parent)
                return open_file(path, self.file_bytes, is_known=is_known)
            except OSError as error:
                if error.errno not in PASSING or not self._open:
                    raise
            self._reads.close()  # reads open them again
            self._close_of(next(iter(self._open)))

    def _make_directories(self, directory: Path) -> None:
        try:
            for path in (directory.parent, directory):
                path.mkdir(exist_ok=True)
        except FileNotFoundError as error:  # the store's directory is gone
            raise FileGone(self.directory) from error


def _queue_number(name: str) -> int | None:
    """Parse a directory's name as a queue id in RocketMQ's form; None if it is not one."""
    if not name.isascii() or not name.isdecimal() or str(int(name)) != name:
        return None
    return int(name) if int(name) <= INT32_MAX else None


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _directories_in(directory: Path) -> Sequence[Path]:
    return sorted(path for path in directory.iterdir() if is_directory(path))
