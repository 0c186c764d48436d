"""Spill of derived units that wait to be tiered, in a temporary database."""

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from container.record.unit import UNIT_DTYPE, Units
from provider.errors import Closed

CACHE_BYTES_MAX = 32 << 20
ROW_UNITS_MAX = 1024
"""Units of one row, which is the smallest read."""
LOST = (
    "the units of messages that are not tiered yet cannot be kept in a temporary file ({}); TMPDIR "
    "says where it lies; a new start makes them again"
)

Row = tuple[int, int, bytes]
"""Number of the queue, offset of the first unit, units."""


class WaitingUnits:
    """Stored runs of units of many queues. One thread at a time.

    It is unusable after an error: a new start derives the units again.
    """

    def __init__(self, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        with _translated():
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for pragma in (
                "journal_mode=OFF",
                "synchronous=OFF",
                "locking_mode=EXCLUSIVE",
                f"cache_size=-{cache_bytes_max >> 10}",
            ):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.execute(
                "CREATE TABLE units (queue INTEGER, first INTEGER, raw BLOB, "
                "PRIMARY KEY (queue, first)) WITHOUT ROWID"
            )

    def __repr__(self) -> str:
        return f"<WaitingUnits: {self.bytes} bytes>"

    @property
    def bytes(self) -> int:
        """Used bytes in memory or on disk. O(1)."""
        with _translated():
            pages, free, length = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * length

    def add(self, runs: Iterable[tuple[int, int, Units]]) -> None:
        """Store runs of units: number of the queue, first offset, units. Costs 2 us a run and more.

        Raises:
            Closed: the disk is full, or fails.
        """
        rows = (
            (queue, first + at, units[at : at + ROW_UNITS_MAX].tobytes())
            for queue, first, units in runs
            for at in range(0, len(units), ROW_UNITS_MAX)
        )
        with _translated():
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO units VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")

    def rows(self, queue: int, start: int) -> Iterator[tuple[int, Units]]:
        """Yield the runs from the one that holds `start` on, each with its first offset.

        Raises:
            Closed: as `add`.
        """
        with _translated():
            low = self._db.execute(
                "SELECT max(first) FROM units WHERE queue = ? AND first <= ?", (queue, start)
            ).fetchone()[0]
            found = self._db.execute(
                "SELECT first, raw FROM units WHERE queue = ? AND first >= ? ORDER BY first",
                (queue, start if low is None else low),
            )
            for first, raw in found:
                yield first, np.frombuffer(raw, UNIT_DTYPE)

    def units(self, queue: int, start: int, end: int) -> Units:
        """Return the units of `[start, end)`, up to the first that is not stored.

        Raises:
            Closed: as `add`.
        """
        pieces: list[Units] = []
        at = start
        for first, units in self.rows(queue, start):
            part = units[max(at - first, 0) : end - first]
            if first > at or at >= end or not len(part):
                break
            pieces.append(part)
            at = first + len(units)
        return np.concatenate([np.empty(0, UNIT_DTYPE), *pieces], dtype=UNIT_DTYPE)

    def drop_below(self, queue: int, offset: int) -> None:
        """Delete the runs that lie wholly below `offset`.

        Raises:
            Closed: as `add`.
        """
        with _translated():
            self._db.execute(
                "DELETE FROM units WHERE queue = ?1 AND first < "
                "(SELECT max(first) FROM units WHERE queue = ?1 AND first <= ?2)",
                (queue, offset),
            )

    def drop_from(self, queue: int, offset: int) -> None:
        """Delete the runs that begin at `offset` or above.

        Raises:
            Closed: as `add`.
        """
        with _translated():
            self._db.execute("DELETE FROM units WHERE queue = ? AND first >= ?", (queue, offset))

    def drop(self, queue: int) -> None:
        """Delete the units of a queue.

        Raises:
            Closed: as `add`.
        """
        with _translated():
            self._db.execute("DELETE FROM units WHERE queue = ?", (queue,))

    def close(self) -> None:
        """Close the database and free its memory. Idempotent."""
        self._db.close()


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Closed(LOST.format(error), "temporary database") from error
