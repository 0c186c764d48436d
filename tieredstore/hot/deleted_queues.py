"""`config/deletedQueues.json`: deleted queues, of which the CommitLog may still have records.

Of each it has the offset at which a queue of that name goes on, and the CommitLog position below
which no record is a message of it any more. The file is ours; a Java broker does not look at it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.presence import is_there
from tieredstore.hot.files import replace_file


class DeletedQueue(NamedTuple):
    """The last queue of a name that was deleted."""

    next_offset: int
    """The offset after its last message: where the next queue of that name begins."""
    position: int
    """Where the CommitLog ended: records of the name below it are of deleted queues."""


class DeletedQueues(Mapping[QueueId, DeletedQueue]):
    """The file, replaced as a whole when queues are deleted. One thread at a time changes it."""

    def __init__(self, path: Path) -> None:
        """Read it; there are none where it is not there.

        Raises:
            Corrupt: it is not what was written.
            OSError: it cannot be read.
        """
        self._path = path
        self._queues = _parsed(path.read_bytes(), path) if is_there(path) else {}

    def __repr__(self) -> str:
        return f"<DeletedQueues {self._path}: {len(self)} queues>"

    def __getitem__(self, queue: QueueId) -> DeletedQueue:
        return self._queues[queue]

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def has_record(self, queue: QueueId, position: int) -> bool:
        """Whether the record of `queue` at `position` is a deleted message."""
        deleted = self._queues.get(queue)
        return deleted is not None and position < deleted.position

    def replace(self, queues: Mapping[QueueId, DeletedQueue]) -> None:
        """Have these in the file and no others. Durable afterwards.

        Raises:
            OSError: it cannot be written; the old file is there.
        """
        rows = [
            {"topic": topic, "queueId": queue_id, "nextOffset": offset, "position": position}
            for (topic, queue_id), (offset, position) in sorted(queues.items())
        ]
        raw = json.dumps({"queues": rows}, ensure_ascii=False, indent="\t").encode()
        replace_file(self._path, raw)
        self._queues = dict(queues)

    def still_needed(
        self, alive: Mapping[QueueId, int], min_position: int
    ) -> dict[QueueId, DeletedQueue]:
        """Those that a start has to know: none that is there again and whose old records are gone.

        Args:
            alive: queues that are there.
            min_position: first byte of the CommitLog that is there.
        """
        return {
            queue: one
            for queue, one in self._queues.items()
            if queue not in alive or one.position > min_position
        }


def _parsed(raw: bytes, path: Path) -> dict[QueueId, DeletedQueue]:
    try:
        rows: list[dict[str, Any]] = json.loads(raw)["queues"]
        return {
            QueueId(str(row["topic"]), int(row["queueId"])): DeletedQueue(
                int(row["nextOffset"]), int(row["position"])
            )
            for row in rows
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"the deleted queues cannot be read ({type(error).__name__}: {error}): without them"
            " their messages would be back; restore the file from a backup",
            str(path),
        ) from error
