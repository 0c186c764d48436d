"""Queues derived from the CommitLog alone, for stores whose ConsumeQueues cannot be read.

Derived units that wait to be tiered are in a temporary database.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import numpy as np

from container.names.queue_id import QueueId
from container.names.rocketmq import INT32_MAX
from container.record.unit import UNIT_DTYPE, ConsumeQueueUnit, Units
from dispatcher.ports import HotQueue, HotQueueState
from provider.errors import Closed, Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.directory.layout import (
    StoreLayout,
    is_of_the_process,
    read_topic_attributes,
    refused_topics,
)
from tieredstore.following.directory.queues import DirectoryWatch, FoundQueues, refuse_name
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.record_units import QueueRun, join_neighbours
from tieredstore.following.log_reader.log_scan import FollowScan, Remembered, UnconfirmedScan
from tieredstore.following.log_reader.logged_queue import (
    Begin,
    Beginnings,
    LoggedQueue,
    Taken,
    units_before,
)
from tieredstore.following.queues.poll_schedule import QueueWatermarks
from tieredstore.following.queues.tail import UNCONFIRMED, Doubt, PollTime, judge_report
from tieredstore.following.statistics import ScanStatistics

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


class LoggedTopics:
    """Filter of queues by their topics. One thread at a time."""

    def __init__(self, layout: StoreLayout, is_excluded: Callable[[str], bool]) -> None:
        self._layout = layout
        self._is_excluded = is_excluded
        self._watch = DirectoryWatch()
        self._refused: Mapping[str, str] = {}
        """A sentence for each topic that is of another kind by the store's settings."""
        self._wanted: dict[str, bool] = {}
        """Whether messages of a topic are tiered, as far as is known."""
        self.found = FoundQueues()
        """Refused or excluded topics of the log, and causes that keep this from being known."""

    def __repr__(self) -> str:
        return f"<LoggedTopics: {len(self._wanted)} topics>"

    def refresh(self) -> None:
        """Read the store's settings if they have changed.

        Raises:
            Unavailable, Denied: nothing can be read now.
        """
        config = self._layout.root / "config"
        if self._watch.changed(config) or self.found.troubles:
            try:
                attributes = read_topic_attributes(self._layout)
                refused, self.found.troubles = refused_topics(self._layout, attributes)
            except StoreError:
                self._watch.forget(config)
                raise
            if refused != self._refused:
                self._refused = refused
                self._wanted.clear()

    def is_wanted(self, queue: QueueId) -> bool:
        """Whether messages of a queue are tiered, by its topic and queue id."""
        topic = queue.topic
        is_wanted = self._wanted.get(topic)
        if is_wanted is None:
            is_named = not refuse_name(self.found, topic)
            is_excluded = is_named and self._is_excluded(topic)
            if is_excluded:
                self.found.excluded.add(topic)
            elif topic in self._refused:
                self.found.refused[QueueId(topic, 0)] = self._refused[topic]
            is_wanted = is_named and not is_excluded and topic not in self._refused
            self._wanted[topic] = is_wanted
        return is_wanted and 0 <= queue.queue_id <= INT32_MAX

    def refused(self) -> dict[QueueId, HotQueue]:
        """Return the published states of refused queues."""
        zero = QueueOffset(0)
        return {
            queue: HotQueue(queue, zero, zero, HotQueueState.REFUSED, sentence)
            for queue, sentence in self.found.refused.items()
        }


