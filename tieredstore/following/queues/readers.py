"""Reads units for the dispatcher, in other threads than the one that looks at the queues."""

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
from tieredstore.following.queues.poll_schedule import ToldQueues
from tieredstore.following.queues.succession import before_place, names_message
from tieredstore.following.queues.tail import ConsumeQueueTail


class QueueReaders:
    """What readers ask of queues, and what they found that a poll has to look at.

    What is read belongs to the poll, which changes it under `lock`. Readers take that only for
    units that must be made.
    """

    def __init__(  # noqa: PLR0917 - what a reader may need
        self,
        log: CommitLogFiles,
        tails: Mapping[QueueId, ConsumeQueueTail],
        floors: Floors,
        deletions: Deletions,
        told: ToldQueues,
        lock: threading.Lock,
    ) -> None:
        self._log = log
        self._tails = tails
        self._floors = floors
        self._deletions = deletions
        self._told = told
        self._lock = lock
        self._reported: deque[QueueId] = deque()
        self._is_doubted = False
        """Whether a reader found that a queue may have been deleted: look at the directories."""
        self._doubted: dict[QueueId, int] = {}
        """Positions in units that made a reader think so, beyond what is known of the log."""

    def __repr__(self) -> str:
        return f"<QueueReaders: {len(self._reported)} reports>"

    @property
    def has_report(self) -> bool:
        """Whether a reader reported a message that no poll has looked at."""
        return bool(self._reported)

    def take_reports(self) -> set[QueueId]:
        """The queues that were reported since the last call."""
        return {self._reported.popleft() for _ in range(len(self._reported))}

    def take_doubt(self) -> bool:
        """Whether a reader missed a queue since the last call: the directories tell why."""
        doubted, self._is_doubted = self._is_doubted, False
        return doubted

    def look_again(self, queue: QueueId) -> None:
        """What was reported of a queue is not settled: the next poll looks at it, too."""
        self._reported.append(queue)

    def references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        """See `HotLog.references`; also raises Corrupt for a truncated ConsumeQueue file.

        Units that cannot be read are reported to the next poll. Takes the lock only for units that
        must be made.
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
        end = self._told.end_within(queue, start, messages_max)
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
                if start < files.first_offset:  # that look found which files went
                    return self._units_below(queue, start, end)
                self._doubt(queue, start, is_there=is_there(files.run.directory))
                raise
            units = files.units(start, end)
        if int(units["position"][0]) >= tail.end_position > 0:
            unit = ConsumeQueueUnit(*(int(value) for value in units[0].tolist()))
            self._doubt(queue, start, is_there=not self._is_of_another(queue, start, unit))
        elif tail.end_position:  # what may be another queue's comes first in the next call
            units = before_place(units, tail.end_position)
        if not units["size"][0] and self._mend(queue, start):
            units = files.units(start, end)
        return self._good_units(queue, start, tail, units)

    def _good_units(
        self, queue: QueueId, start: QueueOffset, tail: ConsumeQueueTail, units: Units
    ) -> Units:
        """The leading units that may be right, at least one; none are fillers.

        Raises:
            OutOfRange: the first one is a filler.
        """
        if units["size"][0] == FILLER_SIZE and not units["position"][0]:
            self._pass_over(queue, start, tail)
            raise OutOfRange("a repair gave the message up", str(queue), start)
        good = leading_good_units(
            units["position"].astype(np.int64), units["size"].astype(np.int64)
        )
        return units[: max(1, good)]  # what is bad comes alone: reading its record names it

    def _pass_over(self, queue: QueueId, start: QueueOffset, tail: ConsumeQueueTail) -> None:
        """Let the next poll say that the messages from `start` on are lost, if it is their turn.

        Those before it come first: what is above them is asked for ahead.
        """
        is_ahead = self._told.is_untiered(queue, start) and start > self._told.released(queue)
        if not is_ahead:
            tail.pass_over(tail.files.after_fillers(start, self._told.known[queue].max_offset))
            self._reported.append(queue)

    def _units_below(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Units below the queue's files, which pins keep; files may have gone since the last scan.

        Raises:
            OutOfRange: there are none.
            Unavailable, Denied: they cannot be made now.
        """
        with self._lock:
            files = self._tails[queue].files
            if self._floors.is_stale(queue, files):
                self._floors.find({one: tail.files for one, tail in self._tails.items()})
            return self._floors.units(queue, start, min(end, files.first_offset))

    def _doubt(self, queue: QueueId, start: QueueOffset, *, is_there: bool) -> None:
        """Its files are not there, or are another queue's by now: the next poll finds out which."""
        if not is_there:
            self._is_doubted = True
            raise OutOfRange("its ConsumeQueue was deleted", str(queue), start)

    def _is_of_another(self, queue: QueueId, start: QueueOffset, unit: ConsumeQueueUnit) -> bool:
        """Whether a unit beyond the queue's end may be another queue's, and not damage.

        Where the log is not known to reach so far, one look finds whether it does.
        """
        if unit.position < self._log.table.end:
            return names_message(self._log, queue, start, unit)
        is_new = self._doubted.get(queue) != unit.position
        self._doubted[queue] = unit.position
        return is_new

    def _mend(self, queue: QueueId, start: QueueOffset) -> bool:
        """Whether a unit that was missing or zero can be read now."""
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
        """A reader could not read or trust the message at `start`: the next poll looks at it."""
        tail = self._tails.get(queue)
        if tail is not None:
            tail.report(start, damage)
            self._reported.append(queue)

    def report_damage(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """As `report`, of damage: it concerns a queue only where it is not tiered yet."""
        if self._told.is_untiered(queue, start):
            self.report(queue, start, damage)
