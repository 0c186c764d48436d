"""Levels of tiered storage, and the joined bounds of hot log and tier. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Self

from container.metadata.records import Gap, after_gaps
from fetcher.result import FetchStatus
from provider.errors import Corrupt, Denied, OutOfRange, Unavailable
from tieredstore.store.protocol import GetMessageResult


class Level(IntEnum):
    """Read policy `tieredStorageLevel`: the messages that are read from the tier.

    Each level includes those of lower number.
    """

    DISABLE = 0
    """No reads from the tier, no tiering. Messages that are not tiered yet stay in the hot log."""
    NOT_IN_DISK = 1
    """Messages that the hot log no longer has."""
    NOT_IN_MEM = 2
    """Messages that are not in memory: lagging consumers read from the tier, not from the disk."""
    FORCE = 3
    """All messages that the tier has. The hot log serves the newer ones."""

    @classmethod
    def of(cls, level: "Level | str | int") -> Self:
        """Return a level by its name or number, such as `NOT_IN_DISK`, 1 or "1".

        Raises:
            ValueError: there is no such level.
        """
        text = str(int(level)) if isinstance(level, int) else str(level).strip()
        for one in cls:
            if text in (one.name, str(one.value)):
                return one
        known = ", ".join(f"{one.name} ({one.value})" for one in cls)
        raise ValueError(f"{level!r} is no level; there are {known}")


class Source(Enum):
    """Side that serves a read, or the fact that is needed to decide."""

    HOT = "hot log"
    TIER = "tier"
    ASK_STORE = "is the message in the hot log?"
    ASK_MEMORY = "is the message in memory?"


def who_serves(  # noqa: PLR0911 - a return for each row of the table
    level: Level,
    offset: int,
    commit_offset: int | None,
    *,
    is_filtered: bool = False,
    in_store: bool | None = None,
    in_memory: bool | None = None,
) -> Source:
    """Apply RocketMQ's read policy (`TieredMessageStore.fetchFromCurrentStore`). Pure.

    One branch for each row of its table.

    Args:
        level: the current level.
        offset: the first message that is wanted.
        commit_offset: the tier's commit offset of the queue; None if the tier does not have it.
        is_filtered: whether the topic is never tiered.
        in_store: whether the hot log has the message; None: not asked yet.
        in_memory: whether its pages are resident; None: not asked yet.

    Returns:
        The side that serves, or the question to answer first. Both questions cost I/O or a system
        call.
    """
    if is_filtered:
        return Source.HOT
    if level is Level.FORCE:
        return Source.TIER
    if level is Level.DISABLE or commit_offset is None or offset >= commit_offset:
        return Source.HOT
    if in_store is None:
        return Source.ASK_STORE
    if not in_store:
        return Source.TIER
    if level is not Level.NOT_IN_MEM:
        return Source.HOT
    if in_memory is None:
        return Source.ASK_MEMORY
    return Source.HOT if in_memory else Source.TIER


ANSWERS_ELSEWHERE = (Unavailable, Corrupt, Denied, OutOfRange)
"""Errors of one side after which the read falls back to the other side."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a queue that one side has: `[first, end)` without the gaps."""

    first: int
    end: int
    gaps: Sequence[Gap] = ()

    def has(self, offset: int) -> bool:
        """Whether the message at `offset` is there."""
        return self.next_from(offset) == offset

    def next_from(self, offset: int) -> int | None:
        """Return the first offset at or after `offset` that is there; None if there is none."""
        at = after_gaps(self.gaps, max(offset, self.first))
        return at if at < self.end else None


@dataclass(frozen=True, slots=True)
class JoinedQueue:
    """Offsets of one queue on both sides at one moment. None for a side without the queue."""

    hot: Span | None
    tier: Span | None

    @property
    def is_known(self) -> bool:
        """Whether any side has the queue."""
        return self.hot is not None or self.tier is not None

    @property
    def min_offset(self) -> int:
        """First readable offset of either side; the end if there is none."""
        return min((span.first for span in self._filled()), default=self.max_offset)

    @property
    def max_offset(self) -> int:
        """Offset after the last message: the hot log's, or the tier's if that is higher."""
        return max((span.end for span in (self.hot, self.tier) if span is not None), default=0)

    def hot_spans(self, offset: int) -> bool:
        """Whether `offset` lies within the hot log's span of the queue."""
        return self.hot is not None and self.hot.has(offset)

    def next_from(self, offset: int) -> int | None:
        """Return the first offset at or after `offset` that any side has; None if there is none."""
        found = [at for span in self._filled() if (at := span.next_from(offset)) is not None]
        return min(found, default=None)

    def absent(self, offset: int) -> GetMessageResult:
        """Return the result of a read at an `offset` that no side can serve. Pure.

        Status and next offset follow RocketMQ's table. For lost messages between others the status
        is OFFSET_FOUND_NULL, and the next offset is that of the first message after them.
        """
        first, end = self.min_offset, self.max_offset
        if not self.is_known:
            status, following = FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0
        elif end == 0:
            status, following = FetchStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < first:
            status, following = FetchStatus.OFFSET_TOO_SMALL, first
        elif offset == end:
            status, following = FetchStatus.OFFSET_OVERFLOW_ONE, end
        elif offset > end:
            status, following = FetchStatus.OFFSET_OVERFLOW_BADLY, end
        else:
            following = self.next_from(offset)
            status, following = (
                FetchStatus.OFFSET_FOUND_NULL,
                end if following is None else following,
            )
        return GetMessageResult(status, following, first, end)

    def _filled(self) -> list[Span]:
        return [
            span for span in (self.hot, self.tier) if span is not None and span.first < span.end
        ]
