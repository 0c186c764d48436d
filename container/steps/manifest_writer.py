"""Writer of manifests for steps. It tracks those that may lie in the store unpublished."""

from collections.abc import Collection, Sequence

from container.metadata.records import ManifestRef, Segment
from container.names.queue_id import QueueId
from container.queue.manifest import name_manifest, write_manifest
from container.steps.step import OwnedTier


class ManifestWriter:
    """Manifests of one step. Each is written, then published or given a tombstone."""

    def __init__(self, tier: OwnedTier) -> None:
        self._tier = tier
        self._tried: dict[str, QueueId] = {}
        """Names of manifests that may be in the store unpublished."""

    def __repr__(self) -> str:
        return f"<ManifestWriter: {len(self._tried)} not settled>"

    async def write(self, queue: QueueId, segments: Sequence[Segment], level: int) -> ManifestRef:
        """Write a manifest under a new name. `settled` must follow. Two requests.

        Raises:
            Unavailable: the outcome is unknown. `tombstone_tried` will add a tombstone.
            Corrupt: the object reads back different from what was written.
        """
        tier = self._tier
        name = name_manifest(queue, segments, level, epoch=tier.journal.epoch, rng=tier.rng)
        self._tried[str(name)] = queue
        return await write_manifest(tier.store, name, segments, sequence=tier.state.sequence)

    def settled(self, names: Collection[str]) -> None:
        """Stop tracking manifests that are published, or have tombstones."""
        for name in names:
            self._tried.pop(name, None)

    async def tombstone_tried(self) -> None:
        """Add tombstones for manifests that earlier runs may have written and did not publish.

        Raises:
            Fenced: a newer owner has the tier.
        """
        if not self._tried:
            return
        for queue_id in dict.fromkeys(self._tried.values()):
            await self._tier.journal.settle(queue_id)  # a publication may still be in flight
        state = self._tier.state
        used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
        await self._tier.add_tombstones(
            [name for name in self._tried if name not in used and name not in state.tombstones]
        )
        self._tried.clear()
