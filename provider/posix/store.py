"""Directory as a store: objects are files, and a name is a path below the root.

A round of appends opens and checks all files, then writes all, then syncs all.
"""

import asyncio
import errno
import itertools
import os
import resource
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from provider.clock import Clock, SystemClock
from provider.errors import AlreadyExists, Closed, OutOfRange, Unavailable
from provider.names import TEMPORARY_PREFIX, check_name, check_prefix
from provider.object_store import Append, Buffer, ObjectEntry
from provider.options import PosixOptions
from provider.posix.directories import Directories, Identity, identity
from provider.posix.files import (
    FULL,
    BufferPool,
    OpenFile,
    OpenFiles,
    is_full,
    posix_errors,
    read_now,
    read_waiting,
    start_write_back,
    sync_data,
    write_waiting,
)
from provider.posix.locks import PresenceLock
from provider.ranges import ByteRange

T = TypeVar("T")
_READ_COST_BYTES: Final = 4 << 10
"""Cost of one more read on the event loop, in bytes copied."""


class PosixStore:
    """`AppendingStore` on a POSIX file system (`CONTRACT.md` has the requirements).

    Reads try the page cache on the event loop (`RWF_NOWAIT`), and use a thread only if they would
    wait for the device. Every write costs one hop to a thread, for any number of files, and returns
    when the device has the bytes.

    Cancelling a call does not stop the work of its thread; `close` waits for it. One instance may
    serve several event loops, but not several processes: open it after a fork.
    """

    def __init__(
        self, root: Path, *, options: PosixOptions | None = None, clock: Clock | None = None
    ) -> None:
        self._options = options or PosixOptions()
        self._work = PosixWork(str(root), self._options, clock or SystemClock())
        self._readers = ThreadPoolExecutor(self._options.read_threads_max, "posix-read")
        self._appender = ThreadPoolExecutor(1, "posix-append")  # one thread keeps rounds in order
        self._deleter = ThreadPoolExecutor(1, "posix-delete")  # one thread keeps deletes in order
        self._writers = ThreadPoolExecutor(self._options.write_threads_max, "posix-write")
        self._nowait_works = True
        self._is_closed = False
        self._has_cancelled_append = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else repr(self._work.files)
        return f"<PosixStore {self._work.root}: {state}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`. Syncs the file, then its directory."""
        self._check(name)
        await self._in(self._writers, lambda: self._work.create(name, buffers))

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. No thread if the page cache has it."""
        self._check(name)
        if wanted is not None and wanted.length <= self._options.loop_read_bytes_max:
            found = self.read_now(name, wanted.start, wanted.length)
            if found is not None:
                return found
        return await self._in(self._readers, lambda: self._work.read(name, wanted))

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`. One thread hop for all misses together."""
        self._check(*(name for name, _ in wanted))
        results: list[Buffer | None] = []
        left_bytes = self._options.loop_read_bytes_max + _READ_COST_BYTES
        for name, part in wanted:
            left_bytes -= part.length + _READ_COST_BYTES
            found = self.read_now(name, part.start, part.length) if left_bytes >= 0 else None
            results.append(found)
        missing = [wanted[i] for i, result in enumerate(results) if result is None]
        if not missing:
            return [result for result in results if result is not None]
        late = iter(await self._in(self._readers, lambda: self._work.read_many(missing)))
        return [next(late) if result is None else result for result in results]

    def read_now(
        self, name: str, start: int, length: int, *, follows: bool = False
    ) -> Buffer | None:
        """Read from the page cache of an open file; `ReadNow`. Some 7 us, 3 if it `follows`."""
        if self._is_closed or not self._nowait_works or length > self._options.loop_read_bytes_max:
            return None
        path, files = self._work.path(name), self._work.files
        file = files.pin_cached(path)
        if file is None:
            return None
        try:
            found = read_now(file.fd, start, length, self._work.buffers)
            return found if follows or file.is_at(path) else None
        except OSError as error:
            # The read in a thread hits the same error and translates it.
            if error.errno == errno.EOPNOTSUPP:
                self._nowait_works = False  # this file system has no non-blocking reads
            return None
        finally:
            files.unpin(file)

    async def size(self, name: str) -> int:
        """Return the object's length in bytes; `ObjectStore.size`. One thread hop."""
        self._check(name)
        return await self._in(self._readers, lambda: self._work.size(name))

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects by name; `ObjectStore.list`. One thread hop, a `stat` for each object.

        Visits only directories that can hold a matching name. Temporary files and symbolic links
        are not objects. Waits for the writes of cancelled calls of `append`.
        """
        self._check()
        check_prefix(prefix)
        if self._has_cancelled_append:
            await self._in(self._appender, lambda: None)  # runs after all earlier rounds
            self._has_cancelled_append = False
        return await self._in(self._readers, lambda: self._work.list(prefix, after))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects durably; `ObjectStore.delete`. Directories stay.

        Calls run one after another: deletions of a cancelled call have landed when the next call
        returns.
        """
        self._check(*names)
        await self._in(self._deleter, lambda: self._work.delete(names))

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position; `AppendingStore.append`. One thread hop.

        Rounds run one after another, in the order of the calls: writes of a cancelled call land
        before those of the next one.

        Costs one fdatasync per file, started together, and one fsync for each directory with a new
        file.
        """
        self._check(*(piece.name for piece in appends))
        if appends:
            try:
                await self._in(self._appender, lambda: self._work.append(appends))
            except asyncio.CancelledError:
                self._has_cancelled_append = True
                raise

    async def register(self, name: str) -> bool:
        """Register this store as present; `AppendingStore.register`. One thread hop.

        The file of that name has the last process that was alone, for operators.
        """
        self._check(name)
        return await self._in(self._writers, lambda: self._work.register(name))

    async def close(self) -> None:
        """Wait for running work, then close files, locks and threads. Idempotent."""
        self._is_closed = True
        await asyncio.to_thread(self._close_waiting)

    def _close_waiting(self) -> None:
        self._readers.shutdown(wait=True)
        self._appender.shutdown(wait=True)
        self._deleter.shutdown(wait=True)
        self._writers.shutdown(wait=True)
        self._work.close()

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            running = asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError:
            self._check()
            raise
        return await running

    def _check(self, *names: str) -> None:
        if self._is_closed:
            raise Closed("the store was closed", names[0] if names else "")
        for name in names:
            check_name(name)


RESERVE_NAME: Final = f"{TEMPORARY_PREFIX}reserve"
"""Name of the reserve's file. Listings skip it."""

