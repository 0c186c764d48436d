"""Which bytes of a whole tier should lie in other objects, at once: what `compact` does. Pure.

The steps of a living owner move bytes once that is worth its requests (`repack_plan.py`). A plan
here has everything that they would ever do, and more: small extents side by side become one
whatever their levels, closed segments are gathered however small, and parts that are less than half
full go where all that they hold can be put elsewhere.

C1  Every job makes one object of at most `run_bytes_max`, unless one extent alone is longer.
C2  A plan leaves fewer segments in many objects, or else fewer extents, or else fewer parts
    (`Burden`). So planning and doing, again and again, comes to an end.
C3  Of the objects that jobs fill together one at most is not more than half full, unless their runs
    are so short that `runs_max` of them fill none. So the next plan finds little.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from container.metadata.offloading import is_away
from container.metadata.part_counts import references, references_of
from container.metadata.records import Extent, Part, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId
from container.queue.repack_plan import (
    LevelOf,
    RepackRules,
    Run,
    fitting,
    is_gathered,
    merged_extents,
    run_of,
    runs_to_gather,
)

OPEN_JOBS_MAX = 8
"""Jobs that are filled at the same time: planning looks at so many for each run."""


class CompactRules(NamedTuple):
    """Limits of a plan."""

    repacking: RepackRules
    own_bytes_min: int
    """A closed segment of this size gets objects of its own."""
    runs_max: int
    """Runs in one job."""


class Burden(NamedTuple):
    """What a compaction makes less of, what matters most first."""

    scattered: int
    """Closed segments whose bytes lie in many objects, of the queues that are rewritten."""
    extents: int
    """Extents in the snapshot that name a part."""
    parts: int


class PartsPlan(NamedTuple):
    """Jobs, each of which makes one object, and what they change."""

    jobs: tuple[tuple[Run, ...], ...]
    before: Burden
    after: Burden
    """If nothing else changes meanwhile, and no bytes are damaged."""

    @property
    def bytes(self) -> int:
        """How many bytes are rewritten."""
        return sum(run.bytes for job in self.jobs for run in job)


def plan_parts(
    queues: Iterable[Queue],
    parts: Mapping[str, Part],
    rules: CompactRules,
    *,
    only: Collection[QueueId] | None = None,
) -> PartsPlan:
    """What is rewritten of a tier; no jobs where that would leave nothing less. O(extents).

    Segments in manifests stay as they are: as a rule they were gathered before they went there.

    Args:
        queues: all of the tier, unchanged meanwhile.
        parts: all of the tier; one that is not counted is not emptied on purpose.
        rules: the limits.
        only: rewrite these queues only; None: all.
    """
    ordered = sorted(queues, key=lambda queue: queue.id)
    wanted = [queue for queue in ordered if only is None or queue.id in only]
    before = _burden(ordered, wanted, parts, rules.repacking.run_bytes_max)
    for going in (_parts_to_empty(wanted, parts, rules.repacking.run_bytes_max), frozenset[str]()):
        runs = [run for queue in wanted for run in _runs(queue, parts, going, rules.repacking)]
        jobs = _jobs(runs, rules)
        after = _after(before, jobs, parts, rules.repacking.extent_bytes_max)
        if after < before:
            return PartsPlan(jobs, before, after)
    return PartsPlan((), before, before)


def _burden(
    ordered: Sequence[Queue],
    wanted: Sequence[Queue],
    parts: Mapping[str, Part],
    run_bytes_max: int,
) -> Burden:
    closed = (one for queue in wanted for one in _live(queue) if one.sealed_ms is not None)
    scattered = sum(not is_gathered(segment, run_bytes_max) for segment in closed)
    counts = Counter[str]()
    for queue in ordered:
        counts.update(references_of(queue))
    return Burden(scattered, counts.total(), len(parts.keys() | counts.keys()))


def _live(queue: Queue) -> Iterable[Segment]:
    """The segments whose bytes may be moved; those in the second store stay there."""
    return (
        one
        for kind in FLAT_FILES
        for one in queue.segments(kind)
        if one.is_readable and not is_away(one)
    )


def _parts_to_empty(
    wanted: Sequence[Queue], parts: Mapping[str, Part], run_bytes_max: int
) -> AbstractSet[str]:
    """Parts less than half full of which everything can be moved; none where there is only one."""
    counts, sizes = Counter[str](), Counter[str]()
    for queue in wanted:
        for segment in _live(queue):
            counts.update(references([segment]))
            for extent in segment.extents:
                sizes[extent.object_name] += extent.length
    going = {
        name
        for name, count in counts.items()
        if 2 * sizes[name] < run_bytes_max and name in parts and parts[name].references == count
    }
    return going if len(going) > 1 else frozenset()


def _runs(
    queue: Queue, parts: Mapping[str, Part], going: AbstractSet[str], rules: RepackRules
) -> list[Run]:
    """What is moved of a queue. Runs of one segment follow each other."""

    def level_of(name: str) -> int:
        return parts[name].level if name in parts else 0

    found = runs_to_gather(queue, level_of, rules)
    gathered = {(run.type, run.base) for run in found}
    for segment in _live(queue):
        if (segment.type, segment.base) not in gathered:
            found += _runs_within(queue, segment, going, level_of, rules)
    return found


def _runs_within(
    queue: Queue, segment: Segment, going: AbstractSet[str], level_of: LevelOf, rules: RepackRules
) -> list[Run]:
    """Runs that become fewer extents, or empty parts that are to go."""
    found: list[Run] = []
    for stretch in _stretches(segment.extents, going, rules):
        rest: Sequence[Extent] = stretch
        while rest:
            some = fitting(rest, rules) or (rest[0],)
            rest = rest[len(some) :]
            run = run_of(queue, segment, some, level_of)
            is_fewer = len(merged_extents(run, rules.extent_bytes_max)) < len(some)
            if is_fewer or any(one.object_name in going for one in some):
                found.append(run)
    return found


def _stretches(
    extents: Sequence[Extent], going: AbstractSet[str], rules: RepackRules
) -> list[list[Extent]]:
    """Extents side by side that are small, or lie in parts that are to go."""
    found: list[list[Extent]] = [[]]
    for extent in extents:
        if rules.is_small(extent) or extent.object_name in going:
            found[-1].append(extent)
        elif found[-1]:
            found.append([])
    return [one for one in found if one]


def _jobs(runs: Sequence[Run], rules: CompactRules) -> tuple[tuple[Run, ...], ...]:
    """Runs in jobs: each in the first one with room, those of the same parts near each other."""
    bytes_max = rules.repacking.run_bytes_max
    done: list[tuple[Run, ...]] = []
    filled: list[list[Run]] = []
    sizes: list[int] = []
    for run in sorted(runs, key=lambda one: one.extents[0].object_name):
        is_large = run.sealed_ms > 0 and run.segment_bytes >= rules.own_bytes_min
        if is_large and 2 * run.bytes > bytes_max:
            done.append((run,))
            continue
        for number, job in enumerate(filled):
            if sizes[number] + run.bytes <= bytes_max and len(job) < rules.runs_max:
                job.append(run)
                sizes[number] += run.bytes
                break
        else:
            if len(filled) == OPEN_JOBS_MAX:
                fullest = sizes.index(max(sizes))
                done.append(tuple(filled.pop(fullest)))
                sizes.pop(fullest)
            filled.append([run])
            sizes.append(run.bytes)
    return (*done, *map(tuple, filled))


def _after(
    before: Burden, jobs: Sequence[Sequence[Run]], parts: Mapping[str, Part], extent_bytes_max: int
) -> Burden:
    """What is left when the jobs are done: every scattered segment is gathered by them."""
    saved = 0
    moved = Counter[str]()
    for job in jobs:
        for run in job:
            saved += len(run.extents) - len(merged_extents(run, extent_bytes_max))
            moved.update(extent.object_name for extent in run.extents)
    gone = sum(name in parts and parts[name].references == count for name, count in moved.items())
    return Burden(
        0 if jobs else before.scattered, before.extents - saved, before.parts - gone + len(jobs)
    )
