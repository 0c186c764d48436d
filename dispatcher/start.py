"""First step of opening a queue, from its bounds in the hot log and in the tier. Pure.

RocketMQ destroys a queue's whole tiered history if the hot log lost messages before they were
tiered. This module never destroys data: a loss is recorded as a gap, and a contradiction halts the
queue.
"""

from dataclasses import dataclass
from typing import Self

from container.metadata.records import (
    ENDS_A_QUEUE,
    MADE_AGAIN_REASON,
    TOPIC_DELETED_REASON,
    Gap,
    Queue,
    after_gaps,
    gap_at,
)
from dispatcher.options import Backfill
from dispatcher.ports import DELETED_REASON, DeletedQueue, HotQueue, HotQueueState
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class OverlapSample:
    """Common offsets of tier and hot log: those of `[low, end)` outside gaps.

    Empty if `low >= end`.
    """

    low: QueueOffset
    """First common offset, outside any gap."""
    end: QueueOffset
    gaps: tuple[Gap, ...] = ()
    """Gaps of the tier, ascending."""

    @classmethod
    def of(cls, hot: HotQueue, tier: Queue) -> Self:
        """Return the common offsets of a queue. They end before a gap in which the hot log ends.

        Messages of deleted incarnations in the tier are not common.
        """
        low = after_gaps(tier.gaps, max(hot.min_offset, tier.min_offset, begin_of(tier) or 0))
        end = min(hot.max_offset, tier.next_offset)
        before = next((gap.start for gap in tier.gaps if gap.start < end < gap.end), end)
        return cls(low, max(before, tier.min_offset), tier.gaps)

    def sampled(self, end: QueueOffset, *, newest: int) -> list[QueueOffset]:
        """Return sample offsets below `end`, ascending.

        The samples are the `newest` offsets, the offsets 1, 2, 4, 8 ... below `end`, and `low`. An
        offset in a gap is replaced by the last one before the gap. Returns at most
        `newest + log2(end - low) + 2` offsets: 24 of a million with `newest` 3.
        """
        reach = end - self.low
        if reach <= 0:
            return []
        distances = {*range(1, min(newest, reach) + 1), reach}
        distances.update(1 << power for power in range(reach.bit_length()))
        return sorted({self._at_or_below(end - back) for back in distances if back <= reach})

    def spread(self, start: QueueOffset, end: QueueOffset, *, count: int) -> list[QueueOffset]:
        """Return at most `count` evenly spaced offsets of `[start, end)`, ascending.

        Returns all offsets if there are at most `count`. Empty only if the range is empty.
        """
        start = after_gaps(self.gaps, start)
        room = end - start
        if room <= count:
            steps = range(max(room, 0))
        else:
            steps = [(number + 1) * room // (count + 1) for number in range(count)]
        return sorted({self._at_or_below(start + step) for step in steps})

    def _at_or_below(self, offset: int) -> QueueOffset:
        """Return the last offset outside gaps at or below `offset`. One must exist."""
        while (gap := gap_at(self.gaps, offset)) is not None:
            offset = gap.start - 1
        return QueueOffset(offset)


def begin_of(tier: Queue) -> QueueOffset | None:
    """Return the first tier offset of the newest incarnation; None if no incarnation was deleted.

    O(gaps).
    """
    return next((gap.end for gap in reversed(tier.gaps) if gap.reason in ENDS_A_QUEUE), None)


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Step for a queue that the tier does not have: begin at `offset`."""

    offset: QueueOffset


@dataclass(frozen=True, slots=True)
class BeginAtTime:
    """Step for a queue that the tier does not have: begin at the first message not older.

    The limit `timestamp_ms` is in Unix ms.
    """

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RecordGapFirst:
    """Step after a loss: record the gap `[start, end)`, then resume at `end`.

    A queue that the tier does not have begins at `start`.
    """

    start: QueueOffset
    end: QueueOffset
    reason: str


@dataclass(frozen=True, slots=True)
class TierIsAhead:
    """Step for a tier beyond the hot log: its last messages are not, or no more, in the hot log."""

    reason: str


@dataclass(frozen=True, slots=True)
class HotLogIsDamaged:
    """Step for a damaged hot log: its end is unknown, so a first offset or a loss is unknown."""

    reason: str
    next_offset: QueueOffset
    """End of the tier. If the tier does not have the queue: known end of the hot log."""
    heals_at: QueueOffset
    """End of the hot log from which on a decision is possible in spite of the damage."""


@dataclass(frozen=True, slots=True)
class ResumeAt:
    """Step for ends that meet: resume at `offset` if the sampled messages agree."""

    offset: QueueOffset


Step = BeginAt | BeginAtTime | RecordGapFirst | TierIsAhead | HotLogIsDamaged | ResumeAt


def decide_step(
    hot: HotQueue, tier: Queue | None, *, backfill: Backfill, now_ms: int, damage: str = ""
) -> Step:
    """Decide the first step with a queue from its bounds on both sides. Pure.

    `damage` is the damage of the messages at the tier's end when they were last read. It becomes
    the reason of a gap that skips them. `now_ms` is Unix ms.

    Untiered offsets of a deleted queue are a gap. A new incarnation continues after a gap, which
    separates it from the deleted one and has one offset if no message was lost.
    """
    if hot.deleted is not None and (tier is not None or backfill == "all"):
        step = _after_deletion(hot.deleted, tier)
        if step is not None:
            return step
    if tier is None:
        if hot.state is HotQueueState.DAMAGED and hot.min_offset == hot.max_offset:
            return HotLogIsDamaged(hot.detail, hot.max_offset, QueueOffset(hot.max_offset + 1))
        return _beginning(hot, backfill, now_ms)
    return _continuation(hot, tier, damage)


def _after_deletion(deleted: DeletedQueue, tier: Queue | None) -> Step | None:
    """Decide the step for a queue with a deleted incarnation; None if the usual rules apply."""
    reason = MADE_AGAIN_REASON if deleted.is_made_again else TOPIC_DELETED_REASON
    reached = deleted.start if tier is None else tier.next_offset
    if reached < deleted.end:
        if deleted.end - reached == 1:  # a lost message, not the separator of two incarnations
            reason = TOPIC_DELETED_REASON
        return RecordGapFirst(reached, deleted.end, reason)
    if not deleted.is_made_again:
        return None if tier is None else ResumeAt(reached)  # no message is left to compare
    begin = None if tier is None else begin_of(tier)
    if deleted.end > 0 and (begin is None or begin < deleted.end):
        return RecordGapFirst(reached, QueueOffset(reached + 1), reason)
    return None


def _continuation(hot: HotQueue, tier: Queue, damage: str) -> Step:
    """Decide the step for a queue that both sides have."""
    begins_here = tier.next_offset == begin_of(tier)
    if hot.min_offset > tier.next_offset:
        reason = damage or DELETED_REASON
        if begins_here:
            reason = tier.gaps[-1].reason  # merges with the gap before it
        return RecordGapFirst(tier.next_offset, hot.min_offset, reason)
    if begins_here:
        return ResumeAt(tier.next_offset)  # the hot log has not reached the published end yet
    if tier.next_offset > hot.max_offset:
        if hot.state is HotQueueState.DAMAGED:
            return HotLogIsDamaged(hot.detail, tier.next_offset, tier.next_offset)
        return TierIsAhead(ahead_sentence(hot, tier))
    return ResumeAt(tier.next_offset)


def _beginning(hot: HotQueue, backfill: Backfill, now_ms: int) -> BeginAt | BeginAtTime:
    """Decide the first offset of a queue that the tier does not have."""
    if backfill == "all" or hot.min_offset == hot.max_offset:
        return BeginAt(hot.min_offset)
    if backfill == "none":
        return BeginAt(hot.max_offset)
    return BeginAtTime(now_ms - int(backfill.total_seconds() * 1000))


def ahead_sentence(hot: HotQueue, tier: Queue) -> str:
    """Error sentence for an operator: a tier that is ahead of its hot log, and the remedies."""
    return (
        f"the tier ends at offset {tier.next_offset} but the hot log at {hot.max_offset}: it lost "
        f"its tail, its topic was recreated unnoticed, or it is not the log that was tiered; "
        f"tiered messages stay readable, nothing more is tiered until the log has caught up with "
        f"the same messages, or until `tieredstore repair {hot.id.topic} {hot.id.queue_id} "
        f"--cut-to-hot`"
    )
