"""Queues that had a name one after another, told apart by their records in the CommitLog.

A topic may be made again, and deleted again, while messages of the first queue of its name wait.
Nothing but the log tells of those in between: their ConsumeQueues came and went. Everything behind
what waits is pinned, so that all their records are there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import Units
from provider.errors import OutOfRange
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.rebuild.log_units import units_in


@dataclass(frozen=True, slots=True)
class Life:
    """The messages `[start, end)` of one queue; some in between may be missing."""

    start: int
    end: int
    position: int
    """Where the first of them lies in the CommitLog."""
    end_position: int
    """Where the last of them ends."""
    goes_on: bool
    """Whether they are of the queue that was known to end before them."""


def lives_behind(
    log: CommitLogFiles,
    queue: QueueId,
    place: int,
    bound: int,
    *,
    end: int,
    findings: list[str],
) -> list[Life]:
    """The queues of a name whose records lie in `[place, bound)` of the CommitLog; oldest first.

    Offsets that fall begin another queue, for a queue's ascend in the log. What lies behind a hole
    at the end of the known queue belongs to none: that one was damaged there.

    Args:
        log: where the records are.
        queue: the name.
        place: where the last message of the known queue of this name ends.
        bound: where to end.
        end: the offset after that message.
        findings: takes sentences for people.

    Raises:
        Unavailable, Denied: a CommitLog file cannot be read.
    """
    found: list[Life] = []
    for run in _runs(log, queue, place, bound, findings):
        last = found[-1] if found else None
        reached = end if last is None else last.end
        if run.start < reached:
            found.append(run)
        elif last is not None:
            found[-1] = replace(last, end=run.end, end_position=run.end_position)
        elif run.start == end:
            found.append(replace(run, goes_on=True))
    return found


def _runs(
    log: CommitLogFiles, queue: QueueId, place: int, bound: int, findings: list[str]
) -> Iterator[Life]:
    """Messages whose offsets follow one another, in the order of the log."""
    base = log.table.base_of(max(place, log.table.min_position))
    while base < min(bound, log.table.end):
        try:
            rows = units_in(log, base, frozenset({queue}), findings).get(queue)
        except OutOfRange:
            rows = None  # it went
        if rows is not None:
            yield from _runs_of(*rows, place, bound)
        base += log.table.file_bytes


def _runs_of(offsets: NDArray[np.int64], units: Units, place: int, bound: int) -> Iterator[Life]:
    own = (units["position"] >= place) & (units["position"] < bound)
    offsets, units = offsets[own], units[own]
    edges = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    for begin, stop in pairwise(edges):
        if begin < stop:
            last = units[stop - 1]
            yield Life(
                int(offsets[begin]),
                int(offsets[stop - 1]) + 1,
                int(units["position"][begin]),
                int(last["position"]) + int(last["size"]),
                goes_on=False,
            )
