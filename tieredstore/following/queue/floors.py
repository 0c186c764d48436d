"""How far below its ConsumeQueue files each queue can still be read, thanks to pinned files."""

from collections.abc import Mapping

from container.names.queue_id import QueueId
from container.record.unit import Units
from provider.errors import Corrupt, Denied, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.queue.files import ConsumeQueueFiles
from tieredstore.following.rebuild.below_files import RebuiltUnits


class Floors:
    """The floor of a queue is the first offset for which units were made anew; most have none.

    A broker deletes ConsumeQueue files together with the CommitLog files that we may have pinned.
    Guarded by its caller.
    """

    def __init__(self, log: CommitLogFiles) -> None:
        self._log = log
        self._rebuilt = RebuiltUnits(log)
        self._floors: dict[QueueId, int] = {}
        self._found_for: dict[QueueId, int] = {}
        """First offset of each queue's files when the floors were looked for."""

    def __repr__(self) -> str:
        return f"<Floors of {len(self._floors)} queues, {self._rebuilt}>"

    def find(self, queues: Mapping[QueueId, ConsumeQueueFiles]) -> dict[QueueId, StoreError]:
        """Look for the floors of all queues anew; returns why some could not be looked for.

        A unit of each queue whose first file went, and what `RebuiltUnits.floors` costs.

        Raises:
            Unavailable, Denied: nothing can be read now.
        """
        ends: dict[QueueId, tuple[int, int]] = {}
        unread: dict[QueueId, StoreError] = {}
        self._found_for = {queue: files.first_offset for queue, files in queues.items()}
        for queue, first in self._found_for.items():
            if not first:
                continue
            try:
                unit = queues[queue].look(first, 1)
            except (Unavailable, Denied, Corrupt) as error:
                if is_of_the_process(error):
                    raise
                unread[queue] = error
                continue
            has_unit = len(unit) > 0 and int(unit["size"][0]) > 0
            position = int(unit["position"][0]) if has_unit else self._log.table.end
            if position > self._log.table.min_position:
                ends[queue] = (first, position)
        self._floors = self._rebuilt.floors(ends) if ends else {}
        return unread

    def is_stale(self, queue: QueueId, files: ConsumeQueueFiles) -> bool:
        """Whether files of the queue went since floors were looked for."""
        first = files.first_offset
        return first != self._found_for.get(queue, first)

    def of(self, queue: QueueId) -> int | None:
        """The queue's floor; None if it has none."""
        return self._floors.get(queue)

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Units from `start` on, below the queue's files; see `RebuiltUnits.units`."""
        return self._rebuilt.units(queue, start, end)
