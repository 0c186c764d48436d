"""Extents are made of where a slice was placed, and of what was known of it before."""

import random

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.operations import PutQueue, PutTopic, SegmentChange
from container.metadata.records import Extent, Queue, Segment, Topic
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.options import TierOptions
from container.queue.commit_plan import CommitPlan, CutRules, plan_commit
from provider.file_segments import Placement
from provider.ranges import QueueOffset
from tests.support.messages import TOPIC, make_batch

QUEUE = QueueId(TOPIC, 0)
OPTIONS = TierOptions(commit_log_bytes_max=4_000, consume_queue_bytes_max=200, extent_bytes_max=900)
GROWS = CutRules(OPTIONS, epoch=1, now_ms=5, must_roll=False)
PACKS = GROWS._replace(extents_grow=False)
Where = st.sampled_from(["its own file", "the object before", "a new object"])


class Placed:
    """Commits whose slices are placed as a test says; keeps every object's bytes."""

    def __init__(self) -> None:
        first = QueueOffset(0)
        self.state = TierState()
        self.state.apply([PutTopic(Topic(TOPIC, 0)), PutQueue(Queue(QUEUE, first, first))])
        self.objects: dict[str, bytearray] = {}
        self.files: dict[str, bytearray] = {}
        self.newest = "@parts/0"

    @property
    def queue(self) -> Queue:
        return self.state.queues[QUEUE]

    def commit(self, count: int, rules: CutRules, where: str) -> CommitPlan:
        first = self.queue.next_offset
        plan = plan_commit(self.queue, make_batch(first, count, 80, random.Random(first)), rules)
        if where == "a new object":
            self.newest = f"@parts/{len(self.objects)}"
        placements: list[Placement] = []
        for part in plan.slices:
            raw = b"".join(part.buffers)
            self.files.setdefault(part.segment, bytearray()).extend(raw)
            name = part.segment if where == "its own file" else self.newest
            held = self.objects.setdefault(name, bytearray())
            at = len(held)
            if where == "its own file":
                at = part.position
                held.extend(bytes(max(0, at - len(held))))
            held[at:] = raw
            placements.append(Placement(name, at))
        self.state.apply([plan.published(placements)])
        self.state.check()
        return plan

    def assert_whole(self) -> None:
        """Every extent leads to its bytes, and has their checksum."""
        for kind in FLAT_FILES:
            for segment in self.queue.segments(kind):
                name = next(
                    one for one in self.files if kind.name in one and int(one[-20:]) == segment.base
                )
                for extent in segment.extents:
                    held = self.objects[extent.object_name or name]
                    raw = held[extent.object_offset : extent.object_offset + extent.length]
                    assert raw == self.files[name][extent.position : extent.end]
                    assert google_crc32c.value(bytes(raw)) == extent.crc32c


@given(steps=st.lists(st.tuples(st.integers(1, 12), st.booleans(), Where), max_size=8))
def test_wherever_slices_are_placed_extents_lead_to_their_bytes(
    steps: list[tuple[int, bool, str]],
) -> None:
    placed = Placed()
    for count, expected_to_grow, where in steps:
        placed.commit(count, GROWS if expected_to_grow else PACKS, where)
        placed.assert_whole()


def test_an_extent_grows_where_its_bytes_are_continued_in_its_object() -> None:
    placed = Placed()
    for _ in range(3):
        placed.commit(1, GROWS, "its own file")
    assert [len(segment.extents) for segment in placed.queue.commit_log] == [1]
    assert placed.queue.commit_log[0].extents[0].object_name == ""


def test_a_part_that_was_expected_to_grow_an_extent_and_lies_elsewhere_is_an_extent() -> None:
    placed = Placed()
    placed.commit(1, GROWS, "its own file")
    plan = placed.commit(1, GROWS, "a new object")
    assert [getattr(step, "growing", None) is not None for step in plan.steps] == [True, True]
    assert [len(segment.extents) for segment in placed.queue.commit_log] == [2]
    placed.assert_whole()


def test_an_extent_never_grows_beyond_its_limit_nor_without_a_checksum() -> None:
    placed = Placed()
    for _ in range(30):
        placed.commit(1, GROWS, "its own file")
    logs = placed.queue.commit_log
    assert len(logs) > 1
    assert max(extent.length for segment in logs for extent in segment.extents) <= 900
    unread = Extent(0, 100, None, QueueOffset(0), 1, 1)
    segment = Segment(SegmentType.COMMIT_LOG, 0, 1, 1, (unread,))
    units = Segment(SegmentType.CONSUME_QUEUE, 0, 1, 1, (Extent(0, 20, 7, QueueOffset(0), 1, 1),))
    queue = Queue(QUEUE, QueueOffset(0), QueueOffset(1), (segment,), (units,))
    plan = plan_commit(queue, make_batch(1, 1, 80, random.Random(1)), GROWS)
    log, _ = plan.published(
        [Placement(part.segment, part.position) for part in plan.slices]
    ).changes
    assert isinstance(log, SegmentChange)
    assert (log.keep, len(log.extents)) == (1, 1)
