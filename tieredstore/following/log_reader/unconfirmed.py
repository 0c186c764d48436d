"""Messages of a replicated broker's CommitLog that no replica has confirmed, by queue."""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.columns import leading_columns
from provider.errors import Closed
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.record_units import have_unit
from tieredstore.following.log_reader.log_scan import FollowScan, ScanStep


def _int64s() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class _Waiting:
    """Unconfirmed messages of one queue, in the order of the log. 16 bytes each."""

    positions: "array[int]" = field(default_factory=_int64s)
    stamps: "array[int]" = field(default_factory=_int64s)
    """Store timestamps, Unix ms."""


class UnconfirmedScan(FollowScan):
    """Scan of the records after those that count. It finds how many wait, and since when.

    It decodes topic, queue id and store timestamp alone: a third of the cost of a unit. Each
    record is read once, and the scan of confirmed records reads it again later.
    """

    def __init__(self, is_wanted: Callable[[QueueId], bool]) -> None:
        super().__init__()
        self._is_wanted = is_wanted
        self._queues: dict[QueueId, _Waiting] = {}
        self._found: dict[QueueId, _Waiting] = {}
        """Messages that the present `read` has found."""
        self.newest_ms = 0
        """Store timestamp of the newest record that was read, Unix ms."""
        self.has_more = False
        """Whether unconfirmed records were left unread."""

    @property
    def queues(self) -> set[QueueId]:
        """Queues with unconfirmed messages."""
        return set(self._queues)

    def waiting(self, queue: QueueId) -> tuple[int, int]:
        """Return the number of unconfirmed messages, and the first one's store timestamp, Unix ms.

        Both are 0 without such messages.
        """
        waiting = self._queues.get(queue)
        return (len(waiting.stamps), waiting.stamps[0]) if waiting else (0, 0)

    def follow(self, log: CommitLogFiles, confirmed: ScanStep, *, bytes_max: int) -> set[QueueId]:
        """Drop the messages that count now, and read unconfirmed ones after them.

        Args:
            log: the CommitLog.
            confirmed: the last step of the scan of confirmed records.
            bytes_max: as in `read`.

        Returns:
            The queues whose unconfirmed messages changed.

        Raises:
            Unavailable, Denied: the log cannot be read now.
        """
        self.has_more = False
        touched = self._drop_below(confirmed.next)
        if not confirmed.is_cut:
            return touched if not confirmed.is_all else touched | self._clear()
        if self.position < confirmed.next:
            self.position, self.last = confirmed.next, confirmed.last
        try:
            step = self._read_anew(log, bytes_max)
        except Closed:  # an election took them back
            touched |= self._clear()
            self.position, self.last = confirmed.next, confirmed.last
            step = self._read_anew(log, bytes_max)
        self.accept(step)
        self.has_more = not step.is_all
        for queue, found in self._found.items():
            waiting = self._queues.setdefault(queue, _Waiting())
            waiting.positions += found.positions
            waiting.stamps += found.stamps
        return touched | self._found.keys()

    def _read_anew(self, log: CommitLogFiles, bytes_max: int) -> ScanStep:
        self._found = {}
        return self.read(log, None, bytes_max=bytes_max)

    def _decode(
        self,
        window: NDArray[np.uint8],
        place: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        piece: ScanStep,
    ) -> None:
        del piece
        known: dict[tuple[bytes, int], _Waiting | None] = {}
        while len(starts):
            columns, _ = leading_columns(window, starts, sizes)
            count = len(columns.headers)
            rows = np.flatnonzero(have_unit(columns.headers["sys_flag"]))
            for topic_start, topic_end, queue_id, start, stamp in zip(
                columns.topics.starts[rows].tolist(),
                columns.topics.ends[rows].tolist(),
                columns.headers["queue_id"][rows].tolist(),
                starts[rows].tolist(),
                columns.store_timestamps[rows].tolist(),
                strict=True,
            ):
                key = (window[topic_start:topic_end].tobytes(), queue_id)
                if key not in known:
                    known[key] = self._found_of(*key)
                waiting = known[key]
                if waiting is not None:
                    waiting.positions.append(place + start)
                    waiting.stamps.append(stamp)
            if count:
                self.newest_ms = max(self.newest_ms, int(columns.store_timestamps[-1]))
            starts, sizes = starts[count + 1 :], sizes[count + 1 :]  # past one that is not sound

    def _found_of(self, topic: bytes, queue_id: int) -> _Waiting | None:
        queue = QueueId(topic.decode("utf-8", "replace"), queue_id)
        return self._found.setdefault(queue, _Waiting()) if self._is_wanted(queue) else None

    def _drop_below(self, position: int) -> set[QueueId]:
        """Drop the messages below a position. Return their queues. O(queues)."""
        touched: set[QueueId] = set()
        for queue, waiting in list(self._queues.items()):
            count = bisect_left(waiting.positions, position)
            if count:
                touched.add(queue)
                del waiting.positions[:count], waiting.stamps[:count]
                if not waiting.positions:
                    del self._queues[queue]
        return touched

    def _clear(self) -> set[QueueId]:
        touched, self._queues = set(self._queues), {}
        return touched
