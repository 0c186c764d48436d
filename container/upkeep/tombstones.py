"""Tombstones that are due: their objects are deleted, then the tombstones dropped."""

from collections.abc import Mapping

from container.metadata.operations import AddTombstones, DropTombstones, Operation
from container.metadata.records import Tombstone
from container.upkeep.deletion import failed_again, plan_deletions
from container.upkeep.step import OwnedTier, Step
from provider.errors import Closed, Fenced, StoreError


class TombstoneStep(Step):
    """Deletes objects whose tombstones are due, unless they are in use again."""

    name = "tombstones"
    finishes_again = True

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self._deleted = 0

    async def step(self) -> None:
        """Delete what is due. Five requests; one more per object where they fail together."""
        tier, options = self.tier, self.tier.options
        due = plan_deletions(tier.state, tier.clock.now_ms(), options)
        if due.drop:
            await tier.journal.publish([DropTombstones(due.drop)])
        if not due.delete:
            return
        await tier.journal.verify_owner()
        # A tail cut and a commit may have begun a segment of such a name again meanwhile.
        due = plan_deletions(tier.state, tier.clock.now_ms(), options)
        if not due.delete:
            return
        gone, failed = await self._delete(due.delete)
        operations: list[Operation] = []
        if gone:
            operations.append(DropTombstones(tuple(gone)))
        if failed:
            operations.append(AddTombstones(tuple(failed)))
        await tier.journal.publish(operations)
        self._deleted += len(gone)

    async def _delete(self, tombstones: tuple[Tombstone, ...]) -> tuple[list[str], list[Tombstone]]:
        """Delete objects together, or one by one if that fails; deleted names, and the rest."""
        names = [tombstone.object_name for tombstone in tombstones]
        try:
            await self.tier.store.delete(names)
        except (Fenced, Closed):
            raise
        except StoreError:
            if len(tombstones) == 1:
                now_ms = self.tier.clock.now_ms()
                return [], [failed_again(tombstones[0], now_ms, self.tier.options)]
        else:
            return names, []
        gone: list[str] = []
        failed: list[Tombstone] = []
        for tombstone in tombstones:
            names, again = await self._delete((tombstone,))
            gone += names
            failed += again
        return gone, failed

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects deleted, and tombstones given up: their objects still lie there and cost money.

        O(tombstones).
        """
        tries_max = self.tier.options.tombstone_tries_max
        given_up = sum(one.tries >= tries_max for one in self.tier.state.tombstones.values())
        return {"objects_deleted": self._deleted, "undeletable": given_up}
