"""What operations do to the state, and that a refused transaction changes nothing."""

from dataclasses import replace
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.errors import Refused
from container.metadata import operations as op
from container.metadata.records import CopyState, Gap, ManifestRef, Queue, Tombstone, Topic
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from provider.ranges import QueueOffset
from tests.support.tier_values import Q0, begin_queue, commit, extent

LOG, UNITS = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


def tier(*, sealed: int = 0) -> TierState:
    """A tier with one queue that has some sealed segments."""
    state = TierState()
    state.apply([op.TakeOwnership(1, "me", "c", "b", 0)])
    state.apply(begin_queue())
    for _ in range(sealed):
        state.apply([commit(state.queues[Q0], 10, seal=True)])
    return state


def test_a_commit_extends_both_flat_files_and_the_commit_offset() -> None:
    state = tier()
    state.apply([commit(state.queues[Q0], 3)])
    state.apply([commit(state.queues[Q0], 4, seal=True)])
    state.apply([commit(state.queues[Q0], 5)])
    queue = state.queues[Q0]
    assert queue.next_offset == 12
    assert [(s.base, s.size) for s in queue.commit_log] == [(0, 700), (700, 500)]
    assert [(s.base, s.size) for s in queue.consume_queue] == [(0, 140), (140, 100)]
    state.check()


def _bad_operations(state: TierState) -> dict[str, op.Operation]:
    queue = state.queues[Q0]
    good = commit(queue, 2)
    log, units = good.changes

    def changed(**fields: object) -> op.CommitQueue:
        return replace(good, changes=(replace(log, **fields), units))  # type: ignore[arg-type]

    return {
        "planned on": replace(good, expected_offset=QueueOffset(0)),
        "goes back": replace(good, next_offset=QueueOffset(1)),
        "hole": changed(base=log.base + 1, keep=0, extents=(extent(0, 200, queue.next_offset),)),
        "overlaps": changed(base=log.base - 1, keep=0),
        "no segment at 2000 to keep": changed(keep=9),
        "does not follow": changed(extents=(extent(7, 200, queue.next_offset),)),
        "of offset 99": changed(extents=(extent(0, 200, 99),)),
        r"units end .* \(I5\)": replace(good, changes=(log,)),
        "no INDEX": changed(type=SegmentType.INDEX),
        "no such queue": replace(good, queue=QueueId("U", 0)),
        "epoch 3 does not follow 1": op.TakeOwnership(3, "x", "c", "b", 0),
        "belongs to c/b": op.TakeOwnership(2, "x", "c", "other", 0),
        "topic id 5 would replace 0": op.PutTopic(Topic("T", 5)),
        "topic id 0 is taken": op.PutTopic(Topic("U", 0)),
        "topic is not there": op.PutQueue(Queue(QueueId("U", 0), QueueOffset(0), QueueOffset(0))),
        "would lose messages": op.PutQueue(Queue(Q0, QueueOffset(0), QueueOffset(0))),
        "does not begin at the commit offset": op.RecordGap(
            Q0, Gap(QueueOffset(3), QueueOffset(30), "", 0)
        ),
        "does not shorten": op.CutQueue(replace(queue, next_offset=QueueOffset(99)), ""),
        "no segment at 7": op.SetSegmentState(Q0, LOG, 7, CopyState.COPY_FINISHED),
        "not a step": op.SetSegmentState(Q0, LOG, 0, CopyState.COPY_STARTED),
        "no such attempt": op.EndAttempt("a"),
        "no such index file": op.DropIndexFile("a"),
        "not the oldest": op.MoveToManifest(Q0, _ref(1000, 2000), (1000,)),
        "nothing moves": op.MoveToManifest(Q0, _ref(0, 0), ()),
        "is not what moves": op.MoveToManifest(Q0, _ref(0, 1001), (0,)),
        "planned on generation 1": op.MoveToManifest(Q0, _ref(0, 1000), (0,), generation=1),
        "planned on repacking 1": op.MoveToManifest(Q0, _ref(0, 1000), (0,), repacks=1),
        "planned on first offset 5": op.TrimQueue(Q0, QueueOffset(5), QueueOffset(9), 0, 0),
        "inside a segment": op.TrimQueue(Q0, QueueOffset(0), QueueOffset(9), 100, 0),
        "last segment must stay": op.TrimQueue(Q0, QueueOffset(0), QueueOffset(9), 9**9, 0),
    }


def _ref(base: int, end: int, name: str = "m", level: int = 0) -> ManifestRef:
    return ManifestRef(name, LOG, base, end, 1, end - base, 0, 0, level)


@pytest.mark.parametrize("reason", _bad_operations(tier(sealed=2)))
def test_a_violated_expectation_changes_nothing(reason: str) -> None:
    state = tier(sealed=2)
    before = state.copy()
    bad = _bad_operations(state)[reason]
    good = [op.PutTopic(Topic("New", 7)), op.AddTombstones((Tombstone("x", 1, "r"),))]
    with pytest.raises(Refused, match=reason):
        state.apply([bad] if isinstance(bad, op.TakeOwnership) else [*good, bad])
    assert state == before


def test_a_sealed_segment_never_grows() -> None:
    state = tier(sealed=1)
    queue = state.queues[Q0]
    last = queue.commit_log[-1]
    change = op.SegmentChange(LOG, last.base, 1, (extent(last.size, 5, queue.next_offset),))
    operation = op.CommitQueue(Q0, queue.next_offset, QueueOffset(11), (change,))
    with pytest.raises(Refused, match="I2"):
        state.apply([operation])


