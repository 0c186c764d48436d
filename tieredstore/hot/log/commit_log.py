"""Writer of the CommitLog files: in place, by position."""

import mmap
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path

from container.names.rocketmq import local_file_name, parse_local_file_name
from provider.errors import Corrupt, Denied, OutOfRange
from provider.object_store import Buffer
from provider.posix.files import sync_data, sync_directory
from tieredstore.hot.log.files import (
    CHUNK_BYTES,
    PASSING,
    Check,
    FileGone,
    Identity,
    ReadFiles,
    SyncFailed,
    end_of_data,
    identity_of,
    open_file,
    opened_to_sync,
    read_all,
    refuse_if_gone,
    resident,
    sync_written,
    unchecked,
    write_all,
    zero_from,
)

READ_FILES_MAX = 16
"""Maximum of cached descriptors for reads."""
REPAIR = "`tieredstore repair --hot-log` shows the damage and goes on without it"
"""End of each message about a damaged hot log."""
PUT_BACK = f"put it back from a copy; without one, {REPAIR}"
"""End of each message about a missing file."""


class CommitLogWriter:
    """CommitLog files of one length, named by their first byte, sparse where nothing is written.

    One thread at a time uses it, but any thread may call `read`, `sync` and `delete_oldest`.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        *,
        takes_damage: bool = False,
        check: Check = unchecked,
    ) -> None:
        """List the files of an existing directory.

        `takes_damage`: files may be missing or short, as `repair` finds them. `check`: called
        before a file is opened by name.

        Raises:
            Denied: a file has another length than `file_bytes`.
            Corrupt: a file between two others is missing.
            OSError: it cannot be listed.
        """
        self.directory = directory
        self.file_bytes = file_bytes
        found = {
            base: path.stat().st_size
            for path in directory.iterdir()
            if (base := parse_local_file_name(path.name)) is not None
        }
        self.bases = sorted(found)
        """First bytes of the files, ascending."""
        self.short = {base: size for base, size in found.items() if size < file_bytes}
        """Lengths of the files that were too short when the log was opened."""
        for base, size in found.items():
            may_be_short = takes_damage or base == self.bases[-1]  # after a crash
            if base % file_bytes or size > file_bytes or (size < file_bytes and not may_be_short):
                raise Denied(
                    f"the file has {size} bytes, but mappedFileSizeCommitLog is {file_bytes};"
                    " configure the length that the directory was written with, or if the file"
                    f" lost its end, {REPAIR}",
                    str(self.path(base)),
                )
        for one, next_one in pairwise(self.bases):
            if next_one - one != file_bytes and not takes_damage:
                missing = one + file_bytes
                raise Corrupt(
                    f"the file is missing, though a later one is there: {PUT_BACK}",
                    str(self.path(missing)),
                    missing,
                )
        self._prefix = f"{directory}/"
        self._check = check
        self._reads = ReadFiles(READ_FILES_MAX, check)
        self._lock = threading.Lock()
        """Guards `bases`, to which one thread adds and from which another deletes."""
        self._base = -1
        self._fd = -1
        self._identity: Identity = (0, 0)
        self._syncing = threading.Lock()
        """Held while the written file is synced, and while the next one replaces it."""
        self._entry_due = False
        """Whether the directory entry of a new file may not be durable yet."""
        self._deletion_due = False
        """Whether the deletion of a file may not be durable yet."""

    def __repr__(self) -> str:
        return f"<CommitLogWriter {self.directory}: {len(self.bases)} files>"

    @property
    def min_position(self) -> int:
        """First byte of the oldest file; 0 if there is none."""
        return self.bases[0] if self.bases else 0

    @property
    def last_hole_end(self) -> int:
        """First byte of the file after the last missing or short one; 0 if there is none.

        A file is begun only after all earlier ones are durable.
        """
        room = self.file_bytes
        files = pairwise(self.bases)
        return max((end for one, end in files if end - one != room or one in self.short), default=0)

    @property
    def end(self) -> int:
        """First byte after the last file."""
        return self.bases[-1] + self.file_bytes if self.bases else 0

    def path(self, base: int) -> Path:
        """Return the path of the file that begins at `base`."""
        return self.directory / local_file_name(base)

    def base_of(self, position: int) -> int:
        """Return the first byte of the file that holds `position`."""
        return position - position % self.file_bytes

    def has_file_of(self, position: int) -> bool:
        """Whether the file that holds `position` exists."""
        return self.base_of(position) == self._base or self.base_of(position) in self.bases

    def is_open_at(self, position: int) -> bool:
        """Whether a write at `position` goes to an open file, with nothing to sync."""
        return position - position % self.file_bytes == self._base and not self._entry_due

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write parts one after the other, within one file.

        Raises:
            OSError: some of it may be written; undo it by `undo`.
        """
        self._use(self.base_of(position))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        write_all(self._fd, position - self._base, data)

    def write_one(self, position: int, record: bytes) -> None:
        """Write one record to the open file (`is_open_at`), faster than `write`.

        Raises:
            OSError: some of it may be written; undo it by `undo`.
        """
        write_all(self._fd, position - self._base, record)

    def begin(self, position: int) -> None:
        """Create the first file of an empty log at `position`.

        Raises:
            OSError: it cannot be created.
        """
        assert not self.bases, "files are there"
        assert position % self.file_bytes == 0, position
        self._use(position)

    def data_end(self, position: int) -> int:
        """Return the position after the last nonzero byte from `position` on; at least `position`.

        Raises:
            OSError: a file cannot be read.
        """
        for base in reversed([base for base in self.bases if base + self.file_bytes > position]):
            fd = os.open(self.path(base), os.O_RDONLY | os.O_CLOEXEC)
            try:
                end = end_of_data(fd, max(position - base, 0))
            finally:
                os.close(fd)
            if end:
                return base + end
        return position

    def undo(self, position: int) -> None:
        """Zero all bytes after `position`, in its file and in later ones.

        Raises:
            OSError: the device cannot do even that; the log must not be written any more.
        """
        first = self.base_of(position)
        for base in [base for base in reversed(self.bases) if base >= first]:
            self._use(base)
            zero_from(self._fd, max(position - base, 0))

    def rewrite(self, position: int, end: int) -> None:
        """Write the bytes `[position, end)` again, so that the next sync writes them to disk.

        Raises:
            OSError: they cannot be read or written.
        """
        while position < end:
            raw = self.read(position, min(CHUNK_BYTES, end - position))
            self.write(position, [raw])
            position += len(raw)

    def cut(self, position: int) -> None:
        """Truncate the log at `position`: delete later files, and zero the rest of its file.

        Raises:
            OSError: it is truncated in part; the next attempt continues.
        """
        keep = self.base_of(position)
        self.close()
        while self.bases and self.bases[-1] > keep:
            base = self.bases.pop()
            self.path(base).unlink()
            self._reads.forget(self._name(base))
        sync_directory(str(self.directory))  # or a power failure restores old records
        if self.bases and self.bases[-1] == keep:
            self.undo(position)

    def read(self, position: int, length: int) -> bytes:
        """Read bytes within one file, fewer if it ends.

        Raises:
            OutOfRange: the file was deleted.
            OSError: it cannot be read.
        """
        return self.read_each([(position, length)])[0]

    def read_each(self, wanted: Sequence[tuple[int, int]], *, waits: bool = True) -> list[bytes]:
        """Carry out several reads as `read`, each of a position and a length.

        Raises:
            OutOfRange: a file was deleted.
            BlockingIOError: `waits` is false, and the read might wait.
            OSError: one cannot be read.
        """
        found: list[bytes] = []
        for base, places in groupby(wanted, lambda one: self.base_of(one[0])):
            within = [(at - base, min(size, base + self.file_bytes - at)) for at, size in places]
            try:
                found += self._reads.read_each(self._name(base), within, waits=waits)
            except FileNotFoundError as error:
                place = base + within[0][0]
                raise OutOfRange("the file was deleted", self._name(base), place) from error
        return found

    def _name(self, base: int) -> str:
        return f"{self._prefix}{local_file_name(base)}"

    def is_resident(self, position: int, length: int) -> bool | None:
        """Whether bytes within one file are in the page cache; None if that is unknown."""
        base = self.base_of(position)
        try:
            fd = os.open(self.path(base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return resident(fd, position - base, length)
        finally:
            os.close(fd)

    @contextmanager
    def mapped(self, base: int) -> Generator[memoryview]:
        """Map the file at `base` for reads within the block; zeros where it is short.

        Raises:
            OSError: it cannot be mapped.
        """
        fd = os.open(self.path(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            with (
                _mapping(fd, self.file_bytes) as mapping,
                memoryview(mapping) as view,
            ):
                yield view
        finally:
            os.close(fd)

    def sync(self, end: int) -> None:
        """Make the bytes before `end` durable, by the descriptor that writes them.

        Safe to call from any thread. Files before the written one were synced when the next one was
        begun.

        Raises:
            FileGone: the file was renamed or deleted.
            OSError: the device failed; written bytes may be lost.
        """
        with self._syncing:
            if self._fd >= 0 and end > self._base:
                sync_written(self._fd, self._name(self._base), self._identity)

    def sync_files(self, first: int, end: int) -> None:
        """Make the bytes `[first, end)` durable, whichever program wrote them.

        Raises:
            OSError: the device failed; written bytes may be lost.
        """
        for base in [base for base in self.bases if self.base_of(first) <= base < end]:
            fd = opened_to_sync(self.path(base))
            try:
                sync_data(fd)
            finally:
                os.close(fd)

    def delete_oldest(self) -> None:
        """Delete the oldest file; never the last one.

        Durable on return, before the next one: so no power failure leaves a hole.

        Raises:
            OSError: it cannot be deleted, or that cannot be made durable; the next call does it.
        """
        assert len(self.bases) > 1, "the file that is written to stays"
        self._sync_deletion()
        with self._lock:  # first, so that a read that misses the file sees the new list
            base, self.bases = self.bases[0], self.bases[1:]
        try:
            self.path(base).unlink(missing_ok=True)
        except OSError:
            with self._lock:
                self.bases = [base, *self.bases]
            raise
        self._reads.forget(self._name(base))
        self._deletion_due = True
        self._sync_deletion()

    def _sync_deletion(self) -> None:
        if self._deletion_due:
            sync_directory(str(self.directory))
            self._deletion_due = False

    def close(self) -> None:
        """Close all files. Idempotent. A later write or read opens them again."""
        self._reads.close()
        self._close_written()

    def _close_written(self) -> None:
        with self._syncing:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._base = -1

    def _use(self, base: int) -> None:
        if base != self._base:
            self._open(base)
        if self._entry_due:
            sync_directory(str(self.directory))
            self._entry_due = False

    def _open(self, base: int) -> None:
        fd, is_new = self._opened(base)
        try:
            self.sync(self.end)  # which knows one descriptor
        except OSError as error:
            os.close(fd)
            raise SyncFailed(error.errno, error.strerror, self._name(self._base)) from error
        self._close_written()
        with self._syncing:
            self._fd, self._base, self._identity = fd, base, identity_of(fd)
        self._entry_due |= is_new
        with self._lock:
            if base not in self.bases:
                self.bases = sorted({*self.bases, base})

    def _opened(self, base: int) -> tuple[int, bool]:
        path, is_known = self.path(base), base in self.bases
        refuse_if_gone(self._check, self.directory)
        try:
            return open_file(path, self.file_bytes, is_known=is_known)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise FileGone(self.directory) from error
            if error.errno not in PASSING:
                raise
        self._reads.close()  # reads open them again
        return open_file(path, self.file_bytes, is_known=is_known)


def _mapping(fd: int, length: int) -> mmap.mmap:
    """Map a file of `length`. A shorter one is copied to memory with zeros, and stays as it is."""
    size = os.fstat(fd).st_size
    if size >= length:
        return mmap.mmap(fd, length, access=mmap.ACCESS_READ)
    mapping = mmap.mmap(-1, length)
    for at in range(0, size, CHUNK_BYTES):
        mapping.write(read_all(fd, at, min(CHUNK_BYTES, size - at)))
    return mapping
