"""Records without a message: the end of a local CommitLog file, and the old segment coda."""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Self

from provider.errors import Corrupt
from provider.object_store import Buffer

BLANK_MAGIC = 0xCBD4_3194
"""Magic code of blanks and codas, in the place of a record's magic code."""


@dataclass(frozen=True, slots=True)
class BlankRecord:
    """End of a local CommitLog file. The next record did not fit and is in the next file.

    Only these 8 bytes are written. The rest of the file is arbitrary.
    """

    size: int
    """Bytes from here to the end of the file. 4 bytes, >= 8."""

    LAYOUT: ClassVar[Struct] = Struct(">iI")
    SIZE: ClassVar[int] = 8

    def encode(self) -> bytes:
        """Return the 8 bytes."""
        return self.LAYOUT.pack(self.size, BLANK_MAGIC)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the blank at `position` of `path`.

        Raises:
            Corrupt: the bytes are not a blank record.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"blank record has {len(raw)} of {cls.SIZE} bytes", path, position)
        size, magic = cls.LAYOUT.unpack(raw)
        if magic != BLANK_MAGIC or size < cls.SIZE:
            raise Corrupt(f"no blank record: size={size} magic={magic:#x}", path, position)
        return cls(size)


@dataclass(frozen=True, slots=True)
class Coda:
    """End of a sealed tier CommitLog segment, as written by RocketMQ 5.1.0 to 5.2.0.

    Part of the segment: the next segment's base lies after it. This program reads codas and never
    writes them.
    """

    end_timestamp: int
    """Store timestamp of the segment's last message, Unix ms. 8 bytes."""

    LAYOUT: ClassVar[Struct] = Struct(">iIq")
    SIZE: ClassVar[int] = 16

    def encode(self) -> bytes:
        """Return the 16 bytes: their length, the blank magic, the timestamp."""
        return self.LAYOUT.pack(self.SIZE, BLANK_MAGIC, self.end_timestamp)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the coda at `position` of `path`.

        Raises:
            Corrupt: the bytes are not a coda.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"coda has {len(raw)} of {cls.SIZE} bytes", path, position)
        size, magic, end_timestamp = cls.LAYOUT.unpack(raw)
        if magic != BLANK_MAGIC or size != cls.SIZE:
            raise Corrupt(f"no coda: size={size} magic={magic:#x}", path, position)
        return cls(end_timestamp)


assert BlankRecord.LAYOUT.size == BlankRecord.SIZE, "an on-disk format never drifts"
assert Coda.LAYOUT.size == Coda.SIZE, "an on-disk format never drifts"
