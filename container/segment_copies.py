"""The life of a segment copy: which states follow which, and which copy is the one to read.

The four states and their transitions are Kafka's (KIP-405). The rule of `referenced` is ours: it
does not depend on the order in which copies finished, and leaves no covered offset unreadable.
"""

from collections.abc import Sequence
from typing import NamedTuple

from container.tier_records import CopyState

LEGAL_NEXT: dict[CopyState | None, frozenset[CopyState]] = {
    None: frozenset({CopyState.COPY_STARTED}),
    CopyState.COPY_STARTED: frozenset(
        {CopyState.COPY_STARTED, CopyState.COPY_FINISHED, CopyState.DELETE_STARTED}
    ),
    CopyState.COPY_FINISHED: frozenset({CopyState.COPY_FINISHED, CopyState.DELETE_STARTED}),
    CopyState.DELETE_STARTED: frozenset({CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED}),
    CopyState.DELETE_FINISHED: frozenset({CopyState.DELETE_FINISHED}),
}
"""Where a copy may go from each state; None stands for a copy that is not known yet."""


def is_legal(now: CopyState | None, wanted: CopyState) -> bool:
    """Whether a copy in state `now` may move to `wanted`; staying is legal once it is known."""
    return wanted in LEGAL_NEXT[now]


class SegmentCopy(NamedTuple):
    """One copy of the bytes `[start, end)` of a flat file, as far as the rule needs it."""

    start: int
    end: int
    epoch: int
    """Epoch of the owner that wrote it; of two equal ranges the newer owner's is read."""
    copy_id: str
    """Settles what is equal otherwise: the smaller one is read."""
    state: CopyState = CopyState.COPY_FINISHED


def referenced(copies: Sequence[SegmentCopy]) -> list[SegmentCopy]:
    """The copies to read, by start: finished ones that no other finished one contains.

    Pure. Starts and ends of the result both strictly increase, so the copy for a position is the
    last one that starts at or below it, wherever any finished copy covers the position. Ties
    (equal ranges) go to the higher epoch, then to the smaller id. O(n log n).
    """
    finished = [
        copy for copy in copies if copy.state == CopyState.COPY_FINISHED and copy.end > copy.start
    ]
    # Sorted so that whatever contains a copy, or wins a tie against it, comes before it.
    finished.sort(key=lambda copy: (copy.start, -copy.end, -copy.epoch, copy.copy_id))
    chosen: list[SegmentCopy] = []
    for copy in finished:
        if not chosen or copy.end > chosen[-1].end:
            chosen.append(copy)
    return chosen


def superseded(copies: Sequence[SegmentCopy]) -> list[SegmentCopy]:
    """Finished copies that are not read: deletable after a grace time."""
    chosen = set(referenced(copies))
    return [copy for copy in copies if copy.state == CopyState.COPY_FINISHED and copy not in chosen]
