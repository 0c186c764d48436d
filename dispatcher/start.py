"""Start of a queue, given the ends of the hot log and of the tier. Pure: values in, a step out.

RocketMQ destroys a queue's whole tiered history if the hot log lost messages before they were
tiered. Nothing is ever destroyed here: a hole is recorded, a contradiction halts the queue.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from container.metadata.records import Gap, Queue
from dispatcher.options import Backfill
from dispatcher.ports import (
    DELETED_REASON,
    ENDS_A_QUEUE,
    MADE_AGAIN_REASON,
    TOPIC_DELETED_REASON,
    DeletedQueue,
    HotQueue,
    HotQueueState,
)
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class OverlapSample:
    """The offsets of `[low, end)` that lie in no gap; none if `low >= end`."""

    low: QueueOffset
    """Lies in no gap."""
    end: QueueOffset
    gaps: tuple[Gap, ...] = ()
    """Ranges of offsets that the tier does not have, in order."""

    @classmethod
    def of(cls, hot: HotQueue, tier: Queue) -> Self:
        """What both have of a queue; ends before a gap in which the hot log ends.

        What the tier has of an earlier queue of this name is not common.
        """
        low = _after_gaps(max(hot.min_offset, tier.min_offset, begin_of(tier) or 0), tier.gaps)
        end = min(hot.max_offset, tier.next_offset)
        before = next((gap.start for gap in tier.gaps if gap.start < end < gap.end), end)
        return cls(low, max(before, tier.min_offset), tier.gaps)

    def sampled(self, end: QueueOffset, *, newest: int) -> list[QueueOffset]:
        """The `newest` ones below `end`, those 1, 2, 4, 8 ... below it, and the first; ascending.

        An offset in a gap is replaced by the last one before the gap. Returns at most
        `newest + log2(end - low) + 2` offsets: 24 of a million with `newest` 3.
        """
        reach = end - self.low
        if reach <= 0:
            return []
        distances = {*range(1, min(newest, reach) + 1), reach}
        distances.update(1 << power for power in range(reach.bit_length()))
        return sorted({self._at_or_below(end - back) for back in distances if back <= reach})

    def spread(self, start: QueueOffset, end: QueueOffset, *, count: int) -> list[QueueOffset]:
        """At most `count` offsets of `[start, end)`, evenly spaced, ascending.

        Returns all of them if there are no more than `count`, none only if there are none.
        """
        start = _after_gaps(start, self.gaps)
        room = end - start
        if room <= count:
            steps = range(max(room, 0))
        else:
            steps = [(number + 1) * room // (count + 1) for number in range(count)]
        return sorted({self._at_or_below(start + step) for step in steps})

    def _at_or_below(self, offset: int) -> QueueOffset:
        """The last one at or below `offset`; there must be one."""
        index = bisect_right(self.gaps, offset, key=lambda gap: gap.start) - 1
        while index >= 0 and offset < self.gaps[index].end:
            offset = self.gaps[index].start - 1
            index -= 1
        return QueueOffset(offset)


def begin_of(tier: Queue) -> QueueOffset | None:
    """Where the tier's queue begins behind a deleted one of its name; None if there was none.

    O(gaps).
    """
    return next((gap.end for gap in reversed(tier.gaps) if gap.reason in ENDS_A_QUEUE), None)


def _after_gaps(offset: int, gaps: tuple[Gap, ...]) -> QueueOffset:
    for gap in gaps:
        if gap.start <= offset < gap.end:
            offset = gap.end
    return QueueOffset(offset)


@dataclass(frozen=True, slots=True)
class BeginAt:
    """The tier has nothing: begin at `offset`."""

    offset: QueueOffset


@dataclass(frozen=True, slots=True)
class BeginAtTime:
    """The tier has nothing: begin at the first message not older than this, Unix ms."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RecordGapFirst:
    """`[start, end)` was lost before it was tiered: record that, then resume at `end`.

    A queue that the tier does not have begins at `start`.
    """

    start: QueueOffset
    end: QueueOffset
    reason: str


