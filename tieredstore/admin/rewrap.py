"""Moving the encrypted objects of a tier to the form that is bound to it; its owner does so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from container.metadata.objects import home_of
from container.names.tier_objects import JOURNAL_PREFIX
from provider.clock import Clock, run_concurrently
from provider.encryption.frames import KEY_ID_BYTES
from provider.encryption.keys import KEYS_PREFIX, forget_wraps
from provider.encryption.store import EncryptedStore
from provider.errors import Corrupt, NotFound, StoreError
from provider.object_store import ObjectEntry
from provider.ranges import ByteRange
from provider.stores.packed_segments import OFFLOAD_PREFIX, parts_prefix
from provider.stores.retrying import RetryingStore
from provider.stores.two_stores import SECOND_STORE
from provider.stores.verified import PROBE_PREFIX
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.lifetime import running
from tieredstore.session.owner import open_owner
from tieredstore.session.places import asked_store
from tieredstore.session.reader import open_reader
from tieredstore.session.takeover import refuse_living_owner

if TYPE_CHECKING:
    from provider.object.store import FsspecStore


MOVES_MAX: Final = 4
"""Objects that are moved concurrently."""
STORES_MAX: Final = 2
"""Attempts to replace an object until it reads back equal."""


@dataclass(slots=True)
class Moved:
    """Result of a move, or of a dry run."""

    objects: int = 0
    size_bytes: int = 0
    """Bytes of their content."""
    left: int = 0
    """Objects of the older form outside the caller's prefix."""
    failures: list[StoreError] = field(default_factory=list[StoreError])
    """Errors of objects that could not be read or stored. These objects stay unchanged."""


async def move_older(store: EncryptedStore, prefix: str = "", *, dry_run: bool = False) -> Moved:
    """Replace all objects of the older form whose name has the prefix by the newer form.

    Each object is verified before, and read back and compared afterwards. Once no object of the
    older form is left, the storage refuses that form, and its data keys are deleted. An interrupted
    move loses nothing; call it again. `store` must have no cache. The caller must own the objects,
    so that no other process deletes one meanwhile. Costs one request for each object, and three
    more for each moved one. Memory: three times the length of four objects, and the names of all.

    Raises:
        Denied: the storage refuses a request.
        Unavailable: the storage did not respond; retry.
    """
    ring = store.ring
    await ring.know_place()
    moved, seen = Moved(), set[str]()
    while ring.older and ring.reads_older:
        entries = await _unseen(store, seen)
        if not entries:
            break
        await _move_some(store, entries, prefix, moved, dry_run=dry_run)
        if dry_run:
            return moved
    if ring.older and not (dry_run or moved.left or moved.failures):
        await ring.refuse_older()
        await forget_wraps(store.inner, ring.older)
    return moved


async def _unseen(store: EncryptedStore, seen: set[str]) -> list[ObjectEntry]:
    listed = [
        entry
        for entry in await store.inner.list("")
        if not entry.name.startswith((KEYS_PREFIX, PROBE_PREFIX)) and entry.name not in seen
    ]
    seen.update(entry.name for entry in listed)
    return listed


async def _move_some(
    store: EncryptedStore, entries: list[ObjectEntry], prefix: str, moved: Moved, *, dry_run: bool
) -> None:
    waiting = iter(entries)

    async def work() -> None:
        for entry in waiting:  # shared by all
            try:
                await _move_one(store, entry, prefix, moved, dry_run=dry_run)
            except NotFound:
                continue  # deleted meanwhile
            except Corrupt as error:
                moved.failures.append(error)

    await run_concurrently([work() for _ in range(MOVES_MAX)])


async def _move_one(
    store: EncryptedStore, entry: ObjectEntry, prefix: str, moved: Moved, *, dry_run: bool
) -> None:
    if entry.size_bytes < KEY_ID_BYTES:
        return
    key_id = bytes(await store.inner.read(entry.name, ByteRange(0, KEY_ID_BYTES)))
    if key_id not in store.ring.older:
        return
    if not entry.name.startswith(prefix):
        moved.left += 1
        return
    if dry_run:
        moved.size_bytes += await store.size(entry.name)
    else:
        content = bytes(await store.read(entry.name))
        await _rewrite(store, entry.name, content)
        moved.size_bytes += len(content)
    moved.objects += 1


async def _rewrite(store: EncryptedStore, name: str, content: bytes) -> None:
    for _ in range(STORES_MAX):
        await store.replace(name, [content])
        try:
            if await store.read(name) == content:
                return
        except Corrupt:
            continue
    raise Corrupt("the storage returns other bytes than were stored", name)


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
