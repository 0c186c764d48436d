"""The parts of the second store: where they are made, and which of them nothing refers to."""

from collections.abc import Mapping

from container.metadata.offloading import home_attempt, home_of
from container.metadata.operations import PutAttempt
from container.upkeep.parts import PartsStep
from container.upkeep.step import OwnedTier
from provider.packed_segments import HOME_BYTES, PackedSegments


class OffloadedParts(PackedSegments):
    """`FileSegments` below the tier's home in the second store; it gets one when it is needed."""

    def __init__(self, tier: OwnedTier) -> None:
        home = home_of(tier.state.attempts)
        super().__init__(tier.store, epoch=tier.journal.epoch, rng=tier.rng, home=home)
        self._tier = tier

    async def settle(self) -> None:
        """Publish a home, if the tier has none yet, before anything is made there.

        Raises:
            Fenced: a newer owner has the tier.
        """
        journal = self._tier.journal
        if not home_of(journal.planned.attempts):
            home = self._tier.rng.randbytes(HOME_BYTES).hex()
            now_ms = self._tier.clock.now_ms()
            attempt = home_attempt(home, now_ms=now_ms, epoch=journal.epoch)
            await journal.publish([PutAttempt(attempt)])
        self.home = home_of(journal.planned.attempts)

    async def earlier_objects(self) -> list[str]:
        """Those of earlier owners; `FileSegments.earlier_objects`. No request without a home."""
        return await super().earlier_objects() if self.home else []


class OffloadedPartsStep(PartsStep):
    """Gives tombstones to objects in the second store that were never published."""

    name = "offloaded parts"

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects in the second store that were given tombstones."""
        return {"offloaded_unreferenced": self._found}
