"""Byte sources of a worker: a directory, an object store with read-ahead, flat files over both."""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from container.record.batch import decode_units
from container.record.checksum import crc32c
from container.record.unit import UNIT_BYTES, UNIT_DTYPE, Units
from provider.clock import SystemClock
from provider.errors import NotFound, OutOfRange
from provider.object_store import Buffer, ObjectStore
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange
from provider.sequential import ByteSource, DirectorySource, ObjectRange
from provider.setting import Kind
from provider.stores.two_stores import is_offloaded, unknown_second_store
from tieredstore.config.effective import Config
from tieredstore.config.keys import KEYS
from tieredstore.config.location import OFFLOAD_PATH, has_second_store, location_at, place_text
from tieredstore.offline.scan.split import LogPiece, TierPlace
from tieredstore.session.places import directory_of, job_storage
from tieredstore.threaded import Threaded

REQUEST_BYTES = 4 << 20
"""Longest range of one request."""
AHEAD_BYTES_MAX = 4 * REQUEST_BYTES
"""Bytes that are asked for before they are needed, beside the request that is waited for."""
_OF_OBJECT_STORE = tuple(key for name, key in KEYS.items() if name.startswith("objectStore"))
_OF_SECOND_STORE = tuple(
    KEYS[name] for name in ("tieredStoreFilePath", "brokerClusterName", "brokerName", OFFLOAD_PATH)
)
"""Keys of the configuration from which a worker derives the second store."""
AHEAD_REQUESTS_MAX = 32
"""Requests under way at once: parts of many small commits are short."""

STORES_MAX = 16
"""Unused stores of different places that a process keeps open."""

ResultT = TypeVar("ResultT")


def place_of(config: Config) -> TierPlace:
    """The place of the configured broker's tier, which can be sent to workers.

    Raises:
        ConfigError: `tieredStoreFilePath` is not set.
    """
    where = directory_of(config)
    location = os.path.abspath(where) if isinstance(where, Path) else str(where)  # noqa: PTH100 - no links are followed
    keys = _OF_OBJECT_STORE
    if has_second_store(config.settings):
        keys += _OF_SECOND_STORE
    given = [config.settings[key.name] for key in keys if key.kind is not Kind.SECRET]
    names = {one.key.name: str(one.value) for one in given if one.value != one.key.default}
    if OFFLOAD_PATH in names:
        names[OFFLOAD_PATH] = place_text(config.settings)  # a worker has another directory
    return TierPlace(location, tuple(names.items()))


def source_of(place: TierPlace) -> ByteSource:
    """Open a source of the tier at a place, for one thread. The caller closes it.

    All sources of the process share the connections of an object store, which stay open.

    Raises:
        ConfigError: the place is invalid, or a setting in this process's environment is wrong.
        Denied: no driver is installed for such URLs.
    """
    location = location_at(place.location)
    if not isinstance(location, Path):
        return StoreSource(store_at(place))
    directory = DirectorySource(location)
    if not any(name == OFFLOAD_PATH for name, _ in place.settings):
        return TwoSources(directory, None, place.recorded_second)
    return TwoSources(directory, StoreSource(store_at(place)))


def store_at(place: TierPlace) -> "ThreadedStore":
    """The object store at a place, which all of the process share; it stays open."""
    return _store_of_process(os.getpid(), place)


class TwoSources:
    """A `ByteSource` of a directory and of the second store, by names."""

    def __init__(
        self, directory: ByteSource, second: ByteSource | None, recorded_second: str = ""
    ) -> None:
        """`second`: None if it is not configured. `recorded_second`: as in `TierPlace`."""
        self._recorded_second = recorded_second
        self._directory = directory
        self._second = second

    def __repr__(self) -> str:
        return f"<TwoSources: {self._directory!r}, {self._second!r}>"

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """Read these ahead, each in its store; `ByteSource.expect`."""
        self._directory.expect([one for one in ranges if not is_offloaded(one.name)])
        if self._second is not None:
            self._second.expect([one for one in ranges if is_offloaded(one.name)])

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """`ByteSource.read_into`."""
        source = self._second if is_offloaded(name) else self._directory
        if source is None:
            raise unknown_second_store(name, self._recorded_second)
        return source.read_into(name, start, view)

    def close(self) -> None:
        """Close both. Idempotent."""
        self._directory.close()
        if self._second is not None:
            self._second.close()


class _OpenStore:
    """The store at a place, open while its block is entered."""

    def __init__(self, place: TierPlace) -> None:
        config = Config.load(settings=dict(place.settings))
        # What is read once need not be kept, and an audit is of what the storage has.
        config = replace(config, disk_cache=DiskCacheOptions())
        clock = SystemClock()
        stores = job_storage(config, location_at(place.location), clock=clock)
        stores.recorded_place = place.recorded_second
        self.store: ObjectStore = stores

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()


