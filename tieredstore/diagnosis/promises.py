"""Promises and permissions of a storage, each tried by requests; one finding each."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeVar

from provider.clock import Clock
from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import ObjectStore
from provider.ranges import ByteRange
from provider.stores.verified import DELETABLE, PROBE_PREFIX, probe


class Grade(Enum):
    """Severity of a line."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing, or not known."""
    BAD = "bad"
    """To be changed before a tier is kept there."""


@dataclass(frozen=True, slots=True)
class Line:
    """Result of a check."""

    check: str
    """Such as `versioning`."""
    grade: Grade
    detail: str
    advice: str = ""
    """Remedy; "" if none is needed."""
    is_final: bool = False
    """Whether nothing else can be diagnosed before it is remedied."""


ResultT = TypeVar("ResultT")
PROBES = 3
"""Times that the probe runs, with three rounds of rivals each."""
SAMPLES = 10
"""Number of timed reads."""


async def tried_calls(store: ObjectStore) -> list[Line]:
    """Create, read, list and delete a throw-away object: one line each.

    Raises:
        Unavailable: the storage does not answer.
    """
    name = f"{PROBE_PREFIX}{DELETABLE}"  # where deletions are denied, one object is left

    async def create() -> None:
        with suppress(AlreadyExists):
            await store.create(name, [b"doctor"])

    return [
        await _line("create", create),
        await _line("read", lambda: store.read(name, ByteRange(0, 6))),
        await _line("size", lambda: store.size(name)),
        await _line("list", lambda: store.list(PROBE_PREFIX)),
        await _line("delete", lambda: store.delete([name])),
    ]


async def tried_promises(store: ObjectStore, *, rng: Random) -> Line:
    """Create-if-absent under concurrency, ranges and listings, as an owner's start tries them.

    Raises:
        Unavailable: the storage does not answer.
    """
    try:
        for _ in range(PROBES):
            await probe(store, rng=rng)
    except Denied as error:
        return Line("conditional writes", Grade.BAD, error.reason)
    return Line("conditional writes", Grade.GOOD, "one of two rivals wins, however often they race")


async def taken_latency(store: ObjectStore, *, clock: Clock) -> Line:
    """The time that a small question takes.

    Raises:
        Unavailable: the storage does not answer.
    """
    times_s: list[float] = []
    for _ in range(SAMPLES):
        began_s = clock.monotonic_s()
        with suppress(NotFound, Denied):
            await store.list(f"{PROBE_PREFIX}latency")
        times_s.append(clock.monotonic_s() - began_s)
    median_ms, most_ms = sorted(times_s)[SAMPLES // 2] * 1000, max(times_s) * 1000
    detail = f"a listing takes {median_ms:.1f} ms, at most {most_ms:.1f} ms"
    slow_ms = 500
    if median_ms < slow_ms:
        return Line("latency", Grade.GOOD, detail)
    return Line("latency", Grade.NOTE, detail, "keep the tier nearer to this host")


async def _line(check: str, call: Callable[[], Awaitable[ResultT]]) -> Line:
    try:
        await call()
    except Unavailable:
        raise
    except StoreError as error:
        return Line(check, Grade.BAD, error.reason)
    return Line(check, Grade.GOOD, "allowed")
