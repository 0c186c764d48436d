"""Open files: a bounded cache of descriptors, system calls on them, errors, buffers.

Nothing here awaits. Errors of the operating system become verdicts here.
"""

import ctypes
import errno
import os
import stat
import threading
import weakref
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import Buffer

_UNAVAILABLE: Final[dict[int, str]] = {
    errno.ENOSPC: "the file system is full; free space and it goes on",
    errno.EDQUOT: "the disk quota is used up; raise it or free space",
    errno.EIO: "the device failed to read or write; look at the kernel's log",
    errno.EROFS: "the file system is read-only; a failing disk may have made it so",
    errno.ESTALE: "the file server forgot the file; it is opened again at the next call",
    errno.EMFILE: "this process has too many open files; raise `ulimit -n`",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "the kernel is out of memory",
    errno.EAGAIN: "the file system is busy",
    errno.EINTR: "interrupted",
    errno.EBUSY: "the file system is busy",
    errno.ETIMEDOUT: "the file server does not answer",
    errno.ENOTCONN: "the file server is not connected",
    errno.EHOSTDOWN: "the file server is down",
    errno.ENOLCK: "the file system is out of locks, or offers none",
    errno.EFBIG: "the file would be larger than the file system or the process limit allows",
}
_DENIED: Final[dict[int, str]] = {
    errno.EACCES: "permission denied; change the owner or the mode of the directory",
    errno.EPERM: "operation not permitted here",
    errno.ELOOP: "a symbolic link stands where a directory or file of the store should be",
    errno.ENOTDIR: "a file stands where a directory is needed",
    errno.EISDIR: "a directory stands where a file is needed",
    errno.ENAMETOOLONG: "the path is longer than the file system allows",
    errno.EMLINK: "the file system allows no further hard link or directory here",
    errno.EXDEV: "a part of the store lies on another file system",
    errno.EOPNOTSUPP: "the file system lacks an operation that a store needs (CONTRACT.md)",
    errno.ENOSYS: "the kernel lacks an operation that a store needs (CONTRACT.md)",
}

LACKING: Final = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems and kernels answer to a call that they do not have."""


class Lacking(OSError):
    """A call that a file system or the kernel does not have."""

    def __init__(self, call: str, path: str) -> None:
        """`call` names it for people, as in "fsync of directories"."""
        reason = f"the file system of {path} lacks {call}, which a store needs: use another one"
        super().__init__(errno.EOPNOTSUPP, reason, path)

    @classmethod
    def of(cls, error: OSError, call: str, fd: int) -> OSError:
        """What a failed call on a descriptor means: this, or `error` itself."""
        if error.errno not in LACKING:
            return error
        path = "this directory"
        with suppress(OSError):  # no /proc
            path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - a plain string
        return cls(call, path)

    def __reduce__(self) -> tuple[object, ...]:
        return OSError, (self.errno, self.strerror, self.filename)


NO_INODES: Final = (
    "the file system has no inodes left, though it may have space: delete files, or make it with "
    "more of them, and it goes on"
)
_GIVEN_BACK: Final = 2
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: StoreError) -> bool:
    """Whether a verdict was given because the file system has no more room for us."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL


def as_verdict(
    error: OSError, path: str, position: int = 0, *, volume: str = ""
) -> StoreError | None:
    """The verdict on `error`, met while `position` of `path` was touched; None if unknown.

    `volume` is a directory of the file system in question, which is asked what it lacks.
    An unknown number is likely a bug of ours (EBADF, EINVAL), so it is not called a verdict.
    """
    number = error.errno or 0
    if number == errno.ENOENT:
        return NotFound("there is no such object", path, position)
    if number == errno.EEXIST:
        return AlreadyExists("the name is taken", path, position)
    if number == errno.ENOSPC and _lacks_inodes(volume):
        return Unavailable(NO_INODES, path, position)
    if number in _UNAVAILABLE:
        return Unavailable(_UNAVAILABLE[number], path, position)
    if number in _DENIED:
        lacks = (error.strerror or "") if isinstance(error, Lacking) else ""
        return Denied(lacks or _DENIED[number], path, position)
    return None


