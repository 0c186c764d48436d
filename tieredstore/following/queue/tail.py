"""How far one queue of a followed broker goes: which of its units count.

Units beyond the end are zero, for the broker fills its files with zeros before it maps them. A
unit counts when the record it points to is there and says the same; after a crash the last ones
may point behind the CommitLog's real end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from dispatcher.hot_log import HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.queue.files import ConsumeQueueFiles, partition_point


@dataclass(frozen=True, slots=True)
class _Doubt:
    """The unit that stopped the last look."""

    offset: int
    unit: ConsumeQueueUnit
    reason: str
    by_tags_only: bool = False


class ConsumeQueueTail:
    """The end of one queue. Owned by the follower's poll: one thread at a time."""

    def __init__(self, queue: QueueId, files: ConsumeQueueFiles) -> None:
        self.files = files
        self.seen = HotQueue(queue, QueueOffset(0), QueueOffset(0))
        self._begun: bool = False
        self.is_known = False
        """Whether `seen` comes from a look: until then nothing can be said about the queue."""
        self._doubt: _Doubt | None = None
        self.log_min = -1
        """First position of the CommitLog when `min_offset` was found."""
        self.end_position = 0
        """Behind the record of the last message that counts, in the CommitLog."""
        self._reported: int | None = None
        self._untold = ""
        """What a reader found damaged that no poll has said yet."""
        self._not_made: tuple[int, ...] = ()
        """When units could not be made last: for which offset, with which room and log."""
        self._foreign: set[int] = set()
        self.findings: list[str] = []
        """Sentences for people that nobody has taken yet."""

    def __repr__(self) -> str:
        return f"<ConsumeQueueTail {self.seen}>"

    def poll(
        self, log: CommitLogFiles, confirmed: int | None, floor_of: Callable[[], int | None]
    ) -> HotQueue:
        """Look for new units; at most one `pread` when there are none.

        Args:
            log: where the records are.
            confirmed: only records that end at or below this position count; None: all.
            floor_of: first offset for which units were rebuilt from pinned files; None: none
                were. Asked only after our files were scanned: the broker may have deleted some.

        Raises:
            Unavailable, Denied: the files cannot be read right now.
        """
        had_begun = self._begun
        self.files.log_min = log.table.min_position
        try:
            self.seen = self._look(log, confirmed, floor_of)
            self.is_known = True
        except NotFound:
            # The broker deleted a file under us; the next directory scan settles it. A first look
            # that failed is none.
            self._begun, self.log_min = had_begun, -1
            self.is_known = self.is_known or not self.files.run.bases
        except (Unavailable, Denied):
            self._begun, self.log_min = had_begun, -1
            raise
        return self.seen

    def _look(
        self, log: CommitLogFiles, confirmed: int | None, floor_of: Callable[[], int | None]
    ) -> HotQueue:
        seen = self.seen
        try:
            has_news = not self._begun or self._has_news(seen.max_offset)
            if not has_news and self._is_settled(log):
                return seen
            if not self._begun:
                seen = self._begin(log, confirmed)
            elif has_news:
                seen = self._advance(seen, log, confirmed)
            while self._mend(seen.id, seen.max_offset, log):
                seen = replace(seen, state=HotQueueState.READY, detail="")
                seen = self._advance(seen, log, confirmed)
            if log.table.min_position != self.log_min or seen.min_offset < self.files.first_offset:
                seen = replace(seen, min_offset=self._first_readable(seen.max_offset, log))
                self.log_min = log.table.min_position
        except Corrupt as error:
            seen = replace(seen, state=HotQueueState.DAMAGED, detail=str(error))
        self._note_misplaced()
        floor = floor_of()
        if floor is not None and floor < seen.min_offset:
            seen = replace(seen, min_offset=QueueOffset(floor))
        if seen.max_offset > max(self.seen.max_offset, self.files.first_offset):
            last = self.files.unit(seen.max_offset - 1)
            self.end_position = 0 if last.is_filler else last.position + last.size
        return self._with_reported(seen, log)

    def report(self, offset: int, damage: str = "") -> None:
        """A reader found that the message at `offset` cannot be trusted; the next poll says so.

        With `damage` it does even if all is well by then, and the poll after it says that: who
        was told gave the queue up until it is said to be mended.
        """
        self._untold, self._reported = damage or self._untold, offset

    @property
    def has_report(self) -> bool:
        """Whether a reader's report is not settled: the next poll must look."""
        return self._reported is not None

    def _is_settled(self, log: CommitLogFiles) -> bool:
        """Whether the queue's lower end and its state are as they were, too."""
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
        if doubt is None or doubt.by_tags_only or offset < seen.min_offset:
            if untold:
                return replace(seen, state=HotQueueState.DAMAGED, detail=untold)
            self._reported = None  # it is good by now, or gone
            return replace(seen, state=HotQueueState.READY, detail="")
        return replace(seen, state=HotQueueState.DAMAGED, detail=doubt.reason)

    def _begin(self, log: CommitLogFiles, confirmed: int | None) -> HotQueue:
        """First look: skip what stands before the first message, then find the end."""
        files = self.files
        written = files.written_end(files.first_offset)
        first = partition_point(files.first_offset, written, lambda k: not files.unit(k).is_filler)
        self._begun = bool(files.run.bases)
        seen = replace(self.seen, min_offset=QueueOffset(first), max_offset=QueueOffset(first))
        readable = self._readable_from(first, written, log)
        seen = replace(seen, max_offset=QueueOffset(readable))
        if readable < written:
            return self._advance(seen, log, confirmed)
        return self._behind_a_hole(seen, log, confirmed) if files.has_later(readable) else seen

    def _has_news(self, end: int) -> bool:
        """Whether anything stands at or behind the end. One `pread` or less."""
        files = self.files
        if files.is_missing(end):
            return True
        if end >= files.end_offset and files.run.file_bytes:
            if not files.look_raw(end):
                return False
            files.rescan()  # a file was added
        raw = files.look_raw(end)
        return raw.count(0) != len(raw) or files.has_later(end)

    def _advance(self, seen: HotQueue, log: CommitLogFiles, confirmed: int | None) -> HotQueue:
        """Count what is whole behind `seen.max_offset`, or say what keeps the queue from it."""
        start = int(seen.max_offset)
        written = self.files.written_end(start)
        if written == start:
            return self._behind_a_hole(seen, log, confirmed)
        if confirmed is not None:
            written = partition_point(start, written, lambda k: not self._ends_below(k, confirmed))
            if written == start:
                return seen
        last, before = self._doubtful(seen.id, written - 1, log), self._doubt
        self._doubt = last
        if last is None:
            if before is not None and before.offset == start < written - 1:
                self._doubt = self._doubtful(seen.id, start, log)
            if self._doubt is not None and not self._doubt.by_tags_only:
                # a bad unit, and a good one behind it
                return replace(seen, state=HotQueueState.DAMAGED, detail=self._doubt.reason)
        elif last.by_tags_only:
            written -= last != before  # it counts if it stays as it is
        else:
            written = partition_point(start, written, lambda k: self._is_bad(seen.id, k, log))
            self._doubt = self._doubtful(seen.id, written, log)
        end = QueueOffset(written)
        seen = replace(seen, max_offset=end, state=HotQueueState.READY, detail="")
        return self._behind_a_hole(seen, log, confirmed) if self.files.has_later(end) else seen

    def _is_bad(self, queue: QueueId, offset: int, log: CommitLogFiles) -> bool:
        doubt = self._doubtful(queue, offset, log)
        return doubt is not None and not doubt.by_tags_only

    def _behind_a_hole(
        self, seen: HotQueue, log: CommitLogFiles, confirmed: int | None
    ) -> HotQueue:
        """The unit at the end is empty, and yet there was something behind it a moment ago."""
        end = int(seen.max_offset)
        files = self.files
        if end < files.first_offset:  # the broker deleted what comes next
            return self._begin(log, confirmed)
        good = self._good_behind(seen.id, end, log)
        if files.look(end)["size"][:1].any():
            return seen  # the broker was just writing
        if good is None:  # remains of a crash
            self._note_foreign(end)
            return seen
        path, place = files.path_of(end)
        reason = f"the unit of offset {end} is empty, though that of offset {good} is good"
        if files.is_missing(end) and files.made.budget.room < files.run.file_bytes:
            reason = (
                f"the file is missing or empty, and {files.made.budget.taken} bytes of units are "
                "made anew already: it is its turn once those before it are tiered"
            )
        elif files.is_missing(end):
            reason = (
                "the file is missing or empty, and its units cannot be made anew from the "
                f"CommitLog, though the unit of offset {good} behind it is good"
            )
        elif files.is_made(end):
            reason = (
                f"the file is missing or empty, and the message of offset {end} is not found in "
                "the CommitLog"
            )
        detail = str(Corrupt(reason, str(path), place))
        return replace(seen, state=HotQueueState.DAMAGED, detail=detail)

    def _note_foreign(self, end: int) -> None:
        """Say which files behind the end count for nothing. One that was just added may."""
        files = self.files
        for first, units in files.heads(end):
            is_new = files.is_next(first, end) and len(units) > 0 and not units["size"].any()
            if first * UNIT_BYTES not in self._foreign and not is_new:
                self._foreign.add(first * UNIT_BYTES)
                path, _ = files.path_of(first)
                self.findings.append(
                    f"{path} lies beyond the queue's end at offset {end} and holds no unit of a "
                    "message that is there: it is ignored."
                )

    def _note_misplaced(self) -> None:
        """Say which files have names that no file of this queue has."""
        run = self.files.run
        for base in run.foreign:
            if base not in self._foreign:
                self._foreign.add(base)
                self.findings.append(
                    f"{run.directory / local_file_name(base)} is no file of this queue, whose "
                    f"files have {run.file_bytes or 'no'} bytes and names that are multiples of "
                    "that: it is ignored."
                )

    def mend(self, offset: int, log: CommitLogFiles) -> bool:
        """A reader found a file missing, or a unit zero: whether it can be read now.

        Raises:
            Corrupt, Unavailable, Denied: as `ConsumeQueueFiles.make`.
        """
        self.files.rescan()
        return self._mend(self.seen.id, offset, log) and self.files.has_file(offset)

    def _mend(self, queue: QueueId, offset: int, log: CommitLogFiles) -> bool:
        """Make units for the missing or blank file of `offset`; False if it is none, or fails."""
        files = self.files
        is_missing = files.is_missing(offset)
        first = files.hole_start(offset) if is_missing else files.blank_start(offset)
        if first is None:
            return False
        attempt = (first, files.made.budget.room, log.table.min_position)
        if attempt == self._not_made:
            return False
        good = self._good_behind(queue, first, log)
        made = files.make(log, queue, first, good) if good is not None else []
        if not made:
            self._not_made = attempt if good is not None else ()
            return False
        self.log_min = -1  # the first readable message may be another one
        self.findings += [
            f"{path} is missing, empty or full of zeros, amid others: its units were made anew "
            "from the CommitLog."
            for path in made
        ]
        return True

    def _good_behind(self, queue: QueueId, end: int, log: CommitLogFiles) -> int | None:
        """The next unit behind an empty one, or the first of a later file, whose record is good."""
        for start, units in chain([(end, self.files.look(end))], self.files.heads(end)):
            written = units["size"].nonzero()[0]
            if len(written):
                offset = start + int(written[0])
                doubt = self._doubtful(queue, offset, log)
                if doubt is None or (start > end and doubt.by_tags_only):
                    return offset
        return None

    def _doubtful(self, queue: QueueId, offset: int, log: CommitLogFiles) -> _Doubt | None:
        """Why a unit does not count; None when its record says the same as it does."""
        unit = self.files.unit(offset)
        try:
            code = log.tags_code(queue, offset, unit)
        except NotFound:
            raise
        except (Corrupt, OutOfRange) as error:
            return _Doubt(offset, unit, str(error))
        if code != unit.tag_hash:  # half written, or it never was a hash: the next look tells
            reason = f"the unit's tags code is {unit.tag_hash}, not {code}"
            return _Doubt(offset, unit, reason, by_tags_only=True)
        return None

    def _ends_below(self, offset: int, confirmed: int) -> bool:
        unit = self.files.unit(offset)
        return unit.position + unit.size <= confirmed

    def _first_readable(self, end: int, log: CommitLogFiles) -> QueueOffset:
        start = max(self.files.first_offset, 0)
        return QueueOffset(self._readable_from(min(start, end), end, log))

    def _readable_from(self, start: int, end: int, log: CommitLogFiles) -> int:
        """First offset of `[start, end)` whose record lies in a file that is there; or `end`."""
        lowest = log.table.min_position

        def is_there(offset: int) -> bool:
            try:
                unit = self.files.unit(offset)
            except NotFound:
                if self.files.is_missing(offset):
                    return True  # who reads it finds that out
                raise
            return not unit.is_filler and unit.position >= lowest

        if start < end and is_there(start):  # the usual case, and safe from damage further on
            return start
        return partition_point(start, end, is_there)