class ThreadedStore(Threaded):
    """An object store in a thread with an event loop of its own; many threads may use it."""

    def __init__(self, place: TierPlace) -> None:
        opened = _OpenStore(place)
        self._store = opened.store
        super().__init__(opened)

    def __del__(self) -> None:
        """Nothing: one that left the cache is closed with its last user, by its finalizer."""

    def read(self, name: str, wanted: ByteRange) -> Future[Buffer]:
        """Begin a read; `ObjectStore.read`."""
        return self._running.start_task_soon(self._store.read, name, wanted)

    def size(self, name: str) -> int:
        """`ObjectStore.size`."""
        return self._running.call(self._store.size, name)

    def call(self, work: Callable[..., Awaitable[ResultT]], *arguments: object) -> ResultT:
        """Do `work(store, *arguments)` in that thread."""
        return self._running.call(work, self._store, *arguments)


@lru_cache(maxsize=STORES_MAX)
def _store_of_process(pid: int, place: TierPlace) -> ThreadedStore:
    """The open store of this process; one that was forked gets another one."""
    del pid  # part of the key
    return ThreadedStore(place)


class _Block(NamedTuple):
    """A request that was sent ahead."""

    wanted: ObjectRange
    answer: Future[Buffer]


class StoreSource:
    """A `ByteSource` over an object store, which reads announced ranges ahead.

    Memory: `AHEAD_BYTES_MAX`, and one request.
    """

    def __init__(self, store: ThreadedStore) -> None:
        self._store = store
        self._expected: deque[ObjectRange] = deque()
        self._ahead: deque[_Block] = deque()

    def __repr__(self) -> str:
        return f"<StoreSource: {len(self._ahead)} requests ahead>"

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """Read these ahead, in requests of at most 4 MiB; forget what was expected before."""
        self.close()
        for name, start, length in ranges:
            last = self._expected[-1] if self._expected else None
            if last is not None and (last.name, last.start + last.length) == (name, start):
                start, length = last.start, last.length + length  # noqa: PLW2901 - one run of bytes
                self._expected.pop()
            while length > REQUEST_BYTES:
                self._expected.append(ObjectRange(name, start, REQUEST_BYTES))
                start, length = start + REQUEST_BYTES, length - REQUEST_BYTES  # noqa: PLW2901 - as above
            self._expected.append(ObjectRange(name, start, length))

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """`ByteSource.read_into`: from what was read ahead, else one request."""
        filled = 0
        while filled < len(view):
            at = start + filled
            self._send()
            while self._ahead and not _holds(self._ahead[0].wanted, name, at):
                self._ahead.popleft().answer.cancel()
                self._send()
            if self._ahead:
                wanted, answer = self._ahead[0]
                found = self._answer(wanted, answer)
                part = memoryview(found)[at - wanted.start :][: len(view) - filled]
                is_used_up = at + len(part) >= wanted.start + wanted.length
                ends = len(found) < wanted.length and at + len(part) >= wanted.start + len(found)
            else:
                wanted = ObjectRange(name, at, min(len(view) - filled, REQUEST_BYTES))
                part = memoryview(self._answer(wanted, None))
                is_used_up, ends = False, len(part) < wanted.length
            view[filled : filled + len(part)] = part
            filled += len(part)
            if is_used_up or (ends and self._ahead):
                self._ahead.popleft()
            if ends:
                break
        return filled

    def close(self) -> None:
        """Cancel read-ahead. Idempotent."""
        self._expected.clear()
        while self._ahead:
            self._ahead.popleft().answer.cancel()

    def _send(self) -> None:
        """Ask for what comes next, as far as the bounds allow."""
        bytes_ahead = sum(block.wanted.length for block in self._ahead)
        while (
            self._expected
            and bytes_ahead < AHEAD_BYTES_MAX
            and len(self._ahead) < AHEAD_REQUESTS_MAX
        ):
            wanted = self._expected.popleft()
            self._ahead.append(_Block(wanted, self._begin(wanted)))
            bytes_ahead += wanted.length

    def _begin(self, wanted: ObjectRange) -> Future[Buffer]:
        return self._store.read(wanted.name, ByteRange(wanted.start, wanted.start + wanted.length))

    def _answer(self, wanted: ObjectRange, answer: Future[Buffer] | None) -> Buffer:
        """The bytes of a request; fewer where the object ends, or is not there."""
        try:
            return (answer or self._begin(wanted)).result()
        except NotFound:
            return b""
        except OutOfRange:
            pass
        try:
            left = self._store.size(wanted.name) - wanted.start
        except NotFound:
            return b""
        if left <= 0:
            return b""
        return self._begin(wanted._replace(length=min(left, wanted.length))).result()


def _holds(wanted: ObjectRange, name: str, at: int) -> bool:
    return wanted.name == name and wanted.start <= at < wanted.start + wanted.length


SUM_BYTES = 4 << 20
"""Read at once for a checksum alone."""
NEAR_UNITS = 4 << 10
"""Unwanted units that are read as well, if at most so many lie between two wanted ones."""


class Sum(NamedTuple):
    """Bytes of one object with the checksum that was published of them."""

    object_name: str
    start: int
    length: int
    crc32c: int


