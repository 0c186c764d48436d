"""Notices that the CommitLog of a followed broker grew, by 8 bytes at its known end."""

from container.record.blank import BLANK_MAGIC, BlankRecord
from container.record.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from provider.errors import Corrupt, NotFound
from tieredstore.following.log.commit_log import CommitLogFiles

STEPS_MAX = 4096
"""Records that one look passes over; what is beyond shows as growth once more."""


class CommitLogTail:
    """Where the next record will begin. Only a hint: growth that it misses is found by time."""

    def __init__(self) -> None:
        self.position = 0
        self._signature = b""

    def __repr__(self) -> str:
        return f"<CommitLogTail at {self.position}>"

    def has_grown(self, log: CommitLogFiles) -> bool:
        """Whether something stands at the end that did not stand there before. One small read.

        Raises:
            Unavailable, Denied: the file cannot be read right now.
        """
        return self._read(log, self.position) != self._signature

    def reach(self, log: CommitLogFiles, at_least: int) -> bool:
        """Go to `at_least` and over the records from there; whether the end moved.

        Raises:
            Unavailable, Denied: as `has_grown`.
        """
        before = (self.position, self._signature)
        place = max(self.position, at_least, log.table.min_position)
        signature = self._read(log, place)
        for _ in range(STEPS_MAX):
            step = _step(signature)
            if not step:
                break
            base = log.table.base_of(place)
            place = min(place + step, base + log.table.file_bytes)
            signature = self._read(log, place)
        self.position, self._signature = place, signature
        return (place, signature) != before

    def _read(self, log: CommitLogFiles, position: int) -> bytes:
        try:
            return log.peek(position, BlankRecord.SIZE)
        except (NotFound, Corrupt):
            return b""  # no file there yet, or it went: the directories tell


def _step(signature: bytes) -> int:
    """Length of what begins with these bytes; 0 if it is nothing whole."""
    if len(signature) < BlankRecord.SIZE:
        return 0
    size, magic = BlankRecord.LAYOUT.unpack(signature)
    if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN:
        return size
    return size if magic == BLANK_MAGIC and size >= BlankRecord.SIZE else 0
