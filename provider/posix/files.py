"""Open files: a bounded cache of descriptors, system calls, verdicts on errors, a buffer pool.

All calls are blocking.
"""

import ctypes
import errno
import os
import stat
import sys
import threading
import weakref
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import Buffer

_UNAVAILABLE: Final[dict[int, str]] = {
    errno.ENOSPC: "the file system is full; free space to continue",
    errno.EDQUOT: "the disk quota is used up; raise it or free space",
    errno.EIO: "the device failed to read or write; see the kernel's log",
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
"""Errors of file systems and kernels for an unsupported call."""


_SYSTEM: Final[str] = sys.platform
RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
"""Flag of a read from the page cache alone; 0 on systems without such reads."""


def refuse_other_systems(path: str) -> None:
    """Refuse to write a store or to own a tier on another system than Linux.

    Their locks (F_OFD_SETLK) and syncs are those of Linux. Reading needs neither.

    Raises:
        Denied: this is not Linux.
    """
    if _SYSTEM != "linux":
        raise Denied(
            f"stores and tiers are written on Linux alone, and this is {_SYSTEM}: write on a Linux "
            "host or in a container; reading works here",
            path,
        )


class Lacking(OSError):
    """Call that the file system or the kernel does not support."""

    def __init__(self, call: str, path: str) -> None:
        """Create the error. `call` is its name for the text, such as "fsync of directories"."""
        reason = f"the file system of {path} lacks {call}, which a store needs: use another one"
        super().__init__(errno.EOPNOTSUPP, reason, path)

    @classmethod
    def of(cls, error: OSError, call: str, fd: int) -> OSError:
        """Return this error if a failed call on a descriptor is unsupported, else `error`."""
        if error.errno not in LACKING:
            return error
        path = "this directory"
        with suppress(OSError):  # no /proc
            path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - a plain string
        return cls(call, path)

    def __reduce__(self) -> tuple[object, ...]:
        return OSError, (self.errno, self.strerror, self.filename)


NO_INODES: Final = (
    "the file system has no inodes left, though it may have space: delete files, or recreate it "
    "with more of them, to continue"
)
_GIVEN_BACK: Final = 2
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: StoreError) -> bool:
    """Whether a verdict has a full file system or an exceeded quota as its cause."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL


def as_verdict(
    error: OSError, path: str, position: int = 0, *, volume: str = ""
) -> StoreError | None:
    """Return the verdict on an error at `position` of `path`; None if unknown.

    `volume` is a directory of the file system, to distinguish a lack of inodes from one of space.
    Other error numbers, such as EBADF and EINVAL, are likely bugs and have no verdict.
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
    # Some file systems count no inodes, and some allocate them from free space, so a full one has
    # none. The failed call may have freed one or two by now.
    return found.f_files > 0 and found.f_favail <= _GIVEN_BACK < found.f_bavail


@contextmanager
def posix_errors(path: str, position: int = 0, *, volume: str = "") -> Generator[None]:
    """Translate an `OSError` inside the block, as `as_verdict`. Costs about 1 us.

    An error without a verdict propagates unchanged.
    """
    try:
        yield
    except OSError as error:
        verdict = as_verdict(error, path, position, volume=volume)
        if verdict is None:
            raise
        raise verdict from error


POOLED_BYTES_MIN = 64 << 10
"""Smallest pooled buffer in bytes. The allocator itself reuses smaller ones."""
CLASSES_PER_DOUBLING = 4


