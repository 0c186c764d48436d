"""Tail of a followed queue: reads its end, and the pure verdict on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import NamedTuple

from container.names.queue_id import QueueId
from container.record.header import RecordHeader
from container.record.unit import ConsumeQueueUnit, is_extended_address
from dispatcher.ports import HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.confirmation import FOREVER_MS, Confirmed
from tieredstore.following.queues.files import ConsumeQueueFiles, IgnoredFiles, partition_point
from tieredstore.following.queues.succession import is_continued, is_made_again

WAITS_S = 30.0
"""Longest time in seconds for which units wait for their records. Then the queue is damaged."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason for which a unit does not count."""

    offset: int
    unit: ConsumeQueueUnit
    reason: str
    by_tags_only: bool = False
    """Whether the record is good, and only the unit's tags code differs from its tags."""

    @property
    def is_bad(self) -> bool:
        """Whether the unit points to no record of its message."""
        return not self.by_tags_only


@dataclass(frozen=True, slots=True)
class EndView:
    """Units `[end, written_end)` after those that counted before: at least one."""

    end: int
    written_end: int
    before: Doubt | None
    """Doubt that stopped the last poll."""
    last: Doubt | None
    """Doubt about the last written unit."""
    first: Doubt | None = None
    """Doubt about the unit at `end`.

    Read only if the last poll's doubt was about it, and other units follow it.
    """
    first_bad: int = 0
    """First offset whose unit is bad. Read only if the last unit is."""
    bad: Doubt | None = None
    """Doubt about the unit at `first_bad`, read once more."""


class PollTime(NamedTuple):
    """Context of one poll of all queues."""

    now_s: float = 0.0
    """Monotonic clock, in seconds."""
    confirmed: Confirmed | None = None
    """Bounds of the records that count; None: all do."""
    is_stopped: bool = False
    """Whether the broker has stopped cleanly."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Units from `doubt.offset` on that wait, for the first of them does not count."""

    doubt: Doubt
    since_s: float


def judge_wait(wait: Wait, moment: PollTime, *, log_end: int) -> str:
    """Return the reason to stop a queue before units that waited too long; "" if they wait on.

    Pure. Called from the second poll on that finds the same doubt.
    """
    unit = wait.doubt.unit
    has_gone_on = log_end > unit.position + unit.size
    if has_gone_on or moment.is_stopped or moment.now_s - wait.since_s >= WAITS_S:
        return wait.doubt.reason
    return ""


class Verdict(NamedTuple):
    """End of a queue, and the reason."""

    end: int
    doubt: Doubt | None
    """Doubt that stopped this poll. The next one compares with it."""
    damage: str = ""
    """Reason for which the queue stops at `end` although units follow; "" if it does not."""


def judge_end(view: EndView) -> Verdict:
    """Decide which of the written units count, by J1 to J4. Pure."""
    last = view.last
    if last is None:
        if view.first is not None and view.first.is_bad:
            return Verdict(view.end, view.first, view.first.reason)
        return Verdict(view.written_end, view.first)
    if last.by_tags_only:
        is_settled = last == view.before
        return Verdict(view.written_end if is_settled else view.written_end - 1, last)
    return Verdict(view.first_bad, view.bad)


class FileState(Enum):
    """State of the file that holds an empty unit."""

    THERE = "there"
    MISSING = "missing"
    WITHOUT_ROOM = "without room"
    """Missing, and there is no memory left to rebuild its units."""
    MADE = "made"
    """Missing, and its units were rebuilt from the CommitLog."""


@dataclass(frozen=True, slots=True)
class HoleView:
    """Empty unit at `end`, with nonzero bytes after it."""

    end: int
    good_after: int | None
    """Offset of a good unit after it; None if there is none."""
    is_written: bool
    """Whether the unit is written by now. Read after `good_after`."""
    file: FileState
    made_bytes: int
    """Memory in bytes of the rebuilt units of all queues."""


