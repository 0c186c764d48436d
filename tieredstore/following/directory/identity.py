"""Identity of the followed CommitLog, by the inodes of its files."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from container.names.rocketmq import local_file_name, parse_local_file_name
from provider.errors import Closed

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
