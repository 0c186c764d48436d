"""What many records have in common, so that it is worked out once."""

from functools import lru_cache

from container.record.header import TOPIC_LENGTHS
from container.record.layout import (
    BORN_HOST_V6,
    HOST_V6_BYTES,
    PROPERTIES_LENGTH_BYTES,
    STORE_HOST_V6,
    RecordLayout,
)

SHAPES_KEPT_MAX = 256
"""Shapes kept in memory: some 200 bytes and two copies of the topic each."""


class RecordShape:
    """What records of one topic share that have the same version and kinds of host."""

    __slots__ = ("after_body_bytes", "host_bits", "layout", "magic", "topic", "topic_part")

    def __init__(self, magic: int, layout: RecordLayout, topic: bytes) -> None:
        """Of records with this topic.

        Raises:
            UnicodeDecodeError: the topic is not UTF-8.
        """
        self.magic = magic
        self.layout = layout
        self.host_bits = BORN_HOST_V6 if layout.born_host_bytes == HOST_V6_BYTES else 0
        self.host_bits |= STORE_HOST_V6 if layout.store_host_bytes == HOST_V6_BYTES else 0
        self.topic = str(topic, "utf-8")
        self.topic_part = TOPIC_LENGTHS[magic].pack(len(topic)) + topic
        """What follows the body: the length of the topic, and the topic."""
        self.after_body_bytes = len(self.topic_part) + PROPERTIES_LENGTH_BYTES
        """Bytes between the body and the properties."""


shape_of = lru_cache(SHAPES_KEPT_MAX)(RecordShape)
"""The shape of a version, a layout and a topic; one object for all records that have it."""
