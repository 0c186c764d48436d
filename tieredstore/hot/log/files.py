"""System calls on hot log files: writes, syncs, page-cache residency, cached descriptors."""

import ctypes
import errno
import mmap
import os
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from provider.errors import Unavailable
from provider.names import is_there
from provider.object_store import Buffer
from provider.posix.files import OpenFile, OpenFiles, sync_data, sync_directory
from tieredstore.hot.options import ReadLimits

CHUNK_BYTES = 1 << 20
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a temporary shortage of descriptors or memory."""
Identity = tuple[int, int]
"""Device and inode of a file."""
_ZEROS = bytes(CHUNK_BYTES)
FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


Check = Callable[[], None]
"""Call before a file is opened by name. Unavailable: the directory is another store's by now."""


def unchecked() -> None:
    """Check nothing."""


class FileGone(OSError):
    """Error: a written file was renamed or deleted, so that writes to it would be lost."""

    def __init__(self, path: str | Path) -> None:
        said = "a file was renamed or deleted while the store was open"
        super().__init__(errno.ENOENT, said, str(path))


class SyncFailed(OSError):
    """Error: a file could not be synced before the next one. Written bytes may be lost."""


class NotSynced(OSError):
    """Error: a file could not be opened or looked at before a sync or a write.

    No loss is known, and a later sync may succeed.
    """


@contextmanager
def passing_open_errors() -> Generator[None]:
    """Suppress errors of opening a file for want of a descriptor.

    Such an error names the file; one of a write does not.

    Raises:
        OSError: any other.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING or error.filename is None:
            raise


def refuse_if_gone(check: Check, path: Path) -> None:
    """Call `check` before a file below `path` is opened for writing.

    Raises:
        FileGone: it refuses.
        NotSynced: it cannot tell now. Nothing was written.
    """
    try:
        check()
    except Unavailable as error:
        raise FileGone(path) from error
    except OSError as error:
        raise NotSynced(error.errno, error.strerror, str(path)) from error


def open_file(path: Path, file_bytes: int, *, is_known: bool = False) -> tuple[int, bool]:
    """Open a sparse file of `file_bytes`, or create it.

    Return its descriptor and whether it is new. A shorter file, which a crash left, is extended.

    Raises:
        FileGone: `is_known` is set, and the file does not exist any more.
        OSError: it cannot be opened or created; then nothing new is left.
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
    if done == len(data):  # nearly always, and `data` is bytes as a rule
        return
    view = memoryview(data)
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:], position + done)


def read_all(fd: int, position: int, length: int) -> bytes:
    """Read `length` bytes at `position`, fewer if the file ends.

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
    """Zero all bytes from `position` on. Return the position after the last nonzero one; 0 if none.

    Holes stay: on a full disk, writing zeros to them would need space.

    Raises:
        OSError: it cannot be read or written.
    """
    end = 0
    for start, raw in _data_from(fd, position):
        if raw == _ZEROS[: len(raw)]:  # by far the fastest comparison, and nearly always equal
            continue
        written = raw.strip(b"\0")
        first = start + raw.index(written[:1])
        write_all(fd, first, bytes(len(written)))
        end = first + len(written)
    return end


def end_of_data(fd: int, position: int) -> int:
    """Return the position after the last nonzero byte from `position` on; 0 if there is none.

    Raises:
        OSError: it cannot be read.
    """
    end = 0
    for start, raw in _data_from(fd, position):
        if raw != _ZEROS[: len(raw)]:
            end = start + len(raw.rstrip(b"\0"))
    return end


def _data_from(fd: int, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield the stored bytes from `position` on with their positions, without holes."""
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
            if not raw:  # it was truncated meanwhile
                return
            yield position, raw
            position += len(raw)


def identity_of(fd: int) -> Identity:
    """Return the identity of a descriptor's file."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def sync_written(fd: int, path: str, identity: Identity) -> None:
    """Make writes to a file durable, by a descriptor of it. One `stat`, 2 us.

    Raises:
        FileGone: `path` names another file by now, or none.
        OSError: the device failed; written bytes may be lost.
    """
    sync_data(fd)
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a plain string: hot
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileGone(path) from error
    if (found.st_dev, found.st_ino) != identity:
        raise FileGone(path)


def sync_directories(paths: Iterable[Path]) -> None:
    """Make the entries of directories durable, the deepest first. Missing ones are skipped.

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
    """Open a file that is to be synced. Return its descriptor.

    Raises:
        NotSynced: no descriptor is available now.
        OSError: it cannot be opened.
    """
    try:
        return os.open(path, FLAGS)
    except OSError as error:
        raise _not_synced(error, path) from error


