"""Units of ConsumeQueue files that are missing amid others, made anew from the CommitLog."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import FILLER_SIZE, UNIT_DTYPE, ConsumeQueueUnit, Units
from provider.errors import Corrupt, OutOfRange
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.rebuild.below_files import all_units

MADE_BYTES_MAX = 256 << 20
"""Of a whole store: 44 files of RocketMQ's usual length. Missing files are an exception, and what
is made is let go once it is tiered."""


class MadeBytes:
    """How much memory made units of all queues take together. Guarded by its callers."""

    def __init__(self, bytes_max: int = MADE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.taken = 0

    def __repr__(self) -> str:
        return f"<MadeBytes: {self.taken} of {self._bytes_max}>"

    @property
    def room(self) -> int:
        """Bytes that may still be taken."""
        return self._bytes_max - self.taken


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets `[start, end)` of one queue whose files are missing, and their records' places."""

    start: int
    end: int
    before: ConsumeQueueUnit
    """The unit before the hole."""
    behind: ConsumeQueueUnit
    """A good unit behind it."""


def make_units(log: CommitLogFiles, queue: QueueId, hole: Hole) -> NDArray[np.uint8] | None:
    """The bytes of the hole's units; zero where no record was found. None if the first is zero.

    What the broker deleted from the CommitLog has fillers. Walks only the CommitLog files between
    the records before and behind the hole: 0.3 us a record, 10 us for each record of the queue.

    Raises:
        Unavailable, Denied: a CommitLog file cannot be opened.
    """
    table = log.table
    made: Units = np.zeros(hole.end - hole.start, UNIT_DTYPE)
    was_deleted = hole.before.is_filler or hole.before.position < table.min_position
    low = table.min_position if was_deleted else hole.before.position + hole.before.size
    low = max(low, table.min_position)
    for base in range(table.base_of(low), hole.behind.position + 1, table.file_bytes):
        try:
            offsets, units = all_units(log, base, frozenset({queue})).get(queue, ((), made[:0]))
        except (OutOfRange, Corrupt):
            continue  # what it held stays zero
        places = np.asarray(offsets, np.int64) - hole.start
        inside = (places >= 0) & (places < len(made))
        made[places[inside]] = units[inside]
        if made["size"][-1]:
            break
    found = np.flatnonzero(made["size"])
    if was_deleted:
        made[: found[0] if len(found) else len(made)] = (0, FILLER_SIZE, 0)
    return made.view(np.uint8) if len(made) and made["size"][0] else None


def whole_files(made: NDArray[np.uint8], file_bytes: int) -> list[NDArray[np.uint8]]:
    """Made bytes cut into files, up to the last file that holds a unit."""
    files = [made[at : at + file_bytes] for at in range(0, len(made), file_bytes)]
    while files and not files[-1].any():
        files.pop()
    return files