_NO_ALLOCATION: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class Reserve:
    """Reserve of `size_bytes` of disk space below `root`, so that appended data can be published.

    Data may not use it: `keep` precedes every round of appends, and refuses the round if the file
    system has no room for the reserve. `release` frees it for an object, such as a journal entry,
    on a full file system. Data therefore never takes the last bytes, and all written data can be
    published.

    The stores over one root share the file. A store that closes removes it, and the next round of
    another store recreates it. On a file system that cannot allocate, there is no reserve.
    Thread-safe.
    """

    def __init__(self, root: str, size_bytes: int) -> None:
        self._path = f"{root}/{RESERVE_NAME}"
        self._size_bytes = size_bytes
        self._is_ours = False

    def keep(self) -> None:
        """Allocate the reserve if it is missing. Costs one `stat` if it exists.

        Raises:
            OSError: ENOSPC or EDQUOT if there is no room for it.
        """
        if self._size_bytes == 0:
            return
        self._is_ours = True
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_size == self._size_bytes:  # noqa: PTH116 - a plain string
                return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            os.posix_fallocate(fd, 0, self._size_bytes)
            os.ftruncate(fd, self._size_bytes)  # it may have been longer
        except OSError as error:
            self.release()  # a partial reserve would only waste space
            if error.errno not in _NO_ALLOCATION:
                raise
            self._size_bytes = 0
        finally:
            os.close(fd)

    def release(self) -> bool:
        """Free the reserve. Return whether there was one."""
        try:
            os.unlink(self._path)  # noqa: PTH108 - a plain string
        except OSError as error:
            if error.errno not in {errno.ENOENT, *FULL}:
                raise
            return False
        return True

    def close(self) -> None:
        """Remove the file of the reserve. Idempotent."""
        if self._is_ours:
            self._is_ours = False
            with suppress(OSError):
                self.release()