def _not_synced(error: OSError, path: Path) -> OSError:
    return NotSynced(error.errno, error.strerror, str(path)) if error.errno in PASSING else error


def replace_file(path: Path, data: bytes, *, backup: Path | None = None) -> None:
    """Replace a file atomically and durably. Keep the old content as `backup`.

    Raises:
        OSError: it cannot be written; the old content stays.
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


ESTIMATED_SHARE: Final = ReadLimits().memory_share
"""Default share of the machine's memory, 0 to 1, that the CommitLog's newest bytes are assumed to
occupy."""
_FAILED: Final = ctypes.c_void_p(-1).value
_IS_RESIDENT: Final = 1
_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_MASK, _TIME = struct.Struct("I"), struct.Struct("qI")
"""Fields of struct statx (linux/stat.h): `stx_mask`, and `stx_btime` at byte 80."""


class _Calls:
    """Functions of the C library, with their types."""

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
        self.describe = getattr(library, "statx", None)  # older ones lack it
        if self.describe is not None:
            self.describe.argtypes = [integer, ctypes.c_char_p, integer, ctypes.c_uint, pointer]


@lru_cache(1)
def _calls() -> _Calls | None:
    try:
        return _Calls()
    except (OSError, AttributeError):
        return None


def birth_of(path: Path) -> tuple[int, int]:
    """Return inode and time of birth of a file, Unix ns; 0 where the file system keeps none.

    A copy has others, also one that got the inode of a deleted file.

    Raises:
        OSError: the file cannot be described.
    """
    inode = path.stat().st_ino
    calls, buffer = _calls(), ctypes.create_string_buffer(256)
    describe = None if calls is None else calls.describe
    if describe is None or describe(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer):
        return inode, 0
    (mask,), (seconds, nanoseconds) = _MASK.unpack_from(buffer), _TIME.unpack_from(buffer, 80)
    return inode, seconds * 10**9 + nanoseconds if mask & _STATX_BTIME else 0


def resident(fd: int, start: int, length: int) -> bool | None:
    """Whether all pages of the bytes `[start, start + length)` are resident; None: unknown.

    Reads nothing. Costs some 10 us, and 0.1 us for each MiB.
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
    """Return the number of newest bytes assumed to be in memory: `share` of it, 0 to 1."""
    return int(_memory_bytes() * share)


def is_estimated_resident(position: int, end: int, share: float = ESTIMATED_SHARE) -> bool:
    """Apply RocketMQ's estimate to a byte of a CommitLog that ends at `end`.

    Pure but for the memory.
    """
    return end - position <= estimated_bytes(share)


class ReadFiles:
    """Cached reads of files that grow in place and that only this process deletes. Any thread.

    A new file may get a deleted name. The deleting caller must call `forget` after the deletion.
    Between the two the old file may still be read.
    """

    def __init__(self, files_max: int, check: Check = unchecked) -> None:
        self._files = OpenFiles(files_max, check_folder=lambda _: check())
        self._deletions = 0
        self._lock = threading.Lock()
        self._nowait_works = True

    def __repr__(self) -> str:
        return f"<ReadFiles {self._files}>"

    def read(self, path: str, position: int, length: int, *, waits: bool) -> bytes:
        """Read `length` bytes at `position`, fewer if the file ends. One system call if it is open.

        Raises:
            FileNotFoundError: there is no file of that name.
            BlockingIOError: `waits` is false, and the read might wait, or the file is not open.
            OSError: it cannot be read.
        """
        return self.read_each(path, [(position, length)], waits=waits)[0]

    def read_each(
        self, path: str, wanted: Sequence[tuple[int, int]], *, waits: bool
    ) -> list[bytes]:
        """Carry out several reads of one file, each of a position and a length.

        Errors as `read`.
        """
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
        """Close a file that was deleted, or will be."""
        with self._lock:
            self._deletions += 1
        self._files.forget(path)

    def close(self) -> None:
        """Close all files. Idempotent. A later read opens them again."""
        self._files.close()

    def _opened(self, path: str) -> OpenFile:
        deletions = self._deletions
        file = self._files.pin(path)
        if deletions != self._deletions:  # perhaps of this very file, before it was opened
            self._files.forget(path)
        return file

    def _cached(self, fd: int, position: int, length: int) -> bytes:
        """Read from the page cache only. Never waits for a device."""
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
