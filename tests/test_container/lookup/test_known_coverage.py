"""What is remembered of the indices equals what is worked out anew."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from container.index.layout import KeyItems
from container.lookup.find import TOPICS_MAX, KnownCoverage
from container.metadata.coverage import Span, readable, without
from container.metadata.records import Gap, IndexFile, Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset

QUEUES = [QueueId("A", 0), QueueId("A", 1), QueueId("B", 0)]
_SPAN = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda one: (one[0], one[0] + one[1]))
_SPANS = st.lists(_SPAN, max_size=4)


class Memory:
    """Spans of queues that a test names."""

    has_exact_times = True

    def __init__(self) -> None:
        self.revision = 0
        self._spans: dict[QueueId, Sequence[Span]] = {}

    def have(self, queue: QueueId, spans: Sequence[Span]) -> None:
        self._spans[queue] = spans
        self.revision += 1

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        raise AssertionError("not asked here")

    def spans(self, queue: QueueId) -> Sequence[Span]:
        return self._spans.get(queue, ())


def index_file(name: str, rows: Sequence[tuple[QueueId, Span]]) -> IndexFile:
    coverage = tuple(
        (queue, QueueOffset(start), QueueOffset(end)) for queue, (start, end) in sorted(rows)
    )
    return IndexFile(name, 0, 36, 0, 0, 0, 0, coverage)


class World:
    """A state, and what is in memory; every step is published."""

    def __init__(self) -> None:
        self.state = TierState()
        self.memory = Memory()
        self.known = KnownCoverage()

    def check(self) -> None:
        for topic in "ABC":
            found = self.known.of_topic(self.state, topic, [self.memory])
            assert dict(found.unindexed) == self.unindexed(topic, lost="")
            for lost in self.state.index_files:
                assert dict(found.unindexed_without({lost})) == self.unindexed(topic, lost=lost)
            mine = [
                file for file in self.state.index_files.values()
                if any(row[0].topic == topic for row in file.coverage)
            ]  # fmt: skip
            assert [*found.files] == mine

    def unindexed(self, topic: str, *, lost: str) -> dict[QueueId, list[Span]]:
        found: dict[QueueId, list[Span]] = {}
        for queue in self.state.queues.values():
            covered = [
                (row[1], row[2])
                for file in self.state.index_files.values()
                for row in file.coverage
                if row[0] == queue.id and file.object_name != lost
            ]
            spans = without(readable(queue), [*covered, *self.memory.spans(queue.id)])
            if spans and queue.id.topic == topic:
                found[queue.id] = spans
        return found


@given(st.data())
def test_after_each_commit_file_and_change_of_memory(data: st.DataObject) -> None:
    world = World()
    names = st.sampled_from(QUEUES)
    for step in range(data.draw(st.integers(1, 12))):
        world.state.sequence += 1
        kind = data.draw(st.sampled_from(("queue", "file", "no file", "memory", "nothing")))
        if kind == "queue":
            queue, (first, end) = data.draw(names), data.draw(_SPAN)
            gaps = [Gap(QueueOffset(a), QueueOffset(b), "lost", 0) for a, b in data.draw(_SPANS)]
            world.state.queues[queue] = Queue(
                queue, QueueOffset(first), QueueOffset(end), gaps=tuple(gaps[:1])
            )
        elif kind == "file":
            rows = data.draw(st.lists(st.tuples(names, _SPAN), min_size=1, max_size=4))
            name = f"index-{step}"
            world.state.index_files[name] = index_file(name, rows)
        elif kind == "no file" and world.state.index_files:
            name = data.draw(st.sampled_from([*world.state.index_files]))
            if data.draw(st.booleans()):
                del world.state.index_files[name]
            else:  # cut
                kept = replace(world.state.index_files[name], coverage=((QUEUES[0], 0, 1),))
                world.state.index_files[name] = kept
        elif kind == "memory":
            world.state.sequence -= 1  # nothing is published for it
            world.memory.have(data.draw(names), data.draw(_SPANS))
        world.check()


def test_the_same_answer_is_given_while_nothing_changes() -> None:
    world = World()
    world.state.queues[QUEUES[0]] = Queue(QUEUES[0], QueueOffset(0), QueueOffset(9))
    first = world.known.of_topic(world.state, "A", [world.memory])
    assert world.known.of_topic(world.state, "A", [world.memory]) is first
    world.memory.have(QUEUES[0], [(0, 9)])
    assert not world.known.of_topic(world.state, "A", [world.memory]).unindexed
    copied = world.state.copy()
    copied.queues.clear()
    assert not world.known.of_topic(copied, "A", []).queues


def test_no_more_topics_are_remembered_than_are_said() -> None:
    world = World()
    for number in range(TOPICS_MAX + 7):
        world.known.of_topic(world.state, f"T{number}", [])
    assert repr(world.known) == f"<KnownCoverage of {TOPICS_MAX} topics>"
