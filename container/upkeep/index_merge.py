"""Index merge step: small index files become larger ones. The plan is pure."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log

from container.index.merging import MergedPart, merge_sealed
from container.index.options import INLINE_ITEMS_MAX, IndexOptions
from container.index.sealed import SECOND_MS, file_bytes, fitting_slots
from container.lookup.find import KeptPlaces, index_of, queues_of, read_whole
from container.metadata.coverage import Span, covered_in_turns, merged, rows_in_turns, without
from container.metadata.operations import AddTombstones, DropIndexFile, Operation, PutIndexFile
from container.metadata.records import Coverage, IndexFile
from container.names.queue_id import QueueId
from container.options import HOUR_MS, UpkeepOptions
from container.steps import QUEUES_PER_TURN, OwnedTier, Step
from container.upkeep.index_files import IndexBuilding, IndexWriter
from provider.errors import Corrupt, Denied, OutOfRange, StoreError

PERIODS_OF_RETENTION = 4
"""Periods in the retention time. With three days, merged files differ by at most 18 hours in age.
"""
CLOSED_GROWTH = 1.5
"""Growth for merges in a closed period: size of the merged file as a multiple of its largest part.
"""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Conditions for a merge of files.

    M1  Files of one period only, by their newest message. So a file, and its items, lives at most
        one period longer than its newest message requires.
    M2  A merged file has at most `items_max` items.
    M3  A file is merged into one of `growth` times its items, `CLOSED_GROWTH` times in a closed
        period. So an item is written at most `1 + log(items_max) / log(growth)` times, without
        expiry.
    """

    items_max: int
    growth: float
    period_ms: int | None
    """Length of a period. None if nothing expires: all time is one period."""
    closed_before_ms: int
    """Unix ms. Periods that ended before it are closed: they get no more files."""

    def files_max(self, items: int, periods: int) -> int:
        """Upper bound of the files left of a number of items in a number of periods.

        Files too large for another merge: `(growth + 1) items / items_max`. The others of a period,
        in order of items: each has more than `1 / growth` of the sum up to it, or these would be
        merged. So their sum grows by `growth / (growth - 1)` with each.
        """
        large = int((self.growth + 1) * items / self.items_max)
        steps = log(max(items, 2)) / log(self.growth / (self.growth - 1))
        return large + periods * (2 + int(steps))


def period_ms(retention_hours: int, *, expires: bool) -> int | None:
    """Length of a period in ms: a quarter of the retention. None if messages do not expire."""
    return retention_hours * HOUR_MS // PERIODS_OF_RETENTION if expires else None


def merge_rules(
    index: IndexOptions, upkeep: UpkeepOptions, now_ms: int, *, growth: float | None = None
) -> MergeRules:
    """Rules of a tier with these options. `growth` replaces that of the options."""
    return MergeRules(
        index.merged_items_max,
        index.merge_growth if growth is None else growth,
        period_ms(upkeep.retention_hours, expires=upkeep.expires),
        now_ms - int(1000 * index.age_s_max),
    )


def plan_merge(
    files: Iterable[IndexFile], rules: MergeRules, *, without: Container[str] = ()
) -> tuple[IndexFile, ...] | None:
    """Plan the next merge. None if the files are few enough. Pure, O(n log n).

    Excludes files of RocketMQ and of older programs, and files with items of truncated messages.
    """
    periods: dict[int, list[IndexFile]] = {}
    for file in files:
        if is_mergeable(file) and file.object_name not in without:
            period = 0 if rules.period_ms is None else file.end_timestamp // rules.period_ms
            periods.setdefault(period, []).append(file)
    for period, alike in sorted(periods.items()):
        length = rules.period_ms
        is_closed = length is not None and (period + 1) * length <= rules.closed_before_ms
        growth = min(rules.growth, CLOSED_GROWTH) if is_closed else rules.growth
        found = _group(alike, growth, rules.items_max)
        if found is not None:
            return found
    return None