def _lacks_inodes(volume: str) -> bool:
    """Whether the file system below a directory cannot hold one more file."""
    if not volume:
        return False
    try:
        found = os.statvfs(volume)
    except OSError:
        return False
    # Some count no inodes, and some make them of space, so that without space there are none. What
    # failed may have given back one or two by now.
    return found.f_files > 0 and found.f_favail <= _GIVEN_BACK < found.f_bavail


@contextmanager
def posix_errors(path: str, position: int = 0, *, volume: str = "") -> Generator[None]:
    """Translate what the file system raises inside the block, as `as_verdict`; about 1 us.

    What has no verdict passes through untouched.
    """
    try:
        yield
    except OSError as error:
        verdict = as_verdict(error, path, position, volume=volume)
        if verdict is None:
            raise
        raise verdict from error


POOLED_BYTES_MIN = 64 << 10
"""Smaller buffers come from the allocator, which keeps such sizes itself."""
CLASSES_PER_DOUBLING = 4


class _Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Memory that outlives its leases.

    A plain array would not do: numpy makes a view of a view keep the first array alive, not the
    lease between the two.
    """


class BufferPool:
    """Gives out buffers, and takes each back when its last view is gone. Thread-safe.

    Fresh memory costs a page fault for every 4 KiB, and an allocator keeps freed large blocks
    without a bound: this keeps at most `free_bytes_max`, and drops the smallest beyond that.
    """

    def __init__(self, free_bytes_max: int, *, oversize_max: int = 2) -> None:
        """`oversize_max`: how many times its size class the memory of a buffer may be at most.

        1 where buffers are kept, and their memory is counted: it is a quarter more than asked for
        at most.
        """
        self._free_bytes_max = free_bytes_max
        self._oversize_max = oversize_max
        self._lock = threading.Lock()
        self._free: list[_Block] = []
        self._free_bytes = 0
        self.made = 0

    def __repr__(self) -> str:
        return f"<BufferPool: {self.made} made, {self._free_bytes} bytes free>"

    @property
    def free_bytes(self) -> int:
        """Bytes kept for the next buffers."""
        return self._free_bytes

    def check(self) -> None:
        """Assert that what is kept is counted, in order of length, and within its bound."""
        with self._lock:
            lengths = [block.nbytes for block in self._free]
            assert lengths == sorted(lengths), f"{self}"
            assert sum(lengths) == self._free_bytes <= self._free_bytes_max, f"{self}"

    def take(self, length: int) -> NDArray[np.uint8]:
        """A writable buffer of `length` bytes, of any content; it belongs to its views' holders."""
        if length < POOLED_BYTES_MIN:
            return np.empty(length, np.uint8)
        wanted = rounded(length)
        with self._lock:
            index = bisect_left(self._free, wanted, key=attrgetter("nbytes"))
            if index < len(self._free) and self._free[index].nbytes <= self._oversize_max * wanted:
                block = self._free.pop(index)
                self._free_bytes -= block.nbytes
            else:
                block = _Block((wanted,), np.uint8)
                self.made += 1
        lease = block.view(np.ndarray)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease[:length]

    def _give_back(self, block: _Block) -> None:
        # Views may end anywhere, also in the middle of `take`: never wait here.
        if not self._lock.acquire(blocking=False):
            return
        try:
            insort(self._free, block, key=attrgetter("nbytes"))
            self._free_bytes += block.nbytes
            while self._free_bytes > self._free_bytes_max:
                self._free_bytes -= self._free.pop(0).nbytes
        finally:
            self._lock.release()