def judge_hole(view: HoleView) -> str:
    """Return the reason to stop a queue at an empty unit; "" if it waits there, by J3. Pure."""
    if view.is_written or view.good_after is None:
        return ""  # the broker was just writing it; or the rest is left from a crash
    if view.file is FileState.WITHOUT_ROOM:
        return (
            f"the file is missing or empty, and {view.made_bytes} bytes of units are rebuilt "
            "already: it is its turn once those before it are tiered"
        )
    if view.file is FileState.MISSING:
        return (
            "the file is missing or empty, and its units cannot be rebuilt from the CommitLog, "
            f"though the unit of offset {view.good_after} after it is good"
        )
    if view.file is FileState.MADE:
        return (
            f"the file is missing or empty, and the message of offset {view.end} is not found in "
            "the CommitLog"
        )
    return (
        f"the unit of offset {view.end} is empty, though that of offset {view.good_after} is good"
    )


def judge_report(doubt: Doubt | None, *, is_readable: bool, untold: str) -> str:
    """Evaluate a reader's report. Pure.

    Args:
        doubt: about the reported unit, read once more.
        is_readable: whether its offset still is in the queue.
        untold: the damage that the reader saw, if no poll has published it yet. It is published
            even if it is mended: the dispatcher gave the queue up, and waits for the report.

    Returns:
        The damage to publish; "" once it is mended or gone.
    """
    return doubt.reason if doubt is not None and doubt.is_bad and is_readable else untold


UNCONFIRMED = (
    "the broker's replicas have not confirmed the records (controller mode or duplicationEnable)"
)


