"""Waiting at a start for a storage, on a clock of the test's own."""

import asyncio
import logging

import pytest

from provider.errors import Denied, StoreError, Unauthorized, Unavailable
from provider.testing.manual_clock import ManualClock, settle
from tieredstore.session.owner import when_usable


class Storage:
    """Fails with `error` until the clock has passed `until_s`."""

    def __init__(self, clock: ManualClock, error: StoreError, until_s: float) -> None:
        self.clock, self.error, self.until_s, self.calls = clock, error, until_s, 0

    async def attempt(self) -> str:
        self.calls += 1
        if self.clock.monotonic_s() < self.until_s:
            raise self.error
        return "owned"


@pytest.mark.parametrize(
    "error", [Unauthorized("the token is over", "x"), Unavailable("S3 is away", "x")]
)
async def test_what_passes_is_waited_out_and_logged_once(
    error: StoreError, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    storage = Storage(clock, error, clock.monotonic_s() + 60)
    task = asyncio.ensure_future(when_usable(storage.attempt, clock=clock, start_s=300))
    await settle()
    assert "not ready" in caplog.text
    await clock.advance(70)
    assert await task == "owned"
    assert 4 < storage.calls < 20
    assert [one.levelno for one in caplog.records] == [logging.ERROR]


async def test_after_the_limit_the_storage_is_unavailable() -> None:
    clock = ManualClock()
    storage = Storage(clock, Unauthorized("access denied", "x"), 1e9)
    task = asyncio.ensure_future(when_usable(storage.attempt, clock=clock, start_s=20))
    await settle()
    await clock.advance(60)
    with pytest.raises(Unavailable, match=r"tieredStoreStartTimeout.*access denied"):
        await task


@pytest.mark.parametrize("start_s", [0, 300])
async def test_what_no_waiting_changes_is_raised_at_once(start_s: float) -> None:
    clock = ManualClock()
    storage = Storage(clock, Denied("no such bucket", "x"), 1e9)
    with pytest.raises(Denied, match="no such bucket"):
        await when_usable(storage.attempt, clock=clock, start_s=start_s)
    assert storage.calls == 1


async def test_a_command_that_runs_once_does_not_wait() -> None:
    clock = ManualClock()
    storage = Storage(clock, Unauthorized("access denied", "x"), 1e9)
    with pytest.raises(Unauthorized):
        await when_usable(storage.attempt, clock=clock, start_s=0)
