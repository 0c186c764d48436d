"""The `checkpoint` of a store directory: up to which messages things were durable."""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Self

RESCAN_MS = 3000
"""How much older than the checkpoint the first message of a file is where a rescan begins."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store timestamps in Unix ms of the last messages that were durable in each place.

    The fields are in byte order; all are big-endian and signed, 8 bytes each.
    """

    log_timestamp: int = 0
    """In the CommitLog."""
    queues_timestamp: int = 0
    """In the ConsumeQueues."""
    index_timestamp: int = 0
    """In the key index; 0: there is none."""
    master_flushed_position: int = 0
    confirm_position: int = 0
    durable_end: int = -1
    """Position before which records and their units were durable; -1: not known.

    This and the next are ours, at the end of the file, with a copy of the first two timestamps:
    where a broker wrote those meanwhile, ours say nothing any more.
    """
    queues: int = -1
    """How many queues there were."""
    is_foreign: bool = False
    """Whether another program wrote the file after we did."""
    has_ends: bool = False
    """Whether `durableEnds` is there, too: it was not before that file was introduced."""

    LAYOUT: ClassVar[Struct] = Struct(">5q")
    OURS: ClassVar[Struct] = Struct(">8s4q")
    MAGIC: ClassVar[bytes] = b"hot log1"
    ENDS: ClassVar[bytes] = b"has ends"
    """Before `OURS`."""
    SIZE: ClassVar[int] = 4096

    def encode(self) -> bytes:
        """The file's bytes: the fields, and zeros."""
        fields = self.LAYOUT.pack(
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_position,
            self.confirm_position,
        )
        ours = self.OURS.pack(
            self.MAGIC, self.log_timestamp, self.queues_timestamp, self.durable_end, self.queues
        )
        ends = self.ENDS if self.has_ends else b""
        return fields + (ends + ours).rjust(self.SIZE - len(fields), b"\0")

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Read the file; one that is too short says nothing, which only makes a rescan longer."""
        if len(raw) < cls.LAYOUT.size:
            return cls()
        fields = cls.LAYOUT.unpack_from(raw)
        if len(raw) != cls.SIZE:
            return cls(*fields)
        magic, *copied, end, queues = cls.OURS.unpack_from(raw, cls.SIZE - cls.OURS.size)
        if magic != cls.MAGIC:
            return cls(*fields)
        if tuple(copied) != fields[:2]:
            return cls(*fields, is_foreign=True)
        has_ends = raw[: -cls.OURS.size].endswith(cls.ENDS)
        return cls(*fields, durable_end=end, queues=queues, has_ends=has_ends)

    @property
    def rescan_before(self) -> int:
        """A rescan may begin at any file whose first message is not younger than this, Unix ms."""
        return max(min(self.log_timestamp, self.queues_timestamp) - RESCAN_MS, 0)


assert Checkpoint.LAYOUT.size == 40, "an on-disk format never drifts"  # noqa: PLR2004 - the format's
