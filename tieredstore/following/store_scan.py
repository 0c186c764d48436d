"""Looks at a followed broker's directory: blocking, in one thread at a time, without an event loop.

A look is cheap in steps: 8 bytes at the CommitLog's end; then the unit behind each queue's end;
then the directories. Each step runs only when the one before or the clock says so.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from struct import Struct

import numpy as np

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import Units
from container.record.verification import leading_good_units
from dispatcher.hot_log import HotQueue, HotQueueState, Wanted
from dispatcher.topic_filter import TopicFilter
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.directory.foreign_files import odd_entries, odd_files
from tieredstore.following.directory.identity import LogIdentity
from tieredstore.following.directory.layout import (
    CONFIRM_OFFSET_AT,
    FileRun,
    open_layout,
    scan_run,
)
from tieredstore.following.directory.pins import Pins
from tieredstore.following.directory.queues import DirectoryWatch, FoundQueues, QueueDirectories
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.buffers import BatchBuffers
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.round_read import gather_round
from tieredstore.following.log.tail import CommitLogTail
from tieredstore.following.options import HotLogOptions
from tieredstore.following.queue.files import ConsumeQueueFiles
from tieredstore.following.queue.floors import Floors
from tieredstore.following.queue.tail import ConsumeQueueTail
from tieredstore.following.rebuild.made_files import RebuildBudget
from tieredstore.following.statistics import ScanStatistics

_INT64 = Struct(">q")
_ENDS_UNKNOWN = {HotQueueState.DAMAGED, HotQueueState.UNREADABLE}
"""There may be messages behind what counts of such a queue."""
NO_QUEUES = (
    "{} is missing or has no queues, though the CommitLog has messages: none can be tiered; copy "
    "it from where the CommitLog is from, or let a broker start on this store, which makes it anew"
)


class StoreScan:
    """The state of following one store. `poll` and what it calls hold one lock; reads hold none."""

    def __init__(self, root: Path, options: HotLogOptions, topics: TopicFilter) -> None:
        """Find the store's directories and take up earlier pins.

        Raises:
            NotAStore: `root` holds no RocketMQ store that can be followed.
            Denied: the place for pins does not do, or something may not be read.
            Unavailable: something cannot be read right now.
        """
        self._options = options
        self._lock = threading.Lock()
        self._layout = open_layout(root, options)
        self._directories = QueueDirectories(self._layout, options, topics.excludes)
        self.files = MappedFiles(options.files_mapped_max, options.resident_bytes_max)
        self._buffers = BatchBuffers(options.buffer_bytes_max)
        self._live = FileRun(self._layout.commit_log, (), 0)
        self.log = CommitLogFiles(self.files, table_of(self._live, {}))
        self._identity = LogIdentity(self._layout.commit_log)
        self._pins = (
            Pins(Path(options.pin_path), self._layout.commit_log, options.pinned_bytes_max)
            if options.pin_path
            else None
        )
        self._floors = Floors(self.log)
        self._budget = RebuildBudget()
        self._tails: dict[QueueId, ConsumeQueueTail] = {}
        self._unscanned: dict[QueueId, StoreError] = {}
        """What kept the last scan from looking into directories of queues."""
        self._released: dict[QueueId, int] = {}
        self._tail = CommitLogTail()
        self._watch = DirectoryWatch()
        self._found = FoundQueues()
        self._known_position = 0
        """Where the CommitLog ended before the last look at all directories and queues."""
        self._scanned_position = -1
        """Where the CommitLog ended when the directories were looked at."""
        self._next_scan_s = float("-inf")
        self._settled_s = float("-inf")
        self.queues: dict[QueueId, HotQueue] = {}
        self.statistics = ScanStatistics()

    def __repr__(self) -> str:
        return (
            f"<StoreScan {self._layout.root}: {len(self._tails)} queues, {self._tail}, "
            f"{self.files}, {self._pins}>"
        )

    def poll(self, now_s: float) -> dict[QueueId, HotQueue]:
        """Bring `queues` up to date; returns those that changed.

        A queue whose own files cannot be read is UNREADABLE until they can be; others go on.

        Raises:
            Unavailable, Denied: the log cannot be read right now.
            Closed: another one took its place.
        """
        with self._lock:
            self.statistics.polls += 1
            self._identity.check(self._tail.position)
            begun = self._tail.position
            is_due = now_s >= self._next_scan_s
            if is_due or self._tail.has_grown(self.log) or self._has_rolled():
                self._scan_commit_log()
            found = self._scan_directories(now_s) if is_due else {}
            if self._tail.reach(self.log, 0):
                self._settled_s = now_s + self._options.settle_s_max
            if is_due:
                self.statistics.troubles = [*sorted(self._found.troubles), *self._nothing_found()]
            is_reported = any(tail.has_report for tail in self._tails.values())
            if is_due or is_reported or now_s < self._settled_s:
                found |= self._look_at_queues()
            changed = {
                queue: seen for queue, seen in found.items() if self.queues.get(queue) != seen
            }
            self.queues = {**self.queues, **changed} if changed else self.queues
            if is_due:  # only now: what failed half way is looked at again at once
                self._known_position = begun
                if self._pins is not None:
                    self._sync_pins()
                self._next_scan_s = now_s + self._options.scan_s_min
            return changed

    def check(self) -> None:
        """Assert what holds between two polls, here and in everything below. O(files).

        S1  The budget of made units is what the queues have of them, and never more than its bound.
        S2  Mapped files, pins, and buffers that are kept stay within their bounds.
        S3  A pinned CommitLog has no hole that the broker's directory could fill.
        """
        with self._lock:
            for tail in self._tails.values():
                tail.check()
            made = sum(tail.files.made.bytes for tail in self._tails.values())
            assert made == self._budget.taken, f"S1: {made} bytes, {self._budget}"
            assert self._budget.room >= 0, f"S1: {self._budget}"
            self.files.check()
            self._buffers.check()
            if self._pins is not None:
                self._pins.check(self._live)

    def has_news(self, now_s: float) -> bool:
        """Whether a poll may find something. One small read, no lock held."""
        return now_s < self._settled_s or self._tail.has_grown(self.log) or self._has_rolled()

    def references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        """See `HotLog.references`; also raises Corrupt for a truncated ConsumeQueue file.

        Units that cannot be read are reported to the next poll.
        """
        try:
            return self._references(queue, start, messages_max)
        except Corrupt as error:
            self._report_damage(queue, start, str(error))
            raise
        except (Unavailable, Denied):
            self._report(queue, start)
            raise

    def _references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        seen = self.queues.get(queue)
        if seen is None or not seen.min_offset <= start < seen.max_offset:
            has = f"has [{seen.min_offset}, {seen.max_offset})" if seen else "is not in this store"
            raise OutOfRange(f"offset {start}: the queue {has}", str(queue), start)
        end = min(start + messages_max, seen.max_offset)
        files = self._tails[queue].files
        if start < files.first_offset:
            with self._lock:
                return self._floors.units(queue, start, min(end, files.first_offset))
        try:
            units = files.units(start, end)
        except NotFound:
            if not self._mend(queue, start):
                raise
            units = files.units(start, end)
        if not units["size"][0] and self._mend(queue, start):
            units = files.units(start, end)
        good = leading_good_units(
            units["position"].astype(np.int64), units["size"].astype(np.int64)
        )
        return units[: max(1, good)]  # what is bad comes alone: reading its record names it

    def _mend(self, queue: QueueId, start: QueueOffset) -> bool:
        """Whether a unit that was missing or zero can be read now."""
        with self._lock:
            tail = self._tails[queue]
            is_mended = tail.mend(start, self.log)
            is_missing = not is_mended and tail.files.is_missing(start)
        if is_missing:
            self._report_damage(queue, start)
        return is_mended

    def records(self, wanted: Sequence[Wanted]) -> list[MessageBatch | StoreError]:
        """See `HotLog.records_of_round`; what fails is reported to the next poll."""
        answers = gather_round(
            self.log, wanted, bytes_max=self._options.round_bytes_max, buffers=self._buffers
        )
        for item, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Corrupt):
                self._report_damage(item.queue, item.start, str(answer))
            elif isinstance(answer, Unavailable | Denied):
                self._report(item.queue, item.start)
        self._identity.check(self._tail.position)  # behind the copy: it is of the log that it was
        return answers

    def _report(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        if queue in self._tails:
            self._tails[queue].report(start, damage)

    def _report_damage(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """Damage concerns a queue only where it is still to be tiered: `release` says where."""
        released = self._released.get(queue)
        if released is not None and start >= released:
            self._report(queue, start, damage)

    def close(self) -> None:
        """Let go of files and mappings. Idempotent."""
        self.files.close()
        self.log.close()

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Everything of `queue` below `offset` is tiered; its pins go with the next scan."""
        self._released[queue] = max(offset, self._released.get(queue, 0))

    def _has_rolled(self) -> bool:
        """Whether a file was added where the known ones are full; looks only then."""
        end = self.log.table.end
        return self._tail.position >= end and scan_run(self._layout.commit_log).end > end

    def _scan_commit_log(self) -> None:
        live = scan_run(self._layout.commit_log)
        if self._live.bases and not live.bases:
            # A broker never deletes its last file. Taken at its word, this would drop pins and
            # record gaps over messages that are there again in a moment.
            raise Unavailable(
                "the CommitLog has no files any more: the store was moved or deleted",
                str(self._layout.commit_log),
            )
        self._live = live
        self.statistics.find(odd_files(live))
        if self._watch.changed(self._layout.commit_log):
            self.statistics.find(odd_entries(self._layout.commit_log))
        if self._pins is None:
            self.log.table = table_of(self._live, {})
            return
        self._sync_pins()

    def _sync_pins(self) -> None:
        assert self._pins is not None, "only called where there are pins"
        findings = self._pins.sync(self._live, self._low_position())
        self.log.table = table_of(self._live, self._pins.paths())
        self.statistics.find(findings)
        statistics = self.statistics
        statistics.pinned_bytes = self._pins.pinned_bytes
        statistics.pins_dropped_untiered = self._pins.dropped_untiered

    def _low_position(self) -> int:
        """First byte of the CommitLog that may hold a message which is not tiered."""
        if not self.queues or not self._unscanned.keys() <= self._tails.keys():
            return 0  # nothing is known yet, or not of all
        # One file below what was there before the directories were looked at: the unit of a
        # record there may not have been seen yet, nor the directory of its queue.
        low = self._known_position - self._live.file_bytes
        for queue, tail in self._tails.items():
            if not tail.is_known:
                return 0
            known = self.queues.get(queue)
            if known is None or known.state in _ENDS_UNKNOWN:
                low = min(low, tail.end_position)  # 0 where not even that is known
            wanted = max(self._released.get(queue, 0), tail.seen.min_offset)
            if wanted < tail.seen.max_offset:
                low = min(low, self._position_of(queue, QueueOffset(wanted)))
        return low

    def _position_of(self, queue: QueueId, offset: QueueOffset) -> int:
        files = self._tails[queue].files
        try:
            if offset < files.first_offset:
                return int(self._floors.units(queue, offset, offset + 1)["position"][0])
            return files.unit(offset).position
        except (OutOfRange, Corrupt, Unavailable, Denied):
            return 0  # not known: drop nothing

    def _scan_directories(self, now_s: float) -> dict[QueueId, HotQueue]:
        """Take in new queues; returns the refused ones."""
        self.statistics.directory_looks += 1
        found = self._directories.look()
        self.statistics.excluded_topics = len(found.excluded)
        self.statistics.find(sorted(found.findings))
        self._found = found
        has_grown = now_s < self._settled_s or self._scanned_position != self._tail.position
        self._scanned_position = self._tail.position
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

    def _nothing_found(self) -> list[str]:
        """A sentence where there are messages, and no queue at all that they could be of."""
        found, table = self._found, self.log.table
        has_queues = found.queues or found.refused or found.excluded or found.troubles
        if has_queues or self._tail.position <= table.min_position:
            return []
        return [NO_QUEUES.format(self._layout.consume_queue)]

    def _scan_queue(self, queue: QueueId, directory: Path, *, has_grown: bool) -> None:
        """Look into the directory of one queue if there may be something new."""
        tail = self._tails.get(queue)
        if tail is None:
            files = ConsumeQueueFiles(self.files, directory, self._budget)
            self._tails[queue] = ConsumeQueueTail(queue, files)
        elif not tail.files.run.bases or tail.log_min != self.log.table.min_position:
            tail.files.rescan()  # the broker deletes from the front of both together
        elif tail.files.has_missing:
            tail.files.release(self._released.get(queue, 0))
            tail.files.rescan()  # who brings it back may do so in place
        elif has_grown and self._watch.changed(directory):
            tail.files.rescan()  # files behind the one that the queue ends in show a hole

    def _find_floors(self) -> None:
        """Where ConsumeQueue files went and their CommitLog is pinned, make the units anew."""
        if self._pins is not None:
            queues = {queue: tail.files for queue, tail in self._tails.items()}
            self._unscanned |= self._floors.find(queues)

    def _floor_of(self, queue: QueueId) -> int | None:
        """The queue's floor; looks for floors anew where its files went between two scans."""
        if self._pins is not None and self._floors.is_stale(queue, self._tails[queue].files):
            self._find_floors()
        return self._floors.of(queue)

    def _look_at_queues(self) -> dict[QueueId, HotQueue]:
        self.statistics.queue_looks += 1
        confirmed = self._confirmed() if self._options.replicated else None
        found: dict[QueueId, HotQueue] = {}
        end = 0
        for queue, tail in self._tails.items():
            seen = self._poll_queue(queue, tail, confirmed)
            if tail.findings:
                self.statistics.find(tail.findings)
                tail.findings = []
            if seen is not None and seen is not self.queues.get(queue):
                found[queue] = seen
            end = max(end, tail.end_position)
        self._tail.reach(self.log, end)
        self.statistics.made_bytes = self._budget.taken
        return found

    def _poll_queue(
        self, queue: QueueId, tail: ConsumeQueueTail, confirmed: int | None
    ) -> HotQueue | None:
        """What is known of one queue now; None if nothing is."""
        error = self._unscanned.get(queue)
        if error is None:
            try:
                seen = tail.poll(self.log, confirmed, partial(self._floor_of, queue))
            except (Unavailable, Denied) as caught:
                if is_of_the_process(caught):
                    raise
                error = caught
            else:
                return seen if tail.is_known else None
        return replace(tail.seen, state=HotQueueState.UNREADABLE, detail=str(error))

    def _confirmed(self) -> int:
        """The confirm offset; 0, so that nothing counts, while the broker has none."""
        try:
            raw = self.files.peek(self._layout.checkpoint, CONFIRM_OFFSET_AT, _INT64.size)
        except (NotFound, Corrupt):
            return 0
        return _INT64.unpack(raw)[0]


def _without_offsets(queue: QueueId, state: HotQueueState, why: str) -> HotQueue:
    return HotQueue(queue, QueueOffset(0), QueueOffset(0), state, why)