class ConsumeQueueTail:
    """End of one queue. Owned by the follower's poll: one thread at a time.

    T1  0 <= min_offset <= max_offset.
    T2  A queue that is READY has no `detail`; one in any other state has one.
    """

    def __init__(self, queue: QueueId, files: ConsumeQueueFiles) -> None:
        self.files = files
        self.seen = HotQueue(queue, QueueOffset(0), QueueOffset(0))
        self._begun: bool = False
        self.is_known = False
        """Whether `seen` comes from a poll. Until then nothing is known of the queue."""
        self.is_current = True
        """Whether the last poll was completed. Else there may be messages that `seen` lacks."""
        self._doubt: Doubt | None = None
        self._wait: Wait | None = None
        """Units at the end that do not count, and since when."""
        self.newest_ms = 0
        """Store timestamp of the newest waiting message that was read; Unix ms."""
        self.log_min = -1
        """First position of the CommitLog when `min_offset` was found."""
        self.end_position = 0
        """CommitLog position after the record of the last message that counts; 0: unknown."""
        self.needed_position = 0
        """Position of the first waiting message, or an older one, as of the last full scan."""
        self.is_made_again = False
        """Whether the files are another incarnation's. Then nothing more is read."""
        self._reported: int | None = None
        self._untold = ""
        """Damage that a reader found and no poll has published yet."""
        self._passed = 0
        """Offset below which messages that are not tiered yet are lost."""
        self._not_made: tuple[int, ...] = ()
        """Last failed attempt to rebuild units: offset, room and state of the log."""
        self._ignored = IgnoredFiles()
        self.findings: list[str] = []
        """Sentences for operators. The scan takes them after each poll."""

    def __repr__(self) -> str:
        return f"<ConsumeQueueTail {self.seen}>"

    def check(self) -> None:
        """Assert T1 and T2, and the invariants of the files."""
        seen = self.seen
        assert 0 <= seen.min_offset <= seen.max_offset, f"T1: {self}"
        assert (seen.state is HotQueueState.READY) == (not seen.detail), f"T2: {self}"
        self.files.check()

    def poll(
        self,
        log: CommitLogFiles,
        moment: PollTime,
        floor_of: Callable[[], int | None],
        log_end: int = 0,
    ) -> HotQueue:
        """Poll for new units. At most one `pread` if there are none.

        Args:
            log: the CommitLog.
            moment: the context of the poll.
            floor_of: returns the first offset with units rebuilt from pinned files; None: there are
                none. Called only after the queue's files were scanned: the broker may have deleted
                some.
            log_end: position up to which the CommitLog is known to hold whole records.

        Raises:
            Unavailable, Denied: the files cannot be read right now.
        """
        had_begun = self._begun
        self.files.log_min = log.table.min_position
        try:
            self.seen = self._without_passed(self._look(log, moment, floor_of, log_end))
            self.is_known = self.is_current = True
        except NotFound:
            # The broker deleted a file during the poll: the next one uses a new table. A first
            # poll that failed does not count as one.
            self._begun, self.log_min = had_begun, -1
            self.is_known = self.is_known or not self.files.run.bases
            self.is_current = False
            self.files.rescan()
        except (Unavailable, Denied):
            self._begun, self.log_min = had_begun, -1
            raise
        return self.seen

    def _look(
        self,
        log: CommitLogFiles,
        moment: PollTime,
        floor_of: Callable[[], int | None],
        log_end: int,
    ) -> HotQueue:
        seen, end_position = self._without_wait(), self.end_position
        confirmed = moment.confirmed
        try:
            has_news = not self._begun or self._has_news(seen.max_offset)
            if self._is_superseded(log) if has_news else self._is_settled(log):
                return self.seen if has_news else seen
            if not self._begun:
                seen = self._begin(log, confirmed)
            elif has_news:
                seen = self._advance(seen, log, confirmed)
            end_position = self._end_position_of(seen)
            if has_news and self._begun and self._is_superseded(log):
                return self.seen  # the read units may be of files of another incarnation
            while self._mend(seen.id, seen.max_offset, log):
                seen = replace(seen, state=HotQueueState.READY, detail="")
                seen = self._advance(seen, log, confirmed)
                end_position = self._end_position_of(seen)
                if self._is_superseded(log):
                    return self.seen
            if log.table.min_position != self.log_min or seen.min_offset < self.files.first_offset:
                seen = replace(seen, min_offset=self._first_readable(seen.max_offset, log))
                self.log_min = log.table.min_position
        except Corrupt as error:
            seen = replace(seen, state=HotQueueState.DAMAGED, detail=str(error))
        self.findings += self._ignored.misplaced(self.files)
        floor = floor_of()
        if floor is not None and floor < seen.min_offset:
            seen = replace(seen, min_offset=QueueOffset(floor))
        self.end_position = end_position
        return self._with_reported(self._judged(seen, moment, log_end), log)

    def _without_passed(self, seen: HotQueue) -> HotQueue:
        passed = min(self._passed, seen.max_offset)
        if passed <= seen.min_offset:
            return seen
        return replace(seen, min_offset=QueueOffset(passed))

    def _without_wait(self) -> HotQueue:
        """Return the queue as of the last poll, without units that waited at its end."""
        seen = self.seen
        if not seen.waiting:
            return seen
        seen = replace(seen, waiting=0, waits_for="", waiting_ms=0)
        is_overdue = self._wait is not None and seen.state is HotQueueState.DAMAGED
        return replace(seen, state=HotQueueState.READY, detail="") if is_overdue else seen

    def _judged(self, seen: HotQueue, moment: PollTime, log_end: int) -> HotQueue:
        """Return the queue; damaged if units at its end waited too long for their records."""
        doubt = self._doubt if seen.waiting else None
        if doubt is None or not doubt.is_bad or doubt.offset != seen.max_offset:
            self._wait = None
        elif self._wait is None or self._wait.doubt != doubt:
            self._wait = Wait(doubt, moment.now_s)
        elif seen.state is HotQueueState.READY:
            damage = judge_wait(self._wait, moment, log_end=log_end)
            if damage:
                return replace(seen, state=HotQueueState.DAMAGED, detail=damage)
        return seen

    def _end_position_of(self, seen: HotQueue) -> int:
        """Return the position after the last message's record; 0 if its file was just truncated.

        Raises:
            NotFound: the last message does not exist any more.
        """
        if seen.max_offset <= max(self.seen.max_offset, self.files.first_offset):
            return self.end_position
        try:
            unit = self.files.unit(seen.max_offset - 1)
        except Corrupt:
            return 0
        if not unit.size:
            path, place = self.files.path_of(seen.max_offset - 1)
            raise NotFound("the unit was there, and is not any more", str(path), place)
        return 0 if unit.is_filler else unit.position + unit.size

    def judge_identity(self, log: CommitLogFiles) -> bool:
        """Whether the broker has recreated the queue, so that the files are another incarnation's.

        Scans the directory, and reads one unit and possibly its record.

        Raises:
            Unavailable, Denied: the files cannot be read right now.
        """
        self.files.forget()
        self.files.rescan()
        seen = self.seen
        self.is_made_again = is_made_again(
            self.files, log, seen.id, seen.max_offset, self.end_position
        )
        return self.is_made_again

    def report(self, offset: int, damage: str = "") -> None:
        """Record a reader's report of the message at `offset`. The next poll publishes it.

        Given damage is published even if it is mended by then, and the poll after that publishes
        the recovery: the dispatcher gave the queue up, and waits for both.
        """
        self._untold, self._reported = damage or self._untold, offset

    def pass_over(self, end: int) -> None:
        """Record that untiered messages below `end` are lost. The next poll begins there."""
        self._passed = max(self._passed, end)

    def poll_again(self) -> None:
        """Make the next poll find the queue's lower end as a first poll does."""
        self.files.forget()
        self.files.rescan()
        self.log_min, self._not_made = -1, ()

    @property
    def has_report(self) -> bool:
        """Whether a reader's report is open, so that the next poll must read the queue."""
        return self._reported is not None

    def _is_superseded(self, log: CommitLogFiles) -> bool:
        """Whether the units after the end are another incarnation's."""
        is_same = is_continued(self.files, self.seen.max_offset, self.end_position)
        return not is_same and self.judge_identity(log)

    def _is_settled(self, log: CommitLogFiles) -> bool:
        """Whether the queue's lower end and its state are unchanged."""
        low = self.seen.min_offset
        return (
            self._reported is None
            and log.table.min_position == self.log_min
            and low >= self.files.first_offset
        )

    def _with_reported(self, seen: HotQueue, log: CommitLogFiles) -> HotQueue:
        offset = self._reported
        if offset is None:
            return seen
        try:
            if offset >= seen.min_offset:
                self._mend(seen.id, offset, log)
            doubt = self._doubtful(seen.id, offset, log)
        except (NotFound, Corrupt) as error:
            self._untold = ""
            return replace(seen, state=HotQueueState.DAMAGED, detail=str(error))
        untold, self._untold = self._untold, ""
        damage = judge_report(doubt, is_readable=offset >= seen.min_offset, untold=untold)
        if damage:
            return replace(seen, state=HotQueueState.DAMAGED, detail=damage)
        self._reported = None
        return replace(seen, state=HotQueueState.READY, detail="")

    def _begin(self, log: CommitLogFiles, confirmed: Confirmed | None) -> HotQueue:
        """Carry out the first poll: skip the units before the first message, then find the end."""
        files = self.files
        written = files.written_end(files.first_offset)
        first = files.after_fillers(files.first_offset, written)
        self._begun = bool(files.run.bases)
        seen = replace(self.seen, min_offset=QueueOffset(first), max_offset=QueueOffset(first))
        readable = self._readable_from(first, written, log)
        seen = replace(seen, max_offset=QueueOffset(readable))
        if readable < written:
            return self._advance(seen, log, confirmed)
        return self._after_a_hole(seen, log, confirmed) if files.has_later(readable) else seen

    def _has_news(self, end: int) -> bool:
        """Whether anything is written at or after the end. One `pread` or less."""
        files = self.files
        if files.is_missing(end):
            return True
        if end >= files.end_offset and files.run.file_bytes:
            if not files.read_raw(end):
                return False
            files.rescan()  # a file was added
        raw = files.read_raw(end)
        return raw.count(0) != len(raw) or files.has_later(end)

    def _advance(
        self, seen: HotQueue, log: CommitLogFiles, confirmed: Confirmed | None
    ) -> HotQueue:
        """Count the whole units after `seen.max_offset`, or find the reason to stop."""
        end = int(seen.max_offset)
        written = self.files.written_end(end)
        if written == end:
            return self._after_a_hole(seen, log, confirmed)
        all_written = written
        if confirmed is not None:
            written = self._confirmed_end(end, written, confirmed, log)
            if written == end:
                return self._waiting(seen, all_written, UNCONFIRMED, log)
        verdict = judge_end(self._view_of_end(seen.id, end, written, log))
        self._doubt = verdict.doubt
        if verdict.damage:
            return replace(seen, state=HotQueueState.DAMAGED, detail=verdict.damage)
        end = QueueOffset(verdict.end)
        seen = replace(seen, max_offset=end, state=HotQueueState.READY, detail="")
        if end < all_written:
            doubt = verdict.doubt if end < written else None
            waits_for = UNCONFIRMED if doubt is None else doubt.reason
            seen = self._waiting(seen, all_written, waits_for, log)
        return self._after_a_hole(seen, log, confirmed) if self.files.has_later(end) else seen

    def _waiting(
        self, seen: HotQueue, written: int, waits_for: str, log: CommitLogFiles
    ) -> HotQueue:
        """Return the queue with the reason for which its written units from the end on wait."""
        stored_ms = self._stored_ms(seen.max_offset, log) or 0
        count = written - seen.max_offset
        return replace(seen, waiting=count, waits_for=waits_for, waiting_ms=stored_ms)

    def _confirmed_end(
        self, end: int, written: int, confirmed: Confirmed, log: CommitLogFiles
    ) -> int:
        """Return the first offset of `[end, written)` with an unconfirmed record; or `written`."""

        def waits(offset: int) -> bool:
            unit = self.files.unit(offset)
            if unit.position + unit.size <= confirmed.position:
                return False
            if confirmed.stored_ms == FOREVER_MS:
                return False
            stored_ms = self._stored_ms(offset, log)
            self.newest_ms = max(self.newest_ms, stored_ms or 0)
            return stored_ms is not None and stored_ms > confirmed.stored_ms

        return partition_point(end, written, waits) if waits(written - 1) else written

    def _stored_ms(self, offset: int, log: CommitLogFiles) -> int | None:
        """Return a message's store timestamp, Unix ms; None if its unit names no record."""
        unit = self.files.unit(offset)
        try:
            raw = log.record(unit.position, unit.size)
            return RecordHeader.decode(raw, path="", position=0).store_timestamp
        except NotFound:
            raise
        except (Corrupt, OutOfRange):
            return None

    def _view_of_end(self, queue: QueueId, end: int, written: int, log: CommitLogFiles) -> EndView:
        """Read the input of `judge_end`: one record at a healthy end."""
        before = self._doubt
        last = self._doubtful(queue, written - 1, log)
        view = EndView(end, written, before, last)
        if last is None and before is not None and before.offset == end < written - 1:
            return replace(view, first=self._doubtful(queue, end, log))
        if last is not None and last.is_bad:
            first_bad = partition_point(end, written, lambda k: self._is_bad(queue, k, log))
            bad = self._doubtful(queue, first_bad, log)
            return replace(view, first_bad=first_bad, bad=bad)
        return view

    def _is_bad(self, queue: QueueId, offset: int, log: CommitLogFiles) -> bool:
        doubt = self._doubtful(queue, offset, log)
        return doubt is not None and doubt.is_bad

    def _after_a_hole(
        self, seen: HotQueue, log: CommitLogFiles, confirmed: Confirmed | None
    ) -> HotQueue:
        """Decide whether an empty unit at the end before a written one is damage."""
        end = int(seen.max_offset)
        files = self.files
        if end < files.first_offset:  # the broker deleted the next units
            return self._begin(log, confirmed)
        good = self._good_after(seen.id, end, log)
        is_written = bool(files.units_at(end)["size"][:1].any())
        if good is None and not is_written:  # left from a crash
            self.findings += self._ignored.beyond(files, end)
        view = HoleView(end, good, is_written, self._file_state(end), files.made.budget.taken)
        damage = judge_hole(view)
        if not damage:
            return seen
        path, place = files.path_of(end)
        detail = str(Corrupt(damage, str(path), place))
        return replace(seen, state=HotQueueState.DAMAGED, detail=detail)

    def _file_state(self, offset: int) -> FileState:
        if self.files.is_missing(offset):
            return FileState.MISSING if self.files.has_room else FileState.WITHOUT_ROOM
        return FileState.MADE if self.files.is_made(offset) else FileState.THERE

    def mend(self, offset: int, log: CommitLogFiles) -> bool:
        """Rebuild a unit that a reader found missing or zero. Return whether it can be read now.

        Raises:
            Corrupt, Unavailable, Denied: as `ConsumeQueueFiles.make`.
        """
        self.files.rescan()
        return self._mend(self.seen.id, offset, log) and self.files.has_file(offset)

    def _mend(self, queue: QueueId, offset: int, log: CommitLogFiles) -> bool:
        """Rebuild the missing or blank file of `offset`. False if there is nothing to rebuild."""
        files = self.files
        is_missing = files.is_missing(offset)
        first = files.hole_start(offset) if is_missing else files.blank_start(offset)
        if first is None:
            return False
        attempt = (first, files.made.budget.room, log.table.min_position)
        if attempt == self._not_made:
            return False
        good = self._good_after(queue, first, log)
        made = files.make(log, queue, first, good) if good is not None else []
        self.findings += files.made.findings
        files.made.findings.clear()
        if not made:
            self._not_made = attempt if good is not None else ()
            return False
        self.log_min = -1  # the first readable message may be another one
        self.findings += [
            f"{path} is missing, empty or full of zeros, amid others: its units were rebuilt "
            "from the CommitLog."
            for path in made
        ]
        return True

    def _good_after(self, queue: QueueId, end: int, log: CommitLogFiles) -> int | None:
        """Return the next unit after an empty one, or a later file's first, with a good record."""
        for start, units in chain([(end, self.files.units_at(end))], self.files.heads(end)):
            written = units["size"].nonzero()[0]
            if len(written):
                offset = start + int(written[0])
                doubt = self._doubtful(queue, offset, log)
                if doubt is None or (start > end and doubt.by_tags_only):
                    return offset
        return None

    def _doubtful(self, queue: QueueId, offset: int, log: CommitLogFiles) -> Doubt | None:
        """Return the reason for which a unit does not count; None if its record agrees with it.

        A filler counts: a message that a repair gave up, which readers skip.
        """
        unit = self.files.unit(offset)
        if unit.is_filler:
            return None
        try:
            code = log.tags_code(queue, offset, unit)
        except NotFound:
            raise
        except (Corrupt, OutOfRange) as error:
            return Doubt(offset, unit, str(error))
        if is_extended_address(unit.tag_hash):
            return None  # `enableConsumeQueueExt`: an address replaces the code
        if code != unit.tag_hash:  # half written, or never a hash: the next poll decides
            reason = f"the unit's tags code is {unit.tag_hash}, not {code}"
            return Doubt(offset, unit, reason, by_tags_only=True)
        return None

    def _first_readable(self, end: int, log: CommitLogFiles) -> QueueOffset:
        start = max(self.files.first_offset, 0)
        return QueueOffset(self._readable_from(min(start, end), end, log))

    def _readable_from(self, start: int, end: int, log: CommitLogFiles) -> int:
        """Return the first offset of `[start, end)` with a record in an existing file; or `end`.

        Fillers may lie anywhere. They count as the message after them, and are skipped.
        """
        lowest = log.table.min_position

        def is_there(offset: int) -> bool:
            try:
                unit = self.files.unit(offset)
                if unit.is_filler:
                    offset = self.files.after_fillers(offset, end)
                    return offset >= end or self.files.unit(offset).position >= lowest
            except NotFound:
                if self.files.is_missing(offset):
                    return True  # its reader gets the error
                raise
            return unit.position >= lowest

        if start < end and not is_there(start):  # seldom: later damage cannot mislead others
            start = partition_point(start, end, is_there)
        return start if self.files.is_missing(start) else self.files.after_fillers(start, end)
