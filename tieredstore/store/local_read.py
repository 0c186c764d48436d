"""Which messages of the hot log one read takes, by RocketMQ's rules. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from fetcher.result import FetchStatus
from fetcher.tag_filter import Subscription
from tieredstore.hot.reading import Bounds, Picks
from tieredstore.hot.residency import ESTIMATED_SHARE, is_estimated_resident

EXAMINED_BYTES_MIN = 16_000
"""Bytes of ConsumeQueue units that a read with a subscription looks at, at least."""
_LOW_32_BITS = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much one read returns at most, besides what its caller asks; the first always fits.

    A message counts as in memory by RocketMQ's estimate: it is among the newest bytes of the
    CommitLog, up to `memory_share` of the memory's size.
    """

    memory_messages_max: int = 32
    """`maxTransferCountOnMessageInMemory`."""
    memory_bytes_max: int = 262_144
    """`maxTransferBytesOnMessageInMemory`."""
    disk_messages_max: int = 8
    """`maxTransferCountOnMessageInDisk`."""
    disk_bytes_max: int = 65_536
    """`maxTransferBytesOnMessageInDisk`."""
    memory_share: float = ESTIMATED_SHARE
    """`accessMessageInMemoryMaxRatio`, 0 to 1."""

    def __post_init__(self) -> None:
        for name in (
            "memory_messages_max", "memory_bytes_max", "disk_messages_max", "disk_bytes_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least 1 is needed")
        if not 0 <= self.memory_share <= 1:
            raise ValueError(f"memory_share is {self.memory_share}, not within 0 to 1")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one read wants."""

    messages_max: int
    bytes_max: int | None
    subscription: Subscription | None
    limits: ReadLimits

    @property
    def examined_max(self) -> int:
        """Units that are looked at."""
        if self.subscription is None:
            return self.messages_max
        return max(EXAMINED_BYTES_MIN // UNIT_BYTES, self.messages_max)


def status_by_bounds(offset: int, bounds: Bounds) -> tuple[FetchStatus, int] | None:
    """What the bounds of a queue say of an offset, with the next one; None: go and read."""
    if bounds.max_offset == 0:
        return FetchStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < bounds.min_offset:
        return FetchStatus.OFFSET_TOO_SMALL, bounds.min_offset
    if offset == bounds.max_offset:
        return FetchStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > bounds.max_offset:
        return FetchStatus.OFFSET_OVERFLOW_BADLY, bounds.max_offset
    return None


def choose_units(
    units: Sequence[ConsumeQueueUnit], offset: int, wish: Wish, *, least: int, end: int
) -> Picks:
    """Which of the units from `offset` on a read takes, of a CommitLog `[least, end)`.

    A message with another tags code is passed over. The read ends before a message whose record is
    gone; where that is the first one, it takes none, and goes on after those that are gone.
    """
    taken: list[int] = []
    size = 0
    hashes = None
    if wish.subscription is not None:
        hashes = {value & _LOW_32_BITS for value in wish.subscription.hashes}
    for index, unit in enumerate(units):
        if unit.position < least or unit.is_filler:
            if index:
                return Picks(taken, offset + index)
            there = (at for at, one in enumerate(units) if not _is_gone(one, least))
            return Picks(taken, offset + next(there, len(units)), is_removing=True)
        if taken and _is_full(len(taken), size + unit.size, unit.position, end, wish):
            return Picks(taken, offset + index)
        if hashes is not None and unit.tag_hash & _LOW_32_BITS not in hashes:
            continue
        taken.append(index)
        size += unit.size
    return Picks(taken, offset + len(units))


def _is_gone(unit: ConsumeQueueUnit, least: int) -> bool:
    return unit.is_filler or unit.position < least


def _is_full(count: int, size: int, position: int, end: int, wish: Wish) -> bool:
    """Whether a further message, with which there are `size` bytes, is too much."""
    limits = wish.limits
    if count >= wish.messages_max or (wish.bytes_max is not None and size > wish.bytes_max):
        return True
    if is_estimated_resident(position, end, limits.memory_share):
        return count >= limits.memory_messages_max or size > limits.memory_bytes_max
    return count >= limits.disk_messages_max or size > limits.disk_bytes_max


def status_of(picks: Picks, found: int) -> FetchStatus:
    """What a read of `found` messages is called."""
    if found:
        return FetchStatus.FOUND
    if picks.is_removing and not picks.indices:
        return FetchStatus.MESSAGE_WAS_REMOVING
    return FetchStatus.NO_MATCHED_MESSAGE