@dataclass(frozen=True, slots=True)
class TierIsAhead:
    """The tier has messages that the hot log does not have (any more, or yet)."""

    reason: str


@dataclass(frozen=True, slots=True)
class HotLogIsDamaged:
    """The hot log cannot tell how far it goes: neither where to begin, nor whether it lost any."""

    reason: str
    next_offset: QueueOffset
    """Where the tier ends. If it has nothing: where the hot log ends, as far as is known."""
    heals_at: QueueOffset
    """A hot log that reaches this offset can tell, although it is damaged."""


@dataclass(frozen=True, slots=True)
class ResumeAt:
    """Both ends meet at `offset`: resume there if the newest tiered messages agree."""

    offset: QueueOffset


Step = BeginAt | BeginAtTime | RecordGapFirst | TierIsAhead | HotLogIsDamaged | ResumeAt


def decide_step(
    hot: HotQueue, tier: Queue | None, *, backfill: Backfill, now_ms: int, damage: str = ""
) -> Step:
    """What to do first with a queue, given what both sides have.

    `damage` is what was wrong with the messages at the tier's end when they were last read; it
    becomes the reason of a gap that passes over them.

    Offsets of a deleted queue that were not tiered are a gap. A queue that was made again goes on
    above a gap, of one offset if nothing else was lost: what lies before is another queue's.
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
    """What must be recorded of a queue that the broker deleted; None if the usual rules apply."""
    reason = MADE_AGAIN_REASON if deleted.is_made_again else TOPIC_DELETED_REASON
    reached = deleted.start if tier is None else tier.next_offset
    if reached < deleted.end:
        if deleted.end - reached == 1:  # a lost message, and not what parts two queues
            reason = TOPIC_DELETED_REASON
        return RecordGapFirst(reached, deleted.end, reason)
    if not deleted.is_made_again:
        return None if tier is None else ResumeAt(reached)  # nothing can contradict it
    begin = None if tier is None else begin_of(tier)
    if deleted.end > 0 and (begin is None or begin < deleted.end):
        return RecordGapFirst(reached, QueueOffset(reached + 1), reason)
    return None


def _continuation(hot: HotQueue, tier: Queue, damage: str) -> Step:
    """Where a queue goes on that both have."""
    begins_here = tier.next_offset == begin_of(tier)
    if hot.min_offset > tier.next_offset:
        reason = damage or DELETED_REASON
        if begins_here:
            reason = tier.gaps[-1].reason  # it becomes one gap with the one before
        return RecordGapFirst(tier.next_offset, hot.min_offset, reason)
    if begins_here:
        return ResumeAt(tier.next_offset)  # the hot log has not come so far with this queue
    if tier.next_offset > hot.max_offset:
        if hot.state is HotQueueState.DAMAGED:
            return HotLogIsDamaged(hot.detail, tier.next_offset, tier.next_offset)
        return TierIsAhead(ahead_sentence(hot, tier))
    return ResumeAt(tier.next_offset)


def _beginning(hot: HotQueue, backfill: Backfill, now_ms: int) -> BeginAt | BeginAtTime:
    """Where a queue begins that the tier does not have."""
    if backfill == "all" or hot.min_offset == hot.max_offset:
        return BeginAt(hot.min_offset)
    if backfill == "none":
        return BeginAt(hot.max_offset)
    return BeginAtTime(now_ms - int(backfill.total_seconds() * 1000))


def ahead_sentence(hot: HotQueue, tier: Queue) -> str:
    """What a person must know about a tier that is ahead of its hot log."""
    return (
        f"the tier ends at offset {tier.next_offset} but the hot log at {hot.max_offset}: it lost "
        f"its tail, its topic was made again unseen, or it is not the log that was tiered; what is "
        f"tiered stays readable, nothing more is tiered until the log has caught up with the same "
        f"messages, or until `tieredstore repair {hot.id.topic} {hot.id.queue_id} --cut-to-hot`"
    )
