"""The queues of a followed store: finds them, looks at their ends, and reads their units."""

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from container.names.queue_id import QueueId
from container.record.unit import Units
from dispatcher.ports import HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.directory.queues import DirectoryWatch, FoundQueues, QueueDirectories
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.made_files import RebuildBudget
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.deletions import (
    Deletions,
    again_sentences,
    beyond_sentences,
    deletion_sentence,
)
from tieredstore.following.queues.files import ConsumeQueueFiles
from tieredstore.following.queues.pinned_units import Floors, QueueNeed, first_needed
from tieredstore.following.queues.poll_schedule import ToldQueues
from tieredstore.following.queues.readers import QueueReaders
from tieredstore.following.queues.tail import ConsumeQueueTail, LookTime
from tieredstore.following.statistics import ScanStatistics

_ENDS_UNKNOWN = {HotQueueState.DAMAGED, HotQueueState.UNREADABLE}
"""There may be messages beyond the end of such a queue."""


class FollowedQueues:
    """The state of all queues. What `poll` calls holds the lock; `references` takes it if it must.

    Q1  The budget of made units is what the queues have of them, and never more than its bound.
    Q2  A queue that has a tail is known, once it was looked at: what is told has its last state.
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
        """Whether a look missed a file that the one before had."""
        self._unscanned: dict[QueueId, StoreError] = {}
        """What kept the last scan from looking into directories of queues."""
        self.newest_ms = 0
        """Store timestamp of the newest message that counts, as far as looks read one; Unix ms."""
        self._unlooked: set[QueueId] = set()
        """Queues that wait for the end of an earlier one, and could not be looked at."""
        self._deletions = Deletions(log, directories.root)
        self._floors = Floors(log.files, self._deletions.begin_positions)
        self.found = FoundQueues()
        """What the last scan of the directories found."""
        self.told = ToldQueues()
        self._readers = QueueReaders(
            log.files, self._tails, self._floors, self._deletions, self.told, lock
        )

    def __repr__(self) -> str:
        return f"<FollowedQueues: {len(self._tails)} queues, {self._budget}>"

    def check(self) -> None:
        """Assert Q1, Q2, and what holds of each queue. O(files)."""
        for queue, tail in self._tails.items():
            tail.check()
            assert queue in self.told.known or not tail.is_known, f"Q2: {tail}"
        made = sum(tail.files.made.bytes for tail in self._tails.values())
        assert made == self._budget.taken, f"Q1: {made} bytes, {self._budget}"
        assert self._budget.room >= 0, f"Q1: {self._budget}"
        self._floors.check()
        self._deletions.check(self._tails)

    def take_doubt(self) -> bool:
        """Whether a file was missed since the last call: the directories tell why."""
        missed, self._has_missed = self._has_missed, False
        return self._readers.take_doubt() or missed

    @property
    def has_deleted(self) -> bool:
        """Whether the broker deleted a queue that was followed."""
        return self._deletions.is_any

    @property
    def has_report(self) -> bool:
        """Whether a reader reported a message that no poll has looked at."""
        return self._readers.has_report

    def publish(self, found: Mapping[QueueId, HotQueue]) -> dict[QueueId, HotQueue]:
        """Tell what a poll found; returns what changed by it."""
        self._deletions.told()
        return self.told.publish(found)

    def scan(self, *, has_grown: bool) -> dict[QueueId, HotQueue]:
        """Look for queues and for their files; returns those that cannot be tiered or looked into.

        Args:
            has_grown: whether the log grew since the last scan. Only then, or where something is
                missing, are the directories of known queues looked at.

        Raises:
            Unavailable, Denied: the directories cannot be read right now.
        """
        self._statistics.directory_looks += 1
        found = self._directories.look()
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
        self._deletions.tell_again(before.keys() - self._unscanned.keys())
        self._find_floors()
        refused = {queue: self._refuse(queue, said) for queue, said in found.refused.items()}
        return refused | {
            queue: self._deletions.unreadable(queue, error)
            for queue, error in self._unscanned.items()
            if queue not in self._tails
        }

    def _refuse(self, queue: QueueId, sentence: str) -> HotQueue:
        """A queue that is not tiered; it may have been until its topic's kind was known."""
        tail = self._tails.pop(queue, None)
        if tail is not None:
            tail.files.give_up()
        known = self.told.known.get(queue)
        if known is None:
            zero = QueueOffset(0)
            return HotQueue(queue, zero, zero, HotQueueState.REFUSED, sentence)
        if known.state is HotQueueState.REFUSED and known.detail.startswith(sentence):
            return known
        tiered = self.told.released(queue)
        more = f" Its messages below offset {tiered} were tiered before that was known."
        detail = sentence + more if tiered else sentence
        return replace(known, state=HotQueueState.REFUSED, detail=detail)

    def look_anew(self, queues: Collection[QueueId], moment: LookTime) -> dict[QueueId, HotQueue]:
        """As a scan and a look at these queues, with nothing kept of what was read before.

        Costs a first look at them, a unit of every queue whose first file went, and with pins a
        walk through the pinned files below the queues' own.

        Raises:
            Unavailable, Denied: something cannot be read right now.
        """
        self._directories.forget({queue.topic for queue in queues})
        self._floors.forget()
        for queue in queues:
            tail = self._tails.get(queue)
            if tail is not None:
                self._watch.forget(tail.files.run.directory)
                tail.look_anew()
            self._deletions.look_anew(queue, self.told.released(queue))
        found = self.scan(has_grown=True)
        return found | self.look(moment, queues)

    def _scan_queue(self, queue: QueueId, directory: Path, *, has_grown: bool) -> None:
        """Look into the directory of one queue if there may be something new."""
        tail = self._tails.get(queue)
        if tail is None and self._deletions.remains_of(queue):
            if has_grown or queue in self._unlooked:
                self._unlooked.add(queue)
                with suppress(Unavailable, Denied, NotFound):  # else what waits could not be told
                    self._look_at_hidden(queue, directory)
                    self._unlooked.discard(queue)
        elif tail is None:
            if self._deletions.is_hidden(queue):
                self._look_at_hidden(queue, directory)  # it may be yet another one by now
            self._begin(queue, directory)
        elif has_grown and self._watch.changed(directory):
            if tail.judge_identity(self._log.files):  # first: else a new queue's files are its own
                self._part_with([queue])
                self._begin(queue, directory)
        elif not tail.files.run.bases or tail.log_min != self._log.files.table.min_position:
            tail.files.rescan()  # the broker deletes from the front of both together
        elif tail.files.has_missing:
            tail.files.release(self.told.released(queue))
            tail.files.rescan()  # a missing file may be brought back in place

    def _begin(self, queue: QueueId, directory: Path) -> None:
        """Follow a queue that was not there before, or was deleted and is there again."""
        if self._deletions.remains_of(queue):
            return  # what waits of the deleted queue comes first
        self._watch.changed(directory)  # it is read now, whatever was known of it
        files = ConsumeQueueFiles(self._mapped, directory, self._budget)
        if not self._deletions.has(queue) or self._deletions.succeeds(queue, files):
            self._tails[queue] = ConsumeQueueTail(queue, files)
            if self._deletions.has(queue):
                self._floors.forget()  # they were looked for in what an earlier queue left

    def _look_at_hidden(self, queue: QueueId, directory: Path) -> None:
        """Note what can be read of a queue that comes after what waits of an earlier one."""
        files = ConsumeQueueFiles(self._mapped, directory, self._budget)
        try:
            self._deletions.look_at_hidden(queue, files)
        finally:
            files.give_up()

    def _begin_again(self, queue: QueueId, directory: Path) -> dict[QueueId, HotQueue]:
        """As `_begin`, amid a look at the ends: what is to be told if it cannot be done yet."""
        try:
            self._begin(queue, directory)
        except Corrupt as error:
            self._unscanned[queue] = error  # the next scan tries again
            return {queue: self._deletions.unreadable(queue, error)}
        return {}

    def _part_with(self, queues: Iterable[QueueId]) -> None:
        """The broker deleted these queues: read no file of theirs any more."""
        waiting: dict[QueueId, int] = {}
        beyond: dict[QueueId, int] = {}
        for queue in queues:
            tail = self._tails.pop(queue)
            tail.files.give_up()
            shown = self.told.known.get(queue)
            if shown is not None:
                if shown.state in _ENDS_UNKNOWN:
                    beyond[queue] = shown.max_offset
                released = self.told.released(queue)
                waiting[queue] = self._deletions.add(queue, tail, shown, released)
        if waiting:
            sentence = deletion_sentence(waiting, has_pins=self._log.has_pins)
            self._statistics.find([sentence, *beyond_sentences(beyond)])

    def _find_floors(self) -> None:
        """Where ConsumeQueue files went and their CommitLog is pinned, make their units."""
        if self._log.has_pins:
            queues = {queue: tail.files for queue, tail in self._tails.items()}
            self._unscanned |= self._floors.find(queues)
            self._statistics.find(self._floors.findings)
            self._floors.findings.clear()

    def _floor_of(self, queue: QueueId) -> int | None:
        """The queue's floor; looks for all floors again if its files went between two scans."""
        if self._log.has_pins and self._floors.is_stale(queue, self._tails[queue].files):
            self._find_floors()
        return self._floors.of(queue)

    def has(self, queue: QueueId) -> bool:
        """Whether the last scan found it, or none is to be found: its topic is not tiered."""
        return (
            queue in self._tails
            or self._deletions.remains_of(queue)
            or queue in self.found.refused
            or self._directories.is_left_out(queue.topic)
        )

    def look(
        self, moment: LookTime, only: Iterable[QueueId] | None = None
    ) -> dict[QueueId, HotQueue]:
        """Look at the ends of queues; returns what is known of them now.

        Args:
            moment: the time, and what is known of the broker.
            only: look at these and at those that a reader reported; None: at all.

        Raises:
            Unavailable, Denied: nothing can be read right now.
        """
        found: dict[QueueId, HotQueue] = {}
        end = 0
        reported = self._readers.take_reports()
        # In order of their names: what is found depends on nothing but what is there.
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
            if seen is not None and seen is not self.told.known.get(queue):
                found[queue] = self._deletions.shown(seen)
            if tail.has_report:
                self._readers.look_again(queue)
        found |= self._look_at_deleted()
        self._log.tail.reach(self._log.files, end)
        self._statistics.made_bytes = self._budget.taken
        return found

    def _look_at_deleted(self) -> dict[QueueId, HotQueue]:
        """What is to be told of deleted queues. Reads nothing."""
        found: dict[QueueId, HotQueue] = {}
        for queue in sorted(self._deletions.unsettled):
            tail = self._tails.get(queue)
            if queue not in self._unscanned and (tail is None or not tail.is_known):
                found |= self._deletions.look(queue, self.told.released(queue))
        again = again_sentences(self._deletions.take_successors())
        self._statistics.find([*again, *self._deletions.take_findings()])
        return found

    def _poll_queue(
        self, queue: QueueId, tail: ConsumeQueueTail, moment: LookTime
    ) -> HotQueue | None:
        """What is known of one queue now; None if nothing is."""
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
        """First byte of the CommitLog that may hold a message which is not tiered.

        Args:
            settled_position: as in `needed_log.first_needed`.
        """
        if not self.told.known or not self._unscanned.keys() <= self._tails.keys():
            return 0  # nothing is known yet, or not of all
        needs = (self._need_of(queue, tail) for queue, tail in self._tails.items())
        return first_needed(chain(needs, self._deletions.needs()), settled_position)

    def _need_of(self, queue: QueueId, tail: ConsumeQueueTail) -> QueueNeed:
        known = self.told.known.get(queue)
        wanted = max(self.told.released(queue), tail.seen.min_offset)
        is_wanted = tail.is_known and wanted < tail.seen.max_offset
        position = self._position_of(queue, QueueOffset(wanted)) if is_wanted else None
        if position is not None and position >= tail.end_position > 0:
            position = 0  # the unit is of another queue of this name, which the next look finds out
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
        """Where a message lies; 0 if that cannot be read."""
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
        """Everything of `queue` below `offset` is tiered; its pins go with the next scan."""
        self.told.release(queue, offset)


def _away(queue: QueueId) -> StoreError:
    return Unavailable("the volume that its topic's directory lies on is away", str(queue))
