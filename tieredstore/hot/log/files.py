"""System calls on hot log files: writes, syncs, page-cache residency, cached descriptors."""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from provider.names import is_there
from provider.object_store import Buffer
from provider.posix.files import OpenFile, OpenFiles, sync_data, sync_directory

CHUNK_BYTES = 1 << 20
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a process or machine that is short of descriptors or memory now."""
Identity = tuple[int, int]
"""Device and inode."""
_ZEROS = bytes(CHUNK_BYTES)
FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class FileGone(OSError):
    """A file that is written to has another name, or none: what is written would be lost."""

    def __init__(self, path: str | Path) -> None:
        said = "a file was renamed or deleted while the store was open"
        super().__init__(errno.ENOENT, said, str(path))


class SyncFailed(OSError):
    """A file could not be synced before another took its place: what was written may be lost."""


class NotSynced(OSError):
    """A file could not be opened to sync it; nothing is known to be lost, a later sync may do."""


@contextmanager
def passing_open_errors() -> Generator[None]:
    """End the block without an error where a file cannot be opened for want of a descriptor.

    An error of `open` names the file; one of a write does not.

    Raises:
        OSError: any other.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING or error.filename is None:
            raise


def open_file(path: Path, file_bytes: int, *, is_known: bool = False) -> tuple[int, bool]:
    """A descriptor of a file that has `file_bytes`, made if it is not there; whether it was made.

    A shorter one, which a crash left, is brought to its length. It is sparse.

    Raises:
        FileGone: `is_known`: it was there, and is not.
        OSError: it cannot be opened or made; then nothing new is left.
    """
    try:
        fd, is_new = os.open(path, FLAGS), False
    except FileNotFoundError as error:
        if is_known:
            raise FileGone(path) from error
        fd, is_new = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, 0o644), True
    try:
        if os.fstat(fd).st_size < file_bytes:
            os.ftruncate(fd, file_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd, is_new


def write_all(fd: int, position: int, data: Buffer) -> None:
    """Write all of `data` at `position`.

    Raises:
        OSError: a part of it may be written.
    """
    done = os.pwrite(fd, data, position)
    if done == len(data):  # as nearly always, and `data` is bytes as a rule
        return
    view = memoryview(data)
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:], position + done)


def read_all(fd: int, position: int, length: int) -> bytes:
    """`length` bytes at `position`, fewer where the file ends.

    Raises:
        OSError: it cannot be read.
    """
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(fd, length, position)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def zero_from(fd: int, position: int) -> int:
    """Make everything from `position` on zeros; the position after the last byte that was not.

    0 if nothing was changed.

    Holes stay: on a disk that is full, zeros in them would need room that there is not.

    Raises:
        OSError: it cannot be read or written.
    """
    end = 0
    for start, raw in _data_from(fd, position):
        if raw == _ZEROS[: len(raw)]:  # by far the fastest way to say so, and nearly always so
            continue
        written = raw.strip(b"\0")
        first = start + raw.index(written[:1])
        write_all(fd, first, bytes(len(written)))
        end = first + len(written)
    return end


def end_of_data(fd: int, position: int) -> int:
    """The position after the last byte from `position` on that is not zero; 0 if there is none.

    Raises:
        OSError: it cannot be read.
    """
    end = 0
    for start, raw in _data_from(fd, position):
        if raw != _ZEROS[: len(raw)]:
            end = start + len(raw.rstrip(b"\0"))
    return end


def _data_from(fd: int, position: int) -> Iterator[tuple[int, bytes]]:
    """What is stored from `position` on, in pieces with their positions, without holes."""
    size = os.fstat(fd).st_size
    while position < size:
        try:
            position = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                return
            raise
        end = min(os.lseek(fd, position, os.SEEK_HOLE), size)
        while position < end:
            raw = read_all(fd, position, min(CHUNK_BYTES, end - position))
            if not raw:  # it was cut meanwhile
                return
            yield position, raw
            position += len(raw)


