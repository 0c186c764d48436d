"""Verification of a store before its first use: conditional creates, identity."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from provider.clock import Clock, SystemClock
from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import ForwardingStore, ObjectStore, Result
from provider.ranges import ByteRange

PROBE_PREFIX = "@probe/"
DELETABLE: Final = "deletable"
"""Name of the object that tests deletion. A fixed name: a denied deletion leaves one object."""
ROUNDS: Final = 3
TRIES: Final = 3
"""Attempts. A promise counts as broken if each attempt finds it broken."""
RIVALS: Final = 2
"""Concurrent creates of one name in each round."""
BODY_BYTES: Final = 4 << 10
"""Length of a body: long enough to detect a service that checks first and stores later."""


class _Broken(Denied):
    """Verdict on a storage that seems to break a promise."""


async def probe(
    store: ObjectStore, *, rng: Random, clock: Clock | None = None, prefix: str = PROBE_PREFIX
) -> float | None:
    """Test on temporary names that the storage keeps the promises that ownership relies on.

    Costs fifteen requests, and fifteen for each further attempt if a promise seems broken: another
    owner's upkeep may have deleted the objects of a paused start. An interrupted call may leave a
    few small objects under `prefix`, which readers ignore and an owner's upkeep deletes.

    Returns:
        The storage's own time, Unix ms, minus that of `clock.monotonic_s`, by the modification time
        of the last created object. A slow create leaves this open: it is as near to the wall time
        as the create allows. None if the storage does not report its time.

    Raises:
        Denied: the storage refuses access, or breaks a promise: do not write to it.
        Unavailable: the storage did not respond; retry.
    """
    for left in reversed(range(TRIES)):
        try:
            return await _probe_once(store, rng, clock or SystemClock(), prefix)
        except (_Broken, NotFound):
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _probe_once(store: ObjectStore, rng: Random, clock: Clock, prefix: str) -> float | None:
    await _prove_deletion(store, f"{prefix}{DELETABLE}")
    names = [f"{prefix}{rng.getrandbits(128):032x}" for _ in range(ROUNDS)]
    try:
        for name in names[:-1]:
            await _prove_create(store, name)
        begun_s = clock.monotonic_s()
        body = await _prove_create(store, names[-1])
        ended_s = clock.monotonic_s()
        wall_ms = clock.now_ms() - 1000 * ended_s
        written_ms = await _prove_reads(store, prefix, names, body)
    except (Denied, NotFound):
        with suppress(Denied, Unavailable):  # the verdict on the storage counts
            await store.delete(names)
        raise
    await store.delete(names)
    if not {entry.name for entry in await store.list(prefix)}.isdisjoint(names):
        raise _Broken("the storage lists what was just deleted: use another one", names[0])
    if written_ms is None:
        return None
    return min(max(wall_ms, written_ms - 1000 * ended_s), written_ms - 1000 * begun_s)


async def _prove_deletion(store: ObjectStore, name: str) -> None:
    # The object may exist: another process may run the test, or an earlier deletion was denied.
    with suppress(AlreadyExists):
        await store.create(name, [b"tieredstore tries whether it may delete this"])
    await store.delete([name])


async def _prove_create(store: ObjectStore, name: str) -> bytes:
    """Create one name by concurrent rivals, and return the body of the winner.

    Raises:
        Denied: two rivals succeeded, or the object has another body.
        Unavailable: no rival is known to have succeeded, and the outcome of one is unknown.
        StoreError: any other error of a create.
    """
    bodies = [bytes([number]) * BODY_BYTES + name.encode() for number in range(RIVALS)]

    async def outcome_of(body: bytes) -> StoreError | None:
        try:
            await store.create(name, [body[:5], body[5:]])
        except StoreError as error:  # not raised: a failing group would lose its own cancellation
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
    """Read a range of the last object, which holds `body`, and list all objects.

    Returns the write time of the last object by the storage's clock, Unix ms.

    Raises:
        Denied: the range has other bytes, or an object is not listed.
    """
    start = len(body) // 3
    if bytes(await store.read(names[-1], ByteRange(start, len(body)))) != body[start:]:
        raise _Broken("the storage reads other bytes of a range: use another one", names[-1])
    listed = {entry.name: entry.modified_ms for entry in await store.list(prefix)}
    if not listed.keys() >= set(names):
        raise _Broken("the storage does not list what was just created: use another one", names[0])
    return listed[names[-1]]


Verification = Callable[[ObjectStore], Awaitable[bool]]
"""Verification of a store. Raises the error that calls of the store raise instead of running.

Returns True if the store is verified for good, and False if the store had nothing to verify yet.
"""


class VerifiedStore(ForwardingStore):
    """Wrapper that verifies the identity of a store before its first call.

    A store that did not respond when it was opened may be the wrong one. Its missing objects would
    then seem lost, and objects to delete would stay in the right store.
    """

    def __init__(self, inner: ObjectStore, verification: Verification, *, prefix: str) -> None:
        """Wrap `inner`, whose names begin with `prefix`.

        An error at any other name, such as of a read of keys, is reported under the requested name.
        That name identifies the store that failed.
        """
        super().__init__(inner)
        self._prefix = prefix
        self._verification: Verification | None = verification
        self._lock = asyncio.Lock()
        self._runs = 0
        self._failed: tuple[int, StoreError] | None = None
        """Number and error of the last failed verification."""

    def __repr__(self) -> str:
        state = "verified" if self._verification is None else "not verified"
        return f"<VerifiedStore {state}: {self.inner!r}>"

    async def verify(self) -> None:
        """Verify the store, unless that is done for good.

        One verification runs at a time. Calls that wait for one that fails raise its error, so many
        calls wait no longer than one.

        Raises:
            StoreError: as the verification. The next call verifies again.
        """
        begun = self._runs
        async with self._lock:
            if self._verification is None:
                return
            if self._failed is not None and self._failed[0] > begun:
                error = self._failed[1]  # that verification began after this call
                raise type(error)(*error.args)  # a copy for each caller: its path may be changed
            self._runs += 1
            try:
                if await self._verification(self.inner):
                    self._verification = None
            except StoreError as error:
                self._failed = self._runs, error
                raise

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        """Verify, then call."""
        try:
            if self._verification is not None:
                await self.verify()
            return await super()._call(verb, names, effect, size_bytes)
        except StoreError as error:
            if names and not error.path.startswith(self._prefix):
                error.path = names[0]
            raise
