"""Objects of earlier owners that several queues may share, and that nothing refers to (any more).

The owner that made one died or was fenced before it published, or queues were cut since. Its name
can never be published again, so references to it only go. Segments in manifests refer to objects
as those in the state do: an object may go only when no manifest of any queue names it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from container.metadata.object_names import object_names
from container.metadata.operations import AddTombstones
from container.queue.manifest import ManifestReader
from container.upkeep.deletion import names_in_use
from container.upkeep.snapshots import SnapshotStep
from container.upkeep.step import OwnedTier, Step
from provider.file_segments import FileSegments

UNREFERENCED = "nothing refers to it"

NAMES_AT_ONCE_MAX = 1_000
"""Tombstones in one transaction, some 130 bytes each; a tier may have any number of parts."""


class PartsStep(Step):
    """Gives tombstones to unreferenced objects of earlier owners, once for each ownership.

    Costs what `FileSegments.earlier_objects` costs, after the first snapshot and at a clean end;
    and where the state refers not to all of those, one request for each manifest of the tier.
    Memory: the names of objects that the state does not refer to.
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
        """`grace_ms`: the bytes of a cut stay for so long, and nobody can tell which were cut."""
        super().__init__(tier)
        self._snapshots = snapshots
        self._segments = segments
        self._grace_ms = grace_ms
        self._manifests = ManifestReader(tier.store, extents_max=0)  # each is read once
        self._searched = False
        self._found = 0

    async def step(self) -> None:
        """Search once, when a snapshot makes the next start short.

        Raises:
            Unavailable, OutOfRange: a manifest cannot be read now; the next run searches again.
            Corrupt, Denied: a manifest cannot be read; nothing is given a tombstone.
            Fenced: a newer owner has the tier.
        """
        if not self._searched and self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Search once more. Raises what `step` raises."""
        await self._search()

    async def _search(self) -> None:
        if self.tier.journal.epoch == 1:
            return  # no owner before us could leave anything
        unknown = set(await self._segments.earlier_objects()) - self.tier.state.tombstones.keys()
        if unknown:
            unknown -= names_in_use(self.tier.state)
        if unknown:
            unknown -= await self._in_manifests(unknown)
            # No await since the last look at manifests: what moves into one was seen there or here.
            unknown -= names_in_use(self.tier.state)
        names = sorted(unknown)
        for start in range(0, len(names), NAMES_AT_ONCE_MAX):
            await self._publish(names[start : start + NAMES_AT_ONCE_MAX])
        self._searched = True

    async def _publish(self, names: Sequence[str]) -> None:
        due_ms = self.tier.clock.now_ms() + self._grace_ms
        tombstones = (self.tier.tombstone(name, UNREFERENCED) for name in names)
        late = (replace(one, not_before_ms=max(due_ms, one.not_before_ms)) for one in tombstones)
        await self.tier.journal.publish([AddTombstones(tuple(late))])
        self._found += len(names)

    async def _in_manifests(self, wanted: Collection[str]) -> set[str]:
        """Those of `wanted` that manifests of the present state name, whichever that is."""
        named: dict[str, set[str]] = {}
        while missing := [
            (queue.id, ref)
            for queue in self.tier.state.queues.values()
            for ref in queue.manifests
            if ref.object_name not in named
        ]:
            for queue, ref in missing:
                segments = await self._manifests.segments(ref)
                named[ref.object_name] = set(object_names(queue, segments)).intersection(wanted)
        return set[str]().union(*named.values())

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects that were given tombstones."""
        return {"parts_unreferenced": self._found}
