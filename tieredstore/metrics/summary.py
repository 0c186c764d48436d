"""Contents of a tier and results of a run as plain values. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import NamedTuple, Self

from container.metadata.records import MADE_AGAIN_REASON, TOPIC_DELETED_REASON, Gap, Queue
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId, SegmentType
from container.record.message import moment_of
from dispatcher.ports import DELETED_REASON, HALTED, QueueState
from dispatcher.statistics import QueueStatistics
from tieredstore.message import html_table

_PREVENTED_BY = {
    DELETED_REASON: (
        "tieredStorePinPath keeps files that a broker deletes until they are tiered, up to "
        "tieredStorePinMaxSize"
    ),
    TOPIC_DELETED_REASON: "with tieredStorePinPath what waits of a deleted topic is tiered",
}
"""Prevention of further gaps, by the reason of a gap."""
TOPICS_LISTED_MAX = 8
ROWS_SHOWN = 200
"""Rows of a table in a notebook."""
_SPAN = ("lost", "bytes", "first (UTC)", "last (UTC)")
QUEUE_HEAD = ("topic", "queue", "messages", "first offset", "next offset", *_SPAN)
TOPIC_HEAD = ("topic", "queues", "messages", *_SPAN)
BROKEN = frozenset({QueueState.STOPPED, QueueState.DAMAGED})


def counted(number: int, noun: str) -> str:
    """`1 queue`, `2,000 queues`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def messages_of(queue: Queue) -> int:
    """Messages that can be read: those between the offsets that lie in no gap."""
    gaps = (
        min(gap.end, queue.next_offset) - max(gap.start, queue.min_offset) for gap in queue.gaps
    )
    return queue.next_offset - queue.min_offset - sum(max(0, offsets) for offsets in gaps)


def lost_of(queue: Queue) -> int:
    """Messages between the offsets that were lost before they could be tiered."""
    return lost_in(queue.gaps, queue.min_offset, queue.next_offset)


def lost_in(gaps: Iterable[Gap], start: int, end: int) -> int:
    """Messages of `[start, end)` that were lost: those of gaps, which may reach below `start`.

    A queue that was created again begins after one offset that separates it from the deleted one.
    No message ever had that offset, unless the new queue has passed it.
    """
    lost = 0
    for gap in gaps:
        is_edge = _is_edge(gap) and gap.end == end
        lost += 0 if is_edge else max(0, min(gap.end, end) - max(gap.start, start))
    return lost


def _is_edge(gap: Gap) -> bool:
    """Whether a gap is the one offset between a deleted queue and the one that was created."""
    return gap.reason == MADE_AGAIN_REASON and gap.end - gap.start == 1


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages of one queue that were lost before they could be tiered: a gap that is new."""

    queue: QueueId
    gap: Gap

    @property
    def messages(self) -> int:
        """Number of messages that are lost; 0 at the edge of a queue that was created again."""
        return 0 if _is_edge(self.gap) else self.gap.end - self.gap.start

    def __str__(self) -> str:
        """Describe place, reason and prevention in a sentence."""
        if not self.messages:
            return f"{self.queue} continues at offset {self.gap.end}: {self.gap.reason}"
        text = (
            f"{self.queue} lost {counted(self.messages, 'message')}, offsets {self.gap.start} to "
            f"{self.gap.end - 1}: {self.gap.reason}"
        )
        prevented_by = _PREVENTED_BY.get(self.gap.reason)
        return text if prevented_by is None else f"{text}; {prevented_by}"


def new_losses(before: Mapping[QueueId, Queue], after: QueueTable) -> list[Loss]:
    """The gaps of `after` that `before` does not have, in order of queues. O(queues and gaps)."""
    found: list[Loss] = []
    for queue in after.with_gaps():
        old = before.get(queue.id)
        if old is not queue:
            known = set[int]() if old is None else {gap.start for gap in old.gaps}
            found += [Loss(queue.id, gap) for gap in queue.gaps if gap.start not in known]
    return sorted(found, key=lambda loss: (loss.queue, loss.gap.start))


def losses_text(queues: Iterable["QueueSummary"]) -> str:
    """Describe the number of messages in gaps in a sentence; "" if there are none."""
    listed = [queue for queue in queues if queue.gaps]
    lost = sum(queue.lost for queue in listed)
    if not lost:
        return ""
    gaps = sum(len(queue.gaps) for queue in listed)
    return (
        f"{counted(lost, 'message')} of {counted(len(listed), 'queue')} were lost before they "
        f"could be tiered ({counted(gaps, 'gap')})"
    )


def log_bytes_of(queue: Queue) -> int:
    """Bytes of the queue's CommitLog, manifests included."""
    refs = sum(ref.bytes for ref in queue.manifests if ref.type == SegmentType.COMMIT_LOG)
    return refs + sum(segment.size for segment in queue.commit_log)