class ReaderReports:
    """Reports of readers, until the message is mended or gone. Any thread may add one."""

    def __init__(self, log: CommitLogFiles, units: WaitingUnits) -> None:
        self._log = log
        self._units = units
        self._new: deque[tuple[QueueId, int, str]] = deque()
        self._open: set[QueueId] = set()

    def __repr__(self) -> str:
        return f"<ReaderReports: {len(self._new)} new, {len(self._open)} open>"

    @property
    def is_any(self) -> bool:
        """Whether a report was added since the last poll."""
        return bool(self._new)

    def add(self, queue: QueueId, offset: int, damage: str) -> None:
        """Report a message at `offset` that could not be read, or trusted if `damage` is set."""
        self._new.append((queue, offset, damage))

    def forget(self, queue: QueueId) -> None:
        """Forget the report of a deleted queue."""
        self._open.discard(queue)

    def judge(self, queues: Mapping[QueueId, LoggedQueue]) -> set[QueueId]:
        """Read all reported messages again. Return their queues.

        Raises:
            Unavailable, Denied: nothing can be read now.
        """
        for _ in range(len(self._new)):
            name, offset, damage = self._new.popleft()
            queue = queues[name]
            queue.reported, queue.untold = offset, damage or queue.untold
            self._open.add(name)
        touched = set(self._open)
        for name in touched:
            self._judge(queues[name])
            if queues[name].reported is None:
                self._open.remove(name)
        return touched

    def _judge(self, queue: LoggedQueue) -> None:
        offset = queue.reported
        assert offset is not None, "only reported queues are judged"
        queue.unreadable = ""
        try:
            doubt = self._doubtful(queue, offset)
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            queue.unreadable = str(error)
            return
        untold, queue.untold = queue.untold, ""
        is_readable = offset >= queue.start
        queue.damage = judge_report(doubt, is_readable=is_readable, untold=untold)
        if not queue.damage:
            queue.reported = None

    def _doubtful(self, queue: LoggedQueue, offset: int) -> Doubt | None:
        units = self._units.units(queue.number, offset, offset + 1)
        if not len(units):
            return None
        unit = ConsumeQueueUnit(*(int(value) for value in units[0].tolist()))
        try:
            self._log.tags_code(queue.id, offset, unit)
        except (Corrupt, OutOfRange, NotFound) as error:
            return Doubt(offset, unit, str(error))
        return None


STEP_BYTES = 16 << 20
"""Bytes of the CommitLog that one poll reads. Their units are stored together."""
KEPT_MESSAGES = 64
"""Tiered messages of each queue whose units are kept: a start compares the newest with the tier."""

MADE_AGAIN = (
    "{} was made again on the broker after a deletion, and counts offsets from 0 again: messages "
    "below the old end at {} are not tiered."
)
IS_ANOTHER = (
    "The CommitLog is not as it was when it was followed last: all of it is read and compared with "
    "the tier."
)


