"""A commit's plan: the same files and the same metadata however the messages were batched."""

import itertools
import random
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.operations import CommitQueue, PutQueue, PutTopic
from container.metadata.records import Queue, Topic
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions
from container.queue.commit_plan import CommitPlan, CutRules, plan_commit
from container.queue.truncate import roll
from container.record.checksum import record_crc_is_valid
from container.record.message import StoredMessage
from container.record.unit import ConsumeQueueUnit
from provider.file_segments import Placement
from provider.ranges import QueueOffset
from tests.support.messages import TOPIC, batch_of, make_batch, make_message, with_record_crc

QUEUE = QueueId(TOPIC, 0)
OPTIONS = TierOptions(commit_log_bytes_max=4_000, consume_queue_bytes_max=200, extent_bytes_max=900)
RULES = CutRules(OPTIONS, epoch=1, now_ms=5, must_roll=False)


def in_place(plan: CommitPlan) -> CommitQueue:
    """What is published of a plan where every segment is one file."""
    return plan.published([Placement(part.segment, part.position) for part in plan.slices])


class Written:
    """Applies plans to a state, and writes their slices into dictionaries of files."""

    def __init__(self, first_offset: int) -> None:
        first = QueueOffset(first_offset)
        self.state = TierState()
        self.state.apply([PutTopic(Topic(TOPIC, 0)), PutQueue(Queue(QUEUE, first, first))])
        self.files: dict[str, bytearray] = {}

    @property
    def queue(self) -> Queue:
        return self.state.queues[QUEUE]

    def commit(self, records: list[bytes], rules: CutRules = RULES) -> None:
        plan = plan_commit(self.queue, batch_of(records), rules)
        for part in plan.slices:
            file = self.files.setdefault(part.segment, bytearray())
            assert part.position <= len(file), "no hole"
            raw = b"".join(part.buffers)
            file[part.position : part.position + len(raw)] = raw
        assert plan.bytes == sum(len(b) for part in plan.slices for b in part.buffers)
        self.state.apply([in_place(plan)])
        self.state.check()


def records_of(count: int, first_offset: int, seed: int) -> list[bytes]:
    batch = make_batch(first_offset, count, 120, random.Random(seed))
    return [
        batch.data[start : start + size].tobytes()
        for start, size in zip(batch.starts, batch.sizes, strict=True)
    ]


@given(
    count=st.integers(1, 60),
    first_offset=st.sampled_from([0, 7, 1_000_000]),
    seed=st.integers(0, 1_000),
    cuts=st.lists(st.integers(1, 60), max_size=8),
)
def test_batching_changes_neither_files_nor_metadata(
    count: int, first_offset: int, seed: int, cuts: list[int]
) -> None:
    records = records_of(count, first_offset, seed)
    whole, parts = Written(first_offset), Written(first_offset)
    whole.commit(records)
    borders = sorted({0, count, *[cut for cut in cuts if cut < count]})
    for first, last in itertools.pairwise(borders):
        parts.commit(records[first:last])
    assert parts.files == whole.files
    assert parts.queue == whole.queue


def test_records_carry_their_tier_position_and_units_point_to_them() -> None:
    written = Written(40)
    records = records_of(50, 40, seed=3)
    written.commit(records)
    units = b"".join(
        bytes(written.files[name])
        for name in sorted(written.files, key=lambda n: n[-20:])
        if "/CONS" in name
    )
    log = b"".join(
        bytes(written.files[name])
        for name in sorted(written.files, key=lambda n: n[-20:])
        if "/COMMIT" in name
    )
    for number, record in enumerate(records):
        raw = units[number * 20 : number * 20 + 20]
        unit = ConsumeQueueUnit.decode(raw, path="units", position=number * 20)
        found = log[unit.position : unit.position + unit.size]
        message = StoredMessage.decode(found, path="log", position=unit.position)
        assert message.physical_offset == unit.position
        assert message.queue_offset == 40 + number
        assert found[:28] + found[36:] == record[:28] + record[36:]


def test_a_whole_record_checksum_is_valid_at_the_new_position() -> None:
    written = Written(0)
    plain = make_message(0, body=b"x" * 100).encode()
    written.commit([plain, with_record_crc(make_message(1, physical_offset=5))])
    log = bytes(written.files[next(name for name in written.files if "/COMMIT" in name)])
    assert record_crc_is_valid(log[len(plain) :])
    assert log[len(plain) + 28 : len(plain) + 36] == len(plain).to_bytes(8, "big")


def test_planning_twice_changes_nothing_more() -> None:
    batch = make_batch(0, 20, 100, random.Random(1))
    queue = Queue(QUEUE, QueueOffset(0), QueueOffset(0))
    first = plan_commit(queue, batch, RULES)
    data = batch.data.copy()
    second = plan_commit(queue, batch, RULES)
    assert in_place(first) == in_place(second)
    assert np.array_equal(batch.data, data)


def test_an_owner_that_must_roll_begins_new_segments_and_seals_the_old() -> None:
    written = Written(0)
    records = records_of(6, 0, seed=5)
    written.commit(records[:3])
    written.commit(records[3:], RULES._replace(must_roll=True, epoch=2))
    for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
        old, new = written.queue.segments(kind)
        assert (old.epoch, new.epoch) == (1, 2)
        assert old.sealed_ms is not None
        assert new.base == old.end


def test_a_record_longer_than_a_segment_gets_one_of_its_own() -> None:
    written = Written(0)
    written.commit(
        [make_message(at, body=bytes(n)).encode() for at, n in enumerate((10, 9_000, 10))]
    )
    assert [s.size > 4_000 for s in written.queue.commit_log] == [False, True, False]


def test_a_rolled_segment_with_a_name_from_before_a_cut_says_so() -> None:
    """Another owner may still delete the file that had the name."""
    written = Written(0)
    written.commit(records_of(3, 0, 1))
    written.state.queues[QUEUE] = replace(written.queue, used_below=(10_000, 10_000))
    written.state.apply([roll(written.queue, now_ms=6, epoch=1)])
    plan = plan_commit(written.queue, batch_of(records_of(2, 3, 1)), RULES)
    assert [(part.position, part.reused) for part in plan.slices] == [(0, True), (0, True)]
    written.commit(records_of(2, 3, 1))
    plan = plan_commit(written.queue, batch_of(records_of(1, 5, 1)), RULES)
    assert [(part.position > 0, part.reused) for part in plan.slices] == [(True, False)] * 2
