"""Queues of a followed store: finds them, polls their ends, and reads their units."""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import FILLER_SIZE, ConsumeQueueUnit, Units
from container.record.verification import leading_good_units
from dispatcher.ports import HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.names import is_there
from provider.ranges import QueueOffset
from tieredstore.following.directory.layout import is_of_the_process
from tieredstore.following.directory.queues import DirectoryWatch, FoundQueues, QueueDirectories
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.deletions import (
    Deletions,
    again_sentences,
    beyond_sentences,
    deletion_sentence,
)
from tieredstore.following.queues.files import ConsumeQueueFiles, RebuildBudget
from tieredstore.following.queues.pinned_units import Floors, QueueNeed, first_needed
from tieredstore.following.queues.poll_schedule import QueueWatermarks
from tieredstore.following.queues.succession import before_place, names_message
from tieredstore.following.queues.tail import ConsumeQueueTail, PollTime
from tieredstore.following.statistics import ScanStatistics

_ENDS_UNKNOWN = {HotQueueState.DAMAGED, HotQueueState.UNREADABLE}
"""States of queues that may have messages beyond their end."""


class FollowedQueues:
    """State of all queues. Callees of `poll` hold the lock; `references` takes it if it must.

    Q1  The budget of rebuilt units is the sum over the queues, and never exceeds its bound.
    Q2  A queue with a tail is known once it was polled: its last state was published.
    """

    def __init__(
        self,
        log: FollowedLog,
        mapped: MappedFiles,
        directories: QueueDirectories,
        statistics: ScanStatistics,
        lock: threading.Lock,
    ) -> None:
        self._log = log
        self._mapped = mapped
        self._directories = directories
        self._statistics = statistics
        self._watch = DirectoryWatch()
        self._budget = RebuildBudget()
        self._tails: dict[QueueId, ConsumeQueueTail] = {}
        self._has_missed = False
        """Whether a poll missed a file that the previous one had."""
        self._unscanned: dict[QueueId, StoreError] = {}
        """Errors of the last scan of each queue's directory."""
        self.newest_ms = 0
        """Store timestamp of the newest message that counts and was read, Unix ms."""
        self._unpolled: set[QueueId] = set()
        """Queues that wait for the end of an earlier incarnation, and could not be read."""
        self._deletions = Deletions(log, directories.root)
        self._floors = Floors(log.files, self._deletions.begin_positions)
        self.found = FoundQueues()
        """Result of the last scan of the directories."""
        self.watermarks = QueueWatermarks()
        self._readers = QueueReaders(
            log.files, self._tails, self._floors, self._deletions, self.watermarks, lock
        )

    def __repr__(self) -> str:
        return f"<FollowedQueues: {len(self._tails)} queues, {self._budget}>"

    def check(self) -> None:
        """Assert Q1, Q2, and the invariants of each queue. O(files)."""
        for queue, tail in self._tails.items():
            tail.check()
            assert queue in self.watermarks.known or not tail.is_known, f"Q2: {tail}"
        made = sum(tail.files.made.bytes for tail in self._tails.values())
        assert made == self._budget.taken, f"Q1: {made} bytes, {self._budget}"
        assert self._budget.room >= 0, f"Q1: {self._budget}"
        self._floors.check()
        self._deletions.check(self._tails)

    def take_doubt(self) -> bool:
        """Whether a file was missed since the last call: the directories must be scanned."""
        missed, self._has_missed = self._has_missed, False
        return self._readers.take_doubt() or missed

    @property
    def has_deleted(self) -> bool:
        """Whether the broker deleted a followed queue."""
        return self._deletions.is_any

    @property
    def has_report(self) -> bool:
        """Whether a reader reported a message that was not polled yet."""
        return self._readers.has_report

    def publish(self, found: Mapping[QueueId, HotQueue]) -> dict[QueueId, HotQueue]:
        """Publish the result of a poll. Return the queues that changed."""
        self._deletions.reported()
        return self.watermarks.publish(found)

    def scan(self, *, has_grown: bool) -> dict[QueueId, HotQueue]:
        """Scan for queues and their files. Return those that cannot be tiered or scanned.

        Args:
            has_grown: whether the log has grown since the last scan. The directories of known
                queues are scanned only then, or if something is missing.

        Raises:
            Unavailable, Denied: the directories cannot be read right now.
        """
        self._statistics.directory_looks += 1
        found = self._directories.scan()
        self._statistics.excluded_topics = len(found.excluded)
        self._statistics.find(sorted(found.findings))
        self.found = found
        self._deletions.take_up()
        gone = self._deletions.gone(self._tails, chain(found.queues, found.refused))
        away = {queue for queue in gone if self._directories.is_away(queue)}
        self._part_with(queue for queue in gone if queue not in away)
        before, self._unscanned = self._unscanned, {queue: _away(queue) for queue in away}
        for queue, directory in found.queues.items():
            try:
                self._scan_queue(queue, directory, has_grown=has_grown or queue in before)
            except (Unavailable, Denied, NotFound, Corrupt) as error:
                self._watch.forget(directory)
                if is_of_the_process(error):
                    raise
                self._unscanned[queue] = error
        hidden_away = list(filter(self._directories.is_away, self._deletions.hidden))
        self._deletions.find_hidden_gone(chain(found.queues, found.refused, hidden_away))
        self._deletions.scanned()
        self._deletions.report_again(before.keys() - self._unscanned.keys())
        self._find_floors()
        refused = {queue: self._refuse(queue, said) for queue, said in found.refused.items()}
        return refused | {
            queue: self._deletions.unreadable(queue, error)
            for queue, error in self._unscanned.items()
            if queue not in self._tails
        }

    def _refuse(self, queue: QueueId, sentence: str) -> HotQueue:
        """Return a refused queue. It may have been tiered until its topic's kind was known."""
        tail = self._tails.pop(queue, None)
        if tail is not None:
            tail.files.give_up()
        known = self.watermarks.known.get(queue)
        if known is None:
            zero = QueueOffset(0)
            return HotQueue(queue, zero, zero, HotQueueState.REFUSED, sentence)
        if known.state is HotQueueState.REFUSED and known.detail.startswith(sentence):
            return known
        tiered = self.watermarks.released(queue)
        more = f" Its messages below offset {tiered} were tiered before that was known."
        detail = sentence + more if tiered else sentence
        return replace(known, state=HotQueueState.REFUSED, detail=detail)

    def poll_again(self, queues: Collection[QueueId], moment: PollTime) -> dict[QueueId, HotQueue]:
        """Scan and poll these queues without any state from before.

        Costs a first poll of them, a unit of every queue whose first file was deleted, and with
        pins a scan of the pinned files below the queues' own.

        Raises:
            Unavailable, Denied: something cannot be read right now.
        """
        self._directories.forget({queue.topic for queue in queues})
        self._floors.forget()
        for queue in queues:
            tail = self._tails.get(queue)
            if tail is not None:
                self._watch.forget(tail.files.run.directory)
                tail.poll_again()
            self._deletions.poll_again(queue, self.watermarks.released(queue))
        found = self.scan(has_grown=True)
        return found | self.poll(moment, queues)

    def _scan_queue(self, queue: QueueId, directory: Path, *, has_grown: bool) -> None:
        """Scan the directory of one queue if it may have changed."""
        tail = self._tails.get(queue)
        if tail is None and self._deletions.remains_of(queue):
            if has_grown or queue in self._unpolled:
                self._unpolled.add(queue)
                with suppress(Unavailable, Denied, NotFound):  # else no backlog could be reported
                    self._poll_hidden(queue, directory)
                    self._unpolled.discard(queue)
        elif tail is None:
            if self._deletions.is_hidden(queue):
                self._poll_hidden(queue, directory)  # it may have been recreated again by now
            self._begin(queue, directory)
        elif has_grown and self._watch.changed(directory):
            if tail.judge_identity(self._log.files):  # first: else files of a new queue count
                self._part_with([queue])
                self._begin(queue, directory)
        elif not tail.files.run.bases or tail.log_min != self._log.files.table.min_position:
            tail.files.rescan()  # the broker deletes from the front of both together
        elif tail.files.has_missing:
            tail.files.release(self.watermarks.released(queue))
            tail.files.rescan()  # a missing file may be restored in place

    def _begin(self, queue: QueueId, directory: Path) -> None:
        """Follow a queue that is new, or was deleted and exists again."""
        if self._deletions.remains_of(queue):
            return  # the backlog of the deleted queue comes first
        self._watch.changed(directory)  # it is read now, whatever was known of it
        files = ConsumeQueueFiles(self._mapped, directory, self._budget)
        if not self._deletions.has(queue) or self._deletions.succeeds(queue, files):
            self._tails[queue] = ConsumeQueueTail(queue, files)
            if self._deletions.has(queue):
                self._floors.forget()  # they were found in files of an earlier incarnation

    def _poll_hidden(self, queue: QueueId, directory: Path) -> None:
        """Record the first message of a queue after the backlog of an earlier incarnation."""
        files = ConsumeQueueFiles(self._mapped, directory, self._budget)
        try:
            self._deletions.poll_hidden(queue, files)
        finally:
            files.give_up()

    def _begin_again(self, queue: QueueId, directory: Path) -> dict[QueueId, HotQueue]:
        """Call `_begin` during a poll. Return the state to publish if it cannot be done yet."""
        try:
            self._begin(queue, directory)
        except Corrupt as error:
            self._unscanned[queue] = error  # the next scan tries again
            return {queue: self._deletions.unreadable(queue, error)}
        return {}

    def _part_with(self, queues: Iterable[QueueId]) -> None:
        """Stop reading the files of queues that the broker deleted."""
        waiting: dict[QueueId, int] = {}
        beyond: dict[QueueId, int] = {}
        for queue in queues:
            tail = self._tails.pop(queue)
            tail.files.give_up()
            shown = self.watermarks.known.get(queue)
            if shown is not None:
                if shown.state in _ENDS_UNKNOWN:
                    beyond[queue] = shown.max_offset
                released = self.watermarks.released(queue)
                waiting[queue] = self._deletions.add(queue, tail, shown, released)
        if waiting:
            sentence = deletion_sentence(waiting, has_pins=self._log.has_pins)
            self._statistics.find([sentence, *beyond_sentences(beyond)])

    def _find_floors(self) -> None:
        """Rebuild units of deleted ConsumeQueue files whose CommitLog is pinned."""
        if self._log.has_pins:
            queues = {queue: tail.files for queue, tail in self._tails.items()}
            self._unscanned |= self._floors.find(queues)
            self._statistics.find(self._floors.findings)
            self._floors.findings.clear()

    def _floor_of(self, queue: QueueId) -> int | None:
        """Return the queue's floor.

        Finds all floors again if its files were deleted between two scans.
        """
        if self._log.has_pins and self._floors.is_stale(queue, self._tails[queue].files):
            self._find_floors()
        return self._floors.of(queue)

    def has(self, queue: QueueId) -> bool:
        """Whether the last scan found the queue, or never will: its topic is not tiered."""
        return (
            queue in self._tails
            or self._deletions.remains_of(queue)
            or queue in self.found.refused
            or self._directories.is_left_out(queue.topic)
        )

    def poll(
        self, moment: PollTime, only: Iterable[QueueId] | None = None
    ) -> dict[QueueId, HotQueue]:
        """Poll the ends of queues. Return their present states.

        Args:
            moment: the time, and the state of the broker.
            only: poll these and those that a reader reported; None: all.

        Raises:
            Unavailable, Denied: nothing can be read right now.
        """
        found: dict[QueueId, HotQueue] = {}
        end = 0
        reported = self._readers.take_reports()
        # Sorted, so that the result depends only on the directory.
        named = None if only is None else sorted(reported.union(only) & self._tails.keys())
        chosen = list(self._tails) if named is None else named
        self._statistics.queue_looks += len(chosen)
        for queue in chosen:
            tail = self._tails[queue]
            was_current = tail.is_current
            seen = self._poll_queue(queue, tail, moment)
            self._has_missed |= was_current and not tail.is_current
            self._statistics.find(tail.findings)
            tail.findings = []
            end = max(end, tail.end_position)
            self.newest_ms = max(self.newest_ms, tail.newest_ms)
            if tail.is_made_again:
                self._part_with([queue])
                found |= self._begin_again(queue, tail.files.run.directory)
                continue
            if seen is not None and seen is not self.watermarks.known.get(queue):
                found[queue] = self._deletions.shown(seen)
            if tail.has_report:
                self._readers.look_again(queue)
        found |= self._poll_deleted()
        self._log.tail.reach(self._log.files, end)
        self._statistics.made_bytes = self._budget.taken
        return found

    def _poll_deleted(self) -> dict[QueueId, HotQueue]:
        """Return the states of deleted queues to publish. Reads nothing."""
        found: dict[QueueId, HotQueue] = {}
        for queue in sorted(self._deletions.unsettled):
            tail = self._tails.get(queue)
            if queue not in self._unscanned and (tail is None or not tail.is_known):
                found |= self._deletions.poll(queue, self.watermarks.released(queue))
        again = again_sentences(self._deletions.take_successors())
        self._statistics.find([*again, *self._deletions.take_findings()])
        return found

    def _poll_queue(
        self, queue: QueueId, tail: ConsumeQueueTail, moment: PollTime
    ) -> HotQueue | None:
        """Return the present state of one queue; None if nothing is known."""
        error = self._unscanned.get(queue)
        if error is None:
            try:
                floor_of = partial(self._floor_of, queue)
                seen = tail.poll(self._log.files, moment, floor_of, self._log.tail.position)
            except (Unavailable, Denied) as caught:
                if is_of_the_process(caught):
                    raise
                error = caught
            else:
                return seen if tail.is_known else None
        return replace(tail.seen, state=HotQueueState.UNREADABLE, detail=str(error))

    def first_needed(self, settled_position: int) -> int:
        """Return the first CommitLog position that may hold an untiered message.

        Args:
            settled_position: as in `pinned_units.first_needed`.
        """
        if not self.watermarks.known or not self._unscanned.keys() <= self._tails.keys():
            return 0  # nothing is known yet, or not of all
        needs = (self._need_of(queue, tail) for queue, tail in self._tails.items())
        return first_needed(chain(needs, self._deletions.needs()), settled_position)

    def _need_of(self, queue: QueueId, tail: ConsumeQueueTail) -> QueueNeed:
        known = self.watermarks.known.get(queue)
        wanted = max(self.watermarks.released(queue), tail.seen.min_offset)
        is_wanted = tail.is_known and wanted < tail.seen.max_offset
        position = self._position_of(queue, QueueOffset(wanted)) if is_wanted else None
        if position is not None and position >= tail.end_position > 0:
            position = 0  # the unit is of a recreated queue, which the next poll detects
        tail.needed_position = (
            tail.end_position if position is None else position or tail.needed_position
        )
        return QueueNeed(
            is_known=tail.is_known,
            has_end=tail.is_current and known is not None and known.state not in _ENDS_UNKNOWN,
            end_position=tail.end_position,
            next_position=position,
        )

    def _position_of(self, queue: QueueId, offset: QueueOffset) -> int:
        """Return the position of a message; 0 if it cannot be read."""
        files = self._tails[queue].files
        try:
            if offset < files.first_offset:
                return int(self._floors.units(queue, offset, offset + 1)["position"][0])
            return files.unit(offset).position
        except (NotFound, OutOfRange, Corrupt, Unavailable, Denied):
            return 0

    def references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        """See `QueueReaders.references`."""
        return self._readers.references(queue, start, messages_max)

    def report(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """See `QueueReaders.report`."""
        self._readers.report(queue, start, damage)

    def report_damage(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """See `QueueReaders.report_damage`."""
        self._readers.report_damage(queue, start, damage)

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Record that messages of `queue` below `offset` are tiered.

        The next scan drops their pins.
        """
        self.watermarks.release(queue, offset)


def _away(queue: QueueId) -> StoreError:
    return Unavailable("the volume that its topic's directory lies on is away", str(queue))


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
