"""Plan of repacking: minor merges of extents, and compaction of sealed segments. Pure.

On a store of immutable parts every round adds an extent to each segment that it writes to. Extents
are metadata: 16 small adjacent ones (`merge_fan`) become one of the next level. So a segment of n
rounds keeps some `16 log16(n)` of them, and each byte is rewritten once for each level: at most
three times in 4,096 rounds. The level is the part's (`records.Part`).

The bytes of a sealed segment in many objects are compacted into as few as possible.

Extents that begin in a gap are not merged (`positions.begins_in_gap`). A log that was damaged when
its metadata was rebuilt has such extents. They alone mark its bytes without messages.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import NamedTuple

from container.metadata.records import Extent, Gap, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.queue.positions import begins_in_gap
from provider.stores.two_stores import is_offloaded

LevelOf = Callable[[str], int]
"""Level of a part, by its name."""


class RepackRules(NamedTuple):
    """Limits of planning, described in `UpkeepOptions`."""

    extents_max: int
    merge_fan: int
    extent_bytes_max: int
    run_bytes_max: int

    def is_small(self, extent: Extent) -> bool:
        """Whether merging an extent saves metadata: two of them fit into one."""
        return bool(extent.object_name) and 2 * extent.length < self.extent_bytes_max


class Run(NamedTuple):
    """Adjacent extents of one segment to rewrite into one new object."""

    queue: QueueId
    type: SegmentType
    base: int
    """Base of the segment."""
    extents: tuple[Extent, ...]
    level: int
    """Level of the new part."""
    sealed_ms: int
    """Time at which the segment was sealed, Unix ms. 0 while it is open."""
    segment_bytes: int
    lost: AbstractSet[int] = frozenset()
    """Positions of extents that begin in a gap, and are not merged."""

    @property
    def bytes(self) -> int:
        """Bytes to rewrite."""
        return self.extents[-1].end - self.extents[0].position


def runs_to_merge(queue: Queue, level_of: LevelOf, rules: RepackRules) -> list[Run]:
    """Runs of small extents to merge in a queue's open segments. O(extents)."""
    found: list[Run] = []
    for kind in FLAT_FILES:
        live = queue.segments(kind)
        if live and live[-1].sealed_ms is None and len(live[-1].extents) >= rules.merge_fan:
            for extents in _merges(live[-1].extents, level_of, rules, queue.gaps):
                found.append(run_of(queue, live[-1], extents, level_of))  # noqa: PERF401 - nested
    return found


def is_crowded(segment: Segment, rules: RepackRules) -> bool:
    """Whether a segment has more small extents than its limit. O(1) for most."""
    count = len(segment.extents)
    if count <= rules.extents_max:
        return False
    small = sum(map(rules.is_small, segment.extents))
    return small > rules.extents_max + 2 * (count - small)


def _merges(
    extents: Sequence[Extent], level_of: LevelOf, rules: RepackRules, gaps: Sequence[Gap]
) -> list[tuple[Extent, ...]]:
    levels = [level_of(extent.object_name) if rules.is_small(extent) else -1 for extent in extents]
    if gaps:
        lost = (number for number, one in enumerate(extents) if begins_in_gap(gaps, one))
        for number in lost:
            levels[number] = -1
    for level in sorted(set(levels) - {-1}):
        found = [
            run
            for first, last in _runs_below(levels, level)
            if levels[first:last].count(level) >= rules.merge_fan
            and len(run := fitting(extents[first:last], rules)) > 1
        ]
        if found:
            return found
    small = len(levels) - levels.count(-1)
    if small > rules.extents_max + 2 * (len(levels) - small):
        runs = _runs_below(levels, max(levels))
        first, last = max(runs, key=lambda run: run[1] - run[0])
        longest = fitting(extents[first:last], rules)
        return [longest] if len(longest) > 1 else []
    return []


def _runs_below(levels: Sequence[int], level: int) -> list[tuple[int, int]]:
    """Longest runs `[first, last)` of extents of a level or of lower ones."""
    edges = [-1, *(n for n, one in enumerate(levels) if one < 0 or one > level), len(levels)]
    return [(before + 1, after) for before, after in pairwise(edges) if after > before + 1]


def fitting(extents: Sequence[Extent], rules: RepackRules) -> tuple[Extent, ...]:
    """Leading extents that fit into one run."""
    end = extents[0].position + rules.run_bytes_max
    return tuple(extent for extent in extents if extent.end <= end)


def is_compacted(segment: Segment, run_bytes_max: int) -> bool:
    """Whether the bytes of a sealed segment need no compaction: they lie in few objects.

    Bytes in the segment's own file and in the second store are never compacted. O(extents).
    """
    names = {extent.object_name for extent in segment.extents}
    if any(map(is_offloaded, names)):
        return True
    return "" in names or len(names) <= 1 + 2 * (segment.size // run_bytes_max)


def runs_to_compact(queue: Queue, level_of: LevelOf, rules: RepackRules) -> list[Run]:
    """Runs to compact of a queue's sealed segments with bytes in many objects, by segment.

    Runs of one segment are consecutive. Each fits into one object. O(extents).
    """
    found: list[Run] = []
    for kind in FLAT_FILES:
        for segment in queue.segments(kind):
            if segment.sealed_ms is None or not segment.is_readable:
                continue
            if is_compacted(segment, rules.run_bytes_max):
                continue
            rest: Sequence[Extent] = segment.extents
            while rest:
                extents = fitting(rest, rules) or (rest[0],)
                found.append(run_of(queue, segment, extents, level_of))
                rest = rest[len(extents) :]
    return found


def run_of(queue: Queue, segment: Segment, extents: tuple[Extent, ...], level_of: LevelOf) -> Run:
    """Run that rewrites these extents of a segment one level higher."""
    level = 1 + max(level_of(extent.object_name) for extent in extents)
    return Run(
        queue.id,
        segment.type,
        segment.base,
        extents,
        level,
        segment.sealed_ms or 0,
        segment.size,
        frozenset(one.position for one in extents if queue.gaps and begins_in_gap(queue.gaps, one)),
    )


def merged_extents(run: Run, bytes_max: int) -> list[list[Extent]]:
    """Groups of adjacent extents to merge, of at most `bytes_max` if they have several."""
    groups: list[list[Extent]] = []
    for extent in run.extents:
        first = groups[-1][0] if groups else extent
        is_alone = extent.position in run.lost or first.position in run.lost
        if groups and not is_alone and extent.end - first.position <= bytes_max:
            groups[-1].append(extent)
        else:
            groups.append([extent])
    return groups
