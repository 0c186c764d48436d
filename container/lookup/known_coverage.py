"""What the indices of a tier have of a topic, remembered while nothing is published."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from container.lookup.coverage import (
    Span,
    merged,
    readable,
    rows_of_topic,
    topic_covered_by_files,
    without,
)
from container.lookup.query import Unsealed
from container.metadata.records import IndexFile, Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId

TOPICS_MAX = 64
"""Topics that are remembered; each is some 300 bytes a queue that is asked for."""


@dataclass(frozen=True, slots=True)
class TopicIndex:
    """What is in an index of one topic, of one state of the tier. Shared: never change it."""

    topic: str
    files: Sequence[IndexFile]
    """The files that may have items of the topic."""
    unindexed: Mapping[QueueId, list[Span]]
    """By queue, the readable offsets whose keys no file and no memory has; no queue without."""
    queues: Sequence[tuple[Queue, Sequence[Span]]]
    """The queues of the topic, and the offsets of each whose keys are in memory."""

    def unindexed_without(self, lost: Container[str]) -> Mapping[QueueId, list[Span]]:
        """`unindexed` where files cannot be read, by their names. O(coverage of the topic)."""
        kept = [one for one in self.files if one.object_name not in lost]
        covered = topic_covered_by_files(kept, self.topic)
        found = {
            queue.id: _left(queue, [*covered.get(queue.id, ()), *in_memory])
            for queue, in_memory in self.queues
        }
        return {queue: spans for queue, spans in found.items() if spans}


@dataclass(frozen=True, slots=True)
class _FilesOfTopic:
    every: list[IndexFile]
    """All files of the state that this was worked out of."""
    having: list[IndexFile]
    covered: Mapping[QueueId, list[Span]]


class KnownCoverage:
    """Remembers the newest answer for each topic. O(1) where nothing was published since."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[TierState, tuple[int, ...], TopicIndex]] = {}
        self._files: dict[str, _FilesOfTopic] = {}

    def __repr__(self) -> str:
        return f"<KnownCoverage of {len(self._answers)} topics>"

    def of_topic(self, state: TierState, topic: str, unsealed: Sequence[Unsealed]) -> TopicIndex:
        """What `state` and `unsealed` have of a topic.

        O(queues of the tier) after a commit, and O(coverage of the topic) after index files came.
        """
        when = state.sequence, *(one.revision for one in unsealed)
        known = self._answers.get(topic)
        if known is not None and known[0] is state and known[1] == when:
            return known[2]
        files = self._files_of(state, topic)
        queues = [
            (queue, [span for one in unsealed for span in one.spans(queue.id)])
            for queue in state.queues.of_topic(topic)
        ]
        unindexed: dict[QueueId, list[Span]] = {}
        for queue, in_memory in queues:
            if left := _left(queue, [*files.covered.get(queue.id, ()), *in_memory]):
                unindexed[queue.id] = left
        found = TopicIndex(topic, files.having, unindexed, queues)
        self._answers.pop(topic, None)
        if len(self._answers) >= TOPICS_MAX:
            oldest = next(iter(self._answers))
            del self._answers[oldest], self._files[oldest]
        self._answers[topic] = state, when, found
        return found

    def _files_of(self, state: TierState, topic: str) -> _FilesOfTopic:
        every = [*state.index_files.values()]
        known = self._files.get(topic)
        if known is None or not _are_same(known.every, every):
            having = [one for one in every if not one.coverage or rows_of_topic(one, topic)]
            spans = topic_covered_by_files(having, topic)
            covered = {queue: merged(some) for queue, some in spans.items()}
            known = self._files[topic] = _FilesOfTopic(every, having, covered)
        return known


def _are_same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _left(queue: Queue, known: Sequence[Span]) -> list[Span]:
    """The readable offsets of a queue that are in none of `known`. O(n) if none is, as mostly."""
    at: int = queue.min_offset
    for start, end in known:
        if start <= at < end:
            at = end
    return without(readable(queue), known) if at < queue.next_offset else []
