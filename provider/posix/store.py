"""Directory as a store: objects are files, and a name is a path below the root."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from provider.clock import Clock, SystemClock
from provider.errors import Closed
from provider.names import check_name, check_prefix
from provider.object_store import Append, Buffer, ObjectEntry
from provider.options import PosixOptions
from provider.posix.files import read_now
from provider.posix.work import PosixWork
from provider.ranges import ByteRange

_Result = TypeVar("_Result")
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
            found = self._read_now(name, wanted)
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
            results.append(self._read_now(name, part) if left_bytes >= 0 else None)
        missing = [wanted[i] for i, result in enumerate(results) if result is None]
        if not missing:
            return [result for result in results if result is not None]
        late = iter(await self._in(self._readers, lambda: self._work.read_many(missing)))
        return [next(late) if result is None else result for result in results]

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

    def _read_now(self, name: str, wanted: ByteRange) -> Buffer | None:
        """Read from the page cache of an open file; None: read in a thread."""
        if not self._nowait_works:
            return None
        path = self._work.path(name)
        file = self._work.files.pin_cached(path)
        if file is None:
            return None
        try:
            found = read_now(file.fd, wanted.start, wanted.length, self._work.buffers)
            return found if file.is_at(path) else None
        except OSError as error:
            # The read in a thread hits the same error and translates it.
            if error.errno == errno.EOPNOTSUPP:
                self._nowait_works = False  # this file system has no non-blocking reads
            return None
        finally:
            self._work.files.unpin(file)

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], _Result]) -> _Result:
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
