"""The names of our index files: RocketMQ's, with a base that is never used twice."""

from typing import NamedTuple, Self

from container.names.queue_id import SegmentType
from container.names.rocketmq import INDEX_QUEUE, parse_segment_name

NUMBER_BITS = 42
"""4 TiB of index files of RocketMQ's own, and some 2 million owners, have room below 2**63."""


INDEX_PREFIX = f"{INDEX_QUEUE}/{SegmentType.INDEX.name}/"
"""Where all index files lie, RocketMQ's and ours."""


class IndexBase(NamedTuple):
    """Where a file lies in the flat file of all index files: which one it is of which owner.

    RocketMQ's files follow each other there; it reads them whether they do or not. Bases of files
    that it made are lower than those of the first owner, so their epoch is 0.
    """

    epoch: int
    """Of the owner that wrote it."""
    number_of_owner: int
    """Which of that owner's files it is, from 1."""

    @property
    def number(self) -> int:
        """The base, in bytes."""
        return self.epoch << NUMBER_BITS | self.number_of_owner

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What an object's name says; None if it is not an index file's."""
        parsed = parse_segment_name(name)
        if parsed is None or parsed.type is not SegmentType.INDEX:
            return None
        return cls(parsed.base >> NUMBER_BITS, parsed.base & ((1 << NUMBER_BITS) - 1))
