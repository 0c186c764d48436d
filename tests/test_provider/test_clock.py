"""The clock of the machine; concurrent calls, their first error and their cancellation."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from container.journal.reader import JournalReader
from container.options import JournalOptions
from provider.clock import SystemClock, run_concurrently
from provider.errors import NotFound, StoreError, Unavailable
from provider.object_store import Buffer, ForwardingStore, ObjectEntry
from provider.options import RangeOptions
from provider.ranges import ByteRange
from provider.stores.range_reads import RangeReads
from provider.stores.two_stores import TwoStores
from provider.testing.memory import MemoryStore
from tests.test_provider.encryption.test_moving import older_storage, opened
from tests.test_provider.test_stores import object_store
from tieredstore.admin.rewrap import move_older


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


PARTS = ByteRange(0, 1), ByteRange(1 << 20, 1 + (1 << 20))
READS = [("a", PARTS[0]), ("b", PARTS[1])]


class Failing(ForwardingStore):
    """A store whose reads cancel a task, if one is given, and fail in the same turn."""

    cancelled: "asyncio.Task[Any] | None" = None
    error: Exception = Unavailable("the storage is away", "a")

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        del name, wanted
        if self.cancelled is not None:
            self.cancelled.cancel()
        raise self.error

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        return [await self.read(name, part) for name, part in wanted]


Call = Callable[[Failing, Path, pytest.MonkeyPatch], Awaitable[object]]


async def _coalesced(store: Failing, *_: object) -> object:
    return await RangeReads(
        store, clock=SystemClock(), options=RangeOptions(hedge_after_s=0)
    ).read_many(READS)


async def _hedged(store: Failing, *_: object) -> object:
    return await RangeReads(store, clock=SystemClock(), options=RangeOptions(hedge_after_s=1)).read(
        "a", PARTS[0]
    )


async def _two_stores(store: Failing, *_: object) -> object:
    return await TwoStores(store, store).read_many([("a", PARTS[0]), ("@offload/b", PARTS[1])])


async def _fsspec(store: Failing, directory: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    files = object_store("file", directory)
    monkeypatch.setattr(files, "read", store.read)
    return await files.read_many(READS)


async def _moving(store: Failing, *_: object) -> object:
    inner = await older_storage()
    encrypted = opened(inner)
    await encrypted.ring.know_place()
    inner.read = store.read  # pyright: ignore[reportAttributeAccessIssue]
    return await move_older(encrypted)


CALLS: list[Call] = [_coalesced, _hedged, _two_stores, _fsspec, _moving]


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("call", CALLS)
async def test_a_cancellation_counts_more_than_an_error_of_the_same_turn(
    call: Call, *, is_cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Failing(MemoryStore())
    task = asyncio.ensure_future(call(store, tmp_path, monkeypatch))
    store.cancelled = task if is_cancelled else None
    with pytest.raises(asyncio.CancelledError if is_cancelled else Unavailable):
        await task
    assert task.cancelling() == is_cancelled


async def test_the_first_error_cancels_the_others_and_leaves_no_cancellation() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def fails(error: StoreError) -> None:
        raise error

    first = NotFound("there is no such object", "a")
    calls = [waits(), fails(first), fails(Unavailable("late", "b")), waits()]
    with pytest.raises(NotFound) as raised:
        await run_concurrently(calls)
    assert raised.value is first
    assert ended == ["cancelled"]  # the last call had not begun
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_results_are_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0)
        return turns

    assert await run_concurrently([after(2), after(0), after(1)]) == [2, 0, 1]
    assert await run_concurrently([]) == []