class _Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Memory block that outlives its leases.

    A subclass is needed: numpy makes a view of a view of a plain array keep the first array alive,
    not the lease between the two.
    """


class BufferPool:
    """Pool of buffers. A buffer returns to it when its last view is garbage collected. Thread-safe.

    Fresh memory costs a page fault for every 4 KiB, and an allocator keeps freed large blocks
    without a bound. The pool keeps at most `free_bytes_max`, and drops the smallest beyond that.
    """

    def __init__(self, free_bytes_max: int, *, oversize_max: int = 2) -> None:
        """Create an empty pool of at most `free_bytes_max`.

        `oversize_max` is the largest ratio of a buffer's memory to its size class. Use 1 if callers
        keep buffers and count their memory, which is then at most a quarter more than requested.
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
        """Bytes kept for reuse."""
        return self._free_bytes

    def check(self) -> None:
        """Assert that the free blocks are counted, sorted by length, and within the bound."""
        with self._lock:
            lengths = [block.nbytes for block in self._free]
            assert lengths == sorted(lengths), f"{self}"
            assert sum(lengths) == self._free_bytes <= self._free_bytes_max, f"{self}"

    def take(self, length: int) -> NDArray[np.uint8]:
        """Return a writable buffer of `length` bytes with undefined content.

        It returns to the pool when no view of it is left.
        """
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
        # A view may be collected anywhere, also inside `take`: never wait here.
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
    """Return the size class of a length: at most a quarter more, so that there are few sizes."""
    step = max(1 << (length.bit_length() - 1), CLASSES_PER_DOUBLING) // CLASSES_PER_DOUBLING
    return -(-length // step) * step


_START_WRITE_BACK: Final = 2  # SYNC_FILE_RANGE_WRITE, linux/fs.h
_NO_WRITE_BACK: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE})
"""Errors of file systems and kernels without `sync_file_range`."""
_COPIED_BYTES_MAX: Final = 256 << 10
"""Most bytes of one `pwrite`. For a longer one the kernel allocates page cache in larger pieces,
from memory that was free for long, which a virtual machine's host may have reclaimed (decision
0012)."""
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class OpenFile:
    """Open descriptor with its file's identity, its pins, and whether the cache still holds it."""

    __slots__ = ("fd", "is_wanted", "pins", "seen")

    def __init__(self, fd: int, seen: os.stat_result) -> None:
        self.fd = fd
        self.pins = 0
        self.is_wanted = True
        self.seen = seen
        """Status of the file at the last `stat` of its path: device, inode, length."""

    def is_at(self, path: str) -> bool:
        """Whether `path` is this file. One `stat`, whose result is kept in `seen`.

        The number of links is not sufficient: a renamed file still has a name, and a backup may
        keep a hard link to a deleted one. While the descriptor is open, no other file can have its
        device and inode.
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
    """LRU cache of descriptors by path and mode. Thread-safe.

    A descriptor is closed when it has no pins and is no longer in the cache. No call can therefore
    use a descriptor number that was reused for another file. The lock is never held during a system
    call other than `close`.
    """

    def __init__(
        self, files_max: int, *, check_folder: Callable[[str], None] = lambda _: None
    ) -> None:
        """Create an empty cache. `check_folder` raises if no file below a directory may be opened.

        It is called before a file is opened, not for a cached descriptor.
        """
        self._files_max = files_max
        self._check_folder = check_folder
        self._files: OrderedDict[tuple[str, bool], OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._files)} of {self._files_max}>"

    def __len__(self) -> int:
        return len(self._files)

    def pin_cached(self, path: str) -> OpenFile | None:
        """Return a cached descriptor for reading, pinned; None without one. Release by `unpin`."""
        with self._lock:
            file = self._files.get((path, False))
            if file is not None:
                self._files.move_to_end((path, False))
                file.pins += 1
            return file

    def pin(self, path: str, *, writable: bool = False) -> OpenFile:
        """Return a descriptor of an existing file, pinned, opened if necessary. Release by `unpin`.

        A cached descriptor is replaced if the path is another file by now (`is_at`).

        Raises:
            OSError: the file cannot be opened, or `check_folder` refuses its directory.
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
        self._check_folder(path.rpartition("/")[0])
        flags = os.O_RDWR if writable else os.O_RDONLY
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (NotADirectoryError, IsADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "no object can be here", path) from error
        return self.adopt(path, fd, writable=writable)

    def adopt(self, path: str, fd: int, *, writable: bool) -> OpenFile:
        """Add a newly opened descriptor to the cache, pinned once. One `fstat`.

        Raises:
            OSError: ENOENT if it is a directory; the descriptor is closed.
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
        """Release a pin."""
        with self._lock:
            file.pins -= 1
            if not file.is_wanted and file.pins == 0:
                os.close(file.fd)

    @contextmanager
    def pinned(self, path: str) -> Generator[int]:
        """Pin a descriptor for reading during the block."""
        file = self.pin(path)
        try:
            yield file.fd
        finally:
            self.unpin(file)

    def forget(self, path: str) -> None:
        """Drop the descriptors of `path`, after its deletion or an error."""
        with self._lock:
            for writable in (False, True):
                file = self._files.pop((path, writable), None)
                if file is not None:
                    self._discard(file)

    def close(self) -> None:
        """Close all descriptors: pinned ones when they are released."""
        with self._lock:
            while self._files:
                self._discard(self._files.popitem()[1])

    @staticmethod
    def _discard(file: OpenFile) -> None:
        file.is_wanted = False
        if file.pins == 0:
            os.close(file.fd)


def allocate(length: int, pool: BufferPool) -> bytearray | memoryview:
    """Return a writable buffer. A long one is from the pool and has undefined content."""
    if length < POOLED_BYTES_MIN:
        return bytearray(length)
    return pool.take(length).data


def read_now(fd: int, start: int, length: int, pool: BufferPool) -> Buffer | None:
    """Read from the page cache alone; None if any byte is missing (read-ahead has then started).

    Never waits for a device.

    Raises:
        OSError: EOPNOTSUPP if the file system has no non-blocking reads.
    """
    if not RWF_NOWAIT:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    buffer = allocate(length, pool)
    try:
        count = os.preadv(fd, [buffer], start, RWF_NOWAIT)
    except BlockingIOError:
        return None
    return buffer if count == length else None


def read_waiting(fd: int, start: int, length: int, pool: BufferPool) -> Buffer | None:
    """Read, and wait for the device; None if the file ends before `start + length`."""
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
    """Write all buffers in sequence. Return the position after them.

    Small buffers are joined: one write of 512 KiB is five times cheaper than one of 512 pieces.
    Large buffers are copied by system calls of 256 KiB. With `writes_back`, write-back of each
    `write_bytes_max` starts while the next bytes are copied into the page cache. That reaches 3.1
    GB/s including the final sync, and 2.0 GB/s without it.
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
    """Start write-back of dirty pages without waiting. Guarantees nothing.

    `length` 0 means up to the file's end. Only `fdatasync` makes bytes durable; this call lets the
    writes of many files run concurrently (decision 0003). Does nothing if unsupported.

    Raises:
        OSError: the device failed or is full. A later sync may or may not report it again.
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
        Lacking: the file system has no fdatasync.
        OSError: the device failed.
    """
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise Lacking.of(error, "fdatasync", fd) from error


def sync_directory(path: str) -> os.stat_result:
    """Make the entries of a directory durable. Return the status of the directory.

    Raises:
        Lacking: the file system cannot sync directories, like CIFS and some of Docker's.
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
