"""CommitLog of a followed store: identity, files, pins, and its growing tail.

A broker deletes by age and disk use, and asks no reader. A second link in a directory of this
reader keeps the file's bytes. It costs no disk space until the broker removes its own link. Nothing
is ever written through a pin, and the broker's directory is only read. Decision 0011.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from container.names.rocketmq import local_file_name, parse_local_file_name
from container.record.header import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, BlankRecord
from provider.errors import Closed, Corrupt, Denied, NotFound, StoreError, Unavailable
from provider.names import is_there
from tieredstore.following.directory.layout import (
    FileRun,
    is_of_the_process,
    odd_entries,
    odd_files,
    scan_runs,
    split_paths,
    translated,
)
from tieredstore.following.directory.queues import DirectoryWatch
from tieredstore.following.log.commit_log import CommitLogFiles, CommitLogTable, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.options import HotLogOptions
from tieredstore.following.statistics import ScanStatistics

PINS = "commitlog"


@dataclass(frozen=True, slots=True)
class Pin:
    """Pin of one CommitLog file."""

    path: Path
    bytes: int
    is_last: bool
    """Whether the broker deleted the file, so that only the pin keeps it."""


class Pins:
    """Pins of one CommitLog, in a directory on each of its volumes. One thread at a time.

    P1  Every live file at or above `low` is pinned: `sync` is called before the broker can have
        deleted a file that an earlier call saw.
    P2  Files that only pins keep take at most `bytes_max`. Above it the oldest are dropped and
        counted.
    """

    def __init__(
        self, directories: Sequence[Path], sources: Sequence[Path], bytes_max: int
    ) -> None:
        """Use `directories` for the pins of the CommitLog in `sources`. Include existing pins.

        Raises:
            Denied: one lies inside the broker's directory or is not writable, or a source has none
                on its volume.
            Unavailable: one cannot be read right now.
        """
        self._directories = [directory / PINS for directory in directories]
        self._bytes_max = bytes_max
        self._pins: dict[int, Pin] = {}
        self.dropped_untiered = 0
        """Files that were dropped because of the bound before all of their messages were tiered."""
        for directory in directories:
            self._check_place(directory, sources)
        self._places = {source: self._place_for(source) for source in sources}
        """Directory of the pins for each source."""
        self._read()

    def __repr__(self) -> str:
        return (
            f"<Pins {self._directories[0]}: {len(self._pins)} files, {self.pinned_bytes} of "
            f"{self._bytes_max} bytes kept, {self.dropped_untiered} dropped untiered>"
        )

    @property
    def pinned_bytes(self) -> int:
        """Bytes on disk that only pins keep."""
        return sum(pin.bytes for pin in self._pins.values() if pin.is_last)

    def check(self, live: FileRun) -> None:
        """Assert P1 and P2 as of the last `sync`, which was given the files of `live`."""
        low = min(self._pins, default=live.end)
        above = {base for base in live.bases if base >= low}
        assert above <= self._pins.keys(), f"P1: {self}"
        assert self.pinned_bytes <= self._bytes_max, f"P2: {self}"

    def paths(self) -> Mapping[int, Path]:
        """Return the pinned files by first byte."""
        return {base: pin.path for base, pin in self._pins.items()}

    def sync(self, live: FileRun, low: int) -> list[str]:
        """Pin every live file that ends above `low`.

        Drop pins of files that end at or below. O(files). A removed directory is created again.

        Returns:
            A sentence for each file that was dropped although it was not tiered, and one for a
            directory that was removed.

        Raises:
            Unavailable, Denied: a link cannot be created.
        """
        removed = self._make_again()
        for base in live.bases:
            if base + live.file_bytes > low:
                self._pin(live.path_of(base), base)
        self._read()
        for base in sorted(self._pins):
            is_foreign = base % live.file_bytes != 0 if live.file_bytes else False
            is_beyond = bool(live.bases) and base >= live.end  # of a store that was replaced
            if base + live.file_bytes <= low or is_foreign or is_beyond:
                self._drop(base)
        return removed + self._bound()

    def _make_again(self) -> list[str]:
        again = [directory for directory in self._directories if _makes(directory)]
        if not again:
            return []
        kept, self._pins = self._pins, {}
        lost = sum(pin.bytes for pin in kept.values() if pin.is_last and pin.path.parent in again)
        gone = f"{lost} bytes that only pins kept are gone" if lost else "nothing is lost"
        return [f"{path} was removed, so its pins were recreated: {gone}." for path in again]

    def _bound(self) -> list[str]:
        lost: list[str] = []
        kept = self.pinned_bytes
        for base in sorted(self._pins):
            if kept <= self._bytes_max:
                break
            pin = self._pins[base]
            if not pin.is_last:
                continue
            lost.append(
                f"{pin.path} was dropped before everything in it was tiered, for pins of "
                f"{kept} bytes are over the bound of {self._bytes_max}."
            )
            kept -= pin.bytes
            self.dropped_untiered += 1
            self._drop(base)
        return lost

    def _pin(self, source: Path, base: int) -> None:
        pin = self._places[source.parent] / source.name
        known = self._pins.get(base)
        try:
            if known is not None:
                if source.stat().st_ino == known.path.stat().st_ino:
                    return
                known.path.unlink()  # after a crash, the broker wrote another file of this name
            os.link(source, pin)
        except FileExistsError:
            return  # just created by another follower, and one replaces the other; `_read` finds it
        except (FileNotFoundError, NotADirectoryError):
            return  # deleted since the scan; the next scan, or `_read`, shows it
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise _other_volume(source.parent, pin.parent) from error
            raise translated(error, pin) from error

    def _drop(self, base: int) -> None:
        pin = self._pins.pop(base)
        try:
            pin.path.unlink(missing_ok=True)
        except OSError as error:
            raise translated(error, pin.path) from error

    def _read(self) -> None:
        found: dict[int, Pin] = {}
        for directory in self._directories:
            found |= _pins_in(directory)
        self._pins = found

    def _check_place(self, directory: Path, sources: Sequence[Path]) -> None:
        for source in sources:
            is_volume = os.path.ismount(source.parent)  # then it is not the broker's alone
            root = (source if is_volume else source.parent).resolve()
            if directory.resolve().is_relative_to(root):
                raise Denied(
                    f"tieredStorePinPath lies inside the broker's directory {root}, which is never "
                    "written: name a directory beside it",
                    str(directory),
                )
        _makes(directory / PINS)

    def _place_for(self, source: Path) -> Path:
        """Return the directory of pins on the volume of a source, which need not exist yet."""
        try:
            there = next(path for path in (source, *source.parents) if is_there(path))
            volume = there.stat().st_dev
            for directory in self._directories:
                if directory.stat().st_dev == volume:
                    return directory
        except OSError as error:
            raise translated(error, source) from error
        raise _other_volume(source, self._directories[0])


def _makes(directory: Path) -> bool:
    """Create a directory of pins. Return whether it is new."""
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise translated(error, directory) from error
    return True


def _pins_in(directory: Path) -> dict[int, Pin]:
    found: dict[int, Pin] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                base = parse_local_file_name(entry.name)
                if base is not None:
                    status = entry.stat()
                    is_last = status.st_nlink == 1
                    found[base] = Pin(Path(entry.path), status.st_size, is_last)
    except (FileNotFoundError, NotADirectoryError) as error:
        reason = "the pins' directory was removed, or is none: it is looked for again"
        raise Unavailable(reason, str(directory)) from error
    except OSError as error:
        raise translated(error, directory) from error
    return found


def _other_volume(source: Path, directory: Path) -> Denied:
    return Denied(
        f"tieredStorePinPath must have a directory on the volume of {source}, for pins are hard "
        "links: name one there",
        str(directory),
    )


REPLACED = (
    "the CommitLog was replaced by another one while it was followed; nothing of the new one was "
    "tiered, for only a start compares every queue with the tier"
)


class LogIdentity:
    """Inodes of the CommitLog files, by first byte. Thread-safe.

    If another store is moved to the followed path, units, mappings and offsets of the old one are
    still in memory. Nothing read from then on may be tiered.

    A copy whose files got the very inodes of deleted ones is not detected. Mapped or open files
    keep theirs.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)
        self._lock = threading.Lock()
        self._inodes: dict[int, tuple[Path, int]] = {}
        self._places: frozenset[tuple[int, ...]] = frozenset()
        self._read_at: tuple[int, ...] = ()
        self._is_sure = False
        self._replaced: Path | None = None

    def __repr__(self) -> str:
        state = f"replaced: {self._replaced}" if self._replaced else f"{len(self._inodes)} files"
        return f"<LogIdentity {self._directories[0]}: {state}>"

    def check(self, read_end: int) -> None:
        """Check that no followed file was replaced.

        One `stat` a directory, and a scan after changes.

        Args:
            read_end: end of the CommitLog when it was read last. A broker may delete files that
                begin there or later, and create them again.

        Raises:
            Closed: a file before `read_end` was replaced; all later calls raise it, too.
        """
        with self._lock:
            if self._replaced is None:
                self._replaced = self._look(read_end)
            if self._replaced is not None:
                raise Closed(REPLACED, str(self._replaced))

    def _look(self, read_end: int) -> Path | None:
        """Return the first path that was replaced; None if none was."""
        try:
            stamps = [_stamp(path) for path in self._directories]
            read_at = tuple(number for stamp in stamps for number in stamp)
            if self._is_sure and read_at == self._read_at:
                return None
            inodes = {base: one for path in self._directories for base, one in _inodes_in(path)}
        except OSError:
            return None  # away or unreadable: reading its files raises the error
        # a directory's times have a clock tick's resolution: a changed one is read once more
        self._is_sure, self._read_at = read_at == self._read_at, read_at
        if not inodes:
            return None
        known = {base: inode for base, inode in self._inodes.items() if base < read_end}
        common = known.keys() & inodes.keys()
        differing = sorted(base for base in common if known[base][1] != inodes[base][1])
        if differing:
            return inodes[differing[0]][0] / local_file_name(differing[0])
        places = frozenset(stamp[:2] for stamp in stamps if stamp)
        if known and not common and not places & self._places:
            return self._directories[0]
        self._inodes, self._places = inodes, places
        return None


