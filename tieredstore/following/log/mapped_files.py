"""Mapped files of another process, bounded in number and resident bytes, and scattered reads."""

import ctypes
import errno
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from provider.errors import Corrupt
from tieredstore.following.directory.layout import translated

PLACES_A_CALL_MAX = 1024
"""IOV_MAX of linux/uio.h: a call with more places is refused."""
SKIPPED = -1
"""Start value of bytes of the file that are not stored."""

_VECTOR = np.dtype([("address", np.uintp), ("length", np.uintp)])
"""`struct iovec` of sys/uio.h."""
_libc = ctypes.CDLL(None, use_errno=True)
_preadv = getattr(_libc, "preadv64", None) or _libc.preadv
_preadv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
_preadv.restype = ctypes.c_ssize_t


class Places:
    """Places `buffer[start : start + length]`, in the order in which they are filled.

    Keeps the buffer alive. One `Places` is for one thread. About 20 ns a place.
    """

    def __init__(
        self, buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        skipped = starts == SKIPPED
        # The kernel writes to any address that it is given.
        assert (lengths >= 0).all()
        assert (skipped | (starts >= 0) & (starts + lengths <= len(buffer))).all()
        assert buffer.flags.writeable
        assert buffer.flags.c_contiguous
        self._buffer = buffer
        self._sink = np.empty(int(lengths[skipped].max(initial=0)), np.uint8)
        self._vector = np.empty(len(starts), _VECTOR)
        self._vector["address"] = np.where(
            skipped, self._sink.ctypes.data, buffer.ctypes.data + starts
        )
        self._vector["length"] = lengths
        self._address: int = self._vector.ctypes.data

    def __len__(self) -> int:
        return len(self._vector)

    def fill(self, descriptor: int, position: int, length: int, first: int, last: int) -> int:
        """Read the file's bytes from `position` on into the places `[first, last)`.

        Call it once for each. `length` is the sum of these places. Returns the number of bytes
        read, which is lower only if the file ends; the rest of a place is unchanged. One `preadv`
        for each 1,024 places, outside the interpreter's lock: 1 us, 20 ns a place, and one copy of
        the bytes. Waits for pages that the page cache lacks.

        Raises:
            OSError: the file cannot be read.
        """
        done = 0
        while done < length:
            count: int = _preadv(
                descriptor,
                self._address + first * _VECTOR.itemsize,
                min(last - first, PLACES_A_CALL_MAX),
                position + done,
            )
            if count < 0:
                code = ctypes.get_errno()
                if code == errno.EINTR:
                    continue
                raise OSError(code, os.strerror(code))
            if count == 0:
                break
            done += count
            if done < length:
                first = self._advance(first, last, count)
        return done

    def _advance(self, first: int, last: int, count: int) -> int:
        """Return the first place that is not full after `count` bytes, shortened to its rest."""
        ends = np.cumsum(self._vector["length"][first:last], dtype=np.int64)
        full = int(np.searchsorted(ends, count, side="right"))
        place = self._vector[first + full]
        left = int(ends[full]) - count
        place["address"] += place["length"] - np.uintp(left)
        place["length"] = left
        return first + full


FAULT_AROUND_BYTES = 64 * 1024
"""Maximum that one touch of a mapped file makes resident, in bytes (Linux `fault_around_bytes`)."""


class MappedFiles:
    """Read-only mappings by path. The least recently used one is dropped first.

    Threads may share one. A view keeps its mapping alive, also after the file was deleted or the
    mapping was dropped here. It is unmapped with the last view. Files are opened with `O_RDONLY`
    only.
    """

    def __init__(self, files_max: int, resident_bytes_max: int) -> None:
        self._files_max = files_max
        self._resident_bytes_max = resident_bytes_max
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, mmap.mmap] = OrderedDict()
        self._touched_bytes = 0
        self._resident_bytes_before = _resident_file_bytes() or 0
        """Resident bytes of the whole process when nothing was mapped or all entries were
        dropped."""
        self._closed = False
        self.opened = 0
        self.drops = 0

    def __repr__(self) -> str:
        return (
            f"<MappedFiles: {len(self._files)} of {self._files_max} mapped, {self.opened} opened, "
            f"{self._touched_bytes} bytes touched, {self.drops} drops>"
        )

    def __len__(self) -> int:
        return len(self._files)

    def check(self) -> None:
        """Assert the bound on mapped files."""
        assert len(self._files) <= self._files_max, f"{self}"

    def view(self, path: Path, *, reads_ahead: bool = True) -> NDArray[np.uint8]:
        """Map the whole file at its present length. One `fstat` if it is mapped already.

        Without `reads_ahead` a touch of a page that the page cache lacks reads that page alone
        (`MADV_RANDOM`; see `will_read` for more). That is for sparse files, whose end is found by
        touching a page after it. The first caller that maps a file decides.

        The view of a truncated file ends early: touching missing bytes would raise SIGBUS, so a
        view never reaches beyond the present length.

        Raises:
            NotFound: it is not mapped, and it was deleted.
            Corrupt: it is empty now.
            Unavailable, Denied: it cannot be opened.
        """
        with self._lock:
            mapped = self._files.get(path)
            if mapped is not None and mapped.size() > len(mapped):  # it was still being created
                del self._files[path]
                mapped = None
            if mapped is None:
                mapped = self._open(path, reads_ahead=reads_ahead)
            else:
                self._files.move_to_end(path)
            length = min(len(mapped), mapped.size())
        if not length:
            raise Corrupt("the file was truncated to nothing", str(path))
        return np.frombuffer(mapped, dtype=np.uint8, count=length)

    def peek(self, path: Path, position: int, length: int) -> bytes:
        """Read a few bytes at `position`, through the mapping if there is one, else by one `pread`.

        Does not map: polls of many idle queues must not evict mappings in use.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `view`.
        """
        with self._lock:
            mapped = self._files.get(path)
            if mapped is not None:
                _check_length(mapped.size(), path, position + length)
                if len(mapped) >= position + length:
                    return mapped[position : position + length]
        return self.read(path, position, length)

    def read(self, path: Path, position: int, length: int) -> bytes:
        """Read as `peek`, but always from the file that now has the name. One `pread`.

        Raises:
            NotFound, Corrupt, Unavailable, Denied: as `view`.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, length, position)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise translated(error, path) from error
        _check_length(position + len(data), path, position + length)
        return data

    def will_read(self, path: Path, position: int, length: int) -> None:
        """Make the kernel read a part of a mapped file ahead. Does not wait."""
        with self._lock:
            mapped = self._files.get(path)
            start = position - position % mmap.PAGESIZE
            if mapped is not None and start < len(mapped):
                end = min(position + length, len(mapped))
                mapped.madvise(mmap.MADV_WILLNEED, start, end - start)

    def touched(self, places: int, span_bytes: int) -> None:
        """Record that `places` within `span_bytes` of a file are about to be read.

        When the estimate passes the bound, the kernel is asked for the resident bytes, for the same
        page is touched many times, and by unrecorded reads. If they exceed the bound, or are
        unknown, all page table entries are dropped (`MADV_DONTNEED`). The pages stay in the page
        cache, so touching them again is cheap.
        """
        with self._lock:
            scattered_bytes = places * FAULT_AROUND_BYTES
            self._touched_bytes += min(scattered_bytes, span_bytes + FAULT_AROUND_BYTES)
            if self._touched_bytes < self._resident_bytes_max:
                return
            resident = _resident_file_bytes()
            if resident is not None:
                self._touched_bytes = max(0, resident - self._resident_bytes_before)
                if self._touched_bytes < self._resident_bytes_max:
                    return
            self._touched_bytes = 0
            self.drops += 1
            for mapped in self._files.values():
                mapped.madvise(mmap.MADV_DONTNEED)
            self._resident_bytes_before = _resident_file_bytes() or 0

    def forget(self, paths: Iterable[Path]) -> None:
        """Drop the mappings of files that may be replaced or deleted. O(paths)."""
        with self._lock:
            for path in paths:
                self._files.pop(path, None)

    def forget_all(self) -> None:
        """Drop all mappings. Each file is opened again at its next use."""
        with self._lock:
            self._files.clear()

    def close(self) -> None:
        """Drop all mappings. Idempotent."""
        with self._lock:
            self._closed = True
            self._files.clear()

    def _open(self, path: Path, *, reads_ahead: bool) -> mmap.mmap:
        while len(self._files) >= self._files_max:
            self._files.popitem(last=False)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not os.fstat(descriptor).st_size:
                    raise Corrupt("the file is empty", str(path))
                mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)  # the mapping keeps its own descriptor, for size()
        except OSError as error:
            raise translated(error, path) from error
        if not reads_ahead:
            mapped.madvise(mmap.MADV_RANDOM)
        self.opened += 1
        if not self._closed:
            self._files[path] = mapped
        return mapped


def _resident_file_bytes() -> int | None:
    """Return the resident bytes of mapped files in this process; None if unknown."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - on a hot path
            return int(file.read(256).split()[2]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return None


def _check_length(size: int, path: Path, length: int) -> None:
    if size < length:
        raise Corrupt(f"the file ends at {size}, before {length}", str(path), size)
