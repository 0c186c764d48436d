"""The life of a segment copy: which states follow which.

The four states and their transitions are Kafka's (KIP-405). Readers read the finished copies
(`Segment.is_readable`); those of a flat file join (I3, I4), so none contains another.
"""

from container.metadata.records import CopyState

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