def _stamp(directory: Path) -> tuple[int, ...]:
    """Return device, inode and times of a directory, which show changes; () if it is missing."""
    try:
        status = os.stat(directory)  # noqa: PTH116 - often called
    except FileNotFoundError:
        return ()
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def _inodes_in(directory: Path) -> Iterator[tuple[int, tuple[Path, int]]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                base = parse_local_file_name(entry.name)
                if base is not None:
                    yield base, (directory, entry.inode())
    except FileNotFoundError:
        return


PASSED_MAX = 256
"""Maximum of records whose places are kept between two calls of `take_passed`."""
STEPS_MAX = PASSED_MAX + 1
"""Maximum of records that one poll advances over.

Later ones count as growth again. After more of them all queues are polled, whose units give the end
at once.
"""


class Passed(NamedTuple):
    """Records that the tail advanced over."""

    records: list[tuple[int, int]]
    """Position and size of each record."""
    is_all: bool
    """Whether the list is complete. Else there were more records, or some were not read."""


class CommitLogTail:
    """Position of the next record. Only a hint: periodic scans find growth that it misses."""

    def __init__(self) -> None:
        self.position = 0
        self._signature = b""
        self._passed: list[tuple[int, int]] = []
        self._passed_all = False

    def __repr__(self) -> str:
        return f"<CommitLogTail at {self.position}>"

    def has_grown(self, log: CommitLogFiles) -> bool:
        """Whether the bytes at the end have changed. One small read.

        False if their file cannot be read.

        Raises:
            Unavailable: no file can be read right now.
        """
        return self._read(log, self.position) != self._signature

    def reach(self, log: CommitLogFiles, at_least: int) -> bool:
        """Advance to `at_least` and over the records from there. Return whether the end moved.

        Raises:
            Unavailable: as `has_grown`.
        """
        before = (self.position, self._signature)
        place = max(self.position, at_least, log.table.min_position)
        self._passed_all &= place == self.position
        signature = self._read(log, place)
        for _ in range(STEPS_MAX):
            step = _step(signature)
            if not step:
                break
            self._note(place, signature)
            base = log.table.base_of(place)
            place = min(place + step, base + log.table.file_bytes)
            signature = self._read(log, place)
        if _step(signature):
            signature = b""  # as if the end were empty: bytes there count as growth
        self.position, self._signature = place, signature
        return (place, signature) != before

    def stand(self, log: CommitLogFiles, position: int) -> None:
        """Move to `position`, up to which the caller has read all records. One small read.

        Raises:
            Unavailable: as `has_grown`.
        """
        self.position, self._signature = position, self._read(log, position)

    def take_passed(self) -> Passed:
        """Return the records passed since the last call."""
        passed = Passed(self._passed, self._passed_all)
        self._passed, self._passed_all = [], True
        return passed

    def _note(self, place: int, signature: bytes) -> None:
        size, magic = BlankRecord.LAYOUT.unpack(signature)
        if magic == BLANK_MAGIC or not self._passed_all:
            return
        self._passed.append((place, size))
        self._passed_all = len(self._passed) <= PASSED_MAX

    def _read(self, log: CommitLogFiles, position: int) -> bytes:
        try:
            return log.peek(position, BlankRecord.SIZE)
        except (NotFound, Corrupt):
            return b""  # no file there yet, or it was deleted: a scan of the directories decides
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            return b""  # a poll of all queues reports messages in that file


def _step(signature: bytes) -> int:
    """Return the length of the record with this head; 0 if it is not a whole head."""
    if len(signature) < BlankRecord.SIZE:
        return 0
    size, magic = BlankRecord.LAYOUT.unpack(signature)
    if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN:
        return size
    return size if magic == BLANK_MAGIC and size >= BlankRecord.SIZE else 0


class FollowedLog:
    """Present files and pins of the CommitLog. One thread at a time; many may read `files`."""

    def __init__(
        self,
        mapped: MappedFiles,
        directories: Sequence[Path],
        options: HotLogOptions,
        statistics: ScanStatistics,
    ) -> None:
        """Follow the CommitLog in `directories`.

        Include the pins of earlier processes, if configured.

        Raises:
            Denied: the directory for pins is unsuitable, or may not be read.
            Unavailable: it cannot be read right now.
        """
        self._directories = tuple(directories)
        self._statistics = statistics
        self._live = FileRun(directories[0], (), 0)
        self.files = CommitLogFiles(mapped, table_of(self._live, {}), self._look)
        self.tail = CommitLogTail()
        self._identity = LogIdentity(directories)
        self._watches = {directory: DirectoryWatch() for directory in directories}
        self._volumes: dict[Path, int] = {}
        """Device of each directory that had files."""
        pin_paths = split_paths(options.pin_path)
        self.notes: Path | None = pin_paths[0] if pin_paths else None
        """Directory of pins, which may hold notes for a later start; None without pins."""
        self._pins = Pins(pin_paths, directories, options.pinned_bytes_max) if pin_paths else None

    def __repr__(self) -> str:
        return f"<FollowedLog {self._directories[0]}: {self.tail}, {self._pins}>"

    def check(self) -> None:
        """Assert the invariants after a scan, of the pins, too.

        L1  0 <= min_position <= live_position <= end, and files begin at multiples of their length.
        """
        table = self.files.table
        assert 0 <= table.min_position <= table.live_position <= table.end, f"L1: {self.files}"
        assert all(base == table.base_of(base) for base in table.paths), f"L1: {self.files}"
        if self._pins is not None:
            self._pins.check(self._live)

    @property
    def has_pins(self) -> bool:
        """Whether files are pinned, so that the broker may delete them too early."""
        return self._pins is not None

    @property
    def file_bytes(self) -> int:
        """Length of the broker's files in bytes; 0 while there is none."""
        return self._live.file_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no message was seen in it."""
        return self.tail.position <= self.files.table.min_position

    def check_identity(self) -> None:
        """Check that the CommitLog was not replaced. One `stat`, rarely a scan.

        Raises:
            Closed: another one has replaced it.
        """
        self._identity.check(self.tail.position)

    def has_news(self) -> bool:
        """Whether the log has grown, or has a new file.

        One small read, and a scan if the files are full.

        Raises:
            Unavailable, Denied: it cannot be read right now.
        """
        return self.tail.has_grown(self.files) or self._has_rolled()

    def _has_rolled(self) -> bool:
        end = self.files.table.end
        return self.tail.position >= end and scan_runs(self._directories).end > end

    def scan(self, low: Callable[[], int]) -> None:
        """Scan the directory, and update the pins.

        Args:
            low: returns the first position that may hold an untiered message.

        Raises:
            Unavailable, Denied: the log cannot be read, or pinned, right now.
        """
        live = scan_runs(self._directories)
        if self._live.bases and not live.bases:
            # A broker never deletes its last file. Accepting this scan would drop pins and
            # record gaps over messages that exist again in a moment.
            raise Unavailable(
                "the CommitLog has no files any more: the store was moved or deleted",
                str(self._live.directory),
            )
        self._check_volumes(live)
        self._live = live
        self._statistics.find(odd_files(live))
        for directory, watch in self._watches.items():
            if watch.changed(directory):
                try:
                    self._statistics.find(odd_entries(directory))
                except StoreError:
                    watch.forget(directory)
                    raise
        self.sync_pins(low)

    def _check_volumes(self, live: FileRun) -> None:
        """Refuse a directory whose volume is away, which looks like one whose files were deleted.

        Raises:
            Unavailable: one that had files has none, and is gone or lies on another volume.
            Denied: it may not be read.
        """
        filled = {live.path_of(base).parent for base in live.bases}
        for directory in {*self._volumes, *filled}:
            try:
                volume = directory.stat().st_dev
            except FileNotFoundError:
                volume = -1
            except OSError as error:
                raise translated(error, directory) from error
            if directory in filled:
                self._volumes[directory] = volume
            elif volume != self._volumes[directory]:
                raise Unavailable(
                    "this directory of the CommitLog is away: it has no files, and was moved or "
                    "its volume is not mounted",
                    str(directory),
                )

    def _look(self) -> CommitLogTable:
        """Return the present files. The next scan creates and drops pins."""
        live = scan_runs(self._directories)
        if not live.bases:
            return self.files.table
        return table_of(live, {} if self._pins is None else self._pins.paths())

    def sync_pins(self, low: Callable[[], int]) -> None:
        """Pin files above `low`, and release the others. Without pins, `low` is not called.

        Raises:
            Unavailable, Denied: a pin cannot be created.
        """
        if self._pins is None:
            self.files.table = table_of(self._live, {})
            return
        findings = self._pins.sync(self._live, low())
        self.files.table = table_of(self._live, self._pins.paths())
        self._statistics.find(findings)
        self._statistics.pinned_bytes = self._pins.pinned_bytes
        self._statistics.pins_dropped_untiered = self._pins.dropped_untiered