def plan_all_merges(
    files: Iterable[IndexFile], rules: MergeRules, *, without: Container[str] = ()
) -> list[tuple[IndexFile, ...]]:
    """Forecast the merges until files are few enough. Pure.

    A merged file counts in later merges with all items of its parts. Items and rows of messages
    that expire before a merge are dropped when it runs. O(merges n log n).
    """
    left = {file.object_name: file for file in files}
    merges: list[tuple[IndexFile, ...]] = []
    while (group := plan_merge(left.values(), rules, without=without)) is not None:
        merges.append(group)
        for one in group:
            del left[one.object_name]
        made = _forecast(group, f"merge {len(merges)}")
        left[made.object_name] = made
    return merges


def _forecast(group: Sequence[IndexFile], name: str) -> IndexFile:
    items = sum(one.items for one in group)
    return replace(
        group[-1],
        object_name=name,
        size=file_bytes(items, fitting_slots(items)),
        items=items,
        begin_timestamp=min(one.begin_timestamp for one in group),
        end_timestamp=max(one.end_timestamp for one in group),
    )


def is_mergeable(file: IndexFile) -> bool:
    """Whether the items of a file can go into another one without loss of accuracy."""
    if not file.coverage or file.crc32c is None or file.cuts or file.begin_timestamp % SECOND_MS:
        return False
    try:
        slots = index_of(file).slots
    except Corrupt:
        return False
    return slots & (slots - 1) == 0


def _group(alike: list[IndexFile], growth: float, items_max: int) -> tuple[IndexFile, ...] | None:
    """Files of one period to merge, as many as allowed, the small ones first."""
    ordered = sorted(alike, key=lambda one: (_weight(one), one.end_timestamp, one.object_name))
    sums = [0, *accumulate(map(_weight, ordered))]
    for last in range(len(ordered) - 1, 0, -1):
        largest, total = _weight(ordered[last]), sums[last + 1]
        first = bisect_left(sums, total - items_max, hi=last + 1)
        if first < last and total - sums[first] >= growth * largest:
            return tuple(ordered[first : last + 1])
    return None


def _weight(file: IndexFile) -> int:
    """Number of items. A file without items, of messages without keys, counts as 1."""
    return max(1, file.items)


MERGED = "merged"
"""Reason in tombstones of files whose items are in a larger one."""


