"""Runs of queue offsets that follow one another, as scans come by them. Pure."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Runs = list[tuple[int, int]]
"""Queue offsets `[first, behind)`, in order of the log."""


def edges_of_runs(offsets: NDArray[np.int64]) -> list[int]:
    """Which rows begin a run, and the number of rows. O(rows)."""
    return [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]


def add_runs(runs: Runs, offsets: NDArray[np.int64]) -> None:
    """Add the offsets of some more messages, at least one; they may go on with the last run."""
    for first, behind in pairwise(edges_of_runs(offsets)):
        start, end = int(offsets[first]), int(offsets[behind - 1]) + 1
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
