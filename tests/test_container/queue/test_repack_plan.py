"""Which extents are merged: few remain whatever comes, and no byte is rewritten often."""

from dataclasses import replace
from random import Random

import pytest

from container.metadata.records import Extent, Gap, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.queue.repack_plan import (
    RepackRules,
    is_compacted,
    is_crowded,
    merged_extents,
    runs_to_compact,
    runs_to_merge,
)
from provider.ranges import QueueOffset

MIB = 1 << 20
RULES = RepackRules(extents_max=64, merge_fan=16, extent_bytes_max=4 * MIB, run_bytes_max=32 * MIB)
QUEUE = QueueId("T", 0)


def queue_of(extents: tuple[Extent, ...], sealed_ms: int | None = None) -> Queue:
    segment = Segment(SegmentType.COMMIT_LOG, 0, 1, 1, extents, sealed_ms)
    return Queue(QUEUE, QueueOffset(0), QueueOffset(len(extents)), (segment,))


class Merging:
    """A segment that rounds append to and merges shorten, with the level of each part."""

    def __init__(self) -> None:
        self.extents: tuple[Extent, ...] = ()
        self.levels: dict[str, int] = {}
        self.written = 0
        self.rewritten = 0
        self.jobs = 0

    def level_of(self, name: str) -> int:
        return self.levels[name]

    def append(self, length: int) -> None:
        end = self.extents[-1].end if self.extents else 0
        name = f"part {self.written} of {end}"
        self.levels[name] = 0
        offset = QueueOffset(self.written)
        self.extents += (Extent(end, length, 1, offset, 1, 1, name, 0),)
        self.written += 1

    def merge(self) -> None:
        while runs := runs_to_merge(queue_of(self.extents), self.level_of, RULES):
            for run in runs:
                self.jobs += 1
                self.rewritten += run.bytes
                name = f"merged {self.jobs}"
                self.levels[name] = run.level
                first = self.extents.index(run.extents[0])
                assert self.extents[first : first + len(run.extents)] == run.extents
                groups = merged_extents(run, RULES.extent_bytes_max)
                merged = tuple(
                    group[0]._replace(
                        length=group[-1].end - group[0].position,
                        object_name=name,
                        object_offset=group[0].position - run.extents[0].position,
                    )
                    for group in groups
                )
                assert len(merged) < len(run.extents)
                end = first + len(run.extents)
                self.extents = (*self.extents[:first], *merged, *self.extents[end:])

    @property
    def bytes(self) -> int:
        return self.extents[-1].end


def test_a_thin_segment_of_4096_rounds_keeps_64_extents_and_is_rewritten_three_times() -> None:
    merging, most = Merging(), 0
    for _ in range(4096):
        merging.append(300)
        merging.merge()
        most = max(most, len(merging.extents))
    assert most <= 3 * 15 + 1
    assert merging.rewritten <= 3 * merging.bytes
    assert merging.bytes == 4096 * 300


@pytest.mark.parametrize("seed", range(6))
def test_any_lengths_leave_few_extents_at_a_bounded_cost(seed: int) -> None:
    rng, merging = Random(seed), Merging()
    lengths = rng.choice([[100], [100, 3 * MIB], [50_000, 1_000_000], [100, 10_000, 3_900_000]])
    for _ in range(600):
        merging.append(rng.randint(1, rng.choice(lengths)))
        if rng.random() < 0.3:
            merging.merge()
    merging.merge()
    large = sum(not RULES.is_small(extent) for extent in merging.extents)
    assert len(merging.extents) <= 64 + 3 * large
    assert not is_crowded(queue_of(merging.extents).commit_log[0], RULES)
    assert merging.rewritten <= 4 * merging.bytes


def test_what_is_large_already_stays() -> None:
    merging = Merging()
    for _ in range(100):
        merging.append(3 * MIB)
    merging.merge()
    assert merging.jobs == 0


def test_files_are_left_alone() -> None:
    extents = tuple(Extent(100 * n, 100, 1, QueueOffset(n), 1, 1, "", 100 * n) for n in range(99))
    assert runs_to_merge(queue_of(extents), lambda _: 0, RULES) == []
    assert runs_to_compact(queue_of(extents, 5), lambda _: 0, RULES) == []


def test_a_closed_segment_is_gathered_into_objects_of_a_bounded_size_once() -> None:
    extents = tuple(
        Extent(MIB * n, MIB, 1, QueueOffset(n), 1, 1, f"part {n}", 7) for n in range(100)
    )
    closed = queue_of(extents, 5)
    runs = runs_to_compact(closed, lambda _: 0, RULES)
    assert [run.bytes for run in runs] == [32 * MIB, 32 * MIB, 32 * MIB, 4 * MIB]
    assert [one for run in runs for one in run.extents] == list(extents)
    assert {run.sealed_ms for run in runs} == {5}
    assert runs_to_merge(closed, lambda _: 0, RULES) == []
    after = tuple(
        extent._replace(object_name=f"gathered {number}")
        for number, run in enumerate(runs)
        for extent in run.extents
    )
    assert is_compacted(queue_of(after, 5).commit_log[0], RULES.run_bytes_max)
    assert runs_to_compact(queue_of(after, 5), lambda _: 0, RULES) == []
    assert runs_to_compact(queue_of(extents), lambda _: 0, RULES) == []


def test_bytes_that_a_gap_has_lost_stay_an_extent_of_their_own() -> None:
    """By them alone it is known where no message lies."""
    holes = {3, 20, 21}
    firsts = [20 if number == 21 else number for number in range(40)]
    extents = tuple(
        Extent(100 * number, 100, 1, QueueOffset(first), 1, 1, f"part {number}", 7)
        for number, first in enumerate(firsts)
    )
    gaps = (
        Gap(QueueOffset(3), QueueOffset(4), "lost", 0),
        Gap(QueueOffset(20), QueueOffset(22), "lost", 0),
    )
    for sealed_ms, plan in ((None, runs_to_merge), (5, runs_to_compact)):
        queue = replace(queue_of(extents, sealed_ms), gaps=gaps)
        groups = [
            {extents.index(one) for one in group}
            for run in plan(queue, lambda _: 0, RULES)
            for group in merged_extents(run, RULES.extent_bytes_max)
        ]
        alone = [group for group in groups if group & holes]
        assert all(len(group) == 1 for group in alone)
        assert set(range(4, 20)) in groups
