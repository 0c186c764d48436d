"""What the threads of a `PosixStore` do: whole verbs, start to end, in plain blocking calls.

Each verb cleans up after itself whatever happens, so that nothing depends on who waits for it.
"""

import itertools
import os
import resource
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from provider.buffer_pool import BufferPool
from provider.clock import Clock
from provider.errors import AlreadyExists, OutOfRange, Unavailable
from provider.names import TEMPORARY_PREFIX
from provider.object_store import Append, Buffer, ObjectEntry
from provider.options import PosixOptions
from provider.posix_directories import Directories
from provider.posix_errors import is_full, posix_errors
from provider.posix_files import OpenFiles, read_waiting, write_waiting
from provider.posix_lock import PresenceLock
from provider.posix_reserve import Reserve
from provider.posix_round import AppendRounds
from provider.ranges import ByteRange

_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_FILES_MIN: Final = 4


class PosixWork:
    """The verbs of a store below `root`. Thread-safe; every `OSError` leaves as a verdict."""

    def __init__(self, root: str, options: PosixOptions, clock: Clock) -> None:
        self.root = root.rstrip("/") or "/."
        self._files_open_max = _files_open_max(options)
        self.files = OpenFiles(self._files_open_max)
        self.buffers = BufferPool(options.buffer_bytes_max, oversize_max=1)
        self._options = options
        self._clock = clock
        self._directories = Directories(self.root)
        self._rounds = AppendRounds(self.root, self.files, self._directories, options)
        self._reserve = Reserve(self.root, options.reserve_bytes)
        self._locks: dict[str, PresenceLock] = {}
        self._locks_lock = threading.Lock()
        self._numbers = itertools.count()

    def path(self, name: str) -> str:
        """Where an object lies."""
        return f"{self.root}/{name}"

    def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Write and sync a temporary file, then give it its name, which fails if it is taken.

        On a full file system it takes the reserve.
        """
        try:
            self._create(name, buffers)
        except Unavailable as error:
            if not is_full(error) or not self._reserve.release():
                raise
            self._create(name, buffers)

    def _create(self, name: str, buffers: Sequence[Buffer]) -> None:
        path = self.path(name)
        folder = path.rpartition("/")[0]
        with posix_errors(name, volume=self.root):
            self._directories.check_root()
            if self._directories.make(folder):
                now_s = self._clock.now_ms() / 1000
                self._directories.sweep(folder, now_s - self._options.temporary_age_s_min)
            temporary, fd = self._open_temporary(folder)
            try:
                try:
                    write_waiting(fd, 0, buffers, self._options.write_bytes_max)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                os.link(temporary, path)
            except FileExistsError as error:
                self._directories.sync([folder])  # P9
                raise AlreadyExists("the name is taken", name) from error
            except FileNotFoundError as error:  # swept by a process whose clock is ahead, say
                self._directories.forget()
                raise Unavailable("its temporary file was removed just now", name) from error
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)  # noqa: PTH108 - as above
            self._directories.sync([folder])

    def _open_temporary(self, folder: str) -> tuple[str, int]:
        """A new file that no listing shows; the number is free even if another host has our id."""
        while True:
            temporary = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{next(self._numbers)}"
            try:
                return temporary, os.open(temporary, _NEW_FILE, 0o666)
            except FileExistsError:
                continue
            except FileNotFoundError:
                self._directories.forget()  # somebody removed it: made again by the next call
                raise Unavailable("its directory was removed just now", temporary) from None

    def read(self, name: str, wanted: ByteRange | None) -> Buffer:
        """Read a range or all of a file, waiting for the device."""
        path = self.path(name)
        start = wanted.start if wanted else 0
        try:
            with posix_errors(name, start), self.files.pinned(path) as fd:
                length = wanted.length if wanted else os.fstat(fd).st_size
                found = read_waiting(fd, start, length, self.buffers)
                end = os.fstat(fd).st_size if found is None else 0
        except BaseException:
            self.files.forget(path)  # whatever was wrong, the next call looks again
            raise
        if found is None:
            raise OutOfRange(f"the object ends at {end}", name, start)
        return found

    def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges one after the other; their pages were asked for on the loop."""
        return [self.read(name, part) for name, part in wanted]

    def size(self, name: str) -> int:
        """The length of a file in bytes."""
        with posix_errors(name), self.files.pinned(self.path(name)) as fd:
            return os.fstat(fd).st_size

    def list(self, prefix: str, after: str) -> list[ObjectEntry]:
        """All matching files, by name in the order of code points, which is also UTF-8's."""
        with posix_errors(prefix):
            return sorted(self._directories.entries(prefix, after), key=lambda found: found.name)

    def delete(self, names: Sequence[str]) -> None:
        """Unlink files and sync their directories. What is not there is synced as well."""
        folders: set[str] = set()
        self._directories.check_root()
        for name in names:
            path = self.path(name)
            self._rounds.forget(name)
            self.files.forget(path)
            folder = path.rpartition("/")[0]
            with posix_errors(name):
                if folder not in folders:
                    self._directories.refuse_links(folder)
                try:
                    os.unlink(path)  # noqa: PTH108 - a plain string: this path is hot
                except (FileNotFoundError, NotADirectoryError):
                    if not os.path.isdir(folder):  # noqa: PTH112 - as above
                        continue
            folders.add(folder)
        with posix_errors(names[0] if names else ""):
            self._directories.sync(folders)

    def append(self, appends: Sequence[Append]) -> None:
        """One round of writes and syncs, a bounded number of files at a time."""
        pieces: dict[str, list[Append]] = {}
        for piece in appends:
            pieces.setdefault(piece.name, []).append(piece)
        names = list(pieces)
        with posix_errors(names[0], volume=self.root):
            self._directories.check_root()
            self._directories.make(self.root)
            self._reserve.keep()
        files_max = self._files_open_max // 2
        for start in range(0, len(names), files_max):
            part = {name: pieces[name] for name in names[start : start + files_max]}
            self._rounds.write(part)

    def register(self, name: str) -> bool:
        """Take a share of the lock on the file `name`; say whether nobody else has one."""
        with posix_errors(name, volume=self.root), self._locks_lock:
            self._directories.check_root()
            if name not in self._locks:
                path = self.path(name)
                self._directories.make(path.rpartition("/")[0])
                self._locks[name] = PresenceLock(path)
            return self._locks[name].is_alone()

    def close(self) -> None:
        """Close files, end threads and let go of locks. Idempotent."""
        self._rounds.close()
        self._reserve.close()
        self.files.close()
        self._directories.close()
        with self._locks_lock:
            while self._locks:
                self._locks.popitem()[1].close()


def _files_open_max(options: PosixOptions) -> int:
    """Files to be kept open: no more than half of what the process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return options.files_open_max
    return min(options.files_open_max, max(_FILES_MIN, limit // 2))
