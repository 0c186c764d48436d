"""Records that rest packed come back as they were, and as the same object for who holds one."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given

from container.metadata import tables
from container.metadata.records import Gap, ManifestRef, Queue, Segment
from container.metadata.resting_queue import bounds, pack, unpack
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId, SegmentType
from provider.ranges import QueueOffset
from tests.support.tier_values import begin_queue, commit, queues, usual_queues

AWAKE = 4
LOG = SegmentType.COMMIT_LOG


@given(usual_queues())
def test_a_usual_record_is_packed_as_numbers_and_comes_back_equal(record: Queue) -> None:
    packed = pack(record)
    assert isinstance(packed[0], bytes)
    assert unpack(packed, record.id) == record
    assert bounds(packed) == (
        record.min_offset,
        record.next_offset,
        record.generation,
        len(record.gaps),
    )


@given(queues)
def test_any_record_at_all_comes_back_equal(record: Queue) -> None:
    found = unpack(pack(record), record.id)
    assert found == record
    assert [type(one) for one in found.commit_log] == [type(one) for one in record.commit_log]


def test_what_has_fields_of_a_newer_version_keeps_them() -> None:
    segment = Segment(LOG, 0, 1, 1, (), extra={"x": [1, {"y": None}]})
    gap = Gap(QueueOffset(0), QueueOffset(1), "", 0, {"x": 1})
    ref = ManifestRef("m", LOG, 0, 1, 1, 1, 1, 1, extra={"x": 1})
    plain = number(0)
    for record in (
        replace(plain, extra={"x": 1}),
        replace(plain, commit_log=(segment,)),
        replace(plain, gaps=(gap,)),
        replace(plain, manifests=(ref,)),
    ):
        packed = pack(record)
        assert bounds(packed) is None
        assert unpack(packed, record.id) == record


def number(one: int, *, end: int = 0) -> Queue:
    return Queue(QueueId("T", one), QueueOffset(0), QueueOffset(end))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table keeps `AWAKE` records as objects."""
    monkeypatch.setattr(tables, "AWAKE_MAX", AWAKE)


def awake(table: QueueTable) -> int:
    gc.collect()
    return sum(place.record is not None for place in table._places.values())


@pytest.mark.usefixtures("few")
def test_only_so_many_records_are_objects_however_they_are_reached() -> None:
    records = [number(one) for one in range(50)]
    table = QueueTable(records)
    assert awake(table) == 0
    for record in records:
        assert table[record.id] == record
        table[record.id] = record
    assert awake(table) <= AWAKE
    assert list(table.values()) == records
    assert list(table.items()) == [(one.id, one) for one in records]
    assert table == {one.id: one for one in records}
    assert {one.id: one for one in records} == table
    assert awake(table) <= AWAKE


@pytest.mark.usefixtures("few")
def test_a_record_is_one_object_in_all_copies_while_somebody_holds_it() -> None:
    state = TierState()
    state.apply([*begin_queue()])
    planned = state.copy()
    (queue,) = state.queues
    held: list[Queue] = [state.queues[queue]]
    for _ in range(3):
        change = planned.plan([commit(held[-1], 2)])
        planned.install(change)
        state.install(change)
        held.append(state.queues[queue])
        del change
        for one in range(1, 3 * AWAKE):
            state.queues[QueueId("T", one)] = number(one)
        assert awake(state.queues) <= AWAKE
        assert state.queues[queue] is planned.queues[queue] is held[-1]
        assert next(iter(planned.queues.values())) is held[-1]
    assert all(older != newer for older, newer in pairwise(held))


@pytest.mark.usefixtures("few")
def test_threads_that_ask_for_a_resting_record_get_the_same_object() -> None:
    table = QueueTable(number(one) for one in range(20))
    rng = Random(1)

    def ask(_: int) -> bool:
        queue = QueueId("T", rng.randrange(20))
        first = table[queue]
        others = [table[QueueId("T", one)] for one in range(20)]
        return table[queue] is first and len(others) == len(table)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(200)))


def test_tables_differ_by_their_records_alone() -> None:
    one, other = (QueueTable([number(0), number(1)]) for _ in range(2))
    assert one == other == one.copy()
    other[QueueId("T", 1)] = number(1, end=1)
    assert one != other
    assert one != QueueTable([number(0)])
    assert one != {QueueId("T", 0): number(0), QueueId("T", 2): number(1)}
    assert one != 7


def test_what_is_told_without_the_records() -> None:
    gap = Gap(QueueOffset(1), QueueOffset(2), "lost", 3)
    records = [
        replace(number(1, end=4), gaps=(gap,)),
        replace(number(0, end=9), extra={"x": 1}),
        Queue(QueueId("S", 3), QueueOffset(5), QueueOffset(6), generation=7),
    ]
    table = QueueTable(records)
    told = [(*one,) for one in table.bounds()]
    assert told == [
        (one.id, one.min_offset, one.next_offset, one.generation, len(one.gaps)) for one in records
    ]
    assert list(table.with_gaps()) == records[:1]
    assert sorted(table.topics()) == ["S", "T"]
    assert table.names_of_topic("T") == [records[1].id, records[0].id]
    assert table.of_topic("T") == [records[1], records[0]]
    assert table.of_topic("U") == []
    assert list(table.keys() - {records[0].id}) != []
    table[records[0].id] = replace(records[0], gaps=())
    assert list(table.with_gaps()) == []


def test_queues_that_rest_keep_no_references_to_records_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "AWAKE_MAX", AWAKE)
    records = [Queue(QueueId("T", n), QueueOffset(0), QueueOffset(n)) for n in range(50)]
    table = QueueTable(records)
    held = table[records[7].id]
    for queue in table:
        assert table[queue].id == queue
    assert sum(1 for record in table.values() if record.next_offset) == 49
    left = [place.id for place in table._places.values() if place.seen is not None]
    assert held.id in left
    assert len(left) <= AWAKE + 2
    assert table[held.id] is held
