"""Whether the CommitLog that is followed is still the one that it was: by its files' inodes."""

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
    """The inodes of the CommitLog's files, by first byte. Thread-safe.

    When another store is moved into the place of the followed one, units, mappings and offsets of
    the old one are still in memory: nothing that is read from then on may be tiered.

    A copy whose files were given the very inodes of deleted ones is not noticed; files that are
    mapped or open keep theirs.
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
        """One `stat` a directory, and one scan of all where a name came or went.

        Args:
            read_end: where the CommitLog ended when it was read last. A broker may delete files
                that begin there or later, and create them again.

        Raises:
            Closed: a file before `read_end` is another one than it was; from then on always.
        """
        with self._lock:
            if self._replaced is None:
                self._replaced = self._look(read_end)
            if self._replaced is not None:
                raise Closed(REPLACED, str(self._replaced))

    def _look(self, read_end: int) -> Path | None:
        """The first thing that is another one than it was."""
        try:
            stamps = [_stamp(path) for path in self._directories]
            read_at = tuple(number for stamp in stamps for number in stamp)
            if self._is_sure and read_at == self._read_at:
                return None
            inodes = {base: one for path in self._directories for base, one in _inodes_in(path)}
        except OSError:
            return None  # away or unreadable: reading its files tells so
        # a directory's times have a clock tick's resolution: one that changed is read once more
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
    """What tells a directory from another one, and whether its names changed; nothing if away."""
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
