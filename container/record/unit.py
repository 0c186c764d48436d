"""The ConsumeQueue unit: the position of one message in a CommitLog."""

from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from provider.errors import Corrupt
from provider.object_store import Buffer

UNIT_BYTES = 20
"""Length of a ConsumeQueue unit in bytes. Unit `n` of a queue is at byte `20 n` of its
ConsumeQueue."""

UNIT_DTYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
"""On-disk form of a ConsumeQueue unit: 20 bytes, big-endian, packed."""

Units = NDArray[np.void]
"""Array of `UNIT_DTYPE`."""


def consecutive(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Rows `[first, last)` of each run of consecutive queue offsets. O(rows)."""
    edges = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    return [(first, last) for first, last in pairwise(edges) if first < last]


FILLER_SIZE = 0x7FFF_FFFF
"""Size in a filler unit. A local queue that begins in mid-file has fillers before its first unit.
"""

EXTENDED_ADDRESS_MAX = -(2**62)
"""Largest address of an extended unit: RocketMQ adds the smallest int64 to its position."""


@dataclass(frozen=True, slots=True)
class ConsumeQueueUnit:
    """Position of the n-th message of a queue in a CommitLog.

    The fields are in byte order. All are big-endian and signed.
    """

    position: int
    """First byte of the record in the CommitLog. 8 bytes, >= 0."""
    size: int
    """Length of the record in bytes. 4 bytes, > 0."""
    tag_hash: int
    """Hash of the message's TAGS property, 0 if it has none. 8 bytes."""

    LAYOUT: ClassVar[Struct] = Struct(">qiq")
    SIZE: ClassVar[int] = UNIT_BYTES

    @property
    def is_filler(self) -> bool:
        """Whether this is a filler for offsets that the local queue never had."""
        return self.position == 0 and self.size == FILLER_SIZE and self.tag_hash == 0

    def encode(self) -> bytes:
        """Return the unit's 20 bytes."""
        return self.LAYOUT.pack(self.position, self.size, self.tag_hash)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the unit stored at `position` of `path`.

        Raises:
            Corrupt: it is not 20 bytes long, or no record can lie there.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"unit has {len(raw)} of {cls.SIZE} bytes", path, position)
        unit = cls(*cls.LAYOUT.unpack(raw))
        if unit.position < 0 or unit.size <= 0:
            raise Corrupt(f"impossible {unit}", path, position)
        return unit


def is_extended_address(tag_hash: int) -> bool:
    """Whether a unit has an extended address as its tags code (`enableConsumeQueueExt`)."""
    return tag_hash <= EXTENDED_ADDRESS_MAX


assert ConsumeQueueUnit.LAYOUT.size == ConsumeQueueUnit.SIZE, "an on-disk format never drifts"
assert UNIT_DTYPE.itemsize == ConsumeQueueUnit.SIZE, "columns and single units are the same bytes"