def rounded(length: int) -> int:
    """The size class of a length: at most a quarter more, so that few sizes serve all."""
    step = max(1 << (length.bit_length() - 1), CLASSES_PER_DOUBLING) // CLASSES_PER_DOUBLING
    return -(-length // step) * step


_START_WRITE_BACK: Final = 2  # SYNC_FILE_RANGE_WRITE, linux/fs.h
_NO_WRITE_BACK: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE})
"""What file systems and kernels answer that cannot begin to write some pages."""
_COPIED_BYTES_MAX: Final = 256 << 10
"""What one `pwrite` takes. The page cache of a longer one comes in pieces as large, out of memory
that was free for long, which a virtual machine's host may have taken back (decision 0012)."""
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class OpenFile:
    """A descriptor, which file it is, how many use it, and whether the cache still wants it."""

    __slots__ = ("fd", "is_wanted", "pins", "seen")

    def __init__(self, fd: int, seen: os.stat_result) -> None:
        self.fd = fd
        self.pins = 0
        self.is_wanted = True
        self.seen = seen
        """What the file was when its path was looked at last: device, inode, length."""

    def is_at(self, path: str) -> bool:
        """Whether `path` leads to this very file. One `stat`; notes what it shows.

        The number of links would tell less: a file that was moved aside still has a name, and so
        has a deleted one of which a backup keeps a hard link. While the descriptor is open no
        other file can have its device and inode.
        """
        try:
            found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a plain string: hot
        except (FileNotFoundError, NotADirectoryError):
            return False
        if found.st_ino != self.seen.st_ino or found.st_dev != self.seen.st_dev:
            return False
        self.seen = found
        return True