class SumFault(NamedTuple):
    """Bytes that have another checksum, or are not all there."""

    sum: Sum
    found: int
    bytes: int
    """Number of bytes that exist."""

    def __str__(self) -> str:
        if self.bytes < self.sum.length:
            return f"{self.bytes} of {self.sum.length} bytes are there"
        published = f"published {self.sum.crc32c:#010x}"
        return f"{self.sum.length} bytes have {self.found:#010x}, {published}"


class SummingSource:
    """A `ByteSource` that sums what is read through it, if that is all of it, once and in order."""

    def __init__(self, inner: ByteSource, sums: Sequence[Sum]) -> None:
        self._inner = inner
        self._sums = {(one.object_name, one.start): one for one in sums}
        self._starts: dict[str, list[int]] = {}
        for name, begin in sorted(self._sums):
            self._starts.setdefault(name, []).append(begin)
        self._running: dict[str, tuple[Sum, int, int]] = {}
        self._broken: list[Sum] = []
        """Sums with refused bytes before bytes that were read."""
        self.faults: list[SumFault] = []
        """Of the sums that are complete."""
        self.summed = 0
        """Number of complete sums."""

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """`ByteSource.expect`."""
        self._inner.expect(ranges)

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """`ByteSource.read_into`; what is not there counts as wrong."""
        count = self._inner.read_into(name, start, view)
        at = 0
        while at < count:
            running = self._running.pop(name, None)
            if running is not None and running[0].start + running[1] != start + at:
                self._broken.append(running[0])
                running = None
            running = running or self._begun(name, start + at)
            if running is None:
                following = self._next_start(name, start + at, start + count)
                if following is None:
                    return count
                at = following - start
                continue
            one, done, crc = running
            part = view[at : min(count, at + one.length - done)]
            crc = crc32c(part, crc)
            at, done = at + len(part), done + len(part)
            if done < one.length:
                self._running[name] = (one, done, crc)
            else:
                self._end(one, crc, done)
        if count < len(view) and (left := self._running.pop(name, None)) is not None:
            self._end(left[0], left[2], left[1])
        return count

    def close(self) -> None:
        """`ByteSource.close`."""
        self._inner.close()

    def left_out(self) -> list[Sum]:
        """The sums that are not complete, because their bytes were not read one by one."""
        running = (one for one, _, _ in self._running.values())
        return [*self._sums.values(), *self._broken, *running]

    def _next_start(self, name: str, after: int, until: int) -> int | None:
        """Return the start of the next sum, after bytes of no sum or of one that broke off."""
        starts = self._starts.get(name, [])
        at = bisect_right(starts, after)
        return starts[at] if at < len(starts) and starts[at] < until else None

    def _begun(self, name: str, start: int) -> tuple[Sum, int, int] | None:
        one = self._sums.pop((name, start), None)
        return None if one is None else (one, 0, 0)

    def _end(self, one: Sum, crc: int, done: int) -> None:
        self.summed += 1
        if done < one.length or crc != one.crc32c:
            self.faults.append(SumFault(one, crc, done))


def check_sum(source: ByteSource, one: Sum) -> SumFault | None:
    """Read some bytes and compare their checksum; None if it is right. Holds `SUM_BYTES`."""
    room = memoryview(bytearray(min(SUM_BYTES, one.length)))
    found = done = 0
    while done < one.length:
        view = room[: one.length - done]
        count = source.read_into(one.object_name, one.start + done, view)
        found, done = crc32c(view[:count], found), done + count
        if count < len(view):
            break
    return SumFault(one, found, done) if done < one.length or found != one.crc32c else None


def read_flat(source: ByteSource, pieces: Sequence[LogPiece], start: int, end: int) -> bytes:
    """The bytes `[start, end)` of a flat file; zeros where there are none."""
    found = bytearray(end - start)
    view = memoryview(found)
    for piece in pieces:
        low, high = max(piece.position, start), min(piece.end, end)
        if low < high:
            place = piece.object_offset + low - piece.position
            source.read_into(piece.object_name, place, view[low - start : high - start])
    return bytes(found)


def read_units(source: ByteSource, pieces: Sequence[LogPiece], offsets: NDArray[np.int64]) -> Units:
    """The unit of each of these queue offsets; zeros, which no unit is, where none is.

    Units of near offsets are read at once. Memory: theirs and those up to `NEAR_UNITS` between.
    """
    wanted = np.unique(offsets)
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > NEAR_UNITS) + 1)
    units = np.empty(len(wanted), UNIT_DTYPE)
    done = 0
    for run in runs if len(wanted) else ():
        first, behind = int(run[0]), int(run[-1]) + 1
        raw = read_flat(source, pieces, first * UNIT_BYTES, behind * UNIT_BYTES)
        units[done : done + len(run)] = decode_units(np.frombuffer(raw, np.uint8))[run - first]
        done += len(run)
    return units[np.searchsorted(wanted, offsets)]
