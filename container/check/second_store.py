"""Verification that the configured second store is the one that a tier was offloaded to.

The first offload creates an object there that names its tier, and the journal records the place. A
place without that object is another store: without this check, all offloaded bytes would seem lost.
"""

from collections.abc import Mapping
from contextlib import suppress

import orjson

from container.errors import NewerVersion
from container.metadata.moves import home_of, mark_name, place_of
from container.metadata.records import Attempt, Broker
from container.names.tier_objects import OWNER_PREFIX, RegistrationName
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, Unavailable
from provider.object_store import ObjectStore
from provider.stores.packed_segments import parts_prefix

FORMAT = 1


def mark(home: str, broker: Broker) -> bytes:
    """Content of the object that identifies a second store: JSON, readable for people too."""
    fields = {"format": FORMAT, "home": home, "cluster": broker.cluster, "broker": broker.name}
    return orjson.dumps(fields)


async def refuse_other_second_store(
    store: ObjectStore, attempts: Mapping[str, Attempt], given: str
) -> None:
    """Refuse a second store without the object that the tier's first offload created there.

    One read. None if nothing was offloaded, no second store is configured, or the offload has not
    created the object yet.

    Args:
        store: both stores.
        attempts: of the tier's state.
        given: configured place of the second store. "": none.

    Raises:
        Denied: it is another one, and the error names both places; or it refuses access.
        NewerVersion: a newer program has offloaded the tier in another way.
        Unavailable: it does not answer.
    """
    home, expected = home_of(attempts), place_of(attempts)
    if not given or not expected:
        return
    name = mark_name(home)
    try:
        raw = bytes(await store.read(name))
    except NotFound as error:
        raise Denied(_other_text(given, expected), name) from error
    try:
        found = orjson.loads(raw)
        version, recorded = found["format"], found["home"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("this is no mark of a second store", name) from error
    if version != FORMAT:
        raise NewerVersion("a newer program has offloaded this tier; upgrade this one", name)
    if recorded != home:
        raise Corrupt("another tier has its home here", name)


async def register_at_second_store(
    store: ObjectStore, home: str, nonce: str, *, where: str, is_new: bool
) -> None:
    """Register the owner of a tier at its second store, and refuse the owner of another copy.

    Each owner creates the same nonce in both stores, first in the tier's own, and deletes older
    ones, first in the second store. Undeletable ones are left to a later owner. A copy of the tier
    lacks the nonces of later owners of the original, and lies at another place. Two listings, two
    creates and two deletes.

    Args:
        store: both stores.
        home: of the tier in the second one.
        nonce: of this owner.
        where: place of the tier's first store, the content of the registration.
        is_new: accept this copy whatever is registered there. Other copies are refused from then
            on.

    Raises:
        Denied: another copy of the tier uses this second store, or cannot be unregistered
            (`is_new`).
        Unavailable: a store does not answer.
    """
    far_prefix = f"{parts_prefix(home)}{OWNER_PREFIX}"
    near = await _registered(store, OWNER_PREFIX)
    far = {one.name: one.name.removeprefix(far_prefix) for one in await store.list(far_prefix)}
    if not is_new:
        for name, other in far.items():
            place = bytes(await store.read(name)).decode(errors="replace").strip()
            if other not in near or place != where:
                raise Denied(_copy_text(place, where), name)
    own = {str(RegistrationName(nonce)): nonce, f"{far_prefix}{nonce}": nonce}
    for name in own:
        with suppress(AlreadyExists):
            await store.create(name, [f"{where}\n".encode()])
    older = [name for name in far if name not in own]
    try:
        await store.delete(older)
        # Not earlier: a registration whose nonce is not here belongs to another copy.
        names = [str(RegistrationName(one)) for one in near]
        await store.delete([name for name in names if name not in own])
    except (Denied, Unavailable):
        if is_new:
            raise  # those of other copies must be deleted


async def _registered(store: ObjectStore, prefix: str) -> set[str]:
    names = [RegistrationName.parse(one.name) for one in await store.list(prefix)]
    return {name.nonce for name in names if name is not None}


def _copy_text(place: str, where: str) -> str:
    return (
        f"the second store is in use by another copy of this tier, at {place}, and this one at "
        f"{where} would delete its messages: give each copy a second store of its own; if this is "
        f"the only copy that is left, or it was moved, use --new-tier once"
    )


def lacking_text(given: str) -> str:
    """Error text for a second store without any object of the tier."""
    return (
        f"the second store at {given} has nothing of this tier, so it is not what the tier was "
        f"offloaded to: is it another account, or a disk that is not mounted?"
    )


def _other_text(given: str, expected: str) -> str:
    if given == expected:
        return lacking_text(given)
    return (
        f"the second store at {given} is not that of this tier, whose messages were offloaded to "
        f"{expected}: set tieredStoreOffloadPath to that, or copy the objects first"
    )
