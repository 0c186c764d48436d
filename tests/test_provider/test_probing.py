"""The probe of a storage, beside an owner whose upkeep deletes old probes."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from provider.errors import Closed, Denied
from provider.stores.verified import PROBE_PREFIX, probe
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore

REQUESTS = 15
LAST_CREATE = (8, 9, 10)
"""Numbers of the requests that create the last object, of which one is refused, and read it."""
SLOW_S = 400.0


class Swept(MemoryStore):
    """Loses everything below `@probe/` before the requests with these numbers."""

    def __init__(self, *sweeps: int) -> None:
        super().__init__()
        self.sweeps = sweeps
        self.requests = 0

    async def _request(self) -> None:
        if self.requests in self.sweeps:
            names = [one.name for one in await super().list(PROBE_PREFIX)]
            await super().delete(names)
        self.requests += 1

    async def create(self, name, buffers) -> None:
        await self._request()
        await super().create(name, buffers)

    async def read(self, name, wanted=None):
        await self._request()
        return await super().read(name, wanted)

    async def list(self, prefix, *, after=""):
        await self._request()
        return await super().list(prefix, after=after)

    async def delete(self, names) -> None:
        await self._request()
        await super().delete(names)


class Dated(MemoryStore):
    """Tells one time of all objects."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = told

    async def list(self, prefix, *, after=""):
        return [replace(one, modified=self.told) for one in await super().list(prefix, after=after)]


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("2026-01-01T00:00:00.000Z", 1_767_225_600_000),
        ("Thu, 01 Jan 2026 00:00:00 GMT", None),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
    ],
    ids=["as S3 writes it", "no such form", "zero", "none"],
)
async def test_a_time_that_the_storage_does_not_tell_is_not_believed(
    told: str, wanted: int | None
) -> None:
    clock = ManualClock()
    await clock.advance(7.0)
    shift_ms = None if wanted is None else wanted - 7_000
    assert await probe(Dated(told), rng=Random(1), clock=clock) == shift_ms


class Slow(Swept):
    """One request takes long; the storage has a clock of its own."""

    def __init__(self, clock: ManualClock, number: int, *, ahead_ms: int, is_late: bool) -> None:
        """`is_late`: an object is written at the end of its request, not at its beginning."""
        super().__init__()
        self.clock, self.number = clock, number
        self.ahead_ms, self.is_late = ahead_ms, is_late
        self.written: dict[str, int] = {}

    async def _request(self) -> None:
        self.requests += 1
        if self.requests == self.number + 1:
            await self.clock.advance(SLOW_S)

    async def create(self, name, buffers) -> None:
        begun_ms = self.clock.now_ms()
        await super().create(name, buffers)
        self.written[name] = self.ahead_ms + (self.clock.now_ms() if self.is_late else begun_ms)

    async def list(self, prefix, *, after=""):
        found = await super().list(prefix, after=after)
        return [replace(one, modified=self.written[one.name] / 1000) for one in found]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("ahead_ms", [0, 86_400_000, -86_400_000])
@pytest.mark.parametrize("number", range(REQUESTS))
async def test_a_slow_request_is_no_difference_between_two_clocks(
    number: int, ahead_ms: int, *, is_late: bool
) -> None:
    clock = ManualClock()
    shift_ms = await probe(
        Slow(clock, number, ahead_ms=ahead_ms, is_late=is_late), rng=Random(1), clock=clock
    )
    assert shift_ms is not None
    error_ms = shift_ms - (clock.now_ms() - 1000 * clock.monotonic_s() + ahead_ms)
    assert abs(error_ms) <= (1000 * SLOW_S if ahead_ms else 0)
    if number not in LAST_CREATE:
        assert error_ms == 0


@pytest.mark.parametrize("moment", range(REQUESTS))
async def test_a_probe_that_another_owner_deletes_is_repeated_under_another_name(
    moment: int,
) -> None:
    store = Swept(moment)
    await probe(store, rng=Random(1))
    assert await store.list("") == []


async def test_a_probe_whose_promises_hold_takes_fifteen_requests() -> None:
    store = Swept()
    await probe(store, rng=Random(1))
    assert store.requests == REQUESTS


async def test_a_promise_that_is_broken_on_every_name_is_told() -> None:
    class Forgetful(Swept):
        async def list(self, prefix, *, after=""):
            await super().list(prefix, after=after)
            return []

    store = Forgetful()
    with pytest.raises(Denied, match="does not list what was just created"):
        await probe(store, rng=Random(1))
    assert store.requests > 2 * REQUESTS, "it tries more than once"


async def test_a_create_that_fails_does_not_hide_that_the_probe_was_cancelled() -> None:
    class Killed(MemoryStore):
        async def create(self, name, buffers) -> None:
            if name.endswith("/deletable"):
                return
            task.cancel()
            raise Closed("the process was killed", name)

    task = asyncio.ensure_future(probe(Killed(), rng=Random(1)))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_create_that_fails_otherwise_ends_the_probe_with_its_own_error() -> None:
    class Shut(MemoryStore):
        async def create(self, name, buffers) -> None:
            if not name.endswith("/deletable"):
                raise Closed("the store was closed", name)

    with pytest.raises(Closed):
        await probe(Shut(), rng=Random(1))
