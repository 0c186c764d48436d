"""What a tier holds and what a run did, as plain values. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from container.metadata.records import Queue
from container.names.queue_id import QueueId, SegmentType
from dispatcher.queue_progress import HALTED, QueueState
from dispatcher.statistics import QueueStatistics

BROKEN = frozenset({QueueState.STOPPED, QueueState.DAMAGED})


def messages_of(queue: Queue) -> int:
    """Messages that can be read: those between the offsets that lie in no gap."""
    return queue.next_offset - queue.min_offset - lost_of(queue)


def lost_of(queue: Queue) -> int:
    """Messages between the offsets that were lost before they could be tiered."""
    return sum(
        min(gap.end, queue.next_offset) - max(gap.start, queue.min_offset)
        for gap in queue.gaps
        if gap.end > queue.min_offset
    )


def log_bytes_of(queue: Queue) -> int:
    """Bytes of the queue's CommitLog, manifests included."""
    refs = sum(ref.bytes for ref in queue.manifests if ref.type == SegmentType.COMMIT_LOG)
    return refs + sum(segment.size for segment in queue.commit_log)


def time_range_of(queue: Queue) -> tuple[int | None, int | None]:
    """Smallest and largest store timestamp, Unix ms; None where there is none."""
    refs = [ref for ref in queue.manifests if ref.type == SegmentType.COMMIT_LOG]
    begins = [ref.min_timestamp for ref in refs]
    ends = [ref.max_timestamp for ref in refs]
    for segment in queue.commit_log:
        if segment.begin_timestamp is not None and segment.end_timestamp is not None:
            begins.append(segment.begin_timestamp)
            ends.append(segment.end_timestamp)
    return min(begins, default=None), max(ends, default=None)


@dataclass(slots=True)
class TopicSummary:
    """One topic after a run."""

    topic: str
    queues: int = 0
    messages: int = 0
    """In the tier now."""
    messages_new: int = 0
    """Of these, by this run."""
    bytes: int = 0
    """Of CommitLogs in the tier now."""
    bytes_new: int = 0
    behind: int = 0
    """Messages of the hot log that are not in the tier."""
    lost: int = 0
    """Messages in gaps."""
    over: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """Queue, state and reason of those that are not tiered any further."""
    is_broken: bool = False
    """One of them needs a person."""


def summarize(
    before: Mapping[QueueId, Queue],
    after: Mapping[QueueId, Queue],
    statistics: Iterable[QueueStatistics],
) -> list[TopicSummary]:
    """One line for each topic that the tier or the hot log has, in order."""
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
        if status.state in HALTED:
            row.over.append((status.queue.queue_id, status.state.value, status.reason))
            row.is_broken |= status.state in BROKEN
    return [found[topic] for topic in sorted(found)]
