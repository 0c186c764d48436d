"""Which offsets the tier and the hot log both have, and which few of them stand for all. Pure."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from container.metadata.records import Gap, Queue
from dispatcher.hot_log import HotQueue
from dispatcher.queue_state import ENDS_A_QUEUE
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class CommonOffsets:
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
