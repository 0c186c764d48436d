"""Progress of one queue in a CommitLog that is read in order. Pure but for one search."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE, Units, consecutive
from dispatcher.ports import DeletedQueue, HotQueue, HotQueueState
from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.record_units import QueueRun, join_runs, split_run, units_in

ALONE = (
    "The record at position {position} says that it is the message of {queue} at offset {first}, "
    "though the CommitLog has none of the offsets before it and is there from its beginning: it "
    "may be damaged, and counts once the next message of that queue follows."
)


class Beginnings:
    """Records that begin no queue yet, one of each name.

    A log that exists from its first byte has its queues from offset 0 on. A single record at
    another offset waits for the next one. Other reads of a log prove nothing.
    """

    def __init__(self) -> None:
        self.is_complete = False
        """Whether the log was read from its first byte on, without a hole."""
        self._alone: dict[QueueId, QueueRun] = {}
        self.findings: list[str] = []
        """Sentences for operators, until they are taken."""

    def __repr__(self) -> str:
        return f"<Beginnings: {len(self._alone)} alone>"

    def take_findings(self) -> list[str]:
        """Return the sentences since the last call."""
        taken, self.findings = self.findings, []
        return taken

    def admit(self, run: QueueRun) -> QueueRun | None:
        """Return the run that begins a new queue; None while none does."""
        alone = self._alone.pop(run.queue, None)
        if alone is not None and run.first == alone.end:
            return join_runs([alone, run])
        if not self.is_complete or not run.first or len(run.units) > 1:
            return run
        self._alone[run.queue] = run
        at = int(run.units[0]["position"])
        self.findings.append(ALONE.format(position=at, queue=run.queue, first=run.first))
        return None


class Begin(NamedTuple):
    """Start of a queue, as far as is known."""

    offset: int
    position: int
    """Position of that message, or the end of the read part of the log."""


def units_before(
    log: CommitLogFiles, begins: Mapping[QueueId, Begin], findings: list[str]
) -> dict[QueueId, tuple[int, Units]]:
    """Return first offset and units of the messages right before each queue's known start.

    Scans every file below those positions (see `units_in` for the cost and for `findings`) without
    reusing earlier reads. Holds 28 bytes for each message that it finds.

    Raises:
        Unavailable, Denied: a CommitLog file cannot be read.
    """
    found: dict[QueueId, tuple[int, Units]] = {}
    end = max((begin.position for begin in begins.values()), default=0)
    for base in sorted(log.table.paths):
        if base >= end:
            break
        try:
            runs = units_in(log, base, frozenset(begins), findings)
        except OutOfRange:
            continue  # it was deleted just now
        for queue, (offsets, units) in runs.items():
            own = units["position"] < begins[queue].position
            if own.any():
                found[queue] = _last_run(found.get(queue), offsets[own], units[own])
    return {
        queue: (first, units)
        for queue, (first, units) in found.items()
        if first + len(units) == begins[queue].offset
    }


def _last_run(
    before: tuple[int, Units] | None, offsets: NDArray[np.int64], units: Units
) -> tuple[int, Units]:
    """Return first offset and units after the last hole of two successive runs."""
    at, _ = consecutive(offsets)[-1]
    if at:
        return int(offsets[at]), units[at:]
    if before is not None and before[0] + len(before[1]) == offsets[0]:
        return before[0], np.concatenate([before[1], units], dtype=UNIT_DTYPE)
    return int(offsets[0]), units


HOLE = (
    "the CommitLog has the message of offset {first}, but none of the offsets from {end} on: a "
    "record between them cannot be read"
)
AGAIN = (
    "the CommitLog has a message of offset {first} again at position {position}, though the queue "
    "had come to {end} before: the broker lost messages; what follows is compared with the tier by "
    "the next start"
)
DOUBT = (
    "the CommitLog has a message of offset {first} at position {position}, though the queue had "
    "come to {end}: that record is damaged, or the broker lost messages; the queue's next record "
    "tells"
)
MISPLACED = (
    "The record at position {position} says that it is the message of {queue} at offset {first}, "
    "where the queue had come to {end} and went on at {next}: its queue id or its offset is "
    "damaged, or those of the record that is taken for that message; it is passed over."
)
REFUTED = (
    "The records of {queue} that say offsets {first} to {last}, up to position {position}, do not "
    "lie where its messages do: the queue went on at {next}. Their queue ids or their offsets are "
    "damaged; they are passed over."
)
BEHIND_DAMAGE = (
    "{queue} was deleted while it was damaged at offset {end}: {known} behind that are not tiered."
)
BATCH = (
    "The CommitLog has a message of it that is a batch at one offset, as a BatchCQ takes them; the "
    "tier takes one message per offset."
)


class Taken(Enum):
    """Result of adding a run."""

    KEPT = "kept"
    ALONE = "alone"
    """Kept. All earlier units must be dropped."""
    DROPPED = "dropped"
    INSTEAD = "instead"
    """Kept, in place of all units from its first offset on."""
    SUCCEEDS = "succeeds"
    """The run is of a queue that was created again after this one was deleted."""


@dataclass(slots=True)
class LoggedQueue:
    """Offsets and state of one queue.

    N1  start <= end, and the ranges in `later` lie above `end`, apart from one another.
    N2  A queue that is READY has nothing in `later`, and no `detail`.
    """

    id: QueueId
    number: int
    """Key of its units."""
    start: int
    """First readable offset."""
    end: int
    """Offset after the last message of the consecutive run that begins at `start`."""
    end_position: int = 0
    """CommitLog position after the record of that last message."""
    later: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Offsets after a hole: start, end, and the position after the last record."""
    doubt: QueueRun | None = None
    """Newest record, if its offset does not follow the earlier ones.

    It may be damaged, for no checksum covers queue and offset.
    """
    findings: list[str] = field(default_factory=list[str])
    """Sentences for operators, until they are taken."""
    detail: str = ""
    """Reason for which it stops at `end`."""
    has_ended: bool = False
    """Whether nothing more of it counts, for its offsets began again."""
    again: tuple[int, int, int] = (0, 0, 0)
    """Offsets that were assigned again: start, end, and the position after the last record."""
    is_batch: bool = False
    deleted: DeletedQueue | None = None
    """Queue that had this name before."""
    released: int | None = None
    """Offset below which all messages are tiered; None: not reported by the dispatcher yet."""
    reported: int | None = None
    """Offset that a reader found damaged or unreadable."""
    untold: str = ""
    damage: str = ""
    """Damage of the reported message."""
    unreadable: str = ""

    def check(self) -> None:
        """Assert N1 and N2."""
        assert self.start <= self.end, f"N1: {self}"
        ends = [self.end, *(end for _, end, _ in self.later)]
        starts = [start for start, _, _ in self.later]
        assert all(end < start for end, start in zip(ends, starts, strict=False)), f"N1: {self}"
        assert not self.later or self.detail, f"N2: {self}"

    @property
    def top(self) -> int:
        """Offset after the last message that counts."""
        return self.later[-1][1] if self.later else self.end

    def _is_all_gone(self, low: int) -> bool:
        """Whether all messages read were deleted. Later ones may then be deleted unread, too."""
        return self.start == self.end and not self.later and 0 < self.end_position <= low

    def admit(self, run: QueueRun, low: int) -> list[QueueRun]:
        """Return the runs that count by now, given the next run in the log.

        They may include the record in doubt before it. A record whose offset does not follow counts
        once another one follows it, even above a hole. Otherwise it is damaged, and is skipped with
        a finding. The CommitLog was deleted below `low`.
        """
        if self.has_ended or self.is_batch:
            return [run]  # dropped in any case
        doubt, self.doubt = self.doubt, None
        if doubt is not None:
            is_passed = run.first == self.top and doubt.first > 0
            if run.first == doubt.end and not is_passed:
                return [join_runs([doubt, run])]
            if self.top < doubt.first < run.first:
                return [doubt, run]  # both lie after holes
            self._misplaced(doubt, run.first)
        if run.first == self.top - 1 > 0 and len(run.units) > 1:  # one record took an offset twice
            first, run = split_run(run, 1)
            self._misplaced(first, run.first)
        if run.first > self.top and self._is_all_gone(low):
            return [run]
        if run.first != self.top and len(run.units) == 1:
            self.doubt = run
            return []
        return [run]

    def _misplaced(self, doubt: QueueRun, following: int) -> None:
        at = int(doubt.units[0]["position"])
        said = MISPLACED.format(
            position=at, queue=self.id, first=doubt.first, end=self.top, next=following
        )
        self.findings.append(said)

    def take(self, run: QueueRun, low: int, *, is_published: bool) -> Taken:
        """Add a run that `admit` returned.

        Offsets that begin again begin the queue again, unless it was published. Messages that the
        broker deleted before they were read leave no hole: the queue begins above them.
        """
        self.is_batch |= run.is_batch
        if self.is_batch or (self.has_ended and not self._goes_on_all_the_same(run)):
            return Taken.DROPPED
        position = _end_position_of(run)
        top = self.top
        if self.later and run.first == self.end:
            for later in self.later:
                self._refute(later, run.first)
            self.later, self.detail = [], ""
            self.end, self.end_position = run.end, position
            return Taken.INSTEAD
        if run.first < top:
            if is_published and run.first == 0:
                return Taken.SUCCEEDS
            if is_published:
                at = int(run.units[0]["position"])
                self.has_ended, self.again = True, (run.first, run.end, position)
                self.detail = AGAIN.format(first=run.first, position=at, end=top)
                return Taken.DROPPED
            self.later, self.detail = [], ""
            self.start, self.end, self.end_position = run.first, run.end, position
            return Taken.ALONE
        if run.first > top and self._is_all_gone(low):
            self.start, self.end, self.end_position = run.first, run.end, position
        elif run.first > top:
            self.detail = self.detail or HOLE.format(first=run.first, end=self.end)
            self.later.append((run.first, run.end, position))
        elif self.later:
            self.later[-1] = (self.later[-1][0], run.end, position)
        else:
            self.end, self.end_position = run.end, position
        return Taken.KEPT

    def _goes_on_all_the_same(self, run: QueueRun) -> bool:
        """Whether offsets that seemed to be assigned again were damaged: the queue continues.

        A broker that lost messages assigns all offsets from there on again, in order.
        """
        start, end, _ = self.again
        if run.first == end:
            self.again = (start, run.end, _end_position_of(run))
        if run.first != self.top or end >= self.top:
            return False
        self._refute(self.again, run.first)
        self.has_ended, self.again, self.detail = False, (0, 0, 0), ""
        if self.later:
            self.detail = HOLE.format(first=self.later[0][0], end=self.end)
        return True

    def _refute(self, offsets: tuple[int, int, int], following: int) -> None:
        """Report records that agreed with one another, but are not this queue's."""
        first, end, position = offsets
        said = REFUTED.format(
            queue=self.id, first=first, last=end - 1, position=position, next=following
        )
        self.findings.append(said)

    def follow_doubt(self, position: int, *, is_first: bool) -> QueueRun | None:
        """Decide on the record in doubt after the log lost all bytes below `position`.

        Returns:
            That record if it counts now, as the first one left; else None.
        """
        doubt = self.doubt
        if doubt is None:
            return None
        is_gone = int(doubt.units[0]["position"]) < position
        counts = is_first and not is_gone and doubt.first > self.top
        if is_gone or counts:
            self.doubt = None
        if not counts:
            return None
        self.later.append((doubt.first, doubt.end, _end_position_of(doubt)))
        return doubt

    def raise_start(self, offset: int | None) -> None:
        """Record that the broker deleted messages below `offset`; None: all of them."""
        if offset is None:
            self.start = self.end = self.later[-1][1] if self.later else self.end
            self.later = []
        elif offset >= self.end:
            while self.later and self.later[0][1] <= offset:
                self.later.pop(0)
            if self.later:
                _, self.end, self.end_position = self.later.pop(0)
            self.start = offset
        else:
            self.start = max(self.start, offset)
        if not self.later and not self.has_ended:
            self.detail = ""

    def seen(self) -> HotQueue:
        """Return the state for the dispatcher."""
        low = 0 if self.deleted is None else self.deleted.end
        start, end = QueueOffset(max(self.start, low)), QueueOffset(max(self.end, low))
        found = HotQueue(self.id, start, end, deleted=self.deleted)
        if self.is_batch:
            return replace(found, state=HotQueueState.REFUSED, detail=BATCH)
        if self.unreadable:
            return replace(found, state=HotQueueState.UNREADABLE, detail=self.unreadable)
        detail = self.damage or self.detail or self._reported_doubt()
        return replace(found, state=HotQueueState.DAMAGED, detail=detail) if detail else found

    def _reported_doubt(self) -> str:
        """Describe the effect of the record in doubt; "" if the queue may have been recreated."""
        doubt = self.doubt
        if doubt is None or not doubt.first:
            return ""
        if doubt.first > self.end:
            return HOLE.format(first=doubt.first, end=self.end)
        at = int(doubt.units[0]["position"])
        return DOUBT.format(first=doubt.first, position=at, end=self.end)

    @property
    def has_trouble(self) -> bool:
        """Whether messages may follow the end that cannot be read now."""
        return not self.is_batch and (bool(self.detail) or self.doubt is not None)

    def take_findings(self) -> list[str]:
        """Return the sentences since the last call."""
        taken, self.findings = self.findings, []
        return taken

    def left_behind(self) -> str:
        """Describe the messages after damage when the queue is deleted; "" for none."""
        if not self.detail or self.is_batch:
            return ""
        count = sum(end - start for start, end, _ in self.later)
        known = f"{count:,} messages" if count else "the messages"
        return BEHIND_DAMAGE.format(queue=self.id, end=self.end, known=known)

    def deleted_as(self) -> DeletedQueue:
        """Return the published form of this queue once a later one has its name."""
        seen = self.seen()
        return DeletedQueue(seen.min_offset, seen.max_offset, is_made_again=True)

    @property
    def first_untiered(self) -> int | None:
        """Offset of the first message that may have to be tiered; None if there is none now."""
        first = max(self.released or 0, self.start, self.deleted.end if self.deleted else 0)
        return first if first < self.end and not self.is_batch else None


def _end_position_of(run: QueueRun) -> int:
    """Return the position after the last record of a run."""
    last = run.units[-1]
    return int(last["position"]) + int(last["size"])
