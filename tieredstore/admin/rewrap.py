"""Moving the encrypted objects of a tier to the form that is bound to it; its owner does so."""

from collections.abc import Mapping
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

from container.metadata.moves import home_of
from container.names.tier_objects import JOURNAL_PREFIX
from provider.clock import Clock
from provider.encryption.moving import Moved, move_older
from provider.encryption.store import EncryptedStore
from provider.stores.packed_segments import OFFLOAD_PREFIX, parts_prefix
from provider.stores.retrying import RetryingStore
from provider.stores.two_stores import SECOND_STORE
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.lifetime import running
from tieredstore.session.owner import open_owner
from tieredstore.session.places import asked_store
from tieredstore.session.reader import open_reader
from tieredstore.session.takeover import refuse_living_owner

if TYPE_CHECKING:
    from provider.object.store import FsspecStore


async def move_to_bound(
    config: Config,
    places: Mapping[TierUrl, str],
    *,
    clock: Clock,
    dry_run: bool = False,
    take_over: bool = False,
) -> Mapping[str, Moved]:
    """Rewrite a tier's objects of the older form; return the counts by name of the store.

    `places` are the encrypted stores, with their names. The tier is owned only if a data key of
    the older form is left. In a second store only the objects of this tier are rewritten.

    Raises:
        Owned: a living process owns the tier; no object was changed.
        Fenced: another process took the tier meanwhile.
        Corrupt, Denied, Unavailable: as `open_owner` and `move_older`; finished objects stay so.
    """
    left = {
        where: which
        for where, which in places.items()
        if await asked_store(config, where, partial(_has_older, config, which, clock))
    }
    if not left:
        return {}
    if dry_run:
        async with open_reader(config) as reader:
            home = home_of(reader.state.attempts)
            return await _moved(config, left, home, clock=clock, dry_run=True)
    if not take_over:
        await refuse_living_owner(config, clock=clock)
    async with open_owner(config, clock=clock, take_over=take_over) as tier:
        # Before its upkeep deletes anything.
        moved = await _moved(config, left, home_of(tier.state.attempts), clock=clock)
        async with running([tier.run]):
            await tier.close()
        return moved


async def _moved(
    config: Config,
    places: Mapping[TierUrl, str],
    home: str,
    *,
    clock: Clock,
    dry_run: bool = False,
) -> Mapping[str, Moved]:
    done: dict[str, Moved] = {}
    for where, which in places.items():
        prefix = parts_prefix(home) if which == SECOND_STORE else ""
        if which == SECOND_STORE and not home:
            continue  # nothing there is this tier's

        async def work(store: "FsspecStore", which: str = which, prefix: str = prefix) -> Moved:
            return await move_older(_sealed(config, which, clock, store), prefix, dry_run=dry_run)

        done[which] = await asked_store(config, where, work)
    return done


async def _has_older(config: Config, which: str, clock: Clock, store: "FsspecStore") -> bool:
    ring = _sealed(config, which, clock, store).ring
    await ring.know_place()
    return bool(ring.older)


def _sealed(config: Config, which: str, clock: Clock, store: "FsspecStore") -> EncryptedStore:
    """An encrypted place, without a cache."""
    masters = config.storage.master_keys
    assert masters is not None, "its data keys were wrapped"
    held = OFFLOAD_PREFIX if which == SECOND_STORE else JOURNAL_PREFIX
    return EncryptedStore(RetryingStore(store, clock=clock, rng=SystemRandom()), masters, held=held)
