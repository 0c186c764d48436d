"""Which queue, and which of its flat files: what every path in a tier names."""

from enum import IntEnum
from typing import NamedTuple


class QueueId(NamedTuple):
    """One queue of the broker."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class SegmentType(IntEnum):
    """Which flat file a segment belongs to; the numbers are RocketMQ's."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


FLAT_FILES = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
"""The flat files of a queue."""