def time_range_of(queue: Queue) -> tuple[int | None, int | None]:
    """Return the smallest and largest store timestamp, Unix ms; None without one."""
    refs = [ref for ref in queue.manifests if ref.type == SegmentType.COMMIT_LOG]
    begins = [ref.min_timestamp for ref in refs]
    ends = [ref.max_timestamp for ref in refs]
    for segment in queue.commit_log:
        if segment.begin_timestamp is not None and segment.end_timestamp is not None:
            begins.append(segment.begin_timestamp)
            ends.append(segment.end_timestamp)
    return min(begins, default=None), max(ends, default=None)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Summary of a queue of a tier at the time of the call."""

    topic: str
    queue_id: int
    min_offset: int
    """First queue offset in the tier."""
    max_offset: int
    """The commit offset: the first queue offset that is not in the tier."""
    messages: int
    """Messages that can be read: those between the offsets that lie in no gap."""
    gaps: tuple[Gap, ...]
    """Ranges of offsets in between that were lost before they could be tiered, in order."""
    commit_log_bytes: int
    """Length of all records together."""
    first_timestamp: int | None
    """Smallest store timestamp, Unix ms; None without a message."""
    last_timestamp: int | None
    """Largest store timestamp, Unix ms."""

    @property
    def first_at(self) -> datetime | None:
        """Smallest store timestamp, in UTC; None without a message."""
        return moment_of(self.first_timestamp)

    @property
    def last_at(self) -> datetime | None:
        """Largest store timestamp, in UTC."""
        return moment_of(self.last_timestamp)

    @property
    def lost(self) -> int:
        """Messages that lie in gaps."""
        return lost_in(self.gaps, self.min_offset, self.max_offset)

    @classmethod
    def of(cls, queue: Queue) -> Self:
        """Summarize the metadata of a queue. O(segments and gaps)."""
        return cls(
            *queue.id,
            queue.min_offset,
            queue.next_offset,
            messages_of(queue),
            queue.gaps,
            log_bytes_of(queue),
            *time_range_of(queue),
        )


class QueueTotals(NamedTuple):
    """Some queues of a tier together."""

    queues: int
    messages: int
    lost: int
    bytes: int
    """Length of their records."""
    first_timestamp: int | None
    """Smallest store timestamp, Unix ms; None without a message."""
    last_timestamp: int | None

    @classmethod
    def of(cls, queues: Collection[QueueSummary]) -> Self:
        """Add up queues. O(queues and gaps)."""
        begins = [one.first_timestamp for one in queues if one.first_timestamp is not None]
        ends = [one.last_timestamp for one in queues if one.last_timestamp is not None]
        return cls(
            len(queues),
            sum(one.messages for one in queues),
            sum(one.lost for one in queues),
            sum(one.commit_log_bytes for one in queues),
            min(begins, default=None),
            max(ends, default=None),
        )


class QueueSummaries(list[QueueSummary]):
    """Summaries of queues, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (
                queue.topic,
                queue.queue_id,
                f"{queue.messages:,}",
                queue.min_offset,
                queue.max_offset,
                f"{queue.lost:,}",
                f"{queue.commit_log_bytes:,}",
                _minute(queue.first_at),
                _minute(queue.last_at),
            )
            for queue in self[:ROWS_SHOWN]
        ]
        return html_table(QUEUE_HEAD, rows) + _more(len(self), "queue")


