"""The clock of the machine."""

import time

import pytest

from container.journal.reader import JournalReader
from container.options import JournalOptions
from provider.clock import SystemClock
from provider.object_store import ObjectEntry


@pytest.fixture
def suspended_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the machine was suspended so far: append to it to suspend it."""
    slept_s = list[float]()
    real = time.clock_gettime

    def clock_gettime(clock: int) -> float:
        return real(clock) + (sum(slept_s) if clock == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    return slept_s


def test_durations_include_the_time_in_which_the_machine_was_suspended(
    suspended_s: list[float],
) -> None:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    suspended_s.append(3600)
    assert 3600 <= clock.monotonic_s() - began_s < 3660


class SuspendedWithin:
    """A store whose machine is suspended within the first listing."""

    def __init__(self, suspended_s: list[float]) -> None:
        self.suspended_s = suspended_s
        self.listings = 0

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        self.listings += 1
        if self.listings == 1:
            self.suspended_s.append(3600)
            return []
        return [ObjectEntry("@boundary/00000000000000000007", 1)]


async def test_a_listing_over_which_the_machine_was_suspended_is_not_believed(
    suspended_s: list[float],
) -> None:
    store = SuspendedWithin(suspended_s)
    reader = JournalReader(store, JournalOptions(), clock=SystemClock())  # type: ignore[arg-type]
    assert await reader.boundary() == 7
    assert store.listings == 2
