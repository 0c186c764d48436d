"""Queue and flat-file identities, and the rule for names that become path components."""

from collections.abc import Iterable
from enum import IntEnum
from operator import index
from typing import NamedTuple, cast

from provider.names import COMPONENT_BYTES_MAX

_DELETE = 0x7F
_CONTROL_ENDS = (0x20, 0xA0)
_SURROGATES = (0xD800, 0xE000)


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < _CONTROL_ENDS[0] or _DELETE <= code < _CONTROL_ENDS[1]


def _is_surrogate(character: str) -> bool:
    return _SURROGATES[0] <= ord(character) < _SURROGATES[1]


def check_path_component(name: str) -> str | None:
    """Return the reason why `name` is no safe path component. None if it is one. O(length).

    For topics, clusters and brokers: an external name must never lead to another directory, to one
    of our own names (which begin with `@`), or to an error of the file system.
    """
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "it is a relative directory"
    elif name.startswith("@"):
        reason = "it begins with @, which is reserved for the tier's own objects"
    elif "/" in name or "\\" in name:
        reason = "it holds a path separator"
    elif any(map(_is_control, name)):
        reason = "it holds a control character"
    elif any(map(_is_surrogate, name)):
        reason = "it cannot be encoded in UTF-8"
    elif len(name.encode()) > COMPONENT_BYTES_MAX:
        reason = f"it has {len(name.encode())} bytes, more than {COMPONENT_BYTES_MAX}"
    return reason


class QueueId(NamedTuple):
    """Identity of a queue of the broker."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


def queue_counts(queues: Iterable[QueueId]) -> dict[str, int]:
    """Number of queues of each topic, as brokers count them: the highest queue id and 1."""
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return counts


class SegmentType(IntEnum):
    """Type of flat file that a segment belongs to. The numbers are RocketMQ's."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


FLAT_FILES = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
"""Flat files of a queue."""


def named_queue(topic: str, queue_id: int) -> QueueId:
    """Build a queue identity from two arguments. O(1).

    Raises:
        ValueError: the topic is not a str, or the queue id is not a whole number.
    """
    if type(topic) is str and type(queue_id) is int:
        return QueueId(topic, queue_id)
    given = cast("object", topic)
    if not isinstance(given, str):
        raise ValueError(f"the topic is of type {type(topic).__name__}, not str")  # noqa: TRY004 - as other wrong arguments
    return QueueId(topic, whole_number("queue id", queue_id))


def whole_number(name: str, value: int) -> int:
    """Validate an argument as a whole number. True and 1.0 are none. O(1).

    Raises:
        ValueError: it has another type. The error names the argument.
    """
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise ValueError(f"the {name} is of type {type(value).__name__}, not int")