class IndexMergeStep(Step):
    """Merges index files of ours by `MergeRules`, without expired items.

    One entry publishes the larger file and unpublishes the others, which stay readable for the
    grace time. A truncation or the deletion of a queue during the merge takes precedence.
    """

    name = "index-merge"

    def __init__(self, tier: OwnedTier, options: IndexOptions, building: IndexBuilding) -> None:
        super().__init__(tier)
        self._options = options
        self._building = building
        self._writer = IndexWriter(tier, building)
        self._damaged: dict[str, None] = {}
        """Files that cannot be read, or contradict their record."""
        self._left_some = False
        self._files = 0
        self._items = 0

    def __repr__(self) -> str:
        return f"<IndexMergeStep: {self._files} files merged, {len(self._damaged)} damaged>"

    async def step(self) -> None:
        """Merge once if files are too many. One request for each file read, one for the new one.

        Raises:
            Corrupt, Denied, OutOfRange: a file cannot be read. It is never merged from now on.
            Unavailable: the next run continues.
            Fenced: a newer owner has the tier.
        """
        self._left_some = False
        await self._writer.tombstone_tried()
        group = self._planned()
        if group is not None:
            async with self._building.memory:
                await self._merge(group)
            self._left_some = self._planned() is not None

    @property
    def urgent(self) -> bool:
        """Whether more merges are due."""
        return self._left_some

    async def finish(self) -> None:
        """Do nothing: a clean end does not wait for merges."""

    async def merge_out(
        self, growth: float, on_progress: Callable[[int], None]
    ) -> list[StoreError]:
        """Merge until no merge is left with this growth, which replaces that of the options.

        Costs as that many runs of `step`. `on_progress` gets the bytes of the files of each merge.

        Returns:
            Errors of files that stay unmerged.

        Raises:
            Unavailable, Denied: nothing can be written now.
            Fenced: a newer owner has the tier.
        """
        damaged: list[StoreError] = []
        await self._writer.tombstone_tried()
        while (group := self._planned(growth)) is not None:
            known = len(self._damaged)
            try:
                async with self._building.memory:
                    await self._merge(group)
            except (Corrupt, Denied, OutOfRange) as error:
                if len(self._damaged) == known:
                    raise  # not the error of an unreadable file
                damaged.append(error)
            else:
                on_progress(sum(one.size for one in group))
        return damaged

    def _planned(self, growth: float | None = None) -> tuple[IndexFile, ...] | None:
        """Plan a merge of files that no transaction in flight changes."""
        planned = self.tier.journal.planned.index_files
        files = [one for one in self.tier.state.index_files.values() if _is_same(planned, one)]
        now_ms = self.tier.clock.now_ms()
        rules = merge_rules(self._options, self.tier.options, now_ms, growth=growth)
        return plan_merge(files, rules, without=self._damaged)

    async def _merge(self, group: Sequence[IndexFile]) -> None:
        """Merge some files into one, unless one of them changes in the meantime."""
        tier = self.tier
        coverage = await self._remaining(group)
        file: IndexFile | None = None
        if coverage:
            parts = [await self._part(one) for one in group]
            if sum(one.items for one in group) <= INLINE_ITEMS_MAX:
                raw = merge_sealed(parts)
            else:
                raw = await asyncio.to_thread(merge_sealed, parts)
            del parts
            file = await self._writer.write(raw, coverage)
        # No other task runs from here to the acceptance by the journal, so no truncation
        # intervenes.
        if not all(_is_same(tier.journal.planned.index_files, one) for one in group):
            return
        names = [one.object_name for one in group]
        operations: list[Operation] = [DropIndexFile(name) for name in names]
        if file is not None:
            operations.append(PutIndexFile(file))
        operations.append(AddTombstones(tuple(tier.tombstone(name, MERGED) for name in names)))
        await tier.journal.publish(operations)
        if file is not None:
            self._writer.settled(file.object_name)
            self._items += file.items
        self._files += len(group)

    async def _part(self, file: IndexFile) -> MergedPart:
        """Read a whole file, and select its items that are still needed."""
        try:
            raw = await read_whole(self.tier.store, file)
        except (Corrupt, Denied, OutOfRange):
            self._damaged[file.object_name] = None
            raise
        tier, kept = self.tier, KeptPlaces()
        for number, queue in enumerate(queues_of(file)):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await tier.clock.sleep(0)
            kept.add(tier.state, queue)
        return kept.part(file, raw)

    async def _remaining(self, files: Sequence[IndexFile]) -> Coverage:
        """Joint coverage of files without expired messages. Adjacent rows are one."""
        covered = await covered_in_turns(files, self.tier.clock)

        def left_of(queue: QueueId) -> Sequence[Span]:
            bounds = self.tier.state.queues.bounds_of(queue)
            if bounds is None:
                return ()
            return without(merged(covered[queue]), [(0, bounds.min_offset)])

        return await rows_in_turns(sorted(covered), left_of, self.tier.clock)

    @property
    def figures(self) -> Mapping[str, int]:
        """Files merged into others, and items rewritten for it."""
        return {"index_files_merged": self._files, "index_items_merged": self._items}


def _is_same(planned: Mapping[str, IndexFile], file: IndexFile) -> bool:
    """Whether a file is unchanged. A truncation or deletion replaces its record."""
    known = planned.get(file.object_name)
    return known is file or known == file
