"""Reads of units for the dispatcher, in other threads than the poll's."""

import threading
from collections import deque
from collections.abc import Mapping

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import FILLER_SIZE, ConsumeQueueUnit, Units
from container.record.verification import leading_good_units
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, Unavailable
from provider.names import is_there
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.queues.deletions import Deletions
from tieredstore.following.queues.pinned_units import Floors
from tieredstore.following.queues.poll_schedule import QueueWatermarks
from tieredstore.following.queues.succession import before_place, names_message
from tieredstore.following.queues.tail import ConsumeQueueTail


class QueueReaders:
    """Unit reads, and their reports to the next poll.

    The state belongs to the poll, which changes it under `lock`. Readers take the lock only for
    units that must be rebuilt.
    """

    def __init__(  # noqa: PLR0917 - the needs of a reader
        self,
        log: CommitLogFiles,
        tails: Mapping[QueueId, ConsumeQueueTail],
        floors: Floors,
        deletions: Deletions,
        watermarks: QueueWatermarks,
        lock: threading.Lock,
    ) -> None:
        self._log = log
        self._tails = tails
        self._floors = floors
        self._deletions = deletions
        self._watermarks = watermarks
        self._lock = lock
        self._reported: deque[QueueId] = deque()
        self._is_doubted = False
        """Whether a reader found that a queue may have been deleted, so that directories must be
        scanned."""
        self._doubted: dict[QueueId, int] = {}
        """Unit positions beyond the known end of the log that raised such a doubt."""

    def __repr__(self) -> str:
        return f"<QueueReaders: {len(self._reported)} reports>"

    @property
    def has_report(self) -> bool:
        """Whether a reader reported a message that was not polled yet."""
        return bool(self._reported)

    def take_reports(self) -> set[QueueId]:
        """Return the queues that were reported since the last call."""
        return {self._reported.popleft() for _ in range(len(self._reported))}

    def take_doubt(self) -> bool:
        """Whether a reader missed a queue since the last call: the directories must be scanned."""
        doubted, self._is_doubted = self._is_doubted, False
        return doubted

    def look_again(self, queue: QueueId) -> None:
        """Report a queue again, for its report is not settled: the next poll reads it, too."""
        self._reported.append(queue)

    def references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        """See `HotLog.references`. Also raises Corrupt for a truncated ConsumeQueue file.

        Unreadable units are reported to the next poll. Takes the lock only for units that must be
        rebuilt.
        """
        try:
            return self._references(queue, start, messages_max)
        except Corrupt as error:
            self.report_damage(queue, start, str(error))
            raise
        except (Unavailable, Denied):
            self.report(queue, start)
            raise

    def _references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        end = self._watermarks.end_within(queue, start, messages_max)
        tail = self._tails.get(queue)
        if tail is None:
            with self._lock:
                return self._deletions.units(queue, start, end)
        if start < self._deletions.end_of(queue):
            raise OutOfRange("its topic was deleted", str(queue), start)
        files = tail.files
        if start < files.first_offset:
            return self._units_below(queue, start, end)
        try:
            units = files.units(start, end)
        except NotFound:
            if not self._mend(queue, start):
                if start < files.first_offset:  # the poll found which files were deleted
                    return self._units_below(queue, start, end)
                self._doubt(queue, start, is_there=is_there(files.run.directory))
                raise
            units = files.units(start, end)
        if int(units["position"][0]) >= tail.end_position > 0:
            unit = ConsumeQueueUnit(*(int(value) for value in units[0].tolist()))
            self._doubt(queue, start, is_there=not self._is_of_another(queue, start, unit))
        elif tail.end_position:  # units of a possibly recreated queue come first in the next call
            units = before_place(units, tail.end_position)
        if not units["size"][0] and self._mend(queue, start):
            units = files.units(start, end)
        return self._good_units(queue, start, tail, units)

    def _good_units(
        self, queue: QueueId, start: QueueOffset, tail: ConsumeQueueTail, units: Units
    ) -> Units:
        """Return the leading units that may be right, at least one. None of them is a filler.

        Raises:
            OutOfRange: the first one is a filler.
        """
        if units["size"][0] == FILLER_SIZE and not units["position"][0]:
            self._pass_over(queue, start, tail)
            raise OutOfRange("a repair gave the message up", str(queue), start)
        good = leading_good_units(
            units["position"].astype(np.int64), units["size"].astype(np.int64)
        )
        return units[: max(1, good)]  # a bad unit comes alone: reading its record names it

    def _pass_over(self, queue: QueueId, start: QueueOffset, tail: ConsumeQueueTail) -> None:
        """Report the messages from `start` on as lost in the next poll, if it is their turn.

        Earlier messages come first, for later ones are read ahead.
        """
        is_ahead = self._watermarks.is_untiered(queue, start) and start > self._watermarks.released(
            queue
        )
        if not is_ahead:
            tail.pass_over(
                tail.files.after_fillers(start, self._watermarks.known[queue].max_offset)
            )
            self._reported.append(queue)

    def _units_below(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Return units below the queue's files, which pins keep.

        Files may be deleted since the last scan.

        Raises:
            OutOfRange: there are none.
            Unavailable, Denied: they cannot be rebuilt now.
        """
        with self._lock:
            files = self._tails[queue].files
            if self._floors.is_stale(queue, files):
                self._floors.find({one: tail.files for one, tail in self._tails.items()})
            return self._floors.units(queue, start, min(end, files.first_offset))

    def _doubt(self, queue: QueueId, start: QueueOffset, *, is_there: bool) -> None:
        """Report a queue whose files are missing, or may be a recreated queue's.

        The next poll decides.
        """
        if not is_there:
            self._is_doubted = True
            raise OutOfRange("its ConsumeQueue was deleted", str(queue), start)

    def _is_of_another(self, queue: QueueId, start: QueueOffset, unit: ConsumeQueueUnit) -> bool:
        """Whether a unit beyond the queue's end may be a recreated queue's, and not damage.

        If the log is not known to reach so far, one poll finds whether it does.
        """
        if unit.position < self._log.table.end:
            return names_message(self._log, queue, start, unit)
        is_new = self._doubted.get(queue) != unit.position
        self._doubted[queue] = unit.position
        return is_new

    def _mend(self, queue: QueueId, start: QueueOffset) -> bool:
        """Rebuild a missing or zero unit. Return whether it can be read now."""
        with self._lock:
            tail = self._tails.get(queue)
            if tail is None:
                return False
            is_mended = tail.mend(start, self._log)
            is_missing = not is_mended and tail.files.is_missing(start)
        if is_missing:
            self.report_damage(queue, start)
        return is_mended

    def report(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """Report a message at `start` that could not be read or trusted. The next poll reads it."""
        tail = self._tails.get(queue)
        if tail is not None:
            tail.report(start, damage)
            self._reported.append(queue)

    def report_damage(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """Report damage if its message is not tiered yet. Others do not matter."""
        if self._watermarks.is_untiered(queue, start):
            self.report(queue, start, damage)
