"""Whether a ConsumeQueue is still the one that was followed, or another one of its name.

A broker that deletes a topic and makes it again counts its offsets from 0, in files of the same
names; inodes and times come again, too. But the CommitLog only grows: every message of the new
queue lies behind all messages of the old one.
"""

from contextlib import suppress

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit, Units
from provider.errors import Corrupt, NotFound, OutOfRange
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.queue.files import ConsumeQueueFiles


def first_unit(files: ConsumeQueueFiles) -> tuple[int, ConsumeQueueUnit] | None:
    """Offset and unit of the first message; None while there is none.

    Raises:
        NotFound, Corrupt, Unavailable, Denied: the units cannot be read.
    """
    if not files.run.bases:
        return None
    first = files.first_offset
    unit = files.unit(first)
    if unit.is_filler:
        written = files.written_end(first)
        first = files.after_fillers(first, written)
        if first == written:
            return None
        unit = files.unit(first)
    return (first, unit) if unit.size else None


def names_message(log: CommitLogFiles, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> bool:
    """Whether a unit is of this message, and not damage: its record says so. O(record).

    True where the CommitLog lost that part from its front, so that nothing says otherwise.

    Raises:
        Unavailable, Denied: the record cannot be read now.
    """
    log.reach(unit.position)  # the queue's files were looked at later than the log's
    try:
        log.check(queue, offset, unit)
    except (Corrupt, OutOfRange):
        return unit.position + unit.size <= log.table.min_position
    return True


def before_place(units: Units, end_position: int) -> Units:
    """The units before the first one whose record lies at `end_position` or behind it. Pure."""
    beyond = np.flatnonzero(units["position"] >= end_position)
    return units[: int(beyond[0])] if len(beyond) else units


def is_made_again(
    files: ConsumeQueueFiles,
    log: CommitLogFiles,
    queue: QueueId,
    end: int,
    end_position: int,
    *,
    first: tuple[int, ConsumeQueueUnit] | None = None,
) -> bool:
    """Whether the files are another queue's than the one of which `end` messages were seen.

    A unit that is damaged tells nothing: if the first one is, the one before `end` decides.

    Args:
        files: as they are now.
        log: where the records are.
        queue: whose name the files have.
        end: the offset after the last message that was seen.
        end_position: where its record ends in the CommitLog; 0: not known, so nothing is told.
        first: the `first_unit` of the files, where it was read before: they may be gone by now.

    Raises:
        Unavailable, Denied: the units cannot be read now.
    """
    if not end_position or files.first_offset >= end:
        return False
    last = _unit_at(files, end - 1)
    if last is not None and last.position + last.size == end_position:
        return False
    if first is None:
        with suppress(NotFound, Corrupt):  # whoever reads it says so
            first = first_unit(files)
    if first is not None and names_message(log, queue, *first):
        return first[1].position >= end_position
    if last is None or last.position < end_position:
        return False
    return names_message(log, queue, end - 1, last)


def _unit_at(files: ConsumeQueueFiles, offset: int) -> ConsumeQueueUnit | None:
    """The unit of a message; None where there is none that can be read."""
    if not files.has_file(offset):
        return None
    try:
        unit = files.unit(offset)
    except (NotFound, Corrupt):
        return None  # whoever reads it says so
    return None if unit.is_filler or not unit.size else unit


def is_continued(files: ConsumeQueueFiles, end: int, end_position: int) -> bool:
    """Whether the unit before `end` is the one that was seen there; True where it is away.

    Costs one `pread` at most; arguments as for `is_made_again`.

    Raises:
        NotFound, Corrupt, Unavailable, Denied: it cannot be read.
    """
    if not end_position or end <= files.first_offset or not files.has_file(end - 1):
        return True
    unit = files.unit_now(end - 1)
    return unit.is_filler or unit.position + unit.size == end_position