def test_the_last_extent_may_grow_but_not_shrink() -> None:
    state = tier()
    state.apply([commit(state.queues[Q0], 3)])
    grown = op.CommitQueue(
        Q0,
        QueueOffset(3),
        QueueOffset(4),
        (
            op.SegmentChange(LOG, 0, 0, (extent(0, 400, 0),)),
            op.SegmentChange(UNITS, 0, 0, (extent(0, 80, 0),)),
        ),
    )
    state.apply([grown])
    shrunk = op.CommitQueue(
        Q0, QueueOffset(4), QueueOffset(4), (op.SegmentChange(LOG, 0, 0, (extent(0, 399, 0),)),)
    )
    with pytest.raises(Refused, match="lose published bytes"):
        state.apply([shrunk])


def test_a_fence_is_alone_in_its_entry() -> None:
    state = tier()
    fence = op.TakeOwnership(2, "x", "c", "b", 0)
    for operations in ([fence, op.DropTombstones(())], [op.DropTombstones(()), fence]):
        with pytest.raises(Refused, match="alone"):
            state.apply(operations)
    state.apply([fence])
    assert state.broker.epoch == 2


def test_an_import_may_stand_behind_a_fence_and_is_applied_with_it_or_not_at_all() -> None:
    fence = op.TakeOwnership(1, "x", "c", "b", 0)
    topic, queue = (
        op.PutTopic(Topic("T", 0)),
        op.PutQueue(Queue(Q0, QueueOffset(0), QueueOffset(0))),
    )
    state = TierState()
    for operations in ([fence, queue], [fence, topic, queue, op.DropQueue(Q0)]):
        with pytest.raises(Refused):
            state.apply(operations)
        assert state == TierState()
    state.apply([fence, topic, queue])
    assert (state.broker.epoch, list(state.queues)) == (1, [Q0])


def test_a_gap_seals_and_the_next_commit_begins_behind_it() -> None:
    state = tier()
    state.apply([commit(state.queues[Q0], 3)])
    state.apply([op.RecordGap(Q0, Gap(QueueOffset(3), QueueOffset(10), "lost", 99))])
    state.apply([op.RecordGap(Q0, Gap(QueueOffset(10), QueueOffset(12), "lost", 99))])
    state.apply([commit(state.queues[Q0], 2)])
    queue = state.queues[Q0]
    assert [(gap.start, gap.end) for gap in queue.gaps] == [(3, 12)]
    assert [segment.base for segment in queue.commit_log] == [0, 300]
    assert [segment.base for segment in queue.consume_queue] == [0, 240]
    state.check()


def test_sealed_segments_move_to_a_manifest_and_manifests_merge() -> None:
    state = tier(sealed=4)
    state.apply([op.MoveToManifest(Q0, _ref(0, 1000, "a"), (0,))])
    state.apply([op.MoveToManifest(Q0, _ref(1000, 3000, "b"), (1000, 2000))])
    merged = op.MoveToManifest(Q0, _ref(0, 3000, "c", 1), (), ("a", "b"))
    with pytest.raises(Refused, match="tombstone"):
        state.apply([merged])
    dead = (Tombstone("a", 9, "merged"), Tombstone("b", 9, "merged"))
    state.apply([replace(merged, tombstones=dead)])
    queue = state.queues[Q0]
    assert [ref.object_name for ref in queue.manifests] == ["c"]
    assert [segment.base for segment in queue.commit_log] == [3000]
    assert sorted(state.tombstones) == ["a", "b"]
    state.check()


def test_retention_takes_whole_segments_from_the_front() -> None:
    state = tier(sealed=3)
    state.apply([op.TrimQueue(Q0, QueueOffset(0), QueueOffset(10), 1000, 200)])
    queue = state.queues[Q0]
    assert (queue.min_offset, queue.commit_log[0].base, queue.consume_queue[0].base) == (
        10,
        1000,
        200,
    )
    state.apply([commit(queue, 1)])
    state.check()


def test_a_copy_whose_removal_is_finished_leaves() -> None:
    state = tier(sealed=2)
    with pytest.raises(Refused, match="last segment"):
        state.apply([op.SetSegmentState(Q0, LOG, 1000, CopyState.DELETE_STARTED)])
    for copy_state in (CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED):
        state.apply([op.SetSegmentState(Q0, LOG, 0, copy_state)])
    assert [segment.base for segment in state.queues[Q0].commit_log] == [1000]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 3)), max_size=20))
def test_any_history_of_commits_and_gaps_keeps_the_invariants(steps) -> None:
    state = tier()
    for messages, seal, lost in steps:
        state.apply([commit(state.queues[Q0], messages, seal=seal)])
        if lost:
            start = state.queues[Q0].next_offset
            gap = Gap(start, QueueOffset(start + lost), "", 1)
            state.apply([op.RecordGap(Q0, gap)])
        state.check()


def test_a_plan_is_installed_on_a_second_state_with_the_same_result() -> None:
    published, planned = tier(), tier()
    for _ in range(3):
        change = planned.plan([commit(planned.queues[Q0], 2)])
        planned.install(change)
        published.install(change)
    assert published == planned


def test_a_commit_to_a_long_segment_is_cheap() -> None:
    state = tier()
    for _ in range(256):
        state.apply([commit(state.queues[Q0], 1)])
    operation = commit(state.queues[Q0], 1)
    best_s = 1.0
    for _ in range(200):
        started = perf_counter()
        state.plan([operation])
        best_s = min(best_s, perf_counter() - started)
    assert best_s < 100e-6
