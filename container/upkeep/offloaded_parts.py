"""The parts of the second store: where they are made, and which of them nothing refers to."""

from collections.abc import Mapping
from random import Random

from container.check.second_store import lacking_text, mark, refuse_other_second_store
from container.metadata.offloading import home_attempt, home_of, mark_name, place_of
from container.metadata.operations import PutAttempt
from container.upkeep.parts import PartsStep
from container.upkeep.step import OwnedTier
from provider.errors import AlreadyExists, Denied, NotFound
from provider.stores.packed_segments import (
    HOME_BYTES,
    NONCE_BYTES,
    PackedSegments,
    PartName,
    parts_prefix,
)
from provider.stores.two_stores import is_offloaded
from provider.stores.verified import PROBE_PREFIX, probe


class OffloadedParts(PackedSegments):
    """`FileSegments` below the tier's home in the second store; it gets one when it is needed."""

    def __init__(self, tier: OwnedTier) -> None:
        home = home_of(tier.state.attempts)
        super().__init__(tier.store, epoch=tier.journal.epoch, rng=tier.rng, home=home)
        self._tier = tier
        self._is_known = False
        """Whether it was seen to be the store that the tier was offloaded to."""

    async def settle(self) -> None:
        """Have a home in the right second store, before anything is made there.

        The first offload publishes a home, probes the store, leaves the object there by which it is
        known again, and publishes where that is; so does one that follows older programs. An owner
        reads that object once, and publishes another place that has it.

        Raises:
            Denied: it is another store than the tier was offloaded to, or keeps no promises.
            Unavailable: it does not answer.
            Fenced: a newer owner has the tier.
        """
        journal, place = self._tier.journal, self._tier.options.offload_place
        if not home_of(journal.planned.attempts):
            await self._put_home(self._tier.rng.randbytes(HOME_BYTES).hex(), place="")
        self.home = home_of(journal.planned.attempts)
        if self._is_known:
            return
        known = place_of(journal.planned.attempts)
        if known:
            await refuse_other_second_store(self._tier.store, journal.planned.attempts, place)
        else:
            await self._refuse_empty()
            await self._leave_mark()
        if place and place != known:
            await self._put_home(self.home, place=place)
        self._is_known = True

    async def _refuse_empty(self) -> None:
        """Refuse a store that lacks what an older program has offloaded there, without a mark."""
        store, parts = self._tier.store, self._tier.state.parts
        name = next((one for one in parts if is_offloaded(one)), None)
        if name is None:
            return
        try:
            await store.size(name)
        except NotFound as error:
            place = self._tier.options.offload_place
            raise Denied(lacking_text(place), name) from error

    async def _leave_mark(self) -> None:
        """Probe the store, and make the object by which it is known again."""
        store, prefix = self._tier.store, parts_prefix(self.home)
        rng = Random(self._tier.rng.randbytes(NONCE_BYTES))  # noqa: S311 - of a throw-away name
        await probe(store, rng=rng, prefix=f"{prefix}{PROBE_PREFIX}")
        text = mark(self.home, self._tier.state.broker)
        try:
            await store.create(mark_name(self.home), [text])
        except AlreadyExists:  # an earlier try, or a rival
            return

    async def _put_home(self, home: str, *, place: str) -> None:
        journal, now_ms = self._tier.journal, self._tier.clock.now_ms()
        attempt = home_attempt(home, now_ms=now_ms, epoch=journal.epoch, place=place)
        await journal.publish([PutAttempt(attempt)])

    async def earlier_objects(self) -> list[str]:
        """Those of earlier owners, and what probes have left; `FileSegments.earlier_objects`.

        No request without a home.
        """
        if not self.home:
            return []
        probes = f"{parts_prefix(self.home)}{PROBE_PREFIX}"
        names = [one.name for one in await self._store.list(parts_prefix(self.home))]
        return [name for name in names if name.startswith(probes) or self._is_earlier(name)]

    def _is_earlier(self, name: str) -> bool:
        part = PartName.parse(name)
        return part is not None and part.epoch < self._epoch


class OffloadedPartsStep(PartsStep):
    """Gives tombstones to objects in the second store that were never published."""

    name = "offloaded parts"

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects in the second store that were given tombstones."""
        return {"offloaded_unreferenced": self._found}
