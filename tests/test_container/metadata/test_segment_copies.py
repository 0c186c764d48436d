"""The vectors and properties of Kafka's remote segments (KIP-405), and our containment rule."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.errors import Refused
from container.metadata.records import CopyState
from container.metadata.segment_copies import (
    EpochStart,
    SegmentCopies,
    SegmentCopy,
    Standing,
    is_in_lineage,
)
from provider.errors import NotFound
from provider.ranges import QueueOffset

STARTED, FINISHED = CopyState.COPY_STARTED, CopyState.COPY_FINISHED
DELETING, DELETED = CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED


def copy(copy_id: str, first: int, last: int, epochs: dict[int, int], size: int = 0) -> SegmentCopy:
    """A copy as Kafka writes it: the last offset belongs to it."""
    starts = tuple(EpochStart(epoch, QueueOffset(start)) for epoch, start in epochs.items())
    return SegmentCopy(copy_id, QueueOffset(first), QueueOffset(last + 1), starts, STARTED, size)


def finished(copies: SegmentCopies, *added: SegmentCopy) -> SegmentCopies:
    for one in added:
        copies.add(one)
        copies.update(one.copy_id, FINISHED)
    return copies


def kafkas_four() -> SegmentCopies:
    return finished(
        SegmentCopies(),
        copy("A", 0, 100, {0: 0, 1: 20, 2: 80}),
        copy("B", 101, 200, {2: 101}),
        copy("C", 201, 300, {2: 201, 3: 240}),
        copy("D", 250, 400, {3: 250, 4: 370}),
    )


@pytest.mark.parametrize(
    ("epoch", "offset", "wanted"),
    [(1, 40, "A"), (2, 110, "B"), (3, 240, "C"), (3, 250, "D"), (4, 375, "D"),
     (1, 110, None), (4, 401, None), (5, 301, None)],
)  # fmt: skip
def test_kafka_lookups(epoch: int, offset: int, wanted: str | None) -> None:
    found = kafkas_four().lookup(epoch, offset)
    assert (found and found.copy_id) == wanted


def test_kafka_highest_offset_of_each_epoch_is_sticky() -> None:
    copies = kafkas_four()
    wanted = {0: 19, 1: 79, 2: 239, 3: 369, 4: 400, 5: None}
    assert {epoch: copies.last_offset(epoch) for epoch in wanted} == wanted
    copies.update("A", DELETING)
    assert {epoch: copies.last_offset(epoch) for epoch in wanted} == wanted
    copies.update("A", DELETED)
    assert {epoch: copies.last_offset(epoch) for epoch in wanted} == wanted
    assert copies.lookup(1, 40) is None


def test_kafka_16511_a_segment_stays_valid_when_the_head_of_the_lineage_is_deleted() -> None:
    x, y = copy("X", 10, 50, {5: 10, 7: 15}), copy("Y", 14, 150, {5: 14, 7: 15, 9: 100})
    end = QueueOffset(151)
    whole = [EpochStart(5, QueueOffset(10)), EpochStart(7, QueueOffset(15))]
    whole.append(EpochStart(9, QueueOffset(100)))
    assert is_in_lineage(x, whole, end)
    assert is_in_lineage(y, whole, end)
    cut = [EpochStart(7, QueueOffset(51)), EpochStart(9, QueueOffset(100))]
    assert is_in_lineage(y, cut, end)


@pytest.mark.parametrize(
    ("epochs", "last", "rule"),
    [
        ({4: 20}, 30, "1: its last epoch is older than the history"),
        ({10: 20}, 30, "1: its last epoch is newer than the history"),
        ({5: 20, 6: 25, 7: 40}, 45, "3: the history has no epoch 6"),
        ({7: 12}, 30, "4: it begins before the epoch does"),
        ({5: 10}, 20, "5: it goes on behind the end of the epoch"),
        ({5: 10, 7: 16}, 30, "6: the epochs meet elsewhere"),
        ({9: 100}, 200, "7: it goes on behind the end of the log"),
    ],
)
def test_what_is_not_of_a_lineage(epochs: dict[int, int], last: int, rule: str) -> None:
    lineage = [EpochStart(5, QueueOffset(10)), EpochStart(7, QueueOffset(15))]
    lineage.append(EpochStart(9, QueueOffset(100)))
    one = copy("S", min(epochs.values()), last, epochs)
    assert not is_in_lineage(one, lineage, QueueOffset(151)), rule


def test_an_epoch_without_an_offset_is_in_no_lineage() -> None:
    lineage = [EpochStart(5, QueueOffset(10)), EpochStart(6, QueueOffset(15))]
    lineage.append(EpochStart(7, QueueOffset(15)))
    assert is_in_lineage(copy("S", 10, 20, {5: 10, 7: 15}), lineage, QueueOffset(30))


@pytest.mark.parametrize("now", [STARTED, FINISHED, DELETING])
@pytest.mark.parametrize("wanted", CopyState)
def test_steps_that_a_copy_may_take(now: CopyState, wanted: CopyState) -> None:
    legal = {
        STARTED: {FINISHED, DELETING},
        FINISHED: {FINISHED, DELETING},
        DELETING: {DELETING, DELETED},
    }
    copies = SegmentCopies()
    copies.add(copy("A", 0, 9, {1: 0}))
    for step in {STARTED: [], FINISHED: [FINISHED], DELETING: [DELETING]}[now]:
        copies.update("A", step)
    if wanted in legal[now]:
        copies.update("A", wanted)
        states = [] if wanted is DELETED else [wanted]
        assert [one.state for one in copies.listed()] == states
    else:
        with pytest.raises(Refused):
            copies.update("A", wanted)
        assert [one.state for one in copies.listed()] == [now]


def test_a_copy_begins_once_and_is_forgotten_at_its_end() -> None:
    copies, one = SegmentCopies(), copy("A", 0, 9, {1: 0})
    with pytest.raises(NotFound):
        copies.update("A", FINISHED)
    copies.add(one)
    copies.add(one)
    with pytest.raises(Refused, match="another copy has this id"):
        copies.add(copy("A", 0, 8, {1: 0}))
    copies.update("A", FINISHED)
    with pytest.raises(Refused, match="COPY_FINISHED to COPY_STARTED"):
        copies.add(one)
    copies.update("A", DELETING)
    copies.update("A", DELETED)
    with pytest.raises(NotFound):
        copies.update("A", DELETED)


def test_kafka_17062_a_retention_by_size_does_not_count_copies_that_only_began() -> None:
    copies = finished(SegmentCopies(), copy("A", 0, 9, {1: 0}, size=100))
    for number in range(50):
        copies.add(copy(f"S{number}", 10, 19, {1: 10}, size=1_000))
    assert (copies.retained_bytes, copies.size_bytes) == (100, 100)
    copies.update("A", DELETING)
    assert (copies.retained_bytes, copies.size_bytes) == (0, 100)


def test_kafka_20932_a_late_shorter_copy_hides_nothing() -> None:
    copies = finished(SegmentCopies(), copy("long", 0, 200, {1: 0}), copy("late", 0, 100, {1: 0}))
    assert copies.standing("late", 1) is Standing.SUPERSEDED
    assert all(copies.lookup(1, offset) is not None for offset in range(201))
    copies.update("long", DELETING)
    found = copies.lookup(1, 100)
    assert found is not None
    assert found.copy_id == "late", "it comes back when what contained it goes"


_EPOCHS = 3


@st.composite
def _any_copies(draw: st.DrawFn) -> list[SegmentCopy]:
    made: list[SegmentCopy] = []
    for number in range(draw(st.integers(1, 7))):
        first = draw(st.integers(0, 40))
        last = first + draw(st.integers(0, 30))
        epochs = sorted(draw(st.sets(st.integers(0, _EPOCHS - 1), min_size=1, max_size=3)))
        later = sorted(draw(st.integers(first, last)) for _ in epochs[1:])
        starts = dict(zip(epochs, [first, *later], strict=True))
        made.append(copy(f"{number}", first, last, starts))
    return made


@given(_any_copies(), st.data())
def test_every_order_of_arrival_reads_every_covered_offset_and_loses_no_copy(
    made: list[SegmentCopy], data: st.DataObject
) -> None:
    one, other = SegmentCopies(), SegmentCopies()
    for table, order in ((one, made), (other, data.draw(st.permutations(made)))):
        for each in data.draw(st.permutations(made)):
            table.add(each)
        for each in order:
            table.update(each.copy_id, FINISHED)
    for gone in data.draw(st.lists(st.sampled_from(made), max_size=3, unique=True)):
        one.update(gone.copy_id, DELETING)
        other.update(gone.copy_id, DELETING)
    alive = [each for each in one.listed() if each.state is FINISHED]
    assert len(one.listed()) == len(made)
    for epoch in range(_EPOCHS):
        covered = {
            at for each in alive for e, a, b in each.ranges if e == epoch for at in range(a, b)
        }
        for offset in range(80):
            found = one.lookup(epoch, offset)
            assert found == other.lookup(epoch, offset)
            assert (found is not None) == (offset in covered)
            assert found is None or any(e == epoch and a <= offset < b for e, a, b in found.ranges)
        for each in made:
            is_of_it = any(e == epoch for e, _ in each.epochs)
            assert (one.standing(each.copy_id, epoch) is not None) == is_of_it
        referenced = [
            (a, b) for each in alive if one.standing(each.copy_id, epoch) is Standing.REFERENCED
            for e, a, b in each.ranges if e == epoch
        ]  # fmt: skip
        for (a, b), (c, d) in pairwise(sorted(referenced)):
            assert a < c
            assert b < d


@pytest.mark.parametrize("epochs", [{}, {2: 0, 1: 5}, {1: 5, 2: 4}, {1: -1}])
def test_offsets_and_epochs_that_no_segment_has_are_refused(epochs: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="no segment has"):
        copy("A", 0, 9, epochs)
