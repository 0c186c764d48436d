"""Writes manifests for steps, and remembers those that may lie in the store unpublished."""

from collections.abc import Collection, Sequence

from container.metadata.records import ManifestRef, Segment
from container.names.queue_id import QueueId
from container.queue.manifest import name_manifest, write_manifest
from container.steps.step import OwnedTier


class ManifestWriter:
    """The manifests of one step: each is written, then published or given a tombstone."""

    def __init__(self, tier: OwnedTier) -> None:
        self._tier = tier
        self._tried: dict[str, QueueId] = {}
        """Names that manifests of ours may have in the store without being published."""

    def __repr__(self) -> str:
        return f"<ManifestWriter: {len(self._tried)} not settled>"

    async def write(self, queue: QueueId, segments: Sequence[Segment], level: int) -> ManifestRef:
        """Write one under a new name; `settled` follows. Two requests.

        Raises:
            Unavailable: unknown outcome; `bury_tried` will give it a tombstone.
            Corrupt: what was read back is not what was written.
        """
        tier = self._tier
        name = name_manifest(queue, segments, level, epoch=tier.journal.epoch, rng=tier.rng)
        self._tried[str(name)] = queue
        return await write_manifest(tier.store, name, segments, sequence=tier.state.sequence)

    def settled(self, names: Collection[str]) -> None:
        """What became of manifests is known: they are published, or have tombstones."""
        for name in names:
            self._tried.pop(name, None)

    async def bury_tried(self) -> None:
        """Give tombstones to what earlier runs have perhaps written and did not publish.

        Raises:
            Fenced: a newer owner has the tier.
        """
        if not self._tried:
            return
        for queue_id in dict.fromkeys(self._tried.values()):
            await self._tier.journal.settle(queue_id)  # a publication may still be on its way
        state = self._tier.state
        used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
        await self._tier.bury(
            [name for name in self._tried if name not in used and name not in state.tombstones]
        )
        self._tried.clear()
