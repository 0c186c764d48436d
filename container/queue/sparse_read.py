"""Reading a few records that lie far apart in a queue, in two rounds of requests."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Segment
from container.queue.message_queue_container import MessageQueueContainer
from container.record.blank import BLANK_MAGIC, Coda
from container.record.layout import MAGIC_AT
from container.record.unit import UNIT_BYTES, Units
from container.record.verification import leading_good_units
from provider.errors import Corrupt
from provider.ranges import ByteRange, QueueOffset

NEAR_UNITS = 4096 // UNIT_BYTES
"""Units with no more than a page of others between them are read in one range."""
_MAGIC = slice(MAGIC_AT, MAGIC_AT + 4)
_BLANK = BLANK_MAGIC.to_bytes(4, "big")


async def read_records_at(
    container: MessageQueueContainer,
    offsets: Sequence[QueueOffset],
    *,
    bytes_max: int,
    history: bool,
) -> list[bytes | None]:
    """The records at `offsets` as tiered: the leading ones that fit into `bytes_max` together.

    At least one, however large it is. Costs two `read_many` of the store with a range for each
    run of neighbours, and one more where units point at codas of an old Java tier; with `history`,
    also a request for each manifest that is needed and not cached, and such a manifest grows with
    the queue's history.

    Args:
        container: the queue.
        offsets: at least one, ascending, published, and in no gap.
        bytes_max: of records.
        history: also those in segments that only a manifest names; else None stands for them.

    Raises:
        OutOfRange, NotFound, Unavailable: as `MessageQueueContainer.units`.
        Corrupt: a unit cannot be that of a record.
    """
    queue = container.record
    old = 0
    if not history:
        old = bisect_left(offsets, _known_from(queue.consume_queue), key=_unit_position)
    if old == len(offsets):
        return [None] * old
    units = await _units_at(container, offsets[old:])
    starts, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
    good = leading_good_units(starts, sizes)
    if good < len(units):
        reason = f"impossible unit at {offsets[old + good]}: {units[good]}"
        raise Corrupt(reason, str(container.id))
    if not history:
        unknown = int(np.searchsorted(starts, _known_from(queue.commit_log)))
        starts, sizes, old = starts[unknown:], sizes[unknown:], old + unknown
    if not len(starts):
        return [None] * old
    fitting = max(1, int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")))
    starts, sizes = starts[:fitting], sizes[:fitting]
    records = await _records(container, starts, sizes)
    at_codas = [n for n, record in enumerate(records) if record[_MAGIC] == _BLANK]
    if at_codas:  # the records that are meant lie behind them
        behind = await _records(container, starts[at_codas] + Coda.SIZE, sizes[at_codas])
        for number, record in zip(at_codas, behind, strict=True):
            records[number] = record
    return [*[None] * old, *records]


def _known_from(segments: Sequence[Segment]) -> int:
    """First byte of a flat file that is found without a manifest."""
    return segments[0].base if segments else 0


def _unit_position(offset: QueueOffset) -> int:
    return offset * UNIT_BYTES


async def _records(
    container: MessageQueueContainer, starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> list[bytes]:
    spans = [
        ByteRange(start, start + size)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    wanted: list[ByteRange] = []
    for span in spans:  # those that touch are one
        if wanted and wanted[-1].end == span.start:
            wanted[-1] = ByteRange(wanted[-1].start, span.end)
        else:
            wanted.append(span)
    logs = await container.log_many(wanted)
    return [
        bytes(memoryview(log)[span.start - part.start : span.end - part.start])
        for part, log in zip(wanted, logs, strict=True)
        for span in spans
        if part.start <= span.start < part.end
    ]


async def _units_at(container: MessageQueueContainer, offsets: Sequence[QueueOffset]) -> Units:
    gap_ends = [gap.end for gap in container.gaps]
    runs: list[tuple[QueueOffset, QueueOffset]] = []
    for offset in offsets:
        next_offset = QueueOffset(offset + 1)
        # A gap has no units to read along.
        if (
            runs
            and offset - runs[-1][1] <= NEAR_UNITS
            and bisect_right(gap_ends, runs[-1][0]) == bisect_right(gap_ends, offset)
        ):
            runs[-1] = (runs[-1][0], next_offset)
        else:
            runs.append((offset, next_offset))
    units = np.concatenate(await container.units_many(runs))
    places = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in runs])
    return units[np.searchsorted(places, offsets)]
