"""Trying a storage out before anything of value is written to it."""

from random import Random

from provider.errors import AlreadyExists, Denied
from provider.object_store import ObjectStore
from provider.ranges import ByteRange

PROBE_PREFIX = "@probe/"


async def probe(store: ObjectStore, *, rng: Random, prefix: str = PROBE_PREFIX) -> None:
    """Prove on a throw-away name that the storage keeps the promises that ownership rests on.

    Seven requests. A call that is interrupted may leave one small object under `prefix`, which
    nobody reads.

    Raises:
        Denied: the storage refuses us, or breaks a promise: do not write to it.
        Unavailable: try again.
    """
    name = f"{prefix}{rng.getrandbits(128):032x}"
    body = name.encode()
    await store.create(name, [body[:5], body[5:]])
    try:
        await store.create(name, [b"a second object of the same name"])
    except AlreadyExists:
        pass
    else:
        await store.delete([name])
        raise Denied(
            "the storage ignores create-if-absent, so two owners could overwrite each other: "
            "use another one",
            name,
        )
    if (
        bytes(await store.read(name)) != body
        or bytes(await store.read(name, ByteRange(5, len(body)))) != (body[5:])
    ):
        raise Denied("the storage does not give back what was just created: use another one", name)
    if name not in [entry.name for entry in await store.list(prefix)]:
        raise Denied("the storage does not list what was just created: use another one", name)
    await store.delete([name])
    if name in [entry.name for entry in await store.list(name)]:
        raise Denied("the storage lists what was just deleted: use another one", name)