def identity_of(fd: int) -> Identity:
    """Which file a descriptor is of."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def sync_written(fd: int, path: str, identity: Identity) -> None:
    """Make durable what was written to a file, by a descriptor of it. One `stat`, 2 us.

    Raises:
        FileGone: `path` leads to another file by now, or to none.
        OSError: the device failed; what was written may be lost.
    """
    sync_data(fd)
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a plain string: hot
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileGone(path) from error
    if (found.st_dev, found.st_ino) != identity:
        raise FileGone(path)


def sync_directories(paths: Iterable[Path]) -> None:
    """Make the entries of directories durable, the deepest first; those that are gone are skipped.

    Raises:
        NotSynced: there is no descriptor for one now.
        OSError: one cannot be synced.
    """
    for path in sorted(set(paths), reverse=True):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _not_synced(error, path) from error
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def opened_to_sync(path: Path) -> int:
    """A descriptor of a file that is to be synced.

    Raises:
        NotSynced: there is none to be had now.
        OSError: it cannot be opened.
    """
    try:
        return os.open(path, FLAGS)
    except OSError as error:
        raise _not_synced(error, path) from error


def _not_synced(error: OSError, path: Path) -> OSError:
    return NotSynced(error.errno, error.strerror, str(path)) if error.errno in PASSING else error


def replace_file(path: Path, data: bytes, *, backup: Path | None = None) -> None:
    """Give `path` this content, wholly or not at all, and durably; keep the old one as `backup`.

    Raises:
        OSError: it cannot be written; the old content is there.
    """
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, 0, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    if backup is not None and is_there(path):
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    os.replace(temporary, path)  # noqa: PTH105 - as the other calls here
    sync_directory(str(path.parent))


ESTIMATED_SHARE: Final = 0.4
"""Share of the machine's memory that the CommitLog's newest bytes are taken to occupy, if no
other is configured."""
_FAILED: Final = ctypes.c_void_p(-1).value
_IS_RESIDENT: Final = 1


class _Calls:
    """The C library's functions, with their types."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        size, integer, pointer = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        self.map = library.mmap
        self.map.argtypes = [pointer, size, integer, integer, integer, ctypes.c_int64]
        self.map.restype = pointer
        self.unmap = library.munmap
        self.unmap.argtypes = [pointer, size]
        self.ask = library.mincore
        self.ask.argtypes = [pointer, size, pointer]


@lru_cache(1)
def _calls() -> _Calls | None:
    try:
        return _Calls()
    except (OSError, AttributeError):
        return None


def resident(fd: int, start: int, length: int) -> bool | None:
    """Whether all pages of the bytes `[start, start + length)` are resident; None: not known.

    Reads nothing. Some 10 us, and 0.1 us for each MiB.
    """
    calls = _calls()
    if calls is None or length <= 0:
        return None
    first = start - start % mmap.PAGESIZE
    size = start + length - first
    address = calls.map(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, first)
    if address is None or address == _FAILED:
        return None
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if calls.ask(address, size, pages) != 0:
            return None
        return all(page & _IS_RESIDENT for page in pages.raw)
    finally:
        calls.unmap(address, size)


@lru_cache(1)
def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def estimated_bytes(share: float = ESTIMATED_SHARE) -> int:
    """How many of the newest bytes are taken to be in memory: so large a share of it, 0 to 1."""
    return int(_memory_bytes() * share)


def is_estimated_resident(position: int, end: int, share: float = ESTIMATED_SHARE) -> bool:
    """RocketMQ's estimate for a byte of a CommitLog that ends at `end`. Pure but for the memory."""
    return end - position <= estimated_bytes(share)


class ReadFiles:
    """Reads files that grow in place and are deleted by this process alone. Any thread.

    A name that was deleted may be given to a new file; who deletes one says so (`forget`), after
    it. Between the two the old file may still be read.
    """

    def __init__(self, files_max: int) -> None:
        self._files = OpenFiles(files_max)
        self._deletions = 0
        self._lock = threading.Lock()
        self._nowait_works = True

    def __repr__(self) -> str:
        return f"<ReadFiles {self._files}>"

    def read(self, path: str, position: int, length: int, *, waits: bool) -> bytes:
        """`length` bytes at `position`, fewer where the file ends; one system call if it is open.

        Raises:
            FileNotFoundError: there is no file of that name.
            BlockingIOError: it is not to wait for the device, but might; or a file is not open.
            OSError: it cannot be read.
        """
        return self.read_each(path, [(position, length)], waits=waits)[0]

    def read_each(
        self, path: str, wanted: Sequence[tuple[int, int]], *, waits: bool
    ) -> list[bytes]:
        """Several reads of one file, each of a position and a length; errors as `read`."""
        file = self._files.pin_cached(path)
        if file is None:
            if not waits:
                raise BlockingIOError(errno.EAGAIN, "the file is not open", path)
            file = self._opened(path)
        read_one = read_all if waits else self._cached
        try:
            return [read_one(file.fd, position, length) for position, length in wanted]
        finally:
            self._files.unpin(file)

    def forget(self, path: str) -> None:
        """The file of that name was deleted, or will be: close it."""
        with self._lock:
            self._deletions += 1
        self._files.forget(path)

    def close(self) -> None:
        """Close all files. Idempotent; a later read opens them again."""
        self._files.close()

    def _opened(self, path: str) -> OpenFile:
        deletions = self._deletions
        file = self._files.pin(path)
        if deletions != self._deletions:  # perhaps that of this very file, before it was opened
            self._files.forget(path)
        return file

    def _cached(self, fd: int, position: int, length: int) -> bytes:
        """What the page cache has; never waits for a device."""
        if not self._nowait_works:
            raise BlockingIOError(errno.EAGAIN, "this file system does not tell what is cached")
        buffer = bytearray(length)
        try:
            count = os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._nowait_works = False
            raise BlockingIOError(error.errno, error.strerror) from error
        if count != length:  # the rest is not cached, or the file ends
            raise BlockingIOError(errno.EAGAIN, "not all of it is cached")
        return bytes(buffer)