class LoggedQueues:
    """State of all queues. Callees of `poll` hold the lock; `references` takes it.

    Nothing is published before the log was read to its end once.
    """

    def __init__(
        self,
        log: FollowedLog,
        layout: StoreLayout,
        is_excluded: Callable[[str], bool],
        statistics: ScanStatistics,
        lock: threading.Lock,
    ) -> None:
        self._log = log
        self._statistics = statistics
        self._lock = lock
        self._topics = LoggedTopics(layout, is_excluded)
        self._beginnings = Beginnings()
        self._begun = False
        self._remembered: Remembered | None = None
        self._scan = FollowScan()
        self._unconfirmed = UnconfirmedScan(self._topics.is_wanted)
        self._has_more = True
        self._is_published = False
        self.newest_ms = 0
        """Store timestamp of the newest unconfirmed record that was read; Unix ms."""
        self._log_min = 0
        self._units = WaitingUnits()
        self._queues: dict[QueueId, LoggedQueue] = {}
        self._numbers = 0
        self._successors: dict[QueueId, deque[LoggedQueue]] = {}
        """Recreated queues whose deleted predecessor has waiting messages, the oldest first."""
        self._to_release: deque[QueueId] = deque()
        """Queues with released offsets since the last poll."""
        self._reports = ReaderReports(log.files, self._units)
        self.watermarks = QueueWatermarks()

    def __repr__(self) -> str:
        return f"<LoggedQueues: {len(self._queues)} queues, {self._scan}>"

    def check(self) -> None:
        """Assert the invariants of each queue. O(queues)."""
        for queue in self._queues.values():
            queue.check()

    def take_doubt(self) -> bool:
        """Whether to scan the directories soon. Always False, for no queue has a directory."""
        return False

    @property
    def found(self) -> FoundQueues:
        """Refused or excluded topics of the log, and causes that keep this from being known."""
        return self._topics.found

    @property
    def has_report(self) -> bool:
        """Whether a poll has work without growth of the log."""
        return self._has_more or self._reports.is_any

    @property
    def has_more(self) -> bool:
        """Whether more of the log can be read at once."""
        return self._has_more

    @property
    def position(self) -> int:
        """End of the read part of the log."""
        return self._scan.position

    def resume(self, remembered: Remembered) -> None:
        """Begin at the replay position of an earlier process, if the log still is that one."""
        assert not self._begun, "it was polled already"
        self._remembered = remembered

    def remembered(self) -> Remembered | None:
        """Return the replay position for a later process; None while it is unknown."""
        if not self._is_published:
            return None
        position, hole = self.first_needed(0), self._scan.first_hole(self._log.files)
        return Remembered(position if hole is None else min(position, hole), self._scan.last)

    def publish(self, found: Mapping[QueueId, HotQueue]) -> dict[QueueId, HotQueue]:
        """Publish the result of a poll. Return the queues that changed."""
        return self.watermarks.publish(found)

    def scan(self, *, has_grown: bool) -> dict[QueueId, HotQueue]:
        """Read the refused topics, which a poll returns.

        Raises:
            Unavailable, Denied: the store's directories cannot be read right now.
        """
        del has_grown
        self._statistics.directory_looks += 1
        self._topics.refresh()
        return {}

    def has(self, queue: QueueId) -> bool:
        """Whether a scan of directories would find nothing new of the queue. Always True."""
        del queue
        return True

    def poll(
        self, moment: PollTime, only: Iterable[QueueId] | None = None
    ) -> dict[QueueId, HotQueue]:
        """Read some `STEP_BYTES` more of the log.

        Return the queues that changed. `only` is ignored.

        Raises:
            Unavailable, Denied: the log cannot be read right now.
            Closed: it lost its tail, or units cannot be stored.
        """
        del only
        log = self._log.files
        self._begin()
        self._take_releases()
        touched = self._follow_deletions()
        piece = self._scan.read(log, moment.confirmed, bytes_max=STEP_BYTES)
        self._beginnings.is_complete &= not piece.holes
        touched |= self._take(piece.runs)
        touched |= self._follow_successors()
        self._scan.accept(piece)
        touched |= self._unconfirmed.follow(log, piece, bytes_max=STEP_BYTES)
        self.newest_ms = max(self.newest_ms, piece.newest_ms, self._unconfirmed.newest_ms)
        self._has_more = not piece.is_all or self._unconfirmed.has_more
        self._statistics.find(
            [*piece.findings, *self._scan.files_again(log), *self._beginnings.take_findings()]
        )
        touched |= self._reports.judge(self._queues)
        self._statistics.queue_looks += len(touched)
        self._statistics.made_bytes = self._units.bytes
        self._statistics.excluded_topics = len(self.found.excluded)
        self._log.tail.stand(log, self._scan.position)
        if self._has_more and not self._is_published:
            return {}
        if not self._is_published:
            self._is_published = True
            touched = self._queues.keys() | self._unconfirmed.queues
        return self._topics.refused() | {queue: self._seen(queue) for queue in touched}

    def _seen(self, name: QueueId) -> HotQueue:
        """Return the state for the dispatcher, with the messages that are not confirmed."""
        queue, zero = self._queues.get(name), QueueOffset(0)
        if queue is None:
            seen = HotQueue(name, zero, zero, HotQueueState.UNCONFIRMED, UNCONFIRMED)
        else:
            seen = queue.seen()
        count, first_ms = self._unconfirmed.waiting(name)
        if not count or seen.state is HotQueueState.REFUSED:
            return seen
        return replace(seen, waiting=count, waits_for=UNCONFIRMED, waiting_ms=first_ms)

    def poll_again(self, queues: Collection[QueueId], moment: PollTime) -> dict[QueueId, HotQueue]:
        """Find the start of queues again: reads the log below it once more, without stored units.

        Costs a scan of the CommitLog's files below the first message of these queues.

        Raises:
            Unavailable, Denied: the log cannot be read right now.
            Closed: units cannot be stored.
        """
        del moment
        low = self._log.files.table.min_position
        begins: dict[QueueId, Begin] = {}
        for queue in filter(None, map(self._queues.get, queues)):
            first, units = next(self._units.rows(queue.number, queue.start), (queue.start, None))
            if units is None:
                begins[queue.id] = Begin(first, self._scan.position)
                continue
            index = int(np.searchsorted(units["position"], low))
            queue.start = min(queue.start, first + index)
            if not index:
                begins[queue.id] = Begin(min(first, queue.start), int(units["position"][0]))
        findings: list[str] = []
        for name, (first, units) in units_before(self._log.files, begins, findings).items():
            queue = self._queues[name]
            self._units.add([(queue.number, first, units)])
            queue.start = min(queue.start, first)
        self._log_min = min(self._log_min, low)
        self._statistics.find(findings)
        return {name: self._seen(name) for name in queues if name in self._queues}

    def _begin(self) -> None:
        """Find the first position to read. Called by the first poll."""
        if self._begun:
            return
        low = self._log.files.table.min_position
        self._scan.position = low
        remembered = self._remembered
        if remembered is not None and remembered.position > low:
            if remembered.holds(self._log.files):
                self._scan.position = remembered.position
            else:
                self._statistics.find([IS_ANOTHER])
        self._log_min = low
        self._beginnings.is_complete = self._scan.position == 0
        self._begun = True

    def _take(self, runs: Iterable[QueueRun]) -> set[QueueId]:
        """Add runs that were read. Return their queues."""
        kept: dict[int, list[QueueRun]] = {}
        touched: set[QueueId] = set()
        for run in runs:
            if not self._topics.is_wanted(run.queue):
                continue
            queue, admitted = self._newest(run.queue), run
            if queue is None:
                admitted = self._beginnings.admit(run)
                if admitted is None:
                    continue
                queue = self._queues[run.queue] = self._new(admitted)
            touched.add(run.queue)
            for one in queue.admit(admitted, self._log_min):
                self._take_one(one, kept)
            self._statistics.find(queue.take_findings())
        self._units.add(
            (number, joined.first, joined.units)
            for number, pieces in kept.items()
            for joined in join_neighbours(pieces)
        )
        return touched

    def _take_one(self, run: QueueRun, kept: dict[int, list[QueueRun]]) -> None:
        """Add a run that counts. Enter the units to store in `kept`, by number."""
        queue = self._newest(run.queue)
        assert queue is not None, "a queue admitted it"
        taken = queue.take(run, self._log_min, is_published=self._is_published)
        if taken is Taken.SUCCEEDS:
            queue = self._new(run)
            self._successors.setdefault(run.queue, deque()).append(queue)
            taken = queue.take(run, self._log_min, is_published=False)
        pieces = kept.setdefault(queue.number, [])
        if taken is Taken.ALONE:
            self._units.drop(queue.number)
            pieces.clear()
        elif taken is Taken.INSTEAD:
            self._units.drop_from(queue.number, run.first)
            pieces[:] = [piece for piece in pieces if piece.end <= run.first]
        if taken is not Taken.DROPPED:
            pieces.append(run)

    def _newest(self, name: QueueId) -> LoggedQueue | None:
        """Return the newest queue of a name; None if there is none yet."""
        behind = self._successors.get(name)
        return behind[-1] if behind else self._queues.get(name)

    def _new(self, run: QueueRun) -> LoggedQueue:
        """Create a queue that begins with a run, under a number of its own."""
        self._numbers += 1
        return LoggedQueue(run.queue, self._numbers, run.first, run.first)

    def _follow_successors(self) -> set[QueueId]:
        """Continue with a recreated queue, once the deleted one is tiered."""
        done = {name for name in self._successors if self._queues[name].first_untiered is None}
        for name in done:
            before, queue = self._queues[name], self._successors[name].popleft()
            if not self._successors[name]:
                del self._successors[name]
            queue.deleted, queue.released = before.deleted_as(), before.released
            self._queues[name] = queue
            self._units.drop(before.number)
            self._reports.forget(name)
            left_behind = before.left_behind()
            said = [MADE_AGAIN.format(name, queue.deleted.end)]
            self._statistics.find([left_behind, *said] if left_behind else said)
        return done

    def _follow_deletions(self) -> set[QueueId]:
        """Raise the starts of queues whose CommitLog files were deleted. Return those queues."""
        low = self._log.files.table.min_position
        if low <= self._log_min:
            return set()
        touched: set[QueueId] = set()
        for queue in chain(self._queues.values(), *self._successors.values()):
            before = (queue.start, queue.end, queue.doubt)
            first = self._first_at(queue, low)
            doubt = queue.follow_doubt(low, is_first=first is None)
            if doubt is not None:
                self._units.add([(queue.number, doubt.first, doubt.units)])
                first = doubt.first
            queue.raise_start(first)
            if (queue.start, queue.end, queue.doubt) != before:
                touched.add(queue.id)
                self._units.drop_below(queue.number, queue.start)
        self._log_min = low
        return touched

    def _first_at(self, queue: LoggedQueue, position: int) -> int | None:
        """Return the first offset with a record at or above a position; None if there is none."""
        for first, units in self._units.rows(queue.number, queue.start):
            index = int(np.searchsorted(units["position"], position))
            if index < len(units):
                return max(first + index, queue.start)
        return None

    def _take_releases(self) -> None:
        for _ in range(len(self._to_release)):
            name = self._to_release.popleft()
            queue = self._queues.get(name)
            if queue is not None:
                queue.released = self.watermarks.released(name)
                low = min(queue.released, queue.end) - KEPT_MESSAGES
                if low > queue.start:
                    self._units.drop_below(queue.number, low)
                    queue.start = next(self._units.rows(queue.number, low), (low,))[0]

    def first_needed(self, settled_position: int) -> int:
        """Return the first CommitLog position that may hold an untiered message.

        All messages below the read position are known, so `settled_position` is ignored. One small
        query for each queue with untiered messages.
        """
        del settled_position
        low = self._scan.position
        if not self._is_published:
            return 0
        self._take_releases()
        for queue in self._queues.values():
            first = queue.first_untiered
            if first is not None:
                units = self._units.units(queue.number, first, first + 1)
                low = min(low, int(units["position"][0]) if len(units) else 0)
            elif queue.has_trouble:
                low = min(low, self._last_place(queue))
        return min([low, *(self._queues[name].end_position for name in self._successors)])

    def _last_place(self, queue: LoggedQueue) -> int:
        """Return the position of the last message before a queue's trouble.

        A later start begins with it. Otherwise that start would take later messages for the start
        of the queue, and the trouble for messages that the broker deleted.
        """
        units = self._units.units(queue.number, queue.end - 1, queue.end)
        return int(units["position"][0]) if len(units) else queue.end_position

    def references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        """See `HotLog.references`. Takes the lock."""
        with self._lock:  # a poll may replace a deleted queue by its successor
            end = self.watermarks.end_within(queue, start, messages_max)
            units = self._units.units(self._queues[queue].number, start, end)
        if not len(units):
            raise OutOfRange("it was tiered, and its unit is not kept", str(queue), start)
        return units

    def report(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """Report a message at `start` that could not be read or trusted. The next poll reads it."""
        if queue in self._queues:
            self._reports.add(queue, start, damage)

    def report_damage(self, queue: QueueId, start: QueueOffset, damage: str = "") -> None:
        """Report damage if its message is not tiered yet. Others do not matter."""
        if self.watermarks.is_untiered(queue, start):
            self.report(queue, start, damage)

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Record that all messages of `queue` below `offset` are tiered."""
        self.watermarks.release(queue, offset)
        self._to_release.append(queue)

    def close(self) -> None:
        """Drop all units. Idempotent."""
        with self._lock:
            self._units.close()
