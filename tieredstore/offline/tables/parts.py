"""What one worker reads of a table. Plain values; all can be pickled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from container.names.queue_id import QueueId
from tieredstore.offline.split import ALL_TIMES, LogPiece, Split, TierPlace


@dataclass(frozen=True, slots=True)
class MessagesPart:
    """Messages of a stretch of one queue's log."""

    split: Split
    skips_damage: bool = False
    """Whether damaged messages are passed over; else the first is an error."""
    skips_expired: bool = False
    """Whether messages that left the tier after the plan are passed over; else an error."""


@dataclass(frozen=True, slots=True)
class UnitsPart:
    """Units of one queue."""

    queue: QueueId
    offsets: tuple[int, int]
    """Queue offsets `[from, to)`."""
    pieces: tuple[LogPiece, ...]
    """Where their bytes lie; positions are those of the flat file, 20 bytes an offset."""
    place: TierPlace
    generation: int | None = None
    """As in `Split`."""


@dataclass(frozen=True, slots=True)
class KeysPart:
    """Items of one index file."""

    object_name: str
    size: int
    """Length of the file in bytes."""
    topics: Mapping[int, str]
    """Names of the topics that are wanted, by their numbers."""
    queues: frozenset[QueueId | int] | None
    """As `WantedMessages.queues`."""
    place: TierPlace
    is_ours: bool = True
    """Whether a journal names the file; RocketMQ's own tiers have none."""
    times_ms: tuple[int, int] = ALL_TIMES


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Rows that the metadata have: those of `segments` and `gaps`."""

    table: str
    rows: tuple[Mapping[str, Any], ...]


Part = MessagesPart | UnitsPart | KeysPart | RowsPart
