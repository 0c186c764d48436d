"""The files of a disk cache, in plain blocking calls that one thread makes.

Several processes may use one directory. Files appear whole, by a rename, and are never changed; one
that another process removed is a miss. Each process knows the files that it made or listed, and
lists again after it wrote an eighth of the bound, so that the bound holds over all of them.
"""

import os
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
LISTED_AGAIN_SHARE = 8
MILLISECOND_NS = 1_000_000


class CacheFiles:
    """What is kept, and where. Not thread-safe: one thread makes all calls.

    D1  The entries of a key do not overlap, as far as this process knows.
    D2  `bytes_held` is the sum of the files' lengths, and at most the bound behind each call.
    """

    def __init__(self, directory: Path, options: DiskCacheOptions, clock: Clock) -> None:
        self._directory = directory
        self._options = options
        self._clock = clock
        self._used: OrderedDict[EntryName, None] = OrderedDict()
        """All known entries, the least recently used first."""
        self._by_key: dict[str, list[tuple[int, EntryName]]] = {}
        self.bytes_held = 0
        self._written_bytes = 0
        self._paused_until_s = float("-inf")
        self._is_listed = False
        self.damaged = 0
        """Files that were dropped because they were not what was written."""
        self.failed_writes = 0

    def __repr__(self) -> str:
        return f"<CacheFiles {self._directory}: {len(self._used)} files, {self.bytes_held} bytes>"

    def get(self, key: str, wanted: ByteRange) -> list[tuple[ByteRange, Buffer]]:
        """What is kept of a range, in order: parts of it, with their bytes, all compared."""
        self._list_once()
        return [
            (part, data)
            for entry, part in list(self._overlapping(key, wanted))
            if (data := self._read(entry, part)) is not None
        ]

    def put(self, key: str, start: int, data: Buffer) -> None:
        """Keep bytes of an object, unless some of them are there, or nothing can be written."""
        entry = EntryName(key, start, len(data))
        self._list_once()
        is_pausing = self._clock.monotonic_s() < self._paused_until_s
        is_long = entry.file_bytes > self._options.bytes_max
        if is_pausing or is_long or not entry.length:
            return
        if any(self._overlapping(key, ByteRange(start, entry.end))):
            return
        try:
            self._write(entry, data)
        except OSError:
            self.failed_writes += 1
            self._paused_until_s = self._clock.monotonic_s() + self._options.pause_s
            return
        self._know(entry)
        self._written_bytes += entry.file_bytes
        if self._written_bytes * LISTED_AGAIN_SHARE > self._options.bytes_max:
            self._list()
        self._evict()

    def correct(self, key: str, start: int, data: Buffer) -> None:
        """Drop what is kept of bytes that are told here, where it is other bytes."""
        self._list_once()
        told = memoryview(data)
        for entry, part in list(self._overlapping(key, ByteRange(start, start + len(told)))):
            kept = self._read(entry, part)
            if kept is not None and kept != told[part.start - start : part.end - start]:
                self.damaged += 1
                self._remove(entry)

    def drop(self, keys: Iterable[str]) -> None:
        """Forget what is kept of objects that were deleted."""
        self._list_once()
        for key in keys:
            for _, entry in list(self._by_key.get(key, [])):
                self._remove(entry)

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
        """Bytes of an entry; None, and it is forgotten, if it is gone or damaged."""
        inside = ByteRange(wanted.start - entry.start, wanted.end - entry.start)
        place = blocks_around(entry, inside)
        path = self._path(entry)
        try:
            number = os.open(path, _READ)
        except OSError:
            self._forget(entry)
            return None
        try:
            sums = decode_head(entry, os.pread(number, entry.data_at, 0))
            data = b""
            if sums is not None:
                data = os.pread(number, place.length, entry.data_at + place.start)
                os.utime(number)
        except OSError:
            sums, data = None, b""
        finally:
            os.close(number)
        if sums is None or not blocks_are_sound(sums, place, data):
            self.damaged += 1
            self._remove(entry)
            return None
        self._used.move_to_end(entry)
        return memoryview(data)[inside.start - place.start : inside.end - place.start]

    def _write(self, entry: EntryName, data: Buffer) -> None:
        """Write a temporary file and give it its name; removes it if that fails."""
        path = self._path(entry)
        os.makedirs(os.path.dirname(path), mode=DIRECTORY_MODE, exist_ok=True)  # noqa: PTH103, PTH120 - as fast as it gets
        temporary = f"{self._directory}/{TEMPORARY_PREFIX}{uuid4().hex}"
        number = os.open(temporary, _NEW, FILE_MODE)
        try:
            try:
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
            raise

    def _evict(self) -> None:
        options = self._options
        while self._used and (
            self.bytes_held > options.bytes_max or len(self._used) > options.entries_max
        ):
            self._remove(next(iter(self._used)))

    def _remove(self, entry: EntryName) -> None:
        with suppress(OSError):
            os.unlink(self._path(entry))  # noqa: PTH108 - as above
        self._forget(entry)

    def _know(self, entry: EntryName) -> None:
        if entry not in self._used:
            self._used[entry] = None
            insort(self._by_key.setdefault(entry.key, []), (entry.start, entry))
            self.bytes_held += entry.file_bytes

    def _forget(self, entry: EntryName) -> None:
        if entry in self._used:
            del self._used[entry]
            left = [one for one in self._by_key[entry.key] if one[1] != entry]
            if left:
                self._by_key[entry.key] = left
            else:
                del self._by_key[entry.key]
            self.bytes_held -= entry.file_bytes

    def _list_once(self) -> None:
        if not self._is_listed:
            self._is_listed = True
            self._list()
            self._evict()

    def _list(self) -> None:
        """Learn what is in the directory, whoever made it; remove what a dead writer left."""
        self._written_bytes = 0
        self._used.clear()
        self._by_key.clear()
        self.bytes_held = 0
        found: list[tuple[int, EntryName]] = []
        with suppress(OSError), os.scandir(self._directory) as inside:
            for above in inside:
                if above.name.startswith(TEMPORARY_PREFIX):
                    self._remove_old(above)
                elif above.is_dir(follow_symlinks=False):
                    found += self._listed(above.name)
        for _, entry in sorted(found):
            if not any(self._overlapping(entry.key, ByteRange(entry.start, entry.end))):
                self._know(entry)
            else:
                with suppress(OSError):  # two processes read it at once
                    os.unlink(self._path(entry))  # noqa: PTH108 - as above

    def _listed(self, name: str) -> list[tuple[int, EntryName]]:
        """The entries of one directory with the times of their last use, of the right length."""
        found: list[tuple[int, EntryName]] = []
        with suppress(OSError), os.scandir(f"{self._directory}/{name}") as files:
            for file in files:
                entry = EntryName.parse(file.name)
                if entry is None or entry.path != f"{name}/{file.name}":
                    continue
                with suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    if status.st_size == entry.file_bytes:
                        found.append((status.st_mtime_ns, entry))
                    else:
                        os.unlink(file.path)  # noqa: PTH108 - as above
        return found

    def _remove_old(self, file: "os.DirEntry[str]") -> None:
        with suppress(OSError):
            age_ms = self._clock.now_ms() - file.stat().st_mtime_ns // MILLISECOND_NS
            if age_ms > self._options.temporary_age_s_min * 1000:
                os.unlink(file.path)  # noqa: PTH108 - as above

    def _path(self, entry: EntryName) -> str:
        return f"{self._directory}/{entry.path}"
