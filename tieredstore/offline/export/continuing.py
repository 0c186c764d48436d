"""Whether an export that has something may go on with a tier, and what it missed meanwhile. Pure.

An export knows its messages by topic, queue and queue offset. So it must not go on where these mean
other messages by now: in a tier that was made again at the same place, or a queue that was.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.options import Target
from tieredstore.offline.relocation import EXPIRED


class Reached(NamedTuple):
    """How far an export is with one queue."""

    end: int
    """It has everything below this queue offset that it was to have."""
    generation: int | None = None
    """The queue's, when it was exported; None: not known (an older program's export)."""


class Gone(NamedTuple):
    """Queue offsets `[start, end)` that left the tier before they were exported."""

    queue: QueueId
    start: int
    end: int
    cause: str = EXPIRED
    """A predicate: what happened to their messages."""


Span = tuple[int, int]
"""Queue offsets `[from, to)`."""


class Told(NamedTuple):
    """What a task told of the messages that it was to write."""

    queue: QueueId
    gone: Sequence[tuple[int, int, str]]
    """Queue offsets `[from, to)` that left the tier, at most, and why. A task that begins or ends
    within an extent that is gone knows those of the extent alone."""
    read: Span | None
    """The first and behind the last that it read, beside `gone`; None: not known, or nothing."""


@dataclass(frozen=True, slots=True)
class Source:
    """Whose messages an export has."""

    cluster: str
    broker: str
    begun_ms: int = 0
    """When the tier was begun, Unix ms; 0: not known."""

    @classmethod
    def of(cls, state: TierState) -> Self:
        """That of a tier."""
        return cls(state.broker.cluster, state.broker.name, state.broker.begun_ms)

    @classmethod
    def kept(cls, about: Mapping[str, Any]) -> Self:
        """That of an export."""
        cluster, broker = about["whose"]
        return cls(cluster, broker, about.get("begun_ms", 0))

    def as_kept(self) -> dict[str, Any]:
        """For an export's own record."""
        return {"whose": [self.cluster, self.broker], "begun_ms": self.begun_ms}

    def refuse_other(self, now: Self, target: Target) -> None:
        """Refuse to add messages of another tier to those of this one.

        Raises:
            ConfigError: it is another broker's, or was made again.
        """
        if (self.cluster, self.broker) != (now.cluster, now.broker):
            raise ConfigError(
                f"the export in {target.name} is of {self.broker} of cluster {self.cluster}"
            )
        if self.begun_ms and now.begun_ms and self.begun_ms != now.begun_ms:
            raise ConfigError(
                f"the tier was made again since the export in {target.name} was begun, so its "
                f"offsets may be those of other messages: name another {target.kind}"
            )


def other_history(
    queues: Mapping[QueueId, Queue], reached: Mapping[QueueId, Reached]
) -> frozenset[QueueId]:
    """The queues whose offsets mean other messages by now: truncated, or deleted and created again.

    An export has their earlier messages and gets no more of them; other queues go on.
    """
    return frozenset(
        name
        for name, queue in queues.items()
        for before in [reached.get(name)]
        if before is not None
        and before.end
        and (
            queue.next_offset < before.end
            or (before.generation is not None and before.generation != queue.generation)
        )
    )


def other_history_text(queue: QueueId, before: Reached, target: Target) -> str:
    """Say that a queue is not exported any further, and how its new messages are had."""
    return (
        f"{queue} was truncated, or deleted and created again, after the export in {target.name} "
        f"had it up to {before.end:,}: its new messages are not added there, because their offsets "
        f"are those of other messages: export them into another {target.kind}"
    )


def gone_of(tasks: Iterable[Told]) -> list[Gone]:
    """What left the tier before tasks read it: each offset once, and none that another one read."""
    of: dict[QueueId, list[Told]] = {}
    for task in tasks:
        of.setdefault(task.queue, []).append(task)
    return [
        Gone(queue, *found)
        for queue, told in sorted(of.items())
        if any(one.gone for one in told)
        for found in _gone_of_queue(told)
    ]


def _gone_of_queue(tasks: Sequence[Told]) -> Iterator[tuple[int, int, str]]:
    spans = sorted(
        span
        for task in tasks
        if task.read is not None
        for span in _without(*task.read, sorted(one[:2] for one in task.gone))
    )
    read: list[Span] = []
    for low, high in spans:
        if read and low <= read[-1][1]:
            read[-1] = read[-1][0], max(read[-1][1], high)
        else:
            read.append((low, high))
    at = 0
    for first, end, cause in sorted(one for task in tasks for one in task.gone):
        for low, high in _without(max(first, at), end, read):
            yield low, high, cause
        at = max(at, end)


def _without(first: int, end: int, others: Sequence[Span]) -> Iterator[Span]:
    """The parts of a span that are in none of others, which are in order."""
    for low, high in others[max(bisect_right(others, (first, first)) - 1, 0) :]:
        if low >= end:
            break
        if first < low:
            yield first, low
        first = max(first, high)
    if first < end:
        yield first, end


def gone(queues: Iterable[Queue], reached: Mapping[QueueId, Reached]) -> list[Gone]:
    """What an export can have no more, of queues that it has a part of; in order of queues."""
    found: list[Gone] = []
    for queue in sorted(queues, key=lambda one: one.id):
        before = reached.get(queue.id)
        if before is not None and before.end < queue.min_offset:
            found.append(Gone(queue.id, before.end, queue.min_offset))
    return found
