"""Levels of tiered storage, and the joined bounds of hot log and tier. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Self

from container.metadata.records import Gap
from fetcher.result import FetchStatus
from provider.errors import Corrupt, Denied, OutOfRange, Unavailable
from tieredstore.store.protocol import GetMessageResult


class Level(IntEnum):
    """`tieredStorageLevel`: how much is read from the tier. Each includes those before it."""

    DISABLE = 0
    """Nothing, and nothing is tiered either. What is not in the tier yet stays in the hot log."""
    NOT_IN_DISK = 1
    """What the hot log does not have any more."""
    NOT_IN_MEM = 2
    """What is not in memory: the tier, not the disk of the hot log, serves those who are behind."""
    FORCE = 3
    """All that the tier has; the hot log serves what is newer."""

    @classmethod
    def of(cls, level: "Level | str | int") -> Self:
        """A level by its name or number, such as `NOT_IN_DISK`, 1 or "1".

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
    """Who serves a read, or what must be known to tell."""

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
    """RocketMQ's read policy (`TieredMessageStore.fetchFromCurrentStore`), row by row. Pure.

    Args:
        level: the level now.
        offset: the first message that is wanted.
        commit_offset: the tier's commit offset of the queue; None if the tier does not have it.
        is_filtered: whether the topic is never tiered.
        in_store: whether the hot log has the message; None: not asked yet.
        in_memory: whether its pages are resident; None: not asked yet.

    Returns:
        Who serves, or which of the two must be asked first: both cost something.
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
"""Errors of one side after which the other one is asked."""


@dataclass(frozen=True, slots=True)
class Span:
    """The messages of a queue that one of the two has: `[first, end)` without the gaps."""

    first: int
    end: int
    gaps: Sequence[Gap] = ()

    def has(self, offset: int) -> bool:
        """Whether the message at `offset` is there."""
        return self.next_from(offset) == offset

    def next_from(self, offset: int) -> int | None:
        """The first message at or after `offset`; None if there is none."""
        at = max(offset, self.first)
        for gap in self.gaps:
            if gap.start <= at < gap.end:
                at = gap.end
        return at if at < self.end else None


@dataclass(frozen=True, slots=True)
class JoinedQueue:
    """One queue at one moment; None for the side that does not have it."""

    hot: Span | None
    tier: Span | None

    @property
    def is_known(self) -> bool:
        """Whether any side has the queue."""
        return self.hot is not None or self.tier is not None

    @property
    def min_offset(self) -> int:
        """The first message that can be read, wherever it lies; the end if there is none."""
        return min((span.first for span in self._filled()), default=self.max_offset)

    @property
    def max_offset(self) -> int:
        """The offset after the last message: the hot log's, unless the tier knows more."""
        return max((span.end for span in (self.hot, self.tier) if span is not None), default=0)

    def hot_spans(self, offset: int) -> bool:
        """Whether the hot log has messages at or below `offset`, and above it."""
        return self.hot is not None and self.hot.has(offset)

    def next_from(self, offset: int) -> int | None:
        """The first message at or after `offset` that any side has; None if there is none."""
        found = [at for span in self._filled() if (at := span.next_from(offset)) is not None]
        return min(found, default=None)

    def absent(self, offset: int) -> GetMessageResult:
        """What a read at `offset` is told that no side can serve, as RocketMQ's table says it.

        Where messages in between were lost the status is OFFSET_FOUND_NULL, and the next offset is
        that of the first one after them.
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
