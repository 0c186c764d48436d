"""Notices that the CommitLog of a followed broker grew, by 8 bytes at its known end."""

from typing import NamedTuple

from container.record.blank import BLANK_MAGIC, BlankRecord
from container.record.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from provider.errors import Corrupt, Denied, NotFound, Unavailable
from tieredstore.following.file_errors import is_of_the_process
from tieredstore.following.log.commit_log import CommitLogFiles

PASSED_MAX = 256
"""Records whose places are remembered between two calls of `take_passed`."""
STEPS_MAX = PASSED_MAX + 1
"""Records that one look passes over; what is beyond shows as growth once more. With more of them
all queues are looked at, whose units tell the end at once."""


class Passed(NamedTuple):
    """What the tail went over."""

    records: list[tuple[int, int]]
    """Position and size of each."""
    is_all: bool
    """Whether those are all; else there were more, or what was passed was not looked at."""


class CommitLogTail:
    """Where the next record will begin. Only a hint: growth that it misses is found by time."""

    def __init__(self) -> None:
        self.position = 0
        self._signature = b""
        self._passed: list[tuple[int, int]] = []
        self._passed_all = False

    def __repr__(self) -> str:
        return f"<CommitLogTail at {self.position}>"

    def has_grown(self, log: CommitLogFiles) -> bool:
        """Whether something stands at the end that did not stand there before. One small read.

        Where its file cannot be read, nothing shows.

        Raises:
            Unavailable: no file can be read right now.
        """
        return self._read(log, self.position) != self._signature

    def reach(self, log: CommitLogFiles, at_least: int) -> bool:
        """Go to `at_least` and over the records from there; whether the end moved.

        Raises:
            Unavailable: as `has_grown`.
        """
        before = (self.position, self._signature)
        place = max(self.position, at_least, log.table.min_position)
        self._passed_all &= place == self.position
        signature = self._read(log, place)
        for _ in range(STEPS_MAX):
            step = _step(signature)
            if not step:
                break
            self._note(place, signature)
            base = log.table.base_of(place)
            place = min(place + step, base + log.table.file_bytes)
            signature = self._read(log, place)
        if _step(signature):
            signature = b""  # as if nothing stood there: what does is growth
        self.position, self._signature = place, signature
        return (place, signature) != before

    def stand(self, log: CommitLogFiles, position: int) -> None:
        """Go to `position`, up to which the caller read all records himself. One small read.

        Raises:
            Unavailable: as `has_grown`.
        """
        self.position, self._signature = position, self._read(log, position)

    def take_passed(self) -> Passed:
        """The records that were passed since the last call."""
        passed = Passed(self._passed, self._passed_all)
        self._passed, self._passed_all = [], True
        return passed

    def _note(self, place: int, signature: bytes) -> None:
        size, magic = BlankRecord.LAYOUT.unpack(signature)
        if magic == BLANK_MAGIC or not self._passed_all:
            return
        self._passed.append((place, size))
        self._passed_all = len(self._passed) <= PASSED_MAX

    def _read(self, log: CommitLogFiles, position: int) -> bytes:
        try:
            return log.peek(position, BlankRecord.SIZE)
        except (NotFound, Corrupt):
            return b""  # no file there yet, or it went: the directories tell
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            return b""  # whose messages lie in that file is told by a look at all queues


def _step(signature: bytes) -> int:
    """Length of what begins with these bytes; 0 if it is nothing whole."""
    if len(signature) < BlankRecord.SIZE:
        return 0
    size, magic = BlankRecord.LAYOUT.unpack(signature)
    if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN:
        return size
    return size if magic == BLANK_MAGIC and size >= BlankRecord.SIZE else 0
