"""Key query: its parameters, its limits, and the items that may match. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from container.index.layout import SECOND_MS, ItemPlace, KeyItems
from container.metadata.coverage import Span
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from provider.errors import StoreError

BEGIN_OF_TIME_MS = -(1 << 63)
END_OF_TIME_MS = (1 << 63) - 1
SCAN_BYTES_MAX = 256 << 20
"""Default limit of records that a query reads because they are in no index, in bytes."""


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Query for messages of a topic with a key, stored within `[begin_ms, end_ms]`.

    Raises:
        ValueError: `messages_max` is negative.
    """

    topic: str
    key: str
    messages_max: int
    begin_ms: int = 0
    end_ms: int = END_OF_TIME_MS
    newest_first: bool = True

    def __post_init__(self) -> None:
        if self.messages_max < 0:
            raise ValueError(f"messages_max is negative: {self.messages_max}")

    def includes(self, timestamp_ms: int) -> bool:
        """Whether a message stored at this time matches."""
        return self.begin_ms <= timestamp_ms <= self.end_ms


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """Limits of the reads of one query. Memory is some 100 bytes an item, and one batch."""

    run_items_max: int = 65_536
    """Items read of one file: its newest, or its oldest, depending on the query."""
    records_max: int = 16_384
    """Records read because of an item."""
    batch_records_max: int = 64
    """Records read together ..."""
    batch_bytes_max: int = 16 << 20
    """... and their bytes, unless one is longer."""
    scan_bytes_max: int = SCAN_BYTES_MAX
    """Limit of unindexed records that are read, in bytes. 0: none."""


class QueryResult(NamedTuple):
    """Messages with a key, newest or oldest first as queried, each once."""

    messages: Sequence[StoredMessage]
    is_complete: bool
    """Whether there are no others: no limit was reached, and no damage was met."""
    unsearched: int = 0
    """Unindexed messages that were not read (`scan_bytes_max`)."""
    damage: Sequence[StoreError] = ()
    """Read errors. Each hides at most one message, or the items of one slot."""


class Unsealed(Protocol):
    """Items that are in no sealed file yet."""

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        """Items of a hash. Times are exact if `has_exact_times`.

        Raises:
            Corrupt: they are damaged.
        """
        ...

    def spans(self, queue: QueueId) -> Sequence[Span]:
        """Offsets of a queue whose keys it has."""
        ...

    @property
    def has_exact_times(self) -> bool:
        """Whether the items' times are those of the records."""
        ...

    @property
    def revision(self) -> int:
        """Number that changes whenever `spans` may change for any queue."""
        ...


class Candidate(NamedTuple):
    """Record that may have the key, with the bounds of its store time."""

    queue: QueueId
    position: int
    size: int
    low_ms: int
    high_ms: int


def is_within(file: IndexFile, query: KeyQuery) -> bool:
    """Whether a file may have items within the queried times.

    A file of RocketMQ has its creation time in its header, and wrong times in its items with IPv6
    hosts. So it may have items of any time.
    """
    if not file.coverage:
        return True
    return file.begin_timestamp <= query.end_ms and file.end_timestamp >= query.begin_ms


def candidates(
    places: Iterable[ItemPlace], topic: str, tick_ms: int | None, query: KeyQuery
) -> Iterator[Candidate]:
    """Candidate records of items, by their places, if they may match.

    `tick_ms`: resolution of the items' times, which are rounded down. None: the times are
    unreliable.
    """
    for queue_id, position, size, stamp in places:
        low, high = BEGIN_OF_TIME_MS, END_OF_TIME_MS
        if tick_ms is not None:
            low, high = stamp, stamp + tick_ms - 1
        if low <= query.end_ms and high >= query.begin_ms:
            yield Candidate(QueueId(topic, queue_id), position, size, low, high)


def tick_of(file: IndexFile) -> int | None:
    """Resolution in ms of the times of a file's items. None if they are unreliable."""
    return SECOND_MS if file.coverage else None


class Found:
    """Found messages. Memory: twice `messages_max`, and `SLACK_MESSAGES`."""

    SLACK_MESSAGES = 64

    def __init__(self, query: KeyQuery) -> None:
        self._query = query
        self._messages: dict[tuple[int, int], StoredMessage] = {}
        self.cut = False
        """Whether there were more than `messages_max`."""

    def add(self, message: StoredMessage) -> None:
        """Add a message, unless it is known already."""
        self._messages[message.queue_id, message.queue_offset] = message
        if len(self._messages) > 2 * self._query.messages_max + self.SLACK_MESSAGES:
            self.messages()

    def messages(self) -> list[StoredMessage]:
        """The first `messages_max` messages in order. The others are dropped. O(n log n)."""
        ordered = sorted(
            self._messages.values(),
            key=lambda one: (one.store_timestamp, one.queue_id, one.queue_offset),
            reverse=self._query.newest_first,
        )
        if len(ordered) > self._query.messages_max:
            self.cut = True
            del ordered[self._query.messages_max :]
            self._messages = {(one.queue_id, one.queue_offset): one for one in ordered}
        return ordered

    def excludes(self, candidate: Candidate) -> bool:
        """Whether enough messages certainly precede the candidate.

        Always false before there was one message too many, which decides whether the answer is
        complete.
        """
        ordered = self.messages()
        if not self.cut:
            return False
        worst = ordered[-1].store_timestamp
        if self._query.newest_first:
            return candidate.high_ms < worst
        return candidate.low_ms > worst