_GROWING: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_REMEMBERED_MAX: Final = 65_536


class AppendRounds:
    """Writer of rounds, one at a time, from one thread; several threads sync the files.

    Keeps the names of files that it created exclusively until their second append, so that a retry
    of the same round works after an unknown outcome. Keeps the identity of at most 65,536 files
    whose directory entry is durable.
    """

    def __init__(
        self, root: str, files: OpenFiles, directories: Directories, options: PosixOptions
    ) -> None:
        self._root = root
        self._files = files
        self._directories = directories
        self._write_bytes_max = options.write_bytes_max
        self._sync_threads_max = options.sync_threads_max
        self._syncers = ThreadPoolExecutor(options.sync_threads_max, "posix-sync")
        self._begun: set[str] = set()
        self._named: dict[str, Identity] = {}
        """Identity of the files whose directory entry is durable, by name."""

    def __repr__(self) -> str:
        return f"<AppendRounds {len(self._begun)} files begun>"

    def close(self) -> None:
        """End the threads that sync. No round may be running."""
        self._syncers.shutdown(wait=True)

    def forget(self, name: str) -> None:
        """Forget a deleted object: a later file of that name is a new one."""
        self._begun.discard(name)
        self._named.pop(name, None)

    def write(self, pieces: Mapping[str, Sequence[Append]]) -> None:
        """Write the pieces of each name and make all of them durable.

        All files are opened and measured before anything is written. After a failure the outcome is
        unknown, and the same call may be repeated. It writes and syncs everything again, so a sync
        that failed once and would falsely succeed the next time does no harm.

        Costs two `stat` calls for each file's path. The first returns its length and whether the
        open descriptor is still that file's. The second, after the syncs, verifies that the
        acknowledged bytes have that name.

        On a full file system, the files are truncated to their length before the round.
        """
        opened: dict[str, OpenFile] = {}
        lengths: dict[str, int] = {}
        unnamed: dict[str, str] = {}
        placed: dict[str, Identity] = {}
        done = False
        try:
            for name, group in pieces.items():
                with posix_errors(name, group[0].position, volume=self._root):
                    opened[name] = self._open(name, group, placed)
                    lengths[name] = opened[name].seen.st_size
                    _check_length(lengths[name], group)
                    begins = group[0].position == 0
                    if begins or not self._has_durable_name(name, opened[name]):
                        unnamed[name] = f"{self._root}/{name}".rpartition("/")[0]
                        self._directories.place(unnamed[name], placed)
            self._write_and_sync(opened, pieces)
            self._sync_directories({*self._directories.unsynced(placed), *unnamed.values()}, placed)
            self._check_places(opened, pieces)
            self._note_named(unnamed, opened)
            done = True
        except Unavailable as error:
            if is_full(error):
                _give_back((file.fd, lengths[name]) for name, file in opened.items())
            raise
        finally:
            for name, file in opened.items():
                self._files.unpin(file)
                if not done:
                    self._files.forget(f"{self._root}/{name}")

    def _write_and_sync(
        self, opened: Mapping[str, OpenFile], pieces: Mapping[str, Sequence[Append]]
    ) -> None:
        for name, group in pieces.items():
            for piece in group:
                with posix_errors(name, piece.position):
                    write_waiting(
                        opened[name].fd,
                        piece.position,
                        piece.buffers,
                        self._write_bytes_max,
                        writes_back=True,
                    )
        if len(opened) > 1:
            for name, file in opened.items():
                with posix_errors(name, pieces[name][0].position):
                    start_write_back(file.fd)
        files = [(file.fd, name, pieces[name][0].position) for name, file in opened.items()]
        self._in_parallel(_sync, files)

    def _sync_directories(self, folders: Iterable[str], placed: Mapping[str, Identity]) -> None:
        """Make the entries of the round's new directories and files durable."""

        def sync(group: Sequence[str]) -> None:
            for folder in group:
                with posix_errors(folder.removeprefix(self._root).removeprefix("/")):
                    self._directories.sync([folder], placed)

        self._in_parallel(sync, sorted(folders))
        self._directories.settle(placed)

    def _in_parallel(self, sync: Callable[[Sequence[T]], None], items: Sequence[T]) -> None:
        """Distribute the items over the syncing threads and this one."""
        groups = [items[n :: self._sync_threads_max] for n in range(self._sync_threads_max)]
        others: list[Future[None]] = []
        try:
            for group in groups[1:]:
                if group:
                    others.append(self._syncers.submit(sync, group))  # noqa: PERF401 - one by one: each counts, should the next fail
            sync(groups[0])
        finally:
            wait(others)  # also after an error: their descriptors are unpinned next
        for other in others:
            other.result()

    def _check_places(
        self, opened: Mapping[str, OpenFile], pieces: Mapping[str, Sequence[Append]]
    ) -> None:
        """Raise `Unavailable` if a written file no longer has its name."""
        for name, file in opened.items():
            position = pieces[name][0].position
            with posix_errors(name, position):
                if not file.is_at(f"{self._root}/{name}"):
                    raise Unavailable(
                        "the file was removed, moved or replaced while it was written, so these "
                        "bytes do not count; the next try writes to the file that then has the "
                        "name",
                        name,
                        position,
                    )

    def _has_durable_name(self, name: str, file: OpenFile) -> bool:
        """Whether the directory entry of this file is known to be durable.

        False for a file seen for the first time: the process that created it may have died before
        the sync. False also for a file that replaced another one; its directories may have been
        replaced, too.
        """
        known = self._named.get(name)
        if known == identity(file.seen):
            return True
        if known is not None:
            self._directories.forget()
        return False

    def _note_named(self, names: Iterable[str], opened: Mapping[str, OpenFile]) -> None:
        for name in names:
            self._named[name] = identity(opened[name].seen)
        if len(self._named) > _REMEMBERED_MAX:  # dropped files are only synced again
            for name in list(self._named)[: _REMEMBERED_MAX // 8]:
                self._named.pop(name, None)

    def _open(self, name: str, group: Sequence[Append], placed: dict[str, Identity]) -> OpenFile:
        """Open the file of `name` for writing, pinned."""
        path = f"{self._root}/{name}"
        is_new = any(piece.new for piece in group) and name not in self._begun
        if not is_new and group[0].position > 0:
            self._begun.discard(name)
            return self._files.pin(path, writable=True)
        self._directories.place(path.rpartition("/")[0], placed)
        try:
            fd = os.open(path, _GROWING | (os.O_EXCL if is_new else 0), 0o666)
        except FileExistsError as error:
            raise AlreadyExists("the name is taken", name) from error
        except FileNotFoundError as error:
            self._directories.forget()  # the next call recreates it
            raise Unavailable("its directory was removed just now", name) from error
        if is_new:
            self._begun.add(name)
        return self._files.adopt(path, fd, writable=True)


def _sync(files: Sequence[tuple[int, str, int]]) -> None:
    """Make files durable. Each has a descriptor, and name and position for an error."""
    for fd, name, position in files:
        with posix_errors(name, position):
            sync_data(fd)


def _give_back(files: Iterable[tuple[int, int]]) -> None:
    """Truncate files to their length before a round that found no room."""
    for fd, length in files:
        with suppress(OSError):
            os.ftruncate(fd, length)


def _check_length(end: int, group: Sequence[Append]) -> None:
    for piece in group:
        if piece.position > end:
            raise OutOfRange(f"the object ends at {end}", piece.name, piece.position)
        end = max(end, piece.position + sum(map(len, piece.buffers)))


_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_FILES_MIN: Final = 4


class PosixWork:
    """Blocking verbs of a store below `root`. Thread-safe. Each `OSError` becomes a verdict."""

    def __init__(self, root: str, options: PosixOptions, clock: Clock) -> None:
        self.root = root.rstrip("/") or "/."
        self._files_open_max = _files_open_max(options)
        self._directories = Directories(self.root)
        self.files = OpenFiles(self._files_open_max, check_folder=self._directories.refuse_links)
        self.buffers = BufferPool(options.buffer_bytes_max, oversize_max=1)
        self._options = options
        self._clock = clock
        self._rounds = AppendRounds(self.root, self.files, self._directories, options)
        self._reserve = Reserve(self.root, options.reserve_bytes)
        self._locks: dict[str, PresenceLock] = {}
        self._locks_lock = threading.Lock()
        self._numbers = itertools.count()

    def path(self, name: str) -> str:
        """Return the path of an object."""
        return f"{self.root}/{name}"

    def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Write and sync a temporary file, then link it to its name, which fails if it is taken.

        Uses the reserve on a full file system.
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
            except FileNotFoundError as error:  # for example swept by a process with a fast clock
                self._directories.forget()
                raise Unavailable("its temporary file was removed just now", name) from error
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)  # noqa: PTH108 - as above
            self._directories.sync([folder])

    def _open_temporary(self, folder: str) -> tuple[str, int]:
        """Create a temporary file, which listings skip. Another host may use the same name."""
        while True:
            temporary = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{next(self._numbers)}"
            try:
                return temporary, os.open(temporary, _NEW_FILE, 0o666)
            except FileExistsError:
                continue
            except FileNotFoundError:
                self._directories.forget()  # removed by another process: the next call recreates it
                raise Unavailable("its directory was removed just now", temporary) from None

    def read(self, name: str, wanted: ByteRange | None) -> Buffer:
        """Read a range or all of a file. Waits for the device."""
        path = self.path(name)
        start = wanted.start if wanted else 0
        try:
            with posix_errors(name, start), self.files.pinned(path) as fd:
                length = wanted.length if wanted else os.fstat(fd).st_size
                found = read_waiting(fd, start, length, self.buffers)
                end = os.fstat(fd).st_size if found is None else 0
        except BaseException:
            self.files.forget(path)  # after any error the next call opens the file again
            raise
        if found is None:
            raise OutOfRange(f"the object ends at {end}", name, start)
        return found

    def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges in sequence. The attempts on the loop started their read-ahead."""
        return [self.read(name, part) for name, part in wanted]

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""
        with posix_errors(name), self.files.pinned(self.path(name)) as fd:
            return os.fstat(fd).st_size

    def list(self, prefix: str, after: str) -> list[ObjectEntry]:
        """List all matching files by name, in the order of code points, which is that of UTF-8."""
        with posix_errors(prefix):
            return sorted(self._directories.entries(prefix, after), key=lambda found: found.name)

    def delete(self, names: Sequence[str]) -> None:
        """Unlink files and sync their directories, also those of absent files."""
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
        """Write and sync a round, a bounded number of files at a time."""
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
        """Share the lock on the file `name`. Return whether no other store shares it."""
        with posix_errors(name, volume=self.root), self._locks_lock:
            self._directories.check_root()
            if name not in self._locks:
                path = self.path(name)
                self._directories.make(path.rpartition("/")[0])
                self._locks[name] = PresenceLock(path)
            return self._locks[name].is_alone()

    def close(self) -> None:
        """Close files, end threads and release locks. Idempotent."""
        self._rounds.close()
        self._reserve.close()
        self.files.close()
        self._directories.close()
        with self._locks_lock:
            while self._locks:
                self._locks.popitem()[1].close()


def _files_open_max(options: PosixOptions) -> int:
    """Return how many files to keep open: at most half of the process limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return options.files_open_max
    return min(options.files_open_max, max(_FILES_MIN, limit // 2))
