"""Units of missing ConsumeQueue files, rebuilt from the CommitLog and cached."""

from collections.abc import KeysView
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import FILLER_SIZE, UNIT_BYTES, UNIT_DTYPE, ConsumeQueueUnit, Units
from provider.errors import OutOfRange
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.record_units import units_in

MADE_BYTES_MAX = 256 << 20
"""Memory in bytes for rebuilt files of a whole store: 44 files of RocketMQ's usual length. Missing
files are an exception, and rebuilt ones are released once they are tiered."""


class RebuildBudget:
    """Memory budget of the rebuilt units of all queues. Guarded by its callers."""

    def __init__(self, bytes_max: int = MADE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.taken = 0

    def __repr__(self) -> str:
        return f"<RebuildBudget: {self.taken} of {self._bytes_max}>"

    @property
    def room(self) -> int:
        """Bytes that may still be taken."""
        return self._bytes_max - self.taken


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets `[start, end)` of one queue whose files are missing, and their neighbours."""

    start: int
    end: int
    before: ConsumeQueueUnit
    """Unit before the hole."""
    after: ConsumeQueueUnit
    """Good unit after it."""


class MadeFiles:
    """Rebuilt files of one queue, by first byte, within the budget of the store."""

    def __init__(self, budget: RebuildBudget) -> None:
        self.budget = budget
        self._files: dict[int, NDArray[np.uint8]] = {}
        self.findings: list[str] = []
        """Sentences for operators. The poll takes them."""

    def __repr__(self) -> str:
        return f"<MadeFiles: {len(self._files)} files, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._files)

    @property
    def bases(self) -> KeysView[int]:
        """First bytes of the rebuilt files."""
        return self._files.keys()

    @property
    def bytes(self) -> int:
        """Memory of the rebuilt files in bytes."""
        return sum(file.nbytes for file in self._files.values())

    def get(self, base: int) -> NDArray[np.uint8] | None:
        """Return the bytes of one rebuilt file; None if there is none."""
        return self._files.get(base)

    def position_max(self, base: int) -> int:
        """Return the highest record position in one rebuilt file."""
        return int(self._files[base].view(UNIT_DTYPE)["position"].max())

    def make(self, log: CommitLogFiles, queue: QueueId, hole: Hole, file_bytes: int) -> list[int]:
        """Rebuild the files of a hole that begins at a file boundary, up to the last found unit.

        Returns:
            Their first bytes; none if there is no room, or the hole's first record is not found.

        Raises:
            Unavailable, Denied: a CommitLog file cannot be read.
        """
        assert (hole.end - hole.start) * UNIT_BYTES % file_bytes == 0, "holes are of whole files"
        units = units_of_hole(log, queue, hole, self.findings)
        if units is None:
            return []
        last = int(np.flatnonzero(units["size"])[-1])
        raw = units.view(np.uint8)
        start = hole.start * UNIT_BYTES
        bases = list(range(start, start + (last + 1) * UNIT_BYTES, file_bytes))
        for base in bases:
            # one copy each, for a view of them all would keep the memory of dropped ones
            self._files[base] = raw[base - start : base - start + file_bytes].copy()
        self.budget.taken += len(bases) * file_bytes
        assert self.budget.room >= 0, "a hole is no longer than there is room"
        return bases

    def drop(self, base: int) -> None:
        """Release the memory of one rebuilt file."""
        self.budget.taken -= self._files.pop(base).nbytes


def units_of_hole(
    log: CommitLogFiles, queue: QueueId, hole: Hole, findings: list[str]
) -> Units | None:
    """Return the units of a hole up to the first without a record, then zeros; None without any.

    Messages that the broker deleted from the CommitLog have fillers. Reads only the CommitLog files
    between the records before and after the hole; see `units_in` for the cost, and for `findings`.

    Raises:
        Unavailable, Denied: a CommitLog file cannot be read.
    """
    table = log.table
    made: Units = np.zeros(hole.end - hole.start, UNIT_DTYPE)
    was_deleted = hole.before.is_filler or hole.before.position < table.min_position
    low = table.min_position if was_deleted else hole.before.position + hole.before.size
    low = max(low, table.min_position)
    for base in range(table.base_of(low), hole.after.position + 1, table.file_bytes):
        try:
            found_in = units_in(log, base, frozenset({queue}), findings)
        except OutOfRange:
            continue  # its units stay zero
        offsets, units = found_in.get(queue, ((), made[:0]))
        places = np.asarray(offsets, np.int64) - hole.start
        inside = (places >= 0) & (places < len(made))
        made[places[inside]] = units[inside]
        if made["size"][-1]:
            break
    found = np.flatnonzero(made["size"])
    if was_deleted:
        made[: found[0] if len(found) else len(made)] = (0, FILLER_SIZE, 0)
    missing = np.flatnonzero(made["size"] == 0)
    made[missing[0] if len(missing) else len(made) :] = (0, 0, 0)  # a queue stops at its damage
    return made if made["size"][0] else None
