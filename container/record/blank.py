"""What stands where no message is: the end of a local CommitLog file, and the old segment coda."""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Self

from provider.errors import Corrupt
from provider.object_store import Buffer

BLANK_MAGIC = 0xCBD4_3194
"""Stands where a record has its magic code, in blanks and in codas."""


@dataclass(frozen=True, slots=True)
class BlankRecord:
    """The end of a local CommitLog file: the next record did not fit and is in the next file.

    Only these 8 bytes are written; the rest of the file is arbitrary.
    """

    size: int
    """Bytes from here to the end of the file. 4 bytes, >= 8."""

    LAYOUT: ClassVar[Struct] = Struct(">iI")
    SIZE: ClassVar[int] = 8

    def encode(self) -> bytes:
        """The 8 bytes."""
        return self.LAYOUT.pack(self.size, BLANK_MAGIC)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Read the blank that stands at `position` of `path`.

        Raises:
            Corrupt: it is not one.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"blank record has {len(raw)} of {cls.SIZE} bytes", path, position)
        size, magic = cls.LAYOUT.unpack(raw)
        if magic != BLANK_MAGIC or size < cls.SIZE:
            raise Corrupt(f"no blank record: size={size} magic={magic:#x}", path, position)
        return cls(size)


@dataclass(frozen=True, slots=True)
class Coda:
    """The end of a sealed tier CommitLog segment, as RocketMQ 5.1.0 to 5.2.0 wrote it.

    It counts as part of the segment: the next one's base lies after it. We read it, never write
    it.
    """

    end_timestamp: int
    """Store timestamp of the segment's last message, Unix ms. 8 bytes."""

    LAYOUT: ClassVar[Struct] = Struct(">iIq")
    SIZE: ClassVar[int] = 16

    def encode(self) -> bytes:
        """The 16 bytes: their length, the blank magic, the timestamp."""
        return self.LAYOUT.pack(self.SIZE, BLANK_MAGIC, self.end_timestamp)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Read the coda that stands at `position` of `path`.

        Raises:
            Corrupt: it is not one.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"coda has {len(raw)} of {cls.SIZE} bytes", path, position)
        size, magic, end_timestamp = cls.LAYOUT.unpack(raw)
        if magic != BLANK_MAGIC or size != cls.SIZE:
            raise Corrupt(f"no coda: size={size} magic={magic:#x}", path, position)
        return cls(end_timestamp)


assert BlankRecord.LAYOUT.size == BlankRecord.SIZE, "an on-disk format never drifts"
assert Coda.LAYOUT.size == Coda.SIZE, "an on-disk format never drifts"