class OpenFiles:
    """Descriptors by path and mode, least recently used ones closed first. Thread-safe.

    A descriptor is closed when nobody pins it and the cache does not want it any more, so that
    no call ever meets a number that means another file by now. The lock is never held over a
    system call other than `close`.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._files: OrderedDict[tuple[str, bool], OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._files)} of {self._files_max}>"

    def __len__(self) -> int:
        return len(self._files)

    def pin_cached(self, path: str) -> OpenFile | None:
        """A descriptor for reading that is open already; give it back with `unpin`."""
        with self._lock:
            file = self._files.get((path, False))
            if file is not None:
                self._files.move_to_end((path, False))
                file.pins += 1
            return file

    def pin(self, path: str, *, writable: bool = False) -> OpenFile:
        """A descriptor of an existing file, opened if need be; give it back with `unpin`.

        A cached descriptor is replaced where the path leads to another file by now (`is_at`).

        Raises:
            OSError: the file cannot be opened.
        """
        key = (path, writable)
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                self._files.move_to_end(key)
                file.pins += 1
        if file is not None:
            is_there = False
            try:
                is_there = file.is_at(path)
            finally:
                if not is_there:
                    self.unpin(file)
            if is_there:
                return file
            self.forget(path)
        flags = os.O_RDWR if writable else os.O_RDONLY
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (NotADirectoryError, IsADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "no object can be here", path) from error
        return self.adopt(path, fd, writable=writable)

    def adopt(self, path: str, fd: int, *, writable: bool) -> OpenFile:
        """Cache a descriptor that was opened just now, pinned once. One `fstat`.

        Raises:
            OSError: ENOENT if it is a directory's; it is closed.
        """
        key = (path, writable)
        seen = os.fstat(fd)
        if stat.S_ISDIR(seen.st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "a directory is no object", path)
        with self._lock:
            earlier = self._files.pop(key, None)
            if earlier is not None:
                self._discard(earlier)
            file = self._files[key] = OpenFile(fd, seen)
            file.pins = 1
            while len(self._files) > self._files_max:
                self._discard(self._files.popitem(last=False)[1])
            return file

    def unpin(self, file: OpenFile) -> None:
        """Give a descriptor back."""
        with self._lock:
            file.pins -= 1
            if not file.is_wanted and file.pins == 0:
                os.close(file.fd)

    @contextmanager
    def pinned(self, path: str) -> Generator[int]:
        """A descriptor for reading, for the time of the block."""
        file = self.pin(path)
        try:
            yield file.fd
        finally:
            self.unpin(file)

    def forget(self, path: str) -> None:
        """Close what is open of `path`: it was deleted, or its descriptor turned bad."""
        with self._lock:
            for writable in (False, True):
                file = self._files.pop((path, writable), None)
                if file is not None:
                    self._discard(file)

    def close(self) -> None:
        """Close everything that nobody pins, and the rest when it is given back."""
        with self._lock:
            while self._files:
                self._discard(self._files.popitem()[1])

    @staticmethod
    def _discard(file: OpenFile) -> None:
        file.is_wanted = False
        if file.pins == 0:
            os.close(file.fd)


def allocate(length: int, pool: BufferPool) -> bytearray | memoryview:
    """A writable buffer; a long one has any content, and goes back to the pool after its views."""
    if length < POOLED_BYTES_MIN:
        return bytearray(length)
    return pool.take(length).data


def read_now(fd: int, start: int, length: int, pool: BufferPool) -> Buffer | None:
    """Read from the page cache alone; None if it lacks any of it (then reading ahead has begun).

    Never waits for a device. Raises OSError(EOPNOTSUPP) where the file system cannot tell.
    """
    buffer = allocate(length, pool)
    try:
        count = os.preadv(fd, [buffer], start, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    return buffer if count == length else None


def read_waiting(fd: int, start: int, length: int, pool: BufferPool) -> Buffer | None:
    """Read, waiting for the device; None if the file ends before `start + length`."""
    buffer = allocate(length, pool)
    view = memoryview(buffer)
    done = 0
    while done < length:
        count = os.preadv(fd, [view[done:]], start + done)
        if count == 0:
            return None
        done += count
    return buffer


def write_waiting(
    fd: int,
    position: int,
    buffers: Sequence[Buffer],
    write_bytes_max: int,
    *,
    writes_back: bool = False,
) -> int:
    """Write all buffers one after the other; return the position behind them.

    Small ones are joined: one write of 512 KiB is five times cheaper than one of 512 pieces. Large
    ones are copied 256 KiB a system call, and with `writes_back` the device begins with each
    `write_bytes_max` while the next are copied into the page cache: 3.1 GB/s with the sync at the
    end, where 2.0 GB/s are reached without.
    """
    waiting: list[Buffer] = []
    waiting_bytes = 0
    for buffer in buffers:
        if waiting_bytes + len(buffer) > write_bytes_max and waiting:
            position = _write_joined(fd, position, waiting, write_bytes_max, writes_back)
            waiting, waiting_bytes = [], 0
        waiting.append(buffer)
        waiting_bytes += len(buffer)
    return _write_joined(fd, position, waiting, write_bytes_max, writes_back)


def _write_joined(
    fd: int,
    position: int,
    buffers: list[Buffer],
    write_bytes_max: int,
    writes_back: bool,  # noqa: FBT001 - passed on as it came
) -> int:
    view = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
    begun = position
    while view.nbytes:
        count = os.pwrite(fd, view[: min(_COPIED_BYTES_MAX, write_bytes_max)], position)
        position += count
        view = view[count:]
        if writes_back and position - begun >= write_bytes_max:
            start_write_back(fd, begun, position - begun)
            begun = position
    return position


def start_write_back(fd: int, start: int = 0, length: int = 0) -> None:
    """Ask the kernel to begin writing dirty pages; no promise, no waiting.

    `length` 0 means up to the file's end. Only `fdatasync` makes durable; this lets many files'
    writes run at the same time (decision 0003). Nothing happens where that cannot be had.

    Raises:
        OSError: the device failed, or is full; whether a later sync says so again is up to the
            file system.
    """
    if _sync_file_range is None:
        return
    if _sync_file_range(fd, start, length, _START_WRITE_BACK) < 0:
        number = ctypes.get_errno()
        if number not in _NO_WRITE_BACK:
            raise OSError(number, os.strerror(number))


def sync_data(fd: int) -> None:
    """Make the bytes and the length of an open file durable.

    Raises:
        Lacking: the file system cannot.
        OSError: the device failed.
    """
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise Lacking.of(error, "fdatasync", fd) from error


def sync_directory(path: str) -> os.stat_result:
    """Make the entries of a directory durable; returns which directory that was.

    Raises:
        Lacking: the file system syncs no directories, as CIFS and some of Docker's.
        OSError: the directory cannot be opened or synced.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            os.fsync(fd)
        except OSError as error:
            raise Lacking.of(error, "fsync of directories", fd) from error
        return os.fstat(fd)
    finally:
        os.close(fd)
