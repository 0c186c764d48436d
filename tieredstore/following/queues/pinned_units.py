"""Pin horizon: the log that is still needed, and offsets readable below the ConsumeQueue files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import Units
from provider.errors import Corrupt, Denied, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.record_units import has_begun_later, units_in
from tieredstore.following.queues.files import ConsumeQueueFiles


@dataclass(frozen=True, slots=True)
class QueueNeed:
    """What one queue may still need of the CommitLog."""

    is_known: bool
    """Whether the queue was looked at: until then it may need all."""
    has_end: bool
    """Whether its end is known. No message is tiered beyond a place that is damaged or cannot be
    read, or whose file went during the look, and nothing tells how many there are."""
    end_position: int
    """Where the last message that counts ends; 0: not known."""
    next_position: int | None
    """Where the first message lies that is not tiered; 0: not known; None: all are tiered."""


def first_needed(needs: Iterable[QueueNeed], settled_position: int) -> int:
    """First byte of the CommitLog that may hold a message which is not tiered.

    Args:
        needs: one for each queue.
        settled_position: what lies below was there when all queues were looked for; a message
            above it may be of a queue, or have a unit, that nothing here knows of yet.

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
"""Per queue the first offset of a run of offsets in one CommitLog file, and its units."""


class Floors:
    """The floor of a queue is the first offset from which units reach up to its files.

    Most queues have none. Keeps two numbers for each queue and CommitLog file, and the units of the
    last two CommitLog files used. Guarded by its caller.
    """

    def __init__(self, log: CommitLogFiles, begins: Mapping[QueueId, int] | None = None) -> None:
        """`begins` are positions below which records of a name are an earlier queue's."""
        self._log = log
        self._begins: Mapping[QueueId, int] = {} if begins is None else begins
        self._floors: dict[QueueId, int] = {}
        self._found_for: dict[QueueId, int] = {}
        """First offset of each queue's files when the floors were looked for."""
        self._wanted: frozenset[QueueId] = frozenset()
        """The queues whose units are made; every walked file was walked for all of them."""
        self._spans: dict[int, dict[QueueId, range]] = {}
        """Offsets of each queue in every walked CommitLog file, by the file's first byte."""
        self._growing: set[int] = set()
        """The walked files that the broker may still have been writing, or had not begun."""
        self._kept: LRUCache[int, _Runs] = LRUCache(FILES_KEPT_MAX)
        self.findings: list[str] = []
        """Sentences for people; whoever looks takes them."""

    def __repr__(self) -> str:
        return f"<Floors of {len(self._floors)} queues in {len(self._spans)} files>"

    def check(self) -> None:
        """Assert that floors lie below their queues' files, and spans in files that were walked."""
        for queue, floor in self._floors.items():
            assert floor < self._found_for[queue], f"{queue} at {floor}: {self}"
            assert queue in self._wanted, f"{queue}: {self}"
        assert self._kept.keys() <= self._spans.keys(), f"{self}"
        assert self._growing <= self._spans.keys(), f"{self}"

    def find(self, queues: Mapping[QueueId, ConsumeQueueFiles]) -> dict[QueueId, StoreError]:
        """Look for the floors of all queues; returns why some could not be looked for.

        Reads a unit of each queue whose first file went; walks the CommitLog files below those
        that were not walked yet (see `units_in` for the cost).

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
                unit = queues[queue].look(first, 1)
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
            self._floors = {}  # what lies below files that went is not known of any of these
            unread |= dict.fromkeys(ends, error)
        return unread

    def below(self, ends: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, int]:
        """The floors of the queues that have one.

        Args:
            ends: at least one queue; the first offset that its files have, and the position of
                that message in the CommitLog.

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
            self._forget(begun)  # they may hold more by now than when they were walked
            floors = self._walk(ends, known)
        return floors

    def _walk(self, ends: Mapping[QueueId, tuple[int, int]], known: int) -> dict[QueueId, int]:
        """The floors by what is walked; walks what is not, of which `known` was written."""
        bases = sorted(self._log.table.paths)
        highest = max(position for _, position in ends.values())
        for base in bases:
            if base < highest and base not in self._spans:
                is_whole = self._is_whole(base, known)  # before it is walked
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
        """Whether nothing is added to a CommitLog file any more: a message lies behind it."""
        return known >= base + self._log.table.file_bytes or has_begun_later(self._log, base)

    def forget(self) -> None:
        """Walk every file anew when floors are looked for next."""
        self._forget(list(self._spans))
        self._floors, self._found_for = {}, dict.fromkeys(self._found_for, -1)

    def is_stale(self, queue: QueueId, files: ConsumeQueueFiles) -> bool:
        """Whether files of the queue went since floors were looked for."""
        first = files.first_offset
        return first != self._found_for.get(queue, first)

    def of(self, queue: QueueId) -> int | None:
        """The queue's floor; None if it has none."""
        return self._floors.get(queue)

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Units from `start` on, below the queue's files and not beyond one CommitLog file.

        Raises:
            OutOfRange: there are none, or their CommitLog file went.
            Unavailable, Denied: the CommitLog file cannot be read.
        """
        for base, spans in self._spans.items():
            if start in spans.get(queue, ()):
                run = self._runs_in(base).get(queue)
                if run is not None and run[0] <= start < run[0] + len(run[1]):
                    first, units = run  # read again, it may be another one: the log lost its tail
                    return units[start - first : end - first]
        raise OutOfRange("its ConsumeQueue file was deleted", str(queue), start)

    def _runs_in(self, base: int) -> _Runs:
        kept = self._kept.get(base)
        if kept is None:
            try:
                found = units_in(self._log, base, self._wanted, self.findings)
            except OutOfRange:
                found = {}  # it went: nothing of it can be served
            own = {queue: self._own(queue, *units) for queue, units in found.items()}
            kept = {queue: _last_run(*units) for queue, units in own.items() if len(units[1])}
            self._kept[base] = kept
        return kept

    def _own(
        self, queue: QueueId, offsets: NDArray[np.int64], units: Units
    ) -> tuple[NDArray[np.int64], Units]:
        """What is the queue's own of records with its name."""
        own = units["position"] >= self._begins.get(queue, 0)
        return offsets[own], units[own]

    def _forget(self, bases: Iterable[int]) -> None:
        for base in bases:
            self._spans.pop(base, None)
            self._kept.pop(base, None)
            self._growing.discard(base)


def _last_run(offsets: NDArray[np.int64], units: Units) -> tuple[int, Units]:
    """The offsets after the last hole, and their units: what precedes a hole is out of reach."""
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    first = int(breaks[-1]) + 1 if len(breaks) else 0
    return int(offsets[first]), units[first:]
