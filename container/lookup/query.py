"""What is asked, what may be done to answer it, and which items can be meant. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from container.index.items import SECOND_MS, ItemPlace, KeyItems
from container.lookup.coverage import Span
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from provider.errors import StoreError

BEGIN_OF_TIME_MS = -(1 << 63)
END_OF_TIME_MS = (1 << 63) - 1
SCAN_BYTES_MAX = 256 << 20
"""Records that a query reads because no index has their keys, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Messages of a topic with a key, stored within `[begin_ms, end_ms]`."""

    topic: str
    key: str
    messages_max: int
    begin_ms: int = 0
    end_ms: int = END_OF_TIME_MS
    newest_first: bool = True

    def includes(self, timestamp_ms: int) -> bool:
        """Whether a message that was stored then is meant."""
        return self.begin_ms <= timestamp_ms <= self.end_ms


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """How much one query reads at most; memory is some 100 bytes an item, and one batch."""

    run_items_max: int = 65_536
    """Items of one file that are looked at: its newest, or its oldest, as was asked."""
    records_max: int = 16_384
    """Records that are read because an item names them."""
    batch_records_max: int = 64
    """Records that are read together ..."""
    batch_bytes_max: int = 16 << 20
    """... and their bytes, unless one is longer."""
    scan_bytes_max: int = SCAN_BYTES_MAX
    """Records that are read because no index has their keys yet; 0: none."""


class QueryResult(NamedTuple):
    """Messages with a key, newest or oldest first as was asked, each once."""

    messages: Sequence[StoredMessage]
    is_complete: bool
    """Whether there are no others: no limit was met, and nothing that was looked at is damaged."""
    unsearched: int = 0
    """Messages that no index has, and that were not looked at either (`scan_bytes_max`)."""
    damage: Sequence[StoreError] = ()
    """What could not be read; each hides one message at most, or the items of one slot."""


class Unsealed(Protocol):
    """Items that are in no sealed file yet."""

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        """Those of a hash; times are exact if `has_exact_times`.

        Raises:
            Corrupt: they are damaged.
        """
        ...

    def spans(self, queue: QueueId) -> Sequence[Span]:
        """The offsets of a queue whose keys it has."""
        ...

    @property
    def has_exact_times(self) -> bool:
        """Whether the items' times are those of the records."""
        ...

    @property
    def revision(self) -> int:
        """Another one whenever `spans` may say another thing of any queue."""
        ...


class Candidate(NamedTuple):
    """A record that may have the key, and when it may have been stored."""

    queue: QueueId
    position: int
    size: int
    low_ms: int
    high_ms: int


def is_within(file: IndexFile, query: KeyQuery) -> bool:
    """Whether a file may have items of the time asked for.

    The header of a file that RocketMQ made says when it was made, and its items have wrong times
    where hosts are IPv6 addresses, so it may have any.
    """
    if not file.coverage:
        return True
    return file.begin_timestamp <= query.end_ms and file.end_timestamp >= query.begin_ms


def candidates(
    places: Iterable[ItemPlace], topic: str, tick_ms: int | None, query: KeyQuery
) -> Iterator[Candidate]:
    """The records that items name by their places, unless they cannot be meant.

    `tick_ms`: how exact the items' times are, which are cut downwards; None: they say nothing.
    """
    for queue_id, position, size, stamp in places:
        low, high = BEGIN_OF_TIME_MS, END_OF_TIME_MS
        if tick_ms is not None:
            low, high = stamp, stamp + tick_ms - 1
        if low <= query.end_ms and high >= query.begin_ms:
            yield Candidate(QueueId(topic, queue_id), position, size, low, high)


def tick_of(file: IndexFile) -> int | None:
    """How exact the times of a file's items are; None if they cannot be relied on."""
    return SECOND_MS if file.coverage else None


class Found:
    """The messages that were found. Memory: twice `messages_max`, and `SLACK_MESSAGES`."""

    SLACK_MESSAGES = 64

    def __init__(self, query: KeyQuery) -> None:
        self._query = query
        self._messages: dict[tuple[int, int], StoredMessage] = {}
        self.cut = False
        """Whether there were more than `messages_max`."""

    def add(self, message: StoredMessage) -> None:
        """Keep a message, unless it is known already."""
        self._messages[message.queue_id, message.queue_offset] = message
        if len(self._messages) > 2 * self._query.messages_max + self.SLACK_MESSAGES:
            self.messages()

    def messages(self) -> list[StoredMessage]:
        """The first `messages_max` in order; the others are forgotten. O(n log n)."""
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
        """Whether as many messages as were asked for come before the candidate in any case.

        Never so before there was one too many, which tells whether the answer is complete.
        """
        ordered = self.messages()
        if not self.cut:
            return False
        worst = ordered[-1].store_timestamp
        if self._query.newest_first:
            return candidate.high_ms < worst
        return candidate.low_ms > worst