def topics_html(queues: Iterable[QueueSummary]) -> str:
    """Table of the topics of these queues, for notebooks."""
    topics: dict[str, list[QueueSummary]] = {}
    for queue in queues:
        topics.setdefault(queue.topic, []).append(queue)
    rows = [
        (
            topic,
            len(of),
            f"{sum(queue.messages for queue in of):,}",
            f"{sum(queue.lost for queue in of):,}",
            f"{sum(queue.commit_log_bytes for queue in of):,}",
            _minute(min(filter(None, (queue.first_at for queue in of)), default=None)),
            _minute(max(filter(None, (queue.last_at for queue in of)), default=None)),
        )
        for topic, of in list(topics.items())[:ROWS_SHOWN]
    ]
    return html_table(TOPIC_HEAD, rows) + _more(len(topics), "topic")


def _minute(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _more(rows: int, noun: str) -> str:
    return f"<p>{counted(rows - ROWS_SHOWN, noun)} more</p>" if rows > ROWS_SHOWN else ""


def absence_text(topic: str, queue_id: int | None, queues: Collection[QueueId]) -> str:
    """Describe a missing topic or queue, and suggest the nearest existing one."""
    name = topic if queue_id is None else f"{topic}/{queue_id}"
    ids = sorted(queue.queue_id for queue in queues if queue.topic == topic)
    topics = sorted({queue.topic for queue in queues})
    if ids:
        hint = f"; the topic has queue {', '.join(map(str, ids))}"
    elif near := get_close_matches(topic, topics, 1):
        hint = f"; did you mean {near[0]}?"
    elif len(topics) <= TOPICS_LISTED_MAX:
        hint = f"; there are {', '.join(topics)}" if topics else "; it holds no topic yet"
    else:
        hint = f"; it has {len(topics)} other topics"
    return f"the tier has nothing of {name}{hint}"


def no_such_number(queue_id: int, numbers: Iterable[int]) -> str:
    """Describe a queue number that no wanted topic has; `numbers` are the existing ones."""
    listed = ", ".join(map(str, sorted(numbers)[:TOPICS_LISTED_MAX]))
    return f"no topic that is wanted has a queue {queue_id}; there are {listed or 'none'}"


@dataclass(slots=True)
class TopicSummary:
    """Summary of a topic of a tier after a run that tiered."""

    topic: str
    queues: int = 0
    """Queues that the tier or the broker's log has."""
    messages: int = 0
    """Messages that can be read from the tier now."""
    messages_new: int = 0
    """Messages that this run added to the tier."""
    bytes: int = 0
    """Length of the topic's CommitLogs in the tier now."""
    bytes_new: int = 0
    """Bytes that this run added to them."""
    behind: int = 0
    """Messages of the broker's log that are not in the tier."""
    lost: int = 0
    """Messages that lie in gaps."""
    over: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """Queue, state and reason of each queue that is no longer tiered."""
    is_broken: bool = False
    """True if one of them is stopped or damaged, which an operator must settle."""


def summarize(
    before: Mapping[QueueId, Queue],
    after: Mapping[QueueId, Queue],
    statistics: Iterable[QueueStatistics],
) -> list[TopicSummary]:
    """Return a summary of each topic that the tier or the hot log has, in order."""
    found: dict[str, TopicSummary] = {}

    def line(topic: str) -> TopicSummary:
        return found.setdefault(topic, TopicSummary(topic))

    for queue_id, queue in after.items():
        row = line(queue_id.topic)
        old = before.get(queue_id)
        row.queues += 1
        row.messages += messages_of(queue)
        row.bytes += log_bytes_of(queue)
        row.messages_new += messages_of(queue) - (messages_of(old) if old else 0)
        row.bytes_new += log_bytes_of(queue) - (log_bytes_of(old) if old else 0)
        row.lost += lost_of(queue)
    for status in sorted(statistics, key=lambda one: one.queue):
        row = line(status.queue.topic)
        row.queues += status.queue not in after
        row.behind += status.behind
        row.lost += status.hidden
        if status.state in HALTED:
            row.over.append((status.queue.queue_id, status.state.value, status.reason))
            row.is_broken |= status.state in BROKEN
    return [found[topic] for topic in sorted(found)]
