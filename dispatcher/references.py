"""References of one queue's messages: those that wait, and those that a commit claimed."""

from dataclasses import dataclass

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, UNIT_DTYPE, Units
from dispatcher.batching import Bytes, written_bytes
from provider.ranges import QueueOffset


@dataclass(slots=True)
class ReferenceCount:
    """References kept over all queues."""

    kept: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedRange:
    """The references of one commit: the messages `[start, start + len(references))`."""

    queue: QueueId
    start: QueueOffset
    references: Units
    bytes: int
    """Bytes of records and units that it reserves of the bytes in flight."""

    @property
    def end(self) -> QueueOffset:
        """The offset after its last message."""
        return QueueOffset(self.start + len(self.references))


NO_UNITS: Units = np.zeros(0, UNIT_DTYPE)
"""Shared by all queues that wait for nothing."""
NO_UNITS.flags.writeable = False


class References:
    """Units of consecutive messages, and the bytes that these will take in the tier."""

    __slots__ = ("_count", "bytes", "units")

    def __init__(self, count: ReferenceCount) -> None:
        self.units: Units = NO_UNITS
        self.bytes = 0
        """What all of them will take in the tier: records and units."""
        self._count = count

    def __repr__(self) -> str:
        return f"<References: {len(self)} messages, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self.units)

    def check(self) -> None:
        """Assert that the bytes are those of the units. O(n)."""
        assert self.bytes == int(self.sizes().sum()), f"I3: {self}"

    def sizes(self) -> Bytes:
        """What each message will take in the tier, in bytes. O(n)."""
        return written_bytes(self.units)

    def first_bytes(self, number: int) -> int:
        """What the first ones will take in the tier, in bytes. O(number)."""
        if number == 1:  # asked of every waiting queue for every round
            return max(int(self.units["size"][0]), 1) + UNIT_BYTES
        return int(written_bytes(self.units[:number]).sum())

    def append(self, units: Units) -> None:
        """Add what follows. O(n)."""
        self._keep(np.concatenate([self.units, units]), int(written_bytes(units).sum()))

    def put_back(self, units: Units) -> int:
        """Add what comes before; returns the bytes of it. O(n)."""
        more = int(written_bytes(units).sum())
        self._keep(np.concatenate([units, self.units]), more)
        return more

    def take(self, number: int, number_bytes: int) -> Units:
        """Remove and return the first ones, which take `number_bytes` in the tier. O(1)."""
        taken = self.units[:number]
        self._keep(self.units[number:], -number_bytes)
        return taken

    def clear(self) -> None:
        """Keep none."""
        self._keep(NO_UNITS, -self.bytes)

    def _keep(self, units: Units, more_bytes: int) -> None:
        self._count.kept += len(units) - len(self.units)
        self.units = units if len(units) else NO_UNITS  # else a view of those that were taken
        self.bytes += more_bytes
