"""Messages before the first one that is known of a queue: looked for in the CommitLog once more."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE, Units
from provider.errors import OutOfRange
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.rebuild.log_units import units_in


class Begin(NamedTuple):
    """Where a queue begins, as far as is known."""

    offset: int
    position: int
    """Where that message lies, or all that was read of the log ends."""


def units_before(
    log: CommitLogFiles, begins: Mapping[QueueId, Begin], findings: list[str]
) -> dict[QueueId, tuple[int, Units]]:
    """First offset and units of the messages that go on where each queue begins.

    Walks every file below those places (see `units_in` for the cost and for `findings`), and takes
    nothing from what was read before. Holds 28 bytes for each message that it finds.

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
            continue  # it went just now
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
    """What follows the last hole of a run and what comes after it: first offset and units."""
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    if len(breaks):
        at = int(breaks[-1]) + 1
        return int(offsets[at]), units[at:]
    if before is not None and before[0] + len(before[1]) == offsets[0]:
        return before[0], np.concatenate([before[1], units], dtype=UNIT_DTYPE)
    return int(offsets[0]), units
