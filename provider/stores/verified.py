"""Verification of a store before its first use: conditional creates, identity."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import ObjectStore
from provider.ranges import ByteRange
from provider.stores.forwarding import ForwardingStore, Result

PROBE_PREFIX = "@probe/"
DELETABLE: Final = "deletable"
"""Name of the object by which deletions are tried: where they are denied, one is left for ever."""
ROUNDS: Final = 3
TRIES: Final = 3
"""A promise counts as broken if it is broken in each try."""
RIVALS: Final = 2
"""Creates of one name at once, in each round."""
BODY_BYTES: Final = 4 << 10
"""Enough that a service that checks first and stores later is seen in between."""


class _Broken(Denied):
    """The storage seems to break a promise."""


async def probe(store: ObjectStore, *, rng: Random, prefix: str = PROBE_PREFIX) -> int | None:
    """Prove on throw-away names that the storage keeps the promises that ownership rests on.

    Fifteen requests, and as many for each further try where a promise seems to be broken: another
    owner's upkeep may have deleted what a paused start had created. A call that is interrupted may
    leave a few small objects under `prefix`, which no reader reads and an owner's upkeep deletes.

    Returns:
        The storage's own time, Unix ms: what it says of the object that was created last. None if
        it does not tell.

    Raises:
        Denied: the storage refuses us, or breaks a promise: do not write to it.
        Unavailable: try again.
    """
    for left in reversed(range(TRIES)):
        try:
            return await _probe_once(store, rng, prefix)
        except (_Broken, NotFound):
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _probe_once(store: ObjectStore, rng: Random, prefix: str) -> int | None:
    await _prove_deletion(store, f"{prefix}{DELETABLE}")
    names = [f"{prefix}{rng.getrandbits(128):032x}" for _ in range(ROUNDS)]
    try:
        for name in names[:-1]:
            await _prove_create(store, name)
        body = await _prove_create(store, names[-1])
        now_ms = await _prove_reads(store, prefix, names, body)
    except (Denied, NotFound):
        with suppress(Denied, Unavailable):  # the verdict on the storage counts
            await store.delete(names)
        raise
    await store.delete(names)
    if not {entry.name for entry in await store.list(prefix)}.isdisjoint(names):
        raise _Broken("the storage lists what was just deleted: use another one", names[0])
    return now_ms


async def _prove_deletion(store: ObjectStore, name: str) -> None:
    # Another process may be trying just now, and an earlier one may not have been able to delete.
    with suppress(AlreadyExists):
        await store.create(name, [b"tieredstore tries whether it may delete this"])
    await store.delete([name])


async def _prove_create(store: ObjectStore, name: str) -> bytes:
    """Let rivals create one name at once, and return what the winner stored.

    Raises:
        Denied: two of them succeeded, or something else is there.
        Unavailable: none is known to have succeeded, and not because the name was taken.
        StoreError: as a create failed otherwise.
    """
    bodies = [bytes([number]) * BODY_BYTES + name.encode() for number in range(RIVALS)]

    async def outcome_of(body: bytes) -> StoreError | None:
        try:
            await store.create(name, [body[:5], body[5:]])
        except StoreError as error:  # returned: a group that fails loses a cancellation of its own
            return error
        return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome_of(body)) for body in bodies]
    outcomes = [task.result() for task in tasks]
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, AlreadyExists | Unavailable):
            raise outcome
    won = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
    unclear = [outcome for outcome in outcomes if isinstance(outcome, Unavailable)]
    if not won and unclear:
        raise unclear[0]
    found = bytes(await store.read(name)) if len(won) <= 1 else b""
    if len(won) > 1 or found not in (won or bodies):
        raise _Broken(
            "the storage ignores create-if-absent, or checks the condition before it stores, so "
            "two owners could overwrite each other: use another one",
            name,
        )
    return found


async def _prove_reads(
    store: ObjectStore, prefix: str, names: Sequence[str], body: bytes
) -> int | None:
    """Read a range of the last one, which holds `body`, and find all in a listing.

    Returns when that one was written by the storage's clock.

    Raises:
        Denied: the range has other bytes, or one is not listed.
    """
    start = len(body) // 3
    if bytes(await store.read(names[-1], ByteRange(start, len(body)))) != body[start:]:
        raise _Broken("the storage reads other bytes of a range: use another one", names[-1])
    listed = {entry.name: entry.modified_ms for entry in await store.list(prefix)}
    if not listed.keys() >= set(names):
        raise _Broken("the storage does not list what was just created: use another one", names[0])
    return listed[names[-1]]


Look = Callable[[ObjectStore], Awaitable[bool]]
"""Looks at a store, and raises what the calls of one who uses it shall raise.

It says whether that was the last look: False if there was nothing to be seen yet.
"""


class VerifiedStore(ForwardingStore):
    """Wrap a store; a call is passed on once a look has ended well.

    A store that did not answer when it was opened may be another one than was meant, too: what it
    lacks would seem lost, and what it is told to delete would stay where it really lies.
    """

    def __init__(self, inner: ObjectStore, look: Look, *, prefix: str) -> None:
        """`prefix`: of the names that are used here.

        What fails at another name, such as a look for keys, is told of the name that was asked for:
        by that it is known which store failed.
        """
        super().__init__(inner)
        self._prefix = prefix
        self._look: Look | None = look
        self._one_looks = asyncio.Lock()
        self._looks = 0
        self._failed: tuple[int, StoreError] | None = None
        """Which look failed last, and how."""

    def __repr__(self) -> str:
        return f"<GuardedStore {'seen' if self._look is None else 'not seen yet'}: {self.inner!r}>"

    async def look(self) -> None:
        """Look, unless somebody has seen all that there is to be seen.

        One look at a time: who waits for one that fails, failed with it, so that many calls wait no
        longer than one.

        Raises: what the look raises; the next call looks again.
        """
        begun = self._looks
        async with self._one_looks:
            if self._look is None:
                return
            if self._failed is not None and self._failed[0] > begun:
                error = self._failed[1]  # that look began after this call did
                raise type(error)(*error.args)  # each caller's own: its path may be changed
            self._looks += 1
            try:
                if await self._look(self.inner):
                    self._look = None
            except StoreError as error:
                self._failed = self._looks, error
                raise

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        """Look, then call."""
        try:
            if self._look is not None:
                await self.look()
            return await super()._call(verb, names, effect, size_bytes)
        except StoreError as error:
            if names and not error.path.startswith(self._prefix):
                error.path = names[0]
            raise
