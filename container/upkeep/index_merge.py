"""Small index files become larger ones, so that files and rows of coverage stay few."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from container.index.merging import MergedPart, merge_sealed
from container.index.options import INLINE_ITEMS_MAX, IndexOptions
from container.lookup.coverage import covered_by_files, merged, without
from container.lookup.index_reads import part_of, read_whole
from container.metadata.operations import AddTombstones, DropIndexFile, Operation, PutIndexFile
from container.metadata.records import Coverage, IndexFile
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.upkeep.index_writer import IndexBuilding, IndexWriter
from container.upkeep.merge_plan import merge_rules, plan_merge
from container.upkeep.step import OwnedTier, Step
from provider.errors import Corrupt, Denied, OutOfRange, StoreError
from provider.ranges import QueueOffset

MERGED = "merged"
"""The reason in tombstones of files whose items are in a larger one."""


class IndexMergeStep(Step):
    """Merges index files of ours by `MergeRules`; what has expired of them is left out.

    One entry publishes the larger file and unpublishes the others, which stay readable for the
    grace time. A cut, or the deletion of a queue, that comes in between, wins.
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
        """Merge once if files are too many. One request a file that is read, one for the new one.

        Raises:
            Corrupt, Denied, OutOfRange: a file cannot be read; it stays as it is from now on.
            Unavailable: the next run goes on.
            Fenced: a newer owner has the tier.
        """
        self._left_some = False
        await self._writer.bury_tried()
        group = self._planned()
        if group is not None:
            async with self._building.memory:
                await self._merge(group)
            self._left_some = self._planned() is not None

    @property
    def urgent(self) -> bool:
        """Whether there is more to be merged."""
        return self._left_some

    async def finish(self) -> None:
        """Nothing: a clean end is no time to merge."""

    async def merge_out(self, growth: float, told: Callable[[int], None]) -> list[StoreError]:
        """Merge until nothing is left to be merged with this growth, in place of the options'.

        Costs what so many runs of `step` cost. `told` gets the bytes of the files of each merge.

        Returns:
            Why some files stay as they are.

        Raises:
            Unavailable, Denied: nothing can be written now.
            Fenced: a newer owner has the tier.
        """
        damaged: list[StoreError] = []
        await self._writer.bury_tried()
        while (group := self._planned(growth)) is not None:
            known = len(self._damaged)
            try:
                async with self._building.memory:
                    await self._merge(group)
            except (Corrupt, Denied, OutOfRange) as error:
                if len(self._damaged) == known:
                    raise  # it is not a file that cannot be read
                damaged.append(error)
            else:
                told(sum(one.size for one in group))
        return damaged

    def _planned(self, growth: float | None = None) -> tuple[IndexFile, ...] | None:
        """What is to be merged, of the files that nothing on its way to the journal changes."""
        planned = self.tier.journal.planned.index_files
        files = [one for one in self.tier.state.index_files.values() if _is_same(planned, one)]
        now_ms = self.tier.clock.now_ms()
        rules = merge_rules(self._options, self.tier.options, now_ms, growth=growth)
        return plan_merge(files, rules, without=self._damaged)

    async def _merge(self, group: Sequence[IndexFile]) -> None:
        """Make one file of some, unless one of them changes meanwhile."""
        tier = self.tier
        coverage = remaining_coverage(tier.state, group)
        file: IndexFile | None = None
        if coverage:
            parts = [await self._part(one) for one in group]
            if sum(one.items for one in group) <= INLINE_ITEMS_MAX:
                raw = merge_sealed(parts)
            else:
                raw = await asyncio.to_thread(merge_sealed, parts)
            del parts
            file = await self._writer.write(raw, coverage)
        # From here to the acceptance by the journal nothing else runs: no cut comes in between.
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
        """A file, whole and as it was written, and which of its items are still needed."""
        try:
            raw = await read_whole(self.tier.store, file)
        except (Corrupt, Denied, OutOfRange):
            self._damaged[file.object_name] = None
            raise
        return part_of(self.tier.state, file, raw)

    @property
    def figures(self) -> Mapping[str, int]:
        """Files that were merged into others, and items that were written again for it."""
        return {"index_files_merged": self._files, "index_items_merged": self._items}


def _is_same(planned: Mapping[str, IndexFile], file: IndexFile) -> bool:
    """Whether a file is as it was: a cut, or a deletion, makes another record of it."""
    known = planned.get(file.object_name)
    return known is file or known == file


def remaining_coverage(state: TierState, files: Sequence[IndexFile]) -> Coverage:
    """What files cover together of messages that have not expired: rows that meet are one. Pure."""
    rows: list[tuple[QueueId, QueueOffset, QueueOffset]] = []
    for queue, spans in sorted(covered_by_files(files).items()):
        record = state.queues.get(queue)
        if record is not None:
            left = without(merged(spans), [(0, record.min_offset)])
            rows += ((queue, QueueOffset(start), QueueOffset(end)) for start, end in left)
    return tuple(rows)
