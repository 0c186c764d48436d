"""Messages of deleted queues that wait to be tiered: their units, from the records that pins keep.

A broker that deletes a topic removes its ConsumeQueues at once, and leaves its records in the
CommitLog for as long as the files live.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE, Units
from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.rebuild.log_units import units_in

FILES_KEPT_MAX = 2
"""CommitLog files whose units stay in memory: 28 bytes for each message of a deleted queue."""

_Runs = dict[QueueId, tuple[NDArray[np.int64], Units]]


class Remainder:
    """The messages `[start, end)` of one deleted queue.

    Their records lie within `[position, end_position)` of the CommitLog. Records of other queues
    that had or have the name lie elsewhere.
    """

    def __init__(self, start: int, end: int, *, position: int, end_position: int) -> None:
        self.first = start
        """The first message that waited when the queue was deleted."""
        self.start = start
        """The first message that can be read, as far as is known."""
        self.end = end
        self.position = position
        self.end_position = end_position
        self._places: deque[tuple[int, int]] = deque()
        """Offset and position of messages whose units were asked for, ascending."""

    def __repr__(self) -> str:
        return f"<Remainder [{self.start}, {self.end}) from {self.position} on>"

    def note(self, offset: int, position: int) -> None:
        """The message at `offset` lies at `position`."""
        if not self._places or self._places[-1][0] < offset:
            self._places.append((offset, position))

    def release(self, offset: int) -> None:
        """What lies below `offset` is tiered: only what lies above its place is needed."""
        while self._places and self._places[0][0] <= offset:
            self.position = max(self.position, self._places.popleft()[1])


class Remains:
    """All remainders, of each name in the order in which queues had it. Guarded by its caller.

    M1  The remainders of a name do not overlap, in offsets or in the log, and the oldest is first.
    """

    def __init__(self, log: CommitLogFiles) -> None:
        self._log = log
        self._queues: dict[QueueId, deque[Remainder]] = {}
        self._walked: LRUCache[int, tuple[frozenset[QueueId], _Runs]] = LRUCache(FILES_KEPT_MAX)
        self.findings: list[str] = []
        """Sentences for people; whoever looks takes them."""

    def __repr__(self) -> str:
        return f"<Remains of {len(self._queues)} queues>"

    def __contains__(self, queue: QueueId) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def __getitem__(self, queue: QueueId) -> Remainder:
        """That of the oldest queue of this name."""
        return self._queues[queue][0]

    def check(self) -> None:
        """Assert M1."""
        for rests in self._queues.values():
            for before, after in pairwise(rests):
                assert before.end <= after.first, f"M1: {before}, {after}"
                assert before.end_position <= after.position, f"M1: {before}, {after}"

    def all_of(self, queue: QueueId) -> Sequence[Remainder]:
        """Those of all queues of this name, oldest first."""
        return tuple(self._queues.get(queue, ()))

    def add(self, queue: QueueId, remainder: Remainder) -> None:
        """A queue was deleted of which something waits, behind all others of its name."""
        self._queues.setdefault(queue, deque()).append(remainder)
        self._walked.clear()  # files may have grown since they were walked

    def extend(self, queue: QueueId, end: int, end_position: int) -> None:
        """The newest queue of this name goes on up to here."""
        rest = self._queues[queue][-1]
        rest.end, rest.end_position = end, end_position
        self._walked.clear()

    def drop(self, queue: QueueId) -> None:
        """Nothing waits any more of the oldest queue of this name."""
        self._queues[queue].popleft()
        if not self._queues[queue]:
            del self._queues[queue]
        if not self._queues:
            self._walked.clear()

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Units from `start` on, within `end` and one CommitLog file; at least one.

        Walks a CommitLog file for all remainders at once; see `units_in` for the cost.

        Raises:
            OutOfRange: the record is gone, and the remainder begins at the next that is there.
            Unavailable, Denied: the CommitLog file cannot be read.
        """
        rest = self[queue]
        if start < rest.start:
            raise OutOfRange("its topic was deleted, and its record is gone", str(queue), start)
        file_bytes = self._log.table.file_bytes
        base = self._log.table.base_of(max(rest.position, self._log.table.min_position))
        while base < min(rest.end_position, self._log.table.end):
            offsets, units = self._run(base, queue)
            at = int(np.searchsorted(offsets, start))
            if at < len(offsets):
                if offsets[at] != start:
                    rest.start = int(offsets[at])
                    break
                rest.note(start, int(units["position"][at]))
                stop = at + min(end - start, len(offsets) - at)
                touching = offsets[at:stop] - start == np.arange(stop - at)
                return units[at : at + int(np.count_nonzero(touching))]
            base += file_bytes
        else:
            rest.start = rest.end
        raise OutOfRange("its topic was deleted, and its record is gone", str(queue), start)

    def look_anew(self, queue: QueueId, released: int) -> None:
        """Find anew where a remainder begins, of which all below `released` is tiered.

        Raises:
            Unavailable, Denied: a CommitLog file cannot be read.
        """
        rest = self[queue]
        self._walked.clear()
        rest.start = min(max(rest.first, released), rest.end)
        if rest.start < rest.end:
            with suppress(OutOfRange):  # then it begins later, or nothing of it is left
                self.units(queue, QueueOffset(rest.start), rest.start + 1)

    def _run(self, base: int, queue: QueueId) -> tuple[NDArray[np.int64], Units]:
        """Offsets and units of one queue's remainder in the CommitLog file at `base`."""
        walked, runs = self._walked.get(base, (frozenset[QueueId](), {}))
        if queue not in walked:
            walked = frozenset(self._queues)
            try:
                found = units_in(self._log, base, walked, self.findings)
            except OutOfRange:
                found = {}  # it went
            runs = found
            self._walked[base] = (walked, runs)
        if queue not in runs:
            return np.zeros(0, np.int64), np.zeros(0, UNIT_DTYPE)
        return self._within(queue, *runs[queue])

    def _within(
        self, queue: QueueId, offsets: NDArray[np.int64], units: Units
    ) -> tuple[NDArray[np.int64], Units]:
        """What is the oldest queue's own of records with its name."""
        rest = self[queue]
        own = (units["position"] >= rest.position) & (units["position"] < rest.end_position)
        offsets, units = offsets[own], units[own]
        falls = np.flatnonzero(np.diff(offsets) <= 0)
        first = int(falls[-1]) + 1 if len(falls) else 0  # before it lies an earlier queue
        return offsets[first:], units[first:]
