"""Whether a ConsumeQueue is still the one that was followed, or another one of its name.

A broker that deletes a topic and makes it again counts its offsets from 0, in files of the same
names; inodes and times come again, too. But the CommitLog only grows: every message of the new
queue lies behind all messages of the old one.
"""

from provider.errors import Corrupt, NotFound
from tieredstore.following.queue.files import ConsumeQueueFiles, partition_point


def first_position(files: ConsumeQueueFiles) -> int | None:
    """Where the first message lies in the CommitLog; None while there is none.

    Raises:
        NotFound, Corrupt, Unavailable, Denied: the units cannot be read.
    """
    if not files.run.bases:
        return None
    first = files.first_offset
    unit = files.unit(first)
    if unit.is_filler:
        written = files.written_end(first)
        first = partition_point(first, written, lambda k: not files.unit(k).is_filler)
        if first == written:
            return None
        unit = files.unit(first)
    return unit.position if unit.size else None


def is_made_again(files: ConsumeQueueFiles, end: int, end_position: int) -> bool:
    """Whether the files are another queue's than the one of which `end` messages were seen.

    Args:
        files: as they are now.
        end: the offset after the last message that was seen.
        end_position: where its record ends in the CommitLog; 0: not known, so nothing is told.

    Raises:
        Unavailable, Denied: the units cannot be read now.
    """
    if not end_position or files.first_offset >= end:
        return False
    try:
        position = first_position(files)
    except (NotFound, Corrupt):
        return False  # whoever reads them says so
    return position is not None and position >= end_position


def is_continued(files: ConsumeQueueFiles, end: int, end_position: int) -> bool:
    """Whether the unit before `end` is the one that was seen there; True where it is away.

    Costs one `pread` at most; arguments as for `is_made_again`.

    Raises:
        NotFound, Corrupt, Unavailable, Denied: it cannot be read.
    """
    if not end_position or end <= files.first_offset or not files.has_file(end - 1):
        return True
    unit = files.unit(end - 1)
    return unit.is_filler or unit.position + unit.size == end_position
