"""Result of a fetch: RocketMQ's statuses, offsets, and messages as views of cached runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import whole_number
from container.record.message import StoredMessage
from fetcher.run_cache import CachedRun
from provider.object_store import Buffer
from provider.ranges import QueueOffset


def refuse_bounds(offset: int, messages_max: int, bytes_max: int | None) -> None:
    """Validate the bounds of a read. Pure. `bytes_max` 0 is valid and takes one message.

    Raises:
        ValueError: a bound is not an integer, `messages_max` is not positive, or `bytes_max` is
            negative.
    """
    is_plain = type(offset) is int and type(messages_max) is int and bytes_max is None
    if is_plain and messages_max > 0:
        return  # fast path of nearly all calls
    whole_number("offset", offset)
    if whole_number("messages_max", messages_max) <= 0:
        raise ValueError(f"messages_max must be positive, not {messages_max}")
    if bytes_max is not None and whole_number("bytes_max", bytes_max) < 0:
        raise ValueError(f"bytes_max must not be negative, as {bytes_max} is")


class FetchStatus(Enum):
    """Status of a read, with the names of RocketMQ's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


class Selection(NamedTuple):
    """Selected messages of one run: `start` to `stop`, or `indices` if given."""

    run: CachedRun
    start: int
    stop: int
    indices: NDArray[np.int64] | None = None

    @property
    def picked(self) -> slice | NDArray[np.int64]:
        """Index into the run's columns."""
        return slice(self.start, self.stop) if self.indices is None else self.indices


class FetchedMessages:
    """Lazy sequence of stored records in queue order.

    Iteration yields read-only views. Bytes 28..35 of each are its position in the queue's tier
    CommitLog. A view keeps its whole run in memory, up to `FetcherOptions.run_bytes_max` bytes:
    copy views that are kept for long. `decode` yields messages with fields, which are copies.
    """

    __slots__ = ("_count", "selections")

    def __init__(self, selections: tuple[Selection, ...] = (), count: int = 0) -> None:
        self.selections = selections
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<FetchedMessages: {self._count} of {self.bytes} bytes>"

    def __iter__(self) -> Iterator[memoryview]:
        for selection in self.selections:
            data, picked = selection.run.data, selection.picked
            starts = selection.run.starts[picked]
            ends = starts + selection.run.sizes[picked]
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                yield data[start:end]

    def __getitem__(self, index: int) -> memoryview:
        at = index if index >= 0 else index + self._count
        if not 0 <= at < self._count:
            raise IndexError(f"message {index} of {self._count}")
        for run, start, stop, indices in self.selections:
            count = stop - start if indices is None else len(indices)
            if at < count:
                place = start + at if indices is None else int(indices[at])
                begin = int(run.starts[place])
                return run.data[begin : begin + int(run.sizes[place])]
            at -= count
        raise AssertionError("the selections hold `count` messages")

    def joined(self) -> Buffer:
        """Return all records one after another: a view if they lie so in one run, else a copy."""
        pieces: list[memoryview] = []
        for selection in self.selections:
            run, start, stop, indices = selection
            if indices is None and stop > start:
                begin, end = int(run.starts[start]), int(run.starts[stop - 1] + run.sizes[stop - 1])
                if end - begin == run.size_before[stop] - run.size_before[start]:
                    pieces.append(run.data[begin:end])
                    continue
            pieces.extend(FetchedMessages((selection,)))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def decode(self) -> Iterator[StoredMessage]:
        """Iterate over the messages with their fields: topic, body, tags, keys, times, hosts.

        Costs about 0.5 us for a message of 1 KiB, and 0.1 us for each field that is read. A
        message holds a copy of its record, `message.size` bytes, and keeps nothing else in memory.

        Raises:
            Corrupt: raised during iteration at the first record with an invalid format, after the
                messages before it. The error has queue and position.
        """
        return chain.from_iterable(part.run.decode(part.picked) for part in self.selections)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Queue offset of each message."""
        return self._column("offsets")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Length of each record in bytes."""
        return self._column("sizes")

    @property
    def starts(self) -> NDArray[np.int64]:
        """First byte of each record in its run's buffer (`selections`)."""
        return self._column("starts")

    @property
    def tag_hashes(self) -> NDArray[np.int64]:
        """Signed 32-bit tags code of each message."""
        return self._column("tag_hashes")

    @property
    def bytes(self) -> int:
        """Length of all records together, in bytes."""
        total = 0
        for run, start, stop, indices in self.selections:
            if indices is None:
                total += run.size_before[stop] - run.size_before[start]
            else:
                total += int(run.sizes[indices].sum())
        return total

    def _column(self, name: str) -> NDArray[np.int64]:
        parts = [getattr(part.run, name)[part.picked] for part in self.selections]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


NO_MESSAGES = FetchedMessages()


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Result of a read, as RocketMQ's GetMessageResult."""

    status: FetchStatus
    next_offset: QueueOffset
    """Offset of the next read."""
    min_offset: QueueOffset
    """First offset of the queue in the tier; 0 if there is no such queue."""
    max_offset: QueueOffset
    """Commit offset of the queue; 0 if there is no such queue."""
    messages: FetchedMessages = NO_MESSAGES


def offset_status(
    offset: QueueOffset, minimum: QueueOffset, maximum: QueueOffset
) -> tuple[FetchStatus, QueueOffset]:
    """Return the status and next offset by RocketMQ's first conditions. Pure.

    FOUND means that the offset can be read. `minimum` and `maximum` are the tier's first offset
    and commit offset. An empty queue that begins at 100 has both at 100, and counts as a queue
    with messages.
    """
    if maximum <= 0:
        return FetchStatus.NO_MESSAGE_IN_QUEUE, offset
    if offset < minimum:
        return FetchStatus.OFFSET_TOO_SMALL, minimum
    if offset == maximum:
        return FetchStatus.OFFSET_OVERFLOW_ONE, maximum
    if offset > maximum:
        return FetchStatus.OFFSET_OVERFLOW_BADLY, maximum
    return FetchStatus.FOUND, offset
