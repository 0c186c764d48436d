"""A wall clock that is set, for a while or for good, and what upkeep deletes meanwhile."""

from dataclasses import replace

import pytest

from container.upkeep.upkeep import HOLD_S, SteadyClock
from provider.object_store import ObjectEntry
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.owned_tier import QUEUE, OwnedWorld, put_each_minute
from tests.test_container.upkeep.test_retention import EXPIRING, OPTIONS

DAY_MS = 86_400_000


@pytest.mark.parametrize("jump_ms", [100 * DAY_MS, -100 * DAY_MS])
async def test_a_jump_is_believed_once_it_has_lasted(jump_ms: int) -> None:
    clock = ManualClock()
    steady, begun_ms = SteadyClock(clock), clock.now_ms()
    await clock.advance(60)
    assert steady.now_ms() == clock.now_ms()
    clock._started_ms += jump_ms
    await clock.advance(60)
    assert steady.now_ms() == begun_ms + 120_000
    assert steady.jump_s == jump_ms / 1000
    await clock.advance(HOLD_S - 100)
    assert steady.now_ms() == begun_ms + 20_000 + int(HOLD_S * 1000)
    await clock.advance(100)
    assert steady.now_ms() == clock.now_ms()
    assert not steady.jump_s


async def test_a_jump_back_ends_it_and_another_one_begins_the_wait_again() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock._started_ms += DAY_MS
    assert steady.jump_s == DAY_MS / 1000
    await clock.advance(HOLD_S / 2)
    clock._started_ms += DAY_MS
    assert steady.jump_s == 2 * DAY_MS / 1000
    await clock.advance(HOLD_S - 10)
    assert steady.jump_s, "the second one has not lasted"
    clock._started_ms -= 2 * DAY_MS
    assert not steady.jump_s
    assert steady.now_ms() == clock.now_ms()


async def test_small_steps_and_drift_are_followed() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    for _ in range(100):
        await clock.advance(10)
        clock._started_ms += 10_000
        assert steady.now_ms() == clock.now_ms()


@pytest.mark.parametrize("ahead_ms", [100 * DAY_MS, -100 * DAY_MS])
async def test_the_earlier_of_two_clocks_counts_until_they_agree(ahead_ms: int) -> None:
    clock = ManualClock()
    right_ms = clock.now_ms()
    clock._started_ms += ahead_ms
    steady = SteadyClock(clock, storage_shift_ms=right_ms - 1000 * clock.monotonic_s())
    assert steady.skew_s == ahead_ms / 1000
    assert steady.now_ms() == right_ms + min(0, ahead_ms)
    await clock.advance(2 * HOLD_S)
    assert steady.now_ms() == right_ms + min(0, ahead_ms) + 2000 * int(HOLD_S), "it does not pass"
    clock._started_ms -= ahead_ms
    assert not steady.skew_s
    assert not steady.jump_s
    assert steady.now_ms() == clock.now_ms(), "what the storage confirms is no jump"


async def test_a_storage_whose_time_is_near_the_machine_is_not_asked_again() -> None:
    clock = ManualClock()
    near_ms = clock.now_ms() - 1000 * clock.monotonic_s() + 200_000
    steady = SteadyClock(clock, storage_shift_ms=near_ms)
    assert steady.now_ms() == clock.now_ms()
    clock._started_ms += DAY_MS
    assert steady.jump_s == DAY_MS / 1000
    assert not steady.skew_s


class TimedStore(MemoryStore):
    """A storage with a clock of its own that stands still."""

    clock_ms = 0

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        entries = await super().list(prefix, after=after)
        return [replace(one, modified=self.clock_ms / 1000) for one in entries]


@pytest.mark.parametrize("packed", [False, True])
async def test_a_clock_that_is_ahead_at_the_start_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    upkeep = replace(EXPIRING, retention_hours=2, interval_s=300.0, expiry_interval_s=600.0)
    world = OwnedWorld(OPTIONS, upkeep, packed=packed)
    world.memory = TimedStore(world.memory._shared)
    monkeypatch.setattr(TimedStore, "clock_ms", world.clock.now_ms())
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 12)
    monkeypatch.setattr(TimedStore, "clock_ms", world.clock.now_ms())
    world.clock._started_ms += 100 * DAY_MS
    async with world.owned() as tier:
        await world.pass_time(3600)
        assert tier.state.queues[QUEUE].min_offset == 0
        statistics = tier.upkeep.statistics()
        assert statistics.figures["clock_skew_s"] == 100 * 86_400
        assert "the machine's clock is +8640000 s from the storage's" in statistics.last_error
        world.clock._started_ms -= 100 * DAY_MS
        await world.pass_time(900)
        statistics = tier.upkeep.statistics()
        assert statistics.figures["clock_skew_s"] == 0
        assert not statistics.last_error
        await world.pass_time(3 * 3600)
        assert tier.state.queues[QUEUE].min_offset == 12, "then what is old expires"


@pytest.mark.parametrize("packed", [False, True])
async def test_a_clock_that_is_ahead_for_minutes_deletes_nothing(*, packed: bool) -> None:
    upkeep = replace(EXPIRING, retention_hours=72, expiry_interval_s=600.0)
    world = OwnedWorld(OPTIONS, upkeep, packed=packed)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 60)
        before = tier.state.queues[QUEUE]
        world.clock._started_ms += 100 * DAY_MS
        await world.pass_time(1200)
        assert tier.state.queues[QUEUE].min_offset == before.min_offset == 0
        statistics = tier.upkeep.statistics()
        assert statistics.figures["clock_jump_s"] == 100 * 86_400
        assert "the machine's clock jumped by +8640000 s" in statistics.last_error
        world.clock._started_ms -= 100 * DAY_MS
        await world.pass_time(900)
        statistics = tier.upkeep.statistics()
        assert statistics.figures["clock_jump_s"] == 0
        assert not statistics.last_error
        now_ms = world.clock.now_ms()
        due = [one.not_before_ms for one in tier.state.tombstones.values()]
        assert all(one <= now_ms + DAY_MS for one in due), "none waits for the far day"
    assert await world.reads_back() == 60
