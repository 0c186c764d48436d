"""Units of messages whose ConsumeQueue file the broker deleted, made anew from pinned records."""

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.java_hash import tag_hash
from container.record.kernels import encode_units, headers_at
from container.record.layout import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from container.record.message import locate_parts
from container.record.properties import TAGS, decode_properties
from container.record.unit import Units
from container.record.verification import walk_records
from provider.errors import Corrupt, OutOfRange
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles

FILES_KEPT_MAX = 2
"""CommitLog files whose rebuilt units stay in memory: 20 bytes for each of their messages."""

Rebuilt = Mapping[QueueId, tuple[int, Units]]
"""Per queue the first offset in one CommitLog file, and its units."""


def all_units(
    log: CommitLogFiles, base: int, wanted: frozenset[QueueId]
) -> dict[QueueId, tuple[NDArray[np.int64], Units]]:
    """Offsets and units of the `wanted` queues' records in one CommitLog file.

    About 0.3 us for each record of the file, and 10 us for each wanted one.
    Prepared and rolled-back transactions have none. What stands behind a record that cannot be
    read is out of reach.

    Raises:
        OutOfRange, Corrupt, Unavailable, Denied: as `CommitLogFiles.view`.
    """
    view = log.view(base)
    walk = walk_records(view)
    headers = headers_at(view, walk.starts)
    transaction = headers["sys_flag"] & TRANSACTION_MASK
    has_unit = (transaction != TRANSACTION_PREPARED) & (transaction != TRANSACTION_ROLLBACK)
    has_unit &= np.isin(headers["queue_id"], [queue.queue_id for queue in wanted])
    rows = np.flatnonzero(has_unit)
    found: dict[QueueId, list[tuple[int, int, int, int]]] = {}
    data = view.data
    places = zip(walk.starts[rows].tolist(), walk.sizes[rows].tolist(), strict=True)
    for start, size in places:
        raw = data[start : start + size]
        try:
            header, parts = locate_parts(raw, path=log.path_of(base), position=start)
        except Corrupt:
            continue  # the hole that it leaves is seen below
        topic = bytes(raw[parts.topic : parts.topic_end]).decode("utf-8", "replace")
        queue = QueueId(topic, header.queue_id)
        if queue in wanted:
            properties = decode_properties(bytes(raw[parts.properties :]))
            code = tag_hash(properties.get(TAGS, ""))
            row = (header.queue_offset, base + start, size, code)
            found.setdefault(queue, []).append(row)
    columns = {queue: np.array(rows, np.int64) for queue, rows in found.items()}
    return {
        queue: (rows[:, 0], encode_units(rows[:, 1], rows[:, 2], rows[:, 3]))
        for queue, rows in columns.items()
    }


def rebuild(log: CommitLogFiles, base: int, wanted: frozenset[QueueId]) -> Rebuilt:
    """As `all_units`; of a queue whose offsets have a hole, the part behind the hole counts."""
    found = all_units(log, base, wanted)
    return {queue: _last_run(offsets, units) for queue, (offsets, units) in found.items()}


def _last_run(offsets: NDArray[np.int64], units: Units) -> tuple[int, Units]:
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    first = int(breaks[-1]) + 1 if len(breaks) else 0
    return int(offsets[first]), units[first:]


class RebuiltUnits:
    """Which offsets below the ConsumeQueue files can be served, and their units.

    Keeps per file and queue two numbers, and the units of the last two files used. Guarded by
    its caller.
    """

    def __init__(self, log: CommitLogFiles) -> None:
        self._log = log
        self._spans: dict[int, dict[QueueId, tuple[int, int]]] = {}
        self._wanted: frozenset[QueueId] = frozenset()
        self._kept: OrderedDict[int, Rebuilt] = OrderedDict()
        self._growing: int | None = None
        """The walked file that the broker may still have been writing."""

    def __repr__(self) -> str:
        return f"<RebuiltUnits of {len(self._wanted)} queues in {len(self._spans)} files>"

    def floors(self, ends: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, int]:
        """For each queue the first offset from which units reach up to its ConsumeQueue files.

        Args:
            ends: per queue the first offset that its files have, and the position of that
                message in the CommitLog.

        Raises:
            Unavailable, Denied: a file cannot be opened.
        """
        wanted = frozenset(ends)
        if not wanted <= self._wanted:
            self._wanted |= wanted
            self._spans.clear()
            self._kept.clear()
            self._growing = None
        table = self._log.table
        bases = sorted(table.paths)
        highest = max((position for _, position in ends.values()), default=0)
        for base in [base for base in self._spans if base not in table.paths]:
            self._forget(base)
        self._walk(bases, highest)
        found = self._found(ends, bases)
        growing = self._growing
        without = [position for queue, (_, position) in ends.items() if queue not in found]
        if growing is not None and any(position > growing for position in without):
            self._forget(growing)  # it may hold more by now than when it was walked
            self._walk(bases, highest)
            found = self._found(ends, bases)
        return found

    def _walk(self, bases: list[int], highest: int) -> None:
        """Walk the files that begin below `highest` and were not walked."""
        for base in bases:
            if base < highest and base not in self._spans:
                rebuilt = self._rebuilt(base)
                self._spans[base] = {
                    queue: (first, first + len(units)) for queue, (first, units) in rebuilt.items()
                }
                if highest < base + self._log.table.file_bytes:  # else nothing is added any more
                    self._growing = base

    def _forget(self, base: int) -> None:
        self._spans.pop(base, None)
        self._kept.pop(base, None)
        if self._growing == base:
            self._growing = None

    def _found(
        self, ends: Mapping[QueueId, tuple[int, int]], bases: list[int]
    ) -> dict[QueueId, int]:
        return {
            queue: floor
            for queue, (offset, _) in ends.items()
            if (floor := self._floor(queue, offset, bases)) < offset
        }

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Rebuilt units from `start` on, not beyond one CommitLog file.

        Raises:
            OutOfRange: there are none.
            Corrupt, Unavailable, Denied: the file cannot be read.
        """
        for base, spans in self._spans.items():
            first, last = spans.get(queue, (0, 0))
            if first <= start < last:
                begin, units = self._rebuilt(base)[queue]
                return units[start - begin : end - begin]
        raise OutOfRange("its ConsumeQueue file was deleted", str(queue), start)

    def _floor(self, queue: QueueId, offset: int, bases: list[int]) -> int:
        for base in reversed(bases):
            first, last = self._spans.get(base, {}).get(queue, (0, 0))
            if first < offset <= last:
                offset = first
        return offset

    def _rebuilt(self, base: int) -> Rebuilt:
        kept = self._kept.get(base)
        if kept is None:
            try:
                kept = rebuild(self._log, base, self._wanted)
            except (OutOfRange, Corrupt):
                kept = dict[
                    QueueId, tuple[int, Units]
                ]()  # it went, or was truncated: nothing of it can be served
            self._kept[base] = kept
            while len(self._kept) > FILES_KEPT_MAX:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(base)
        return kept
