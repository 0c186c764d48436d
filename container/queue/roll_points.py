"""Roll points of an append: boundaries of segments and extents from sizes and times."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Cut(NamedTuple):
    """Items `[first, last)` of an append that belong to one run of bytes."""

    start: int
    """First byte of the run in the flat file. It precedes the append if the run was already open.
    """
    first: int
    last: int


class AgeRule(NamedTuple):
    """Close a run before an item that is younger than its oldest by more than `age_ms`."""

    timestamps: NDArray[np.int64]
    """Store timestamp of each item, Unix ms."""
    open_begin_timestamp: int | None
    """Smallest timestamp in the open run. None without an open run."""
    age_ms: int
    bytes_min: int
    """A run shorter than this, in bytes, is not closed for its age ..."""
    age_ms_max: int | None = None
    """... unless this age, in ms, is exceeded. None: no such limit."""


def cut_runs(
    ends: NDArray[np.int64],
    begin: int,
    *,
    open_start: int,
    bytes_max: int,
    age: AgeRule | None = None,
) -> list[Cut]:
    """Split items that end at `ends`, the first from `begin` on, into runs of `bytes_max`.

    The open run, which began at `open_start <= begin`, is continued as far as possible. An item
    longer than `bytes_max` gets a run of its own.
    """
    cuts: list[Cut] = []
    first, start, count = 0, open_start, len(ends)
    oldest = age.open_begin_timestamp if age is not None and open_start < begin else None
    while first < count:
        item_begin = begin if first == 0 else int(ends[first - 1])
        last = int(np.searchsorted(ends, start + bytes_max, side="right"))
        if age is not None:
            last = min(
                last, _first_too_young(ends, begin, first, start=start, oldest=oldest, age=age)
            )
        if last <= first:
            if start < item_begin:  # it does not fit after the existing bytes
                start, oldest = item_begin, None
                continue
            last = first + 1
        cuts.append(Cut(start, first, last))
        first, start, oldest = last, int(ends[last - 1]), None
    return cuts


def _first_too_young(
    ends: NDArray[np.int64],
    begin: int,
    first: int,
    *,
    start: int,
    oldest: int | None,
    age: AgeRule,
) -> int:
    """Index of the first item from `first` on that the age rule excludes from the run."""
    stamps = age.timestamps[first:]
    running = np.minimum.accumulate(stamps)
    before = np.concatenate(([stamps[0] if oldest is None else oldest], running[:-1]))
    if oldest is not None:
        before = np.minimum(before, oldest)
    begins = np.concatenate(([begin if first == 0 else int(ends[first - 1])], ends[first:-1]))
    out = (stamps - before > age.age_ms) & (begins - start >= age.bytes_min)
    if age.age_ms_max is not None:
        out |= stamps - before > age.age_ms_max
    out &= begins > start
    return first + int(np.argmax(out)) if out.any() else len(ends)
