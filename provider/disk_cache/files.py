"""The files of a disk cache, in plain blocking calls that one thread makes.

Several processes may use one directory. Files appear whole, by a rename, and are never changed; one
that another process removed is a miss. The bound holds for all processes together: a process
reserves the blocks of a file in a shared count before it writes the file. The count is the target
of the symbolic link `@held` and changes under a lock of the directory. A process that ends between
two steps leaves the count too high, never too low; each listing counts again.
"""

import fcntl
import logging
import os
import stat
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from provider.clock import Clock
from provider.disk_cache.entry import (
    EntryName,
    blocks_are_sound,
    blocks_around,
    decode_head,
    encode_head,
)
from provider.names import TEMPORARY_PREFIX
from provider.object_store import Buffer
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
LISTED_AGAIN_SHARE = 8
MILLISECOND_NS = 1_000_000
BLOCK_BYTES_MIN: Final = 4096
"""Disk space is counted in blocks of at least this length."""
STAT_BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`."""
HELD_LINK: Final = "@held"
"""The link whose target is the shared count of bytes."""
LOGGER = logging.getLogger("tieredstore.provider")


def on_disk_bytes(file_bytes: int) -> int:
    """Disk space of a file of that length, in bytes."""
    return -(-file_bytes // BLOCK_BYTES_MIN) * BLOCK_BYTES_MIN


def _is_ours(status: os.stat_result) -> bool:
    """Whether only this user can have written it."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022


class CacheFiles:
    """Kept bytes and their places. Not thread-safe: one thread makes all calls.

    D1  The entries of a key do not overlap, as far as this process knows.
    D2  `bytes_held` is the disk space of the known files.
    D3  The files of all processes take at most `bytes_max` of disk space.
    """

    def __init__(self, directory: Path, options: DiskCacheOptions, clock: Clock) -> None:
        self._directory = directory
        self._options = options
        self._clock = clock
        self._used: OrderedDict[EntryName, int] = OrderedDict()
        """All known entries with their disk space, the least recently used first."""
        self._by_key: dict[str, list[tuple[int, EntryName]]] = {}
        self.bytes_held = 0
        self._written_bytes = 0
        self._paused_until_s = float("-inf")
        self._is_listed = False
        self._is_refused = False
        """Whether others can write in the directory."""
        self.damaged = 0
        """Files that were dropped because their bytes, owner, mode or kind were wrong."""
        self.failed_writes = 0

    def __repr__(self) -> str:
        return f"<CacheFiles {self._directory}: {len(self._used)} files, {self.bytes_held} bytes>"

    def get(self, key: str, wanted: ByteRange) -> list[tuple[ByteRange, Buffer]]:
        """Kept parts of a range in order, with their bytes, all verified."""
        if not self._is_usable():
            return []
        return [
            (part, data)
            for entry, part in list(self._overlapping(key, wanted))
            if (data := self._read(entry, part)) is not None
        ]

    def put(self, key: str, start: int, data: Buffer) -> None:
        """Keep bytes of an object, unless some of them are there, or nothing can be written."""
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
        """Drop entries with other bytes than these."""
        if not self._is_usable():
            return
        right = memoryview(data)
        for entry, part in list(self._overlapping(key, ByteRange(start, start + len(right)))):
            kept = self._read(entry, part)
            if kept is not None and kept != right[part.start - start : part.end - start]:
                self.damaged += 1
                self._drop(entry)

    def drop(self, keys: Iterable[str]) -> None:
        """Forget the kept bytes of deleted objects."""
        if not self._is_usable():
            return
        for key in keys:
            for _, entry in list(self._by_key.get(key, [])):
                self._drop(entry)

    def _is_usable(self) -> bool:
        """Whether only this user can write in the directory. Lists it at the first call."""
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
        """The known entries with bytes of a range, and which; in order."""
        known = self._by_key.get(key, [])
        first = max(0, bisect_right(known, wanted.start, key=lambda one: one[0]) - 1)
        for _, entry in known[first:]:
            if entry.start >= wanted.end:
                return
            if entry.end > wanted.start:
                start, end = max(entry.start, wanted.start), min(entry.end, wanted.end)
                yield entry, ByteRange(start, end)

    def _read(self, entry: EntryName, wanted: ByteRange) -> Buffer | None:
        """Bytes of an entry. None, and it is forgotten, if it is gone, unreadable or damaged.

        A damaged entry, and one with a foreign owner, mode or kind, is removed. Never waits for a
        FIFO.
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
        """Reserve space, write a temporary file and rename it. False if there is no space.

        Leaves no file if that fails.
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
        """Add disk space to the shared count, within the bound. Evicts what is over it.

        False where there is no lock, or other files leave no space. Waits for other processes,
        some 50 us each, or while one lists the directory.
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
        """Remove the longest unused entries until `need` fits. Return the shared count then."""
        options = self._options
        while self._used and (
            held + need > options.bytes_max or len(self._used) >= options.entries_max
        ):
            held -= self._remove(next(iter(self._used)))
        return max(0, held)

    @contextmanager
    def _locked(self, *, waits: bool = False) -> Generator[bool]:
        """The lock of the shared count; False if it cannot be had, or not without a wait."""
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
        """The shared count of bytes; None if there is none."""
        try:
            return max(0, int(os.readlink(f"{self._directory}/{HELD_LINK}")))  # noqa: PTH115 - as above
        except (OSError, ValueError):
            return None

    def _set_held(self, held: int) -> None:
        temporary = f"{self._directory}/{TEMPORARY_PREFIX}{uuid4().hex}"
        os.symlink(str(held), temporary)  # noqa: PTH211 - as above
        os.rename(temporary, f"{self._directory}/{HELD_LINK}")  # noqa: PTH104 - as above

    def _release(self, freed: int) -> None:
        """Take disk space off the shared count, unless another process changes it just now."""
        if not freed:
            return
        with self._locked() as is_locked, suppress(OSError):
            if is_locked and (held := self._held()) is not None:
                self._set_held(max(0, held - freed))

    def _drop(self, entry: EntryName) -> None:
        self._release(self._remove(entry))

    def _remove(self, entry: EntryName) -> int:
        """Remove a file. Return the disk space that this freed."""
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
        """Learn the directory's files. Return their disk space, without that of `own`.

        Files that a process is writing count in full. Removes what a dead writer left.
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
                with suppress(OSError):  # two processes read it at once
                    os.unlink(self._path(entry))  # noqa: PTH108 - as above
        return self.bytes_held + writing_bytes

    def _listed(self, name: str) -> list[tuple[int, int, EntryName]]:
        """The entries of one directory: time of last use, disk space, name.

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
        """Whether a temporary file is gone; removes an old one."""
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
