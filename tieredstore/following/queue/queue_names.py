"""Whether the directory of a queue was deleted: what only a name that is gone tells."""

import os
from collections.abc import Collection
from pathlib import Path

from container.names.queue_id import QueueId


class QueueNames:
    """The names of queues below the directory of all ConsumeQueues. One thread at a time.

    A directory that is away is a deletion only while the directory of all ConsumeQueues is the one
    that it was: a volume that is not mounted deletes nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._place: tuple[int, int] | None = None
        """Device and inode of the directory in which queues were seen last."""

    def __repr__(self) -> str:
        return f"<QueueNames of {self._root}>"

    def gone(self, known: Collection[QueueId], found: Collection[QueueId]) -> list[QueueId]:
        """Which of the known queues were deleted, given all that a look at the directories found.

        One `stat`, and one for each queue that was not found.
        """
        away = set(known).difference(found)
        place = _place_of(self._root)
        if place is None:
            return []
        if place != self._place:
            if len(away) < len(known) or not known:
                self._place = place
            return []
        return self._without_name(away)

    def vanished(self, away: Collection[QueueId]) -> list[QueueId]:
        """Which of the queues that a look did not find were deleted, after `gone`."""
        if not away or _place_of(self._root) != self._place:
            return []
        return self._without_name(away)

    def _without_name(self, away: Collection[QueueId]) -> list[QueueId]:
        return sorted(queue for queue in away if not self._stands(queue))

    def _stands(self, queue: QueueId) -> bool:
        """Whether the queue's directory may be there: only a name that is gone says that it is not.

        A link to nowhere stands, be it the queue's or its topic's, and what may not be looked at.
        """
        topic = self._root / queue.topic
        try:
            os.lstat(topic / str(queue.queue_id))
        except FileNotFoundError:
            return topic.is_symlink() and not os.path.exists(topic)  # noqa: PTH110 - False for errors
        except OSError:
            return True
        return True


def _place_of(directory: Path) -> tuple[int, int] | None:
    """Device and inode; None where it cannot be looked at."""
    try:
        status = os.stat(directory)  # noqa: PTH116 - often called
    except OSError:
        return None
    return status.st_dev, status.st_ino
