"""CommitLog of a followed store: files, pins, identity, and its growing tail."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from container.record.blank import BLANK_MAGIC, BlankRecord
from container.record.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from provider.errors import Corrupt, Denied, NotFound, StoreError, Unavailable
from tieredstore.following.directory.identity import LogIdentity
from tieredstore.following.directory.layout import FileRun, odd_entries, odd_files, scan_runs
from tieredstore.following.directory.log_directories import split_paths
from tieredstore.following.directory.pins import Pins
from tieredstore.following.directory.queues import DirectoryWatch
from tieredstore.following.file_errors import is_of_the_process, translated
from tieredstore.following.log.commit_log import CommitLogFiles, CommitLogTable, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.options import HotLogOptions
from tieredstore.following.statistics import ScanStatistics

PASSED_MAX = 256
"""Records whose places are remembered between two calls of `take_passed`."""
STEPS_MAX = PASSED_MAX + 1
"""Records that one look passes over; what is beyond shows as growth once more. With more of them
all queues are looked at, whose units tell the end at once."""


class Passed(NamedTuple):
    """What the tail went over."""

    records: list[tuple[int, int]]
    """Position and size of each."""
    is_all: bool
    """Whether those are all; else there were more, or what was passed was not looked at."""


class CommitLogTail:
    """Where the next record will begin. Only a hint: growth that it misses is found by time."""

    def __init__(self) -> None:
        self.position = 0
        self._signature = b""
        self._passed: list[tuple[int, int]] = []
        self._passed_all = False

    def __repr__(self) -> str:
        return f"<CommitLogTail at {self.position}>"

    def has_grown(self, log: CommitLogFiles) -> bool:
        """Whether something stands at the end that did not stand there before. One small read.

        Where its file cannot be read, nothing shows.

        Raises:
            Unavailable: no file can be read right now.
        """
        return self._read(log, self.position) != self._signature

    def reach(self, log: CommitLogFiles, at_least: int) -> bool:
        """Go to `at_least` and over the records from there; whether the end moved.

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
            signature = b""  # as if nothing stood there: what does is growth
        self.position, self._signature = place, signature
        return (place, signature) != before

    def stand(self, log: CommitLogFiles, position: int) -> None:
        """Go to `position`, up to which the caller read all records himself. One small read.

        Raises:
            Unavailable: as `has_grown`.
        """
        self.position, self._signature = position, self._read(log, position)

    def take_passed(self) -> Passed:
        """The records that were passed since the last call."""
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
            return b""  # no file there yet, or it went: the directories tell
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            return b""  # whose messages lie in that file is told by a look at all queues


def _step(signature: bytes) -> int:
    """Length of what begins with these bytes; 0 if it is nothing whole."""
    if len(signature) < BlankRecord.SIZE:
        return 0
    size, magic = BlankRecord.LAYOUT.unpack(signature)
    if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN:
        return size
    return size if magic == BLANK_MAGIC and size >= BlankRecord.SIZE else 0


class FollowedLog:
    """Which bytes of the CommitLog there are. One thread at a time; `files` may be read by many."""

    def __init__(
        self,
        mapped: MappedFiles,
        directories: Sequence[Path],
        options: HotLogOptions,
        statistics: ScanStatistics,
    ) -> None:
        """Follow the CommitLog in `directories`; take up earlier pins, if any are configured.

        Raises:
            Denied: the place for pins does not do, or may not be read.
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
        """The device of each directory that had files."""
        pin_paths = split_paths(options.pin_path)
        self.notes: Path | None = pin_paths[0] if pin_paths else None
        """Our own directory, in which notes for a later start may lie; none without pins."""
        self._pins = Pins(pin_paths, directories, options.pinned_bytes_max) if pin_paths else None

    def __repr__(self) -> str:
        return f"<FollowedLog {self._directories[0]}: {self.tail}, {self._pins}>"

    def check(self) -> None:
        """Assert what holds after a scan, of the pins too.

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
        """Length of the broker's files; 0 while there is none."""
        return self._live.file_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no message was seen in it."""
        return self.tail.position <= self.files.table.min_position

    def check_identity(self) -> None:
        """Assure that the CommitLog still is the one that was read. One `stat`, rarely a scan.

        Raises:
            Closed: another one took its place.
        """
        self._identity.check(self.tail.position)

    def has_news(self) -> bool:
        """Whether the log grew, or got a file. One small read, and a scan where the files are full.

        Raises:
            Unavailable, Denied: it cannot be read right now.
        """
        return self.tail.has_grown(self.files) or self._has_rolled()

    def _has_rolled(self) -> bool:
        end = self.files.table.end
        return self.tail.position >= end and scan_runs(self._directories).end > end

    def scan(self, low: Callable[[], int]) -> None:
        """Look at the directory, and sync the pins with it.

        Args:
            low: first byte that may hold a message which is not tiered.

        Raises:
            Unavailable, Denied: the log cannot be read, or pinned, right now.
        """
        live = scan_runs(self._directories)
        if self._live.bases and not live.bases:
            # A broker never deletes its last file. Taken at its word, this would drop pins and
            # record gaps over messages that are there again in a moment.
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
        """Take no directory whose volume is away for one whose files were deleted.

        Raises:
            Unavailable: one that had files has none, and is gone or lies on another volume.
            Denied: it may not be looked at.
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
        """Which files there are now; no pin is made or dropped, which the next scan does."""
        live = scan_runs(self._directories)
        if not live.bases:
            return self.files.table
        return table_of(live, {} if self._pins is None else self._pins.paths())

    def sync_pins(self, low: Callable[[], int]) -> None:
        """Pin what lies above `low`, release what does not. Without pins, `low` is not called.

        Raises:
            Unavailable, Denied: a pin cannot be made.
        """
        if self._pins is None:
            self.files.table = table_of(self._live, {})
            return
        findings = self._pins.sync(self._live, low())
        self.files.table = table_of(self._live, self._pins.paths())
        self._statistics.find(findings)
        self._statistics.pinned_bytes = self._pins.pinned_bytes
        self._statistics.pins_dropped_untiered = self._pins.dropped_untiered
