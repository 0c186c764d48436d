"""Parts: those that nothing refers to get tombstones, and an older program's are counted.

A part whose last reference goes gets its tombstone from the state (`metadata/part_counts.py`). What
remains are parts that were never published: those of an owner that died or was fenced, found by
their epochs in one listing, and those of this owner whose `write` or entry failed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from container.metadata.operations import AddTombstones, CountParts
from container.metadata.part_counts import references
from container.queue.manifest import ManifestReader
from container.upkeep.snapshots import SnapshotStep
from container.upkeep.step import OwnedTier, Step
from provider.file_segments import FileSegments

UNREFERENCED = "nothing refers to it"

NAMES_AT_ONCE_MAX = 1_000
"""Tombstones in one transaction, some 130 bytes each; a tier may have any number of parts."""


class PartsStep(Step):
    """Gives tombstones to parts that were never published.

    Costs what `FileSegments.earlier_objects` costs, once for each ownership after the first
    snapshot, and at a clean end. Where an older program wrote the tier also one request for each
    manifest of the tier, once. Memory: the names of parts.
    """

    name = "parts"

    def __init__(
        self,
        tier: OwnedTier,
        snapshots: SnapshotStep,
        segments: FileSegments,
        *,
        grace_ms: int,
    ) -> None:
        """`grace_ms`: what older programs cut off stays for so long, and nothing tells it apart."""
        super().__init__(tier)
        self._snapshots = snapshots
        self._segments = segments
        self._grace_ms = grace_ms
        self._manifests = ManifestReader(tier.store, extents_max=0)  # each is read once
        self._searched = False
        self._found = 0

    async def step(self) -> None:
        """Count if nobody has, bury what failed, and search when a snapshot was written.

        Raises:
            Unavailable, OutOfRange: a manifest cannot be read now; the next run goes on.
            Corrupt, Denied: a manifest cannot be read; nothing is given a tombstone.
            Fenced: a newer owner has the tier.
        """
        await self._count()
        await self._bury_forsaken()
        if not self._searched and self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Search once more. Raises what `step` raises."""
        await self._count()
        await self._bury_forsaken()
        await self._search()

    async def _count(self) -> None:
        """Begin to count references where an older program did not."""
        journal = self.tier.journal
        named: dict[str, Counter[str]] = {}
        while not journal.planned.parts_counted:
            missing = [
                ref
                for queue in journal.planned.queues.values()
                for ref in queue.manifests
                if ref.object_name not in named
            ]
            for ref in missing:
                named[ref.object_name] = references(await self._manifests.segments(ref))
            if not missing:  # and no await since: these are the manifests of the planned state
                counts = Counter[str]()
                for queue in journal.planned.queues.values():
                    for ref in queue.manifests:
                        counts.update(named[ref.object_name])
                await journal.publish([CountParts(tuple(sorted(counts.items())))])

    async def _bury_forsaken(self) -> None:
        """Give tombstones to parts of ours that were perhaps made, and not published."""
        forsaken, planned = self._segments.forsaken, self.tier.journal.planned
        seen, known = len(forsaken), planned.parts.keys() | planned.tombstones.keys()
        await self._bury([name for name in forsaken if name not in known])
        del forsaken[:seen]  # others may have come meanwhile

    async def _search(self) -> None:
        if self.tier.journal.epoch == 1:
            return  # no owner before us could leave anything
        listed = await self._segments.earlier_objects()
        planned = self.tier.journal.planned
        # References to them only go, and the state sees to those that lose the last one.
        unknown = set(listed) - planned.parts.keys() - planned.tombstones.keys()
        await self._bury(sorted(unknown))
        self._searched = True

    async def _bury(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), NAMES_AT_ONCE_MAX):
            await self._publish(names[start : start + NAMES_AT_ONCE_MAX])

    async def _publish(self, names: Sequence[str]) -> None:
        due_ms = self.tier.clock.now_ms() + self._grace_ms
        tombstones = (self.tier.tombstone(name, UNREFERENCED) for name in names)
        late = (replace(one, not_before_ms=max(due_ms, one.not_before_ms)) for one in tombstones)
        await self.tier.journal.publish([AddTombstones(tuple(late))])
        self._found += len(names)

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects that were given tombstones."""
        return {"parts_unreferenced": self._found}
