"""Pin horizon: the part of the log still needed, and offsets below the ConsumeQueue files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import Units, consecutive
from provider.errors import Corrupt, Denied, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.directory.layout import is_of_the_process
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.record_units import has_begun_later, units_in
from tieredstore.following.queues.files import ConsumeQueueFiles


@dataclass(frozen=True, slots=True)
class QueueNeed:
    """Needs of one queue in the CommitLog."""

    is_known: bool
    """Whether the queue was polled. Until then it may need everything."""
    has_end: bool
    """Whether its end is known.

    No message is tiered beyond a damaged or unreadable place, or one whose file was deleted during
    the poll, and their number is unknown.
    """
    end_position: int
    """Position after the last message that counts; 0: unknown."""
    next_position: int | None
    """Position of the first untiered message; 0: unknown; None: all are tiered."""


def first_needed(needs: Iterable[QueueNeed], settled_position: int) -> int:
    """Return the first CommitLog position that may hold an untiered message.

    Args:
        needs: one for each queue.
        settled_position: the end of the log when all queues were scanned. A message above it may be
            of an unknown queue, or have an unknown unit.

    Returns:
        At most `settled_position`; 0 or less: everything may be needed.
    """
    low = settled_position
    for need in needs:
        if not need.is_known:
            return 0
        if not need.has_end:
            low = min(low, need.end_position)
        if need.next_position is not None:
            low = min(low, need.next_position)
    return low


FILES_KEPT_MAX = 2
"""CommitLog files whose units stay in memory: 20 bytes for each message of a queue with a floor."""

_Runs = dict[QueueId, tuple[int, Units]]
"""First offset and units of a run of offsets in one CommitLog file, by queue."""


class Floors:
    """Floors of queues: the first offset from which rebuilt units reach up to a queue's files.

    Most queues have none. Keeps two numbers for each queue and CommitLog file, and the units of the
    last two CommitLog files used. Guarded by its caller.
    """

    def __init__(self, log: CommitLogFiles, begins: Mapping[QueueId, int] | None = None) -> None:
        """`begins`: positions below which records of a name belong to an earlier incarnation."""
        self._log = log
        self._begins: Mapping[QueueId, int] = {} if begins is None else begins
        self._floors: dict[QueueId, int] = {}
        self._found_for: dict[QueueId, int] = {}
        """First offset of each queue's files when the floors were found."""
        self._wanted: frozenset[QueueId] = frozenset()
        """Queues whose units are rebuilt. Every scanned file was scanned for all of them."""
        self._spans: dict[int, dict[QueueId, range]] = {}
        """Offsets of each queue in every scanned CommitLog file, by the file's first byte."""
        self._growing: set[int] = set()
        """Scanned files that the broker may still have been writing, or had not begun."""
        self._kept: LRUCache[int, _Runs] = LRUCache(FILES_KEPT_MAX)
        self.findings: list[str] = []
        """Sentences for operators. The poll takes them."""

    def __repr__(self) -> str:
        return f"<Floors of {len(self._floors)} queues in {len(self._spans)} files>"

    def check(self) -> None:
        """Assert that floors lie below their queues' files, and spans in scanned files."""
        for queue, floor in self._floors.items():
            assert floor < self._found_for[queue], f"{queue} at {floor}: {self}"
            assert queue in self._wanted, f"{queue}: {self}"
        assert self._kept.keys() <= self._spans.keys(), f"{self}"
        assert self._growing <= self._spans.keys(), f"{self}"

    def find(self, queues: Mapping[QueueId, ConsumeQueueFiles]) -> dict[QueueId, StoreError]:
        """Find the floors of all queues.

        Return the errors of queues whose floor could not be found. Reads a unit of each queue whose
        first file was deleted. Scans the CommitLog files below those that were not scanned yet (see
        `units_in` for the cost).

        Raises:
            Unavailable: nothing can be read now.
        """
        ends: dict[QueueId, tuple[int, int]] = {}
        unread: dict[QueueId, StoreError] = {}
        self._found_for = {queue: files.first_offset for queue, files in queues.items()}
        for queue, first in self._found_for.items():
            if not first:
                continue
            try:
                unit = queues[queue].units_at(first, 1)
            except (Unavailable, Denied, Corrupt) as error:
                if is_of_the_process(error):
                    raise
                unread[queue] = error
                continue
            has_unit = len(unit) > 0 and int(unit["size"][0]) > 0
            position = int(unit["position"][0]) if has_unit else self._log.table.end
            if position > self._log.table.min_position:
                ends[queue] = (first, position)
        try:
            self._floors = self.below(ends) if ends else {}
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            self._floors = {}  # units below deleted files are unknown for all of these
            unread |= dict.fromkeys(ends, error)
        return unread

    def below(self, ends: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, int]:
        """Return the floors of the queues that have one.

        Args:
            ends: at least one queue; the first offset that its files have, and the position of that
                message in the CommitLog.

        Raises:
            Unavailable, Denied: a CommitLog file cannot be read.
        """
        if not ends.keys() <= self._wanted:
            self._wanted |= ends.keys()
            self._forget(list(self._spans))
        self._forget(self._spans.keys() - self._log.table.paths.keys())
        end = self._log.table.end
        known = max((at for _, at in ends.values() if at < end), default=0)
        self._forget([base for base in self._growing if self._is_whole(base, known)])
        floors = self._walk(ends, known)
        without = [position for queue, (_, position) in ends.items() if queue not in floors]
        begun = [base for base in self._growing if base < max(without, default=0)]
        if begun:
            self._forget(begun)  # they may hold more by now than when they were scanned
            floors = self._walk(ends, known)
        return floors

    def _walk(self, ends: Mapping[QueueId, tuple[int, int]], known: int) -> dict[QueueId, int]:
        """Return the floors.

        Scans files that were not scanned yet; a message at `known` was written.
        """
        bases = sorted(self._log.table.paths)
        highest = max(position for _, position in ends.values())
        for base in bases:
            if base < highest and base not in self._spans:
                is_whole = self._is_whole(base, known)  # before it is scanned
                self._spans[base] = {
                    queue: range(first, first + len(units))
                    for queue, (first, units) in self._runs_in(base).items()
                }
                if not is_whole:
                    self._growing.add(base)
        floors: dict[QueueId, int] = {}
        for queue, (offset, _) in ends.items():
            floor = offset
            for base in reversed(bases):
                span = self._spans.get(base, {}).get(queue, range(0))
                if span.start < floor <= span.stop:
                    floor = span.start
            if floor < offset:
                floors[queue] = floor
        return floors

    def _is_whole(self, base: int, known: int) -> bool:
        """Whether a CommitLog file is complete: a later message exists."""
        return known >= base + self._log.table.file_bytes or has_begun_later(self._log, base)

    def forget(self) -> None:
        """Scan every file again when floors are found next."""
        self._forget(list(self._spans))
        self._floors, self._found_for = {}, dict.fromkeys(self._found_for, -1)

    def is_stale(self, queue: QueueId, files: ConsumeQueueFiles) -> bool:
        """Whether files of the queue were deleted since floors were found."""
        first = files.first_offset
        return first != self._found_for.get(queue, first)

    def of(self, queue: QueueId) -> int | None:
        """Return the queue's floor; None if it has none."""
        return self._floors.get(queue)

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Return units from `start` on, below the queue's files, of one CommitLog file.

        Raises:
            OutOfRange: there are none, or their CommitLog file was deleted.
            Unavailable, Denied: the CommitLog file cannot be read.
        """
        for base, spans in self._spans.items():
            if start in spans.get(queue, ()):
                run = self._runs_in(base).get(queue)
                if run is not None and run[0] <= start < run[0] + len(run[1]):
                    first, units = run  # a second read may find another one: the log lost its tail
                    return units[start - first : end - first]
        raise OutOfRange("its ConsumeQueue file was deleted", str(queue), start)

    def _runs_in(self, base: int) -> _Runs:
        kept = self._kept.get(base)
        if kept is None:
            try:
                found = units_in(self._log, base, self._wanted, self.findings)
            except OutOfRange:
                found = {}  # it was deleted: none of it can be served
            own = {queue: self._own(queue, *units) for queue, units in found.items()}
            kept = {queue: _last_run(*units) for queue, units in own.items() if len(units[1])}
            self._kept[base] = kept
        return kept

    def _own(
        self, queue: QueueId, offsets: NDArray[np.int64], units: Units
    ) -> tuple[NDArray[np.int64], Units]:
        """Drop the records of earlier incarnations."""
        own = units["position"] >= self._begins.get(queue, 0)
        return offsets[own], units[own]

    def _forget(self, bases: Iterable[int]) -> None:
        for base in bases:
            self._spans.pop(base, None)
            self._kept.pop(base, None)
            self._growing.discard(base)


def _last_run(offsets: NDArray[np.int64], units: Units) -> tuple[int, Units]:
    """Return the offsets after the last hole, and their units.

    Those before a hole are unreachable.
    """
    first, _ = consecutive(offsets)[-1]
    return int(offsets[first]), units[first:]
