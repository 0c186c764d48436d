"""Files of a disk cache, in blocking calls of one daemon thread.

A file consists of a header, a CRC-32 of each block of 64 KiB, and bytes of one object.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import stat
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from struct import Struct
from threading import Thread
from typing import Any, Final, NamedTuple, Self, TypeVar, cast
from uuid import uuid4

from isal import isal_zlib

from provider.clock import Clock
from provider.names import TEMPORARY_PREFIX
from provider.object_store import Buffer
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange

MAGIC = b"TSDC"
VERSION = 1
BLOCK_BYTES = 64 << 10
KEY_BYTES = 20
CRC_BYTES = 4
HEAD = Struct(">4sHH20sQQ")
HEAD_BYTES = HEAD.size + CRC_BYTES

_crc = cast("Callable[..., int]", vars(isal_zlib)["crc32"])
"""CRC-32 of a buffer, continued from a second argument. The library does not type the buffer."""
_FILE = re.compile(r"([0-9a-f]{40})-(0|[1-9][0-9]*)-([1-9][0-9]*)\Z")


class EntryName(NamedTuple):
    """Name of a file: key of the object, first byte, and length in bytes."""

    key: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.key}-{self.start}-{self.length}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse the name of a file; None if it is not a file of the cache."""
        found = _FILE.match(name)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    @property
    def end(self) -> int:
        """Position in the object after the last byte."""
        return self.start + self.length

    @property
    def path(self) -> str:
        """Path of the file below the directory."""
        return f"{self.key[:2]}/{self}"

    @property
    def blocks(self) -> int:
        """Number of blocks, each with a checksum."""
        return -(-self.length // BLOCK_BYTES)

    @property
    def data_at(self) -> int:
        """Position in the file of the object's bytes."""
        return HEAD_BYTES + CRC_BYTES * self.blocks

    @property
    def file_bytes(self) -> int:
        """Length of the file in bytes."""
        return self.data_at + self.length


def key_of(scope: str, name: str) -> str:
    """Return the key of an object. `scope` identifies its store. Pure."""
    return hashlib.sha256(f"{scope}\0{name}".encode()).hexdigest()[: 2 * KEY_BYTES]


def encode_head(entry: EntryName, data: Buffer) -> bytes:
    """Return the header and the checksums that precede `data` in the file. Pure."""
    view = memoryview(data)
    sums = b"".join(
        _crc(view[at : at + BLOCK_BYTES]).to_bytes(CRC_BYTES, "big")
        for at in range(0, entry.length, BLOCK_BYTES)
    )
    head = HEAD.pack(MAGIC, VERSION, 0, bytes.fromhex(entry.key), entry.start, entry.length)
    return head + _crc(sums, _crc(head)).to_bytes(CRC_BYTES, "big") + sums


def decode_head(entry: EntryName, raw: bytes) -> Sequence[int] | None:
    """Return the checksums of the blocks; None if the head is damaged or contradicts the name."""
    if len(raw) != entry.data_at:
        return None
    head, sums = raw[: HEAD.size], raw[HEAD_BYTES:]
    wanted = (MAGIC, VERSION, 0, bytes.fromhex(entry.key), entry.start, entry.length)
    crc = int.from_bytes(raw[HEAD.size : HEAD_BYTES], "big")
    if HEAD.unpack(head) != wanted or _crc(sums, _crc(head)) != crc:
        return None
    return [
        int.from_bytes(sums[at : at + CRC_BYTES], "big") for at in range(0, len(sums), CRC_BYTES)
    ]


def blocks_around(entry: EntryName, wanted: ByteRange) -> ByteRange:
    """Return the whole blocks around a range. Both are relative to the entry's start. Pure."""
    first = wanted.start // BLOCK_BYTES * BLOCK_BYTES
    last = -(-wanted.end // BLOCK_BYTES) * BLOCK_BYTES
    return ByteRange(first, min(last, entry.length))


def blocks_are_sound(sums: Sequence[int], place: ByteRange, data: Buffer) -> bool:
    """Whether the whole blocks at `place` in the entry match their checksums. Pure."""
    if len(data) != place.length:
        return False
    view, first = memoryview(data), place.start // BLOCK_BYTES
    return all(
        _crc(view[at : at + BLOCK_BYTES]) == sums[first + at // BLOCK_BYTES]
        for at in range(0, len(view), BLOCK_BYTES)
    )


ResultT = TypeVar("ResultT")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DiskThread:
    """Daemon thread that runs calls of one event loop in order. Starts with the first call.

    One task watches the timeout of the oldest call, and ends once there is none. A task or a timer
    for each call would cost more than the call.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_begun = False
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """Unfinished calls, the oldest first, each with its deadline in monotonic seconds."""
        self._late: asyncio.Future[Any] | None = None
        """Newest call that timed out and has not ended."""
        self._watch: asyncio.Task[None] | None = None

    async def call(self, work: Callable[[], ResultT], seconds: float) -> ResultT | None:
        """Run `work` in the thread and return its result.

        Returns None after `seconds`, or at once while an earlier call that timed out still runs. A
        call that timed out, or whose caller was cancelled, continues in the thread.
        """
        if self._late is not None:
            return None
        future: asyncio.Future[ResultT | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._clock.monotonic_s() + seconds, future))
        self._jobs.put((work, future))
        if self._watch is None or self._watch.done():
            watch = self._watch_oldest()
            self._watch = asyncio.create_task(watch)  # noqa: TID251 - `end` cancels it
        if not self._is_begun:
            self._is_begun = True
            arguments = (self._jobs, self._ended)
            Thread(target=_run, args=arguments, daemon=True, name="tieredstore-disk-cache").start()
        return await future

    def end(self) -> None:
        """End the thread after the queued calls. Returns at once."""
        self._jobs.put(None)
        if self._watch is not None and not self._waiting:
            self._watch.cancel()

    async def _watch_oldest(self) -> None:
        while waiting := [one for one in self._waiting if not one[1].done()]:
            until_s, oldest = waiting[0]
            left_s = until_s - self._clock.monotonic_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
            else:
                self._late = oldest
                _settle(oldest, None, None)

    def _ended(
        self, future: "asyncio.Future[Any]", result: object, error: BaseException | None
    ) -> None:
        """Record the end of a call, on its loop. Calls of a closed loop are not recorded."""
        while self._waiting and self._waiting.popleft()[1] is not future:
            pass
        if future is self._late:
            self._late = None
        _settle(future, result, error)


def _settle(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():  # timed out or cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _run(
    jobs: "SimpleQueue[_Job | None]",
    ended: Callable[["asyncio.Future[Any]", object, BaseException | None], None],
) -> None:
    while job := jobs.get():
        work, future = job
        result: object = None
        failed: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised by the caller that waits
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(ended, future, result, failed)
        del job, work, future, result, failed  # an idle thread keeps nothing alive


_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
LISTED_AGAIN_SHARE = 8
MILLISECOND_NS = 1_000_000
BLOCK_BYTES_MIN: Final = 4096
"""Block size in bytes to which the disk space of a file is rounded up."""
STAT_BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`, in bytes."""
HELD_LINK: Final = "@held"
"""Name of the symbolic link whose target is the shared count of bytes."""
LOGGER = logging.getLogger("tieredstore.provider")


def on_disk_bytes(file_bytes: int) -> int:
    """Return the disk space in bytes of a file of that length. Pure."""
    return -(-file_bytes // BLOCK_BYTES_MIN) * BLOCK_BYTES_MIN


def _is_ours(status: os.stat_result) -> bool:
    """Whether only this user can have written the file or directory."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022


class CacheFiles:
    """Cached byte ranges in a directory, with LRU eviction. Not thread-safe: one thread calls it.

    D1  The entries of a key that this process knows do not overlap.
    D2  `bytes_held` is the disk space of the known files.
    D3  The files of all processes take at most `bytes_max` of disk space.
    """

    def __init__(self, directory: Path, options: DiskCacheOptions, clock: Clock) -> None:
        self._directory = directory
        self._options = options
        self._clock = clock
        self._used: OrderedDict[EntryName, int] = OrderedDict()
        """Known entries with their disk space in bytes, the least recently used first."""
        self._by_key: dict[str, list[tuple[int, EntryName]]] = {}
        self.bytes_held = 0
        self._written_bytes = 0
        self._paused_until_s = float("-inf")
        self._is_listed = False
        self._is_refused = False
        """Whether other users can write in the directory."""
        self.damaged = 0
        """Number of files dropped because their bytes, owner, mode or kind were wrong."""
        self.failed_writes = 0

    def __repr__(self) -> str:
        return f"<CacheFiles {self._directory}: {len(self._used)} files, {self.bytes_held} bytes>"

    def get(self, key: str, wanted: ByteRange) -> list[tuple[ByteRange, Buffer]]:
        """Return the cached parts of a range in order, with their verified bytes."""
        if not self._is_usable():
            return []
        return [
            (part, data)
            for entry, part in list(self._overlapping(key, wanted))
            if (data := self._read(entry, part)) is not None
        ]

    def put(self, key: str, start: int, data: Buffer) -> None:
        """Cache bytes of an object, unless some of them are cached, or writes are paused."""
        entry = EntryName(key, start, len(data))
        is_pausing = self._clock.monotonic_s() < self._paused_until_s
        is_long = on_disk_bytes(entry.file_bytes) > self._options.bytes_max
        if is_pausing or is_long or not entry.length or not self._is_usable():
            return
        if any(self._overlapping(key, ByteRange(start, entry.end))):
            return
        try:
            is_kept = self._write(entry, data)
        except OSError:
            self.failed_writes += 1
            self._paused_until_s = self._clock.monotonic_s() + self._options.pause_s
            return
        if is_kept:
            self._know(entry, on_disk_bytes(entry.file_bytes))

    def correct(self, key: str, start: int, data: Buffer) -> None:
        """Drop entries whose bytes differ from these."""
        if not self._is_usable():
            return
        right = memoryview(data)
        for entry, part in list(self._overlapping(key, ByteRange(start, start + len(right)))):
            kept = self._read(entry, part)
            if kept is not None and kept != right[part.start - start : part.end - start]:
                self.damaged += 1
                self._drop(entry)

    def drop(self, keys: Iterable[str]) -> None:
        """Drop the entries of deleted objects."""
        if not self._is_usable():
            return
        for key in keys:
            for _, entry in list(self._by_key.get(key, [])):
                self._drop(entry)

    def _is_usable(self) -> bool:
        """Whether only this user can write in the directory. The first call lists it."""
        if not self._is_listed:
            self._is_listed = True
            with suppress(OSError):
                status = os.stat(self._directory)  # noqa: PTH116 - a directory or a link to one
                self._is_refused = stat.S_ISDIR(status.st_mode) and not _is_ours(status)
            if self._is_refused:
                LOGGER.warning(
                    "%s is not used as a disk cache: it belongs to another user, or others may "
                    "write there; run `chmod go-w` on it or choose another directory",
                    self._directory,
                )
            elif self._list() > self._options.bytes_max:
                with self._locked() as is_locked, suppress(OSError):
                    if is_locked:
                        self._set_held(self._evict(self._list(), 0))
        return not self._is_refused

    def _overlapping(self, key: str, wanted: ByteRange) -> Iterator[tuple[EntryName, ByteRange]]:
        """Yield the known entries that overlap a range, with the common part, in order."""
        known = self._by_key.get(key, [])
        first = max(0, bisect_right(known, wanted.start, key=lambda one: one[0]) - 1)
        for _, entry in known[first:]:
            if entry.start >= wanted.end:
                return
            if entry.end > wanted.start:
                start, end = max(entry.start, wanted.start), min(entry.end, wanted.end)
                yield entry, ByteRange(start, end)

    def _read(self, entry: EntryName, wanted: ByteRange) -> Buffer | None:
        """Read bytes of an entry. If it is gone, unreadable or damaged, forget it and return None.

        An entry that is damaged, or that has a foreign owner, mode or kind, is removed. Never waits
        for a FIFO.
        """
        inside = ByteRange(wanted.start - entry.start, wanted.end - entry.start)
        place = blocks_around(entry, inside)
        sums, data = None, b""
        try:
            number = os.open(self._path(entry), _READ)
            try:
                status = os.fstat(number)
                if stat.S_ISREG(status.st_mode) and _is_ours(status):
                    sums = decode_head(entry, os.pread(number, entry.data_at, 0))
                    if sums is not None:
                        data = os.pread(number, place.length, entry.data_at + place.start)
                with suppress(OSError):  # a full or read-only disk still serves
                    os.utime(number)
            finally:
                os.close(number)
        except OSError:
            self._forget(entry)
            return None
        if sums is None or not blocks_are_sound(sums, place, data):
            self.damaged += 1
            self._drop(entry)
            return None
        self._used.move_to_end(entry)
        return memoryview(data)[inside.start - place.start : inside.end - place.start]

    def _write(self, entry: EntryName, data: Buffer) -> bool:
        """Reserve space, write a temporary file and rename it. Return False if there is no space.

        A failed write leaves no file.
        """
        path, need = self._path(entry), on_disk_bytes(entry.file_bytes)
        os.makedirs(self._directory, mode=DIRECTORY_MODE, exist_ok=True)  # noqa: PTH103 - as fast as it gets
        os.makedirs(os.path.dirname(path), mode=DIRECTORY_MODE, exist_ok=True)  # noqa: PTH103, PTH120 - as above
        temporary = f"{self._directory}/{TEMPORARY_PREFIX}{uuid4().hex}-{need}"
        number, reserved = os.open(temporary, _NEW, FILE_MODE), 0
        try:
            try:
                if not self._reserve(need, temporary):
                    os.unlink(temporary)  # noqa: PTH108 - as above
                    return False
                reserved = need
                for part in (encode_head(entry, data), data):
                    left = memoryview(part)
                    while left:
                        left = left[os.write(number, left) :]
            finally:
                os.close(number)
            os.rename(temporary, path)  # noqa: PTH104 - as above
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108 - as above
                self._release(reserved)
            raise
        self._written_bytes += need
        return True

    def _reserve(self, need: int, temporary: str) -> bool:
        """Add disk space to the shared count within the bound. Evict entries to make room.

        Returns False without a lock, or if files of other processes leave no space. Waits for other
        processes, about 50 us each, or while one lists the directory.
        """
        options = self._options
        with self._locked(waits=True) as is_locked:
            if not is_locked:
                return False
            held = self._held()
            is_due = self._written_bytes * LISTED_AGAIN_SHARE > options.bytes_max
            over = 0 if held is None else held + need - options.bytes_max
            is_odd = over > max(need, options.bytes_max // LISTED_AGAIN_SHARE)
            if held is None or is_due or is_odd:  # a wrong count must not empty the cache
                held = self._list(temporary)
            held = self._evict(held, need)
            if held + need > options.bytes_max:
                held = self._evict(self._list(temporary), need)
            fits = held + need <= options.bytes_max
            self._set_held(held + need if fits else held)
        return fits

    def _evict(self, held: int, need: int) -> int:
        """Evict least recently used entries until `need` fits. Return the new shared count."""
        options = self._options
        while self._used and (
            held + need > options.bytes_max or len(self._used) >= options.entries_max
        ):
            held -= self._remove(next(iter(self._used)))
        return max(0, held)

    @contextmanager
    def _locked(self, *, waits: bool = False) -> Generator[bool]:
        """Lock the shared count for the block. Yields False if that fails or would wait."""
        try:
            number = os.open(self._directory, _DIRECTORY)
        except OSError:
            yield False
            return
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except OSError:
                yield False
            else:
                yield True
        finally:
            os.close(number)

    def _held(self) -> int | None:
        """Return the shared count of bytes; None if it is missing or invalid."""
        try:
            return max(0, int(os.readlink(f"{self._directory}/{HELD_LINK}")))  # noqa: PTH115 - as above
        except (OSError, ValueError):
            return None

    def _set_held(self, held: int) -> None:
        temporary = f"{self._directory}/{TEMPORARY_PREFIX}{uuid4().hex}"
        os.symlink(str(held), temporary)  # noqa: PTH211 - as above
        os.rename(temporary, f"{self._directory}/{HELD_LINK}")  # noqa: PTH104 - as above

    def _release(self, freed: int) -> None:
        """Subtract disk space from the shared count, unless another process holds the lock."""
        if not freed:
            return
        with self._locked() as is_locked, suppress(OSError):
            if is_locked and (held := self._held()) is not None:
                self._set_held(max(0, held - freed))

    def _drop(self, entry: EntryName) -> None:
        self._release(self._remove(entry))

    def _remove(self, entry: EntryName) -> int:
        """Remove a file. Return the freed disk space in bytes."""
        freed = self._used.get(entry, 0)
        self._forget(entry)
        try:
            os.unlink(self._path(entry))  # noqa: PTH108 - as above
        except OSError:
            return 0
        return freed

    def _know(self, entry: EntryName, disk_bytes: int) -> None:
        if entry not in self._used:
            self._used[entry] = disk_bytes
            insort(self._by_key.setdefault(entry.key, []), (entry.start, entry))
            self.bytes_held += disk_bytes

    def _forget(self, entry: EntryName) -> None:
        if entry in self._used:
            self.bytes_held -= self._used.pop(entry)
            left = [one for one in self._by_key[entry.key] if one[1] != entry]
            if left:
                self._by_key[entry.key] = left
            else:
                del self._by_key[entry.key]

    def _list(self, own: str = "") -> int:
        """Scan the directory. Return the disk space of its files in bytes, without that of `own`.

        Files that a process is writing count in full. Removes temporary files of dead writers.
        """
        self._written_bytes = 0
        self._used.clear()
        self._by_key.clear()
        self.bytes_held = writing_bytes = 0
        found: list[tuple[int, int, EntryName]] = []
        inside: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(self._directory) as entries:
            inside += entries
        for above in inside:
            if above.name.startswith(TEMPORARY_PREFIX):
                need = above.name.rpartition("-")[2]
                if not self._is_removed(above) and above.path != own and need.isdecimal():
                    writing_bytes += int(need)
            elif above.is_dir(follow_symlinks=False):
                found += self._listed(above.name)
        for _, disk_bytes, entry in sorted(found):
            if not any(self._overlapping(entry.key, ByteRange(entry.start, entry.end))):
                self._know(entry, disk_bytes)
            else:
                with suppress(OSError):  # two processes cached the same bytes
                    os.unlink(self._path(entry))  # noqa: PTH108 - as above
        return self.bytes_held + writing_bytes

    def _listed(self, name: str) -> list[tuple[int, int, EntryName]]:
        """Return the entries of one directory: time of last use in ns, disk space, name.

        Removes files with a foreign owner, mode, kind or length.
        """
        found: list[tuple[int, int, EntryName]] = []
        with suppress(OSError), os.scandir(f"{self._directory}/{name}") as files:
            for file in files:
                entry = EntryName.parse(file.name)
                if entry is None or entry.path != f"{name}/{file.name}":
                    continue
                with suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    is_file = stat.S_ISREG(status.st_mode) and _is_ours(status)
                    if is_file and status.st_size == entry.file_bytes:
                        disk_bytes = max(
                            on_disk_bytes(entry.file_bytes), STAT_BLOCK_BYTES * status.st_blocks
                        )
                        found.append((status.st_mtime_ns, disk_bytes, entry))
                    else:
                        os.unlink(file.path)  # noqa: PTH108 - as above
        return found

    def _is_removed(self, file: "os.DirEntry[str]") -> bool:
        """Whether a temporary file is gone. Removes an old one."""
        try:
            age_ms = self._clock.now_ms() - file.stat(follow_symlinks=False).st_mtime_ns // (
                MILLISECOND_NS
            )
            if age_ms > self._options.temporary_age_s_min * 1000:
                os.unlink(file.path)  # noqa: PTH108 - as above
                return True
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def _path(self, entry: EntryName) -> str:
        return f"{self._directory}/{entry.path}"
