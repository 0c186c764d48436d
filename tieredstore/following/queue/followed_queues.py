"""The queues of a followed store: finds them, looks at their ends, and reads their units."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit, Units
from container.record.verification import leading_good_units
from dispatcher.hot_log import HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.directory.queues import DirectoryWatch, FoundQueues, QueueDirectories
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queue.deletions import Deletions, again_sentences, deletion_sentence
from tieredstore.following.queue.files import ConsumeQueueFiles
from tieredstore.following.queue.floors import Floors
from tieredstore.following.queue.needed_log import QueueNeed, first_needed
from tieredstore.following.queue.succession import before_place, names_message
from tieredstore.following.queue.tail import ConsumeQueueTail
from tieredstore.following.rebuild.made_files import RebuildBudget
from tieredstore.following.statistics import ScanStatistics

_ENDS_UNKNOWN = {HotQueueState.DAMAGED, HotQueueState.UNREADABLE}
"""There may be messages beyond the end of such a queue."""


class FollowedQueues:
    """The state of all queues. What `poll` calls holds the lock; `references` takes it if it must.

    Q1  The budget of made units is what the queues have of them, and never more than its bound.
    Q2  A queue that has a tail is known, once it was looked at: `known` has its last state.
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
        self._lock = lock
        self._watch = DirectoryWatch()
        self._floors = Floors(log.files)
        self._budget = RebuildBudget()
        self._tails: dict[QueueId, ConsumeQueueTail] = {}
        self._unscanned: dict[QueueId, StoreError] = {}
        """What kept the last scan from looking into directories of queues."""
        self._released: dict[QueueId, int] = {}
        self._deletions = Deletions(log, directories.root)
        self._reported: deque[QueueId] = deque()
        """Queues that a reader reported; readers are other threads."""
        self._is_doubted = False
        """Whether a reader found that a queue may have been deleted: look at the directories."""
        self._doubted: dict[QueueId, int] = {}
        """Positions in units that made a reader think so, beyond what is known of the log."""
        self.found = FoundQueues()
        """What the last scan of the directories found."""
        self.known: Mapping[QueueId, HotQueue] = {}
        """What the last poll saw of each queue; replaced whole, so threads may read."""

    def __repr__(self) -> str:
        return f"<FollowedQueues: {len(self._tails)} queues, {self._budget}>"

    def check(self) -> None:
        """Assert Q1, Q2, and what holds of each queue. O(files)."""
        for queue, tail in self._tails.items():
            tail.check()
            assert queue in self.known or not tail.is_known, f"Q2: {tail}"
        made = sum(tail.files.made.bytes for tail in self._tails.values())
        assert made == self._budget.taken, f"Q1: {made} bytes, {self._budget}"
        assert self._budget.room >= 0, f"Q1: {self._budget}"
        self._floors.check()
        self._deletions.check(self._tails)

    def take_doubt(self) -> bool:
        """Whether a reader missed a queue since the last call: the directories tell why."""
        doubted, self._is_doubted = self._is_doubted, False
        return doubted

    @property
    def has_deleted(self) -> bool:
        """Whether the broker deleted a queue that was followed."""
        return self._deletions.is_any

    @property
    def has_report(self) -> bool:
        """Whether a reader reported a message that no poll has looked at."""
        return bool(self._reported)

    def publish(self, found: Mapping[QueueId, HotQueue]) -> dict[QueueId, HotQueue]:
        """Make what a poll found `known`; returns what changed by it."""
        changed = {queue: seen for queue, seen in found.items() if self.known.get(queue) != seen}
        if changed:
            self.known = {**self.known, **changed}
        self._deletions.told()
        return changed

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
        self._part_with(self._deletions.gone(self._tails, chain(found.queues, found.refused)))
        before, self._unscanned = self._unscanned, {}
        for queue, directory in found.queues.items():
            try:
                self._scan_queue(queue, directory, has_grown=has_grown or queue in before)
            except (Unavailable, Denied, NotFound) as error:
                if is_of_the_process(error):
                    raise
                self._unscanned[queue] = error
        self._find_floors()
        refused = {
            queue: _without_offsets(queue, HotQueueState.REFUSED, sentence)
            for queue, sentence in found.refused.items()
        }
        return refused | {
            queue: _without_offsets(queue, HotQueueState.UNREADABLE, str(error))
            for queue, error in self._unscanned.items()
            if queue not in self._tails
        }

    def _scan_queue(self, queue: QueueId, directory: Path, *, has_grown: bool) -> None:
        """Look into the directory of one queue if there may be something new."""
        tail = self._tails.get(queue)
        if tail is None:
            self._begin(queue, directory)
        elif not tail.files.run.bases or tail.log_min != self._log.files.table.min_position:
            tail.files.rescan()  # the broker deletes from the front of both together
        elif tail.files.has_missing:
            tail.files.release(self._released.get(queue, 0))
            tail.files.rescan()  # a missing file may be brought back in place
        elif has_grown and self._watch.changed(directory) and tail.judge_identity(self._log.files):
            self._part_with([queue])  # else files after its end may show a hole
            self._begin(queue, directory)

    def _begin(self, queue: QueueId, directory: Path) -> None:
        """Follow a queue that was not there before, or was deleted and is there again."""
        if self._deletions.remains_of(queue):
            return  # what waits of the deleted queue comes first
        files = ConsumeQueueFiles(self._mapped, directory, self._budget)
        if not self._deletions.has(queue) or self._deletions.succeeds(queue, files):
            self._tails[queue] = ConsumeQueueTail(queue, files)

    def _part_with(self, queues: Iterable[QueueId]) -> None:
        """The broker deleted these queues: read no file of theirs any more."""
        waiting: dict[QueueId, int] = {}
        for queue in queues:
            tail = self._tails.pop(queue)
            tail.files.give_up()
            shown = self.known.get(queue)
            if shown is not None:
                released = self._released.get(queue, 0)
                waiting[queue] = self._deletions.add(queue, tail, shown, released)
        if waiting:
            sentence = deletion_sentence(waiting, has_pins=self._log.has_pins)
            self._statistics.find([sentence])

    def _find_floors(self) -> None:
        """Where ConsumeQueue files went and their CommitLog is pinned, make their units."""
        if self._log.has_pins:
            queues = {queue: tail.files for queue, tail in self._tails.items()}
            self._unscanned |= self._floors.find(queues)

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
        self, confirmed: int | None, only: Iterable[QueueId] | None = None
    ) -> dict[QueueId, HotQueue]:
        """Look at the ends of queues; returns what is known of them now.

        Args:
            confirmed: only records that end at or below this position count; None: all.
            only: look at these and at those that a reader reported; None: at all.

        Raises:
            Unavailable, Denied: nothing can be read right now.
        """
        found: dict[QueueId, HotQueue] = {}
        end = 0
        reported = {self._reported.popleft() for _ in range(len(self._reported))}
        chosen = list(self._tails if only is None else reported.union(only) & self._tails.keys())
        self._statistics.queue_looks += len(chosen)
        for queue in chosen:
            tail = self._tails[queue]
            seen = self._poll_queue(queue, tail, confirmed)
            self._statistics.find(tail.findings)
            tail.findings = []
            end = max(end, tail.end_position)
            if tail.is_made_again:
                self._part_with([queue])
                self._begin(queue, tail.files.run.directory)
                continue
            if seen is not None and seen is not self.known.get(queue):
                found[queue] = self._deletions.shown(seen)
            if tail.has_report:
                self._reported.append(queue)
        found |= self._look_at_deleted()
        self._log.tail.reach(self._log.files, end)
        self._statistics.made_bytes = self._budget.taken
        return found

    def _look_at_deleted(self) -> dict[QueueId, HotQueue]:
        """What is to be told of deleted queues. Reads nothing."""
        found: dict[QueueId, HotQueue] = {}
        for queue in self._deletions.unsettled:
            tail = self._tails.get(queue)
            if tail is None or not tail.is_known:
                found |= self._deletions.look(queue, self._released.get(queue, 0))
        self._statistics.find(again_sentences(self._deletions.take_successors()))
        return found

    def _poll_queue(
        self, queue: QueueId, tail: ConsumeQueueTail, confirmed: int | None
    ) -> HotQueue | None:
        """What is known of one queue now; None if nothing is."""
        error = self._unscanned.get(queue)
        if error is None:
            try:
                seen = tail.poll(self._log.files, confirmed, partial(self._floor_of, queue))
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
        if not self.known or not self._unscanned.keys() <= self._tails.keys():
            return 0  # nothing is known yet, or not of all
        needs = (self._need_of(queue, tail) for queue, tail in self._tails.items())
        return first_needed(chain(needs, self._deletions.needs()), settled_position)

    def _need_of(self, queue: QueueId, tail: ConsumeQueueTail) -> QueueNeed:
        known = self.known.get(queue)
        wanted = max(self._released.get(queue, 0), tail.seen.min_offset)
        is_wanted = tail.is_known and wanted < tail.seen.max_offset
        position = self._position_of(queue, QueueOffset(wanted)) if is_wanted else None
        tail.needed_position = (
            tail.end_position if position is None else position or tail.needed_position
        )
        return QueueNeed(
            is_known=tail.is_known,
            has_end=known is not None and known.state not in _ENDS_UNKNOWN,
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
        seen = self.known.get(queue)
        if seen is None or not seen.min_offset <= start < seen.max_offset:
            has = f"has [{seen.min_offset}, {seen.max_offset})" if seen else "is not in this store"
            raise OutOfRange(f"offset {start}: the queue {has}", str(queue), start)
        end = min(start + messages_max, seen.max_offset)
        tail = self._tails.get(queue)
        if tail is None:
            with self._lock:
                return self._deletions.units(queue, start, end)
        if start < self._deletions.end_of(queue):
            raise OutOfRange("its topic was deleted", str(queue), start)
        files = tail.files
        if start < files.first_offset:
            with self._lock:
                return self._floors.units(queue, start, min(end, files.first_offset))
        try:
            units = files.units(start, end)
        except NotFound:
            if not self._mend(queue, start):
                self._doubt(queue, start, is_there=files.run.directory.exists())
                raise
            units = files.units(start, end)
        unit = ConsumeQueueUnit(*(int(value) for value in units[0].tolist()))
        if unit.position >= tail.end_position > 0:
            self._doubt(queue, start, is_there=not self._is_of_another(queue, start, unit))
        elif tail.end_position:  # what may be another queue's comes first in the next call
            units = before_place(units, tail.end_position)
        if not units["size"][0] and self._mend(queue, start):
            units = files.units(start, end)
        good = leading_good_units(
            units["position"].astype(np.int64), units["size"].astype(np.int64)
        )
        return units[: max(1, good)]  # what is bad comes alone: reading its record names it

    def _doubt(self, queue: QueueId, start: QueueOffset, *, is_there: bool) -> None:
        """Its files are not there, or are another queue's by now: the next poll finds out which."""
        if not is_there:
            self._is_doubted = True
            raise OutOfRange("its ConsumeQueue was deleted", str(queue), start)

    def _is_of_another(self, queue: QueueId, start: QueueOffset, unit: ConsumeQueueUnit) -> bool:
        """Whether a unit beyond the queue's end may be another queue's, and not damage.

        Where the log is not known to reach so far, one look finds whether it does.
        """
        if unit.position < self._log.files.table.end:
            return names_message(self._log.files, queue, start, unit)
        is_new = self._doubted.get(queue) != unit.position
        self._doubted[queue] = unit.position
        return is_new

    def _mend(self, queue: QueueId, start: QueueOffset) -> bool:
        """Whether a unit that was missing or zero can be read now."""
        with self._lock:
            tail = self._tails.get(queue)
            if tail is None:
                return False
            is_mended = tail.mend(start, self._log.files)
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
        released = self._released.get(queue)
        if released is not None and start >= released:
            self.report(queue, start, damage)

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Everything of `queue` below `offset` is tiered; its pins go with the next scan."""
        self._released[queue] = max(offset, self._released.get(queue, 0))


def _without_offsets(queue: QueueId, state: HotQueueState, why: str) -> HotQueue:
    return HotQueue(queue, QueueOffset(0), QueueOffset(0), state, why)
