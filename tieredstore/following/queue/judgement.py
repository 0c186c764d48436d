"""What one look at a queue's end comes to: plain functions of what was read, without I/O.

A broker writes a record first, its unit later, and each unit in three stores that a reader may see
one by one. Units beyond the end are zero. The rules that follow from this:

J1  A unit counts when its record is there and says the same as the unit does.
J2  A unit whose tags code alone differs may be half written: it counts once two looks in a row
    read the same.
J3  A bad unit with nothing good after it may be what a crash leaves: it waits. The wait ends in
    damage when the log has gone on behind its record, when the broker has stopped cleanly, or
    after `WAITS_S`.
J4  A bad or empty unit with a good one after it is damage: the queue stops before it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from container.record.unit import ConsumeQueueUnit
from tieredstore.following.log.confirmation import Confirmed

WAITS_S = 30.0
"""Seconds for which units without their records wait at most before their queue is damaged."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a unit does not count."""

    offset: int
    unit: ConsumeQueueUnit
    reason: str
    by_tags_only: bool = False
    """Whether the record is good, and the unit's tags code alone differs from its tags."""

    @property
    def is_bad(self) -> bool:
        """Whether the unit points to no record of its message."""
        return not self.by_tags_only


@dataclass(frozen=True, slots=True)
class EndView:
    """The units `[end, written_end)` after what counted before: at least one."""

    end: int
    written_end: int
    before: Doubt | None
    """The doubt that stopped the last look."""
    last: Doubt | None
    """About the last written unit."""
    first: Doubt | None = None
    """About the unit at `end`; read only if the doubt of the last look was about it, and others
    follow it."""
    first_bad: int = 0
    """First offset whose unit is bad; read only if the last unit is."""
    bad: Doubt | None = None
    """About the unit at `first_bad`, read once more."""


class LookTime(NamedTuple):
    """What one look at all queues is made with."""

    now_s: float = 0.0
    """Monotonic clock."""
    confirmed: Confirmed | None = None
    """Which records count; None: all do."""
    is_stopped: bool = False
    """Whether the broker has stopped cleanly."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Units from `doubt.offset` on wait, for the first of them does not count."""

    doubt: Doubt
    since_s: float


def judge_wait(wait: Wait, moment: LookTime, *, log_end: int) -> str:
    """Why a queue stops before units that have waited long enough; "" if they wait on. Pure.

    Asked from the second look on that finds the same doubt.
    """
    unit = wait.doubt.unit
    has_gone_on = log_end > unit.position + unit.size
    if has_gone_on or moment.is_stopped or moment.now_s - wait.since_s >= WAITS_S:
        return wait.doubt.reason
    return ""


class Verdict(NamedTuple):
    """How far a queue goes."""

    end: int
    doubt: Doubt | None
    """What stopped this look; the next one compares with it."""
    damage: str = ""
    """Why the queue stops at `end` although units follow; "" if it does not."""


def judge_end(view: EndView) -> Verdict:
    """Which of the written units count, by J1 to J4. Pure."""
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
    """What is in the place of the file that holds an empty unit."""

    THERE = "there"
    MISSING = "missing"
    WITHOUT_ROOM = "without room"
    """Missing, and there is no memory left to make its units."""
    MADE = "made"
    """Missing, and units for it were made from the CommitLog."""


@dataclass(frozen=True, slots=True)
class HoleView:
    """The unit at `end` was empty, though something stands in a place after it."""

    end: int
    good_after: int | None
    """Offset of a good unit after it; None if there is none."""
    is_written: bool
    """Whether the unit is there by now: read after `good_after` was."""
    file: FileState
    made_bytes: int
    """Memory of the units that were made for all queues."""


def judge_hole(view: HoleView) -> str:
    """Why a queue stops at an empty unit; "" if it waits there, by J3. Pure."""
    if view.is_written or view.good_after is None:
        return ""  # the broker was just writing it; or the rest is what a crash left
    if view.file is FileState.WITHOUT_ROOM:
        return (
            f"the file is missing or empty, and {view.made_bytes} bytes of units are made anew "
            "already: it is its turn once those before it are tiered"
        )
    if view.file is FileState.MISSING:
        return (
            "the file is missing or empty, and its units cannot be made anew from the CommitLog, "
            f"though the unit of offset {view.good_after} behind it is good"
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
    """What a reader's report comes to. Pure.

    Args:
        doubt: about the reported unit, read once more.
        is_readable: whether its offset still is in the queue.
        untold: the damage that the reader saw, if no poll told of it yet. Told even if it is
            mended: the dispatcher gave the queue up, and waits until it is told so.

    Returns:
        The damage to tell; "" once it is mended or gone.
    """
    return doubt.reason if doubt is not None and doubt.is_bad and is_readable else untold
