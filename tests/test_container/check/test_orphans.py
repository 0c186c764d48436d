"""Which files the checker calls orphans, and which a commit under way may have made."""

from container.check.tier import may_be_a_commit
from container.metadata.operations import PutQueue, PutTopic
from container.metadata.records import Queue, Topic
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from provider.ranges import QueueOffset

T0 = QueueId("T", 0)


def state_at(offset: int) -> TierState:
    state = TierState()
    start = QueueOffset(offset)
    state.apply([PutTopic(Topic("T", 0)), PutQueue(Queue(T0, start, start))])
    return state


def test_files_at_and_above_the_published_end_may_be_a_commit() -> None:
    state = state_at(5)
    assert may_be_a_commit(state, segment_name(T0, SegmentType.COMMIT_LOG, 0))
    assert may_be_a_commit(state, segment_name(T0, SegmentType.COMMIT_LOG, 4711))
    assert may_be_a_commit(state, segment_name(T0, SegmentType.CONSUME_QUEUE, 100))


def test_the_first_commit_of_a_queue_is_known_by_its_name_alone() -> None:
    other = QueueId("T", 1)
    assert may_be_a_commit(state_at(0), segment_name(other, SegmentType.COMMIT_LOG, 0))


def test_files_below_the_published_end_and_strangers_are_orphans() -> None:
    state = state_at(5)
    assert not may_be_a_commit(state, segment_name(T0, SegmentType.CONSUME_QUEUE, 80))
    assert not may_be_a_commit(state, "T/0/COMMIT_LOG/x")
    assert not may_be_a_commit(state, "T/0/notes")
