"""What readers of queues without files could not read or trust, and what looks at it came to."""

from collections import deque
from collections.abc import Mapping

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, Unavailable
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.queue.judgement import Doubt, judge_report
from tieredstore.following.reput.logged_queue import LoggedQueue
from tieredstore.following.reput.waiting_units import WaitingUnits


class ReaderReports:
    """Reports of readers, until the message is mended or gone. Any thread may add one."""

    def __init__(self, log: CommitLogFiles, units: WaitingUnits) -> None:
        self._log = log
        self._units = units
        self._new: deque[tuple[QueueId, int, str]] = deque()
        self._open: set[QueueId] = set()

    def __repr__(self) -> str:
        return f"<ReaderReports: {len(self._new)} new, {len(self._open)} open>"

    @property
    def is_any(self) -> bool:
        """Whether one came since the last look."""
        return bool(self._new)

    def add(self, queue: QueueId, offset: int, damage: str) -> None:
        """A reader could not read the message at `offset`, or not trust it, if `damage` says so."""
        self._new.append((queue, offset, damage))

    def forget(self, queue: QueueId) -> None:
        """The queue was deleted: what was reported of it is no other one's."""
        self._open.discard(queue)

    def judge(self, queues: Mapping[QueueId, LoggedQueue]) -> set[QueueId]:
        """Look at the messages that were reported, now or before; returns the queues of all.

        Raises:
            Unavailable, Denied: nothing can be read now.
        """
        for _ in range(len(self._new)):
            name, offset, damage = self._new.popleft()
            queue = queues[name]
            queue.reported, queue.untold = offset, damage or queue.untold
            self._open.add(name)
        touched = set(self._open)
        for name in touched:
            self._judge(queues[name])
            if queues[name].reported is None:
                self._open.remove(name)
        return touched

    def _judge(self, queue: LoggedQueue) -> None:
        offset = queue.reported
        assert offset is not None, "only reported queues are judged"
        queue.unreadable = ""
        try:
            doubt = self._doubtful(queue, offset)
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            queue.unreadable = str(error)
            return
        untold, queue.untold = queue.untold, ""
        is_readable = offset >= queue.start
        queue.damage = judge_report(doubt, is_readable=is_readable, untold=untold)
        if not queue.damage:
            queue.reported = None

    def _doubtful(self, queue: LoggedQueue, offset: int) -> Doubt | None:
        units = self._units.units(queue.number, offset, offset + 1)
        if not len(units):
            return None
        unit = ConsumeQueueUnit(*(int(value) for value in units[0].tolist()))
        try:
            self._log.tags_code(queue.id, offset, unit)
        except (Corrupt, OutOfRange, NotFound) as error:
            return Doubt(offset, unit, str(error))
        return None
