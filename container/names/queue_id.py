"""Which queue, and which of its flat files: what every path in a tier names."""

from enum import IntEnum
from operator import index
from typing import NamedTuple, cast


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


def named_queue(topic: str, queue_id: int) -> QueueId:
    """The queue that two arguments name. O(1).

    Raises:
        ValueError: the topic is no text, or the queue id no whole number.
    """
    if type(topic) is str and type(queue_id) is int:
        return QueueId(topic, queue_id)
    given = cast("object", topic)
    if not isinstance(given, str):
        raise ValueError(f"the topic is of type {type(topic).__name__}, not str")  # noqa: TRY004 - as other wrong arguments
    return QueueId(topic, whole_number("queue id", queue_id))


def whole_number(name: str, value: int) -> int:
    """The value of an argument that is a whole number; True and 1.0 are none. O(1).

    Raises:
        ValueError: it is another type; names the argument.
    """
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise ValueError(f"the {name} is of type {type(value).__name__}, not int")
