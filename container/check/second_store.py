"""Whether the second store that somebody configured is the one that a tier was offloaded to.

The first offload leaves an object there that names its tier, and the journal says where that was.
A place without that object is another one: without a look, all that was offloaded would seem lost.
"""

from collections.abc import Mapping

import orjson

from container.errors import NewerVersion
from container.metadata.offloading import home_of, mark_name, place_of
from container.metadata.records import Attempt, Broker
from provider.errors import Corrupt, Denied, NotFound
from provider.object_store import ObjectStore

FORMAT = 1


def mark(home: str, broker: Broker) -> bytes:
    """What the object says by which a second store is known again: JSON, for people too."""
    said = {"format": FORMAT, "home": home, "cluster": broker.cluster, "broker": broker.name}
    return orjson.dumps(said)


async def refuse_other_second_store(
    store: ObjectStore, attempts: Mapping[str, Attempt], given: str
) -> None:
    """Refuse a second store that has not what the tier's first offload left there.

    One read; none where nothing was offloaded, no second store was given, or those who offloaded
    did not leave it yet.

    Args:
        store: both stores.
        attempts: of the tier's state.
        given: where the second store is said to be; "": nowhere.

    Raises:
        Denied: it is another one; the sentence names both places. Or it refuses us.
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
        version, told = found["format"], found["home"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("this is not what says whose second store it is", name) from error
    if version != FORMAT:
        raise NewerVersion("a newer program has offloaded this tier; upgrade this one", name)
    if told != home:
        raise Corrupt("this says that another tier has its home here", name)


def lacking_text(given: str) -> str:
    """Why a place where nothing of a tier is cannot be its second store."""
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
