"""Whether the CommitLog that is followed is still the one that it was: by its files' inodes."""

import os
import threading
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

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._inodes: dict[int, int] = {}
        self._place = (0, 0)
        self._read_at: tuple[int, ...] = ()
        self._is_sure = False
        self._replaced: Path | None = None

    def __repr__(self) -> str:
        state = f"replaced: {self._replaced}" if self._replaced else f"{len(self._inodes)} files"
        return f"<LogIdentity {self._directory}: {state}>"

    def check(self, read_end: int) -> None:
        """One `stat`, and one scan of the directory where a name came or went.

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
            status = os.stat(self._directory)  # noqa: PTH116 - often called
            read_at = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            if self._is_sure and read_at == self._read_at:
                return None
            with os.scandir(self._directory) as entries:
                inodes = {
                    base: entry.inode()
                    for entry in entries
                    if (base := parse_local_file_name(entry.name)) is not None
                }
        except OSError:
            return None  # away or unreadable: reading its files tells so
        # a directory's times have a clock tick's resolution: one that changed is read once more
        self._is_sure, self._read_at = read_at == self._read_at, read_at
        if not inodes:
            return None
        known = {base: inode for base, inode in self._inodes.items() if base < read_end}
        common = known.keys() & inodes.keys()
        differing = sorted(base for base in common if known[base] != inodes[base])
        if differing:
            return self._directory / local_file_name(differing[0])
        place = read_at[:2]
        if known and not common and place != self._place:
            return self._directory
        self._inodes, self._place = inodes, place
        return None
