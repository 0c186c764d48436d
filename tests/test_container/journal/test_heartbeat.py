"""Signs of life: an idle owner shows them, an observer believes its own clock alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Literal

import pytest

from container.journal.heartbeat import SIGNS_MAX, Heartbeat, Lease, OwnerWatch, Seen, last_sign
from container.journal.journal import Journal
from container.metadata.operations import PutTopic
from container.metadata.records import Topic
from container.names.tier_objects import OWNER_PREFIX, SignName
from container.options import JournalOptions
from provider.errors import Denied, Fenced, Unavailable
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore

DAY_S = 86_400


class CountedStore(MemoryStore):
    """Counts requests by verb, and is away on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict.fromkeys(("create", "list", "delete", "read"), 0)
        self.away = False

    async def create(self, name: str, buffers) -> None:
        self._count("create", name)
        await super().create(name, buffers)

    async def read(self, name: str, wanted=None):
        self._count("read", name)
        return await super().read(name, wanted)

    async def list(self, prefix: str, *, after: str = ""):
        self._count("list", prefix)
        return await super().list(prefix, after=after)

    async def delete(self, names) -> None:
        self._count("delete", "")
        await super().delete(names)

    def _count(self, verb: Literal["create", "list", "delete", "read"], name: str) -> None:
        self.counts[verb] += 1
        if self.away:
            raise Unavailable("away", name)


async def own(store: MemoryStore, clock: ManualClock, seed: int = 1) -> Journal:
    return await Journal.take_ownership(
        store, clock=clock, rng=Random(seed), owner=f"host:{seed}", cluster="C", broker="b"
    )


@asynccontextmanager
async def beating(
    store: MemoryStore, journal: Journal, clock: ManualClock
) -> AsyncIterator[Heartbeat]:
    heartbeat = Heartbeat(journal, store, "host:1", clock=clock, interval_s=30.0)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(heartbeat.run()), group.create_task(running(journal))]
        await settle()
        yield heartbeat
        for task in tasks:
            task.cancel()
    await journal.close()


async def running(journal: Journal) -> None:
    try:
        await journal.run()
    except Fenced:
        return


def put(number: int) -> PutTopic:
    return PutTopic(Topic(f"T{number}", number))


async def signs(store: MemoryStore) -> list[str]:
    return [one.name for one in await store.list(OWNER_PREFIX)]


async def test_an_idle_owner_makes_one_object_an_interval_and_lists_nothing() -> None:
    store, clock = CountedStore(), ManualClock()
    async with beating(store, await own(store, clock), clock):
        store.counts = dict.fromkeys(store.counts, 0)
        await clock.advance(3000.0)
        assert store.counts == {"create": 100, "list": 0, "delete": 100, "read": 0}
        assert len(await signs(store)) == 1


async def test_a_busy_owner_shows_nothing_but_its_entries() -> None:
    store, clock = CountedStore(), ManualClock()
    journal = await own(store, clock)
    async with beating(store, journal, clock):
        assert await signs(store) == [str(SignName(1, 1))], "one from the start on"
        for number in range(20):
            await clock.advance(29.0)
            await journal.publish([put(number)])
        assert await signs(store) == [str(SignName(1, 1))]
        await clock.advance(30.0)
        assert await signs(store) == [str(SignName(1, 2))]


async def test_an_outage_costs_no_sign_that_is_due_after_it() -> None:
    store, clock = CountedStore(), ManualClock()
    async with beating(store, await own(store, clock), clock):
        store.away = True
        await clock.advance(60.0)
        store.away = False
        before = await signs(store)
        await clock.advance(5.0)
        assert await signs(store) != before, "tried again within a sixth of the interval"


async def test_an_owner_that_may_not_delete_any_more_asks_for_few_deletions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clock = CountedStore(), ManualClock()
    asked: list[int] = []

    async def delete(names: list[str]) -> None:
        asked.append(len(names))
        raise Denied("no deletions", names[0])

    async with beating(store, await own(store, clock), clock):
        monkeypatch.setattr(store, "delete", delete)
        await clock.advance(6000.0)
        assert len(asked) == 200
        assert max(asked) <= SIGNS_MAX
        monkeypatch.undo()
        await clock.advance(30.0)
        assert len(await signs(store)) < 200


async def test_a_clean_end_leaves_its_sign_and_a_fenced_owner_none() -> None:
    store, clock = CountedStore(), ManualClock()
    first = await own(store, clock)
    async with beating(store, first, clock) as heartbeat:
        pass
    await heartbeat.end()
    assert await signs(store) == [str(SignName(1, None))]
    assert await last_sign(store) == (SignName(1, None), "host:1")
    second = await own(store, clock, 2)
    async with beating(store, second, clock) as heartbeat:
        await heartbeat.begin()
        assert await signs(store) == [str(SignName(2, 1))], "those of earlier owners went"
        third = await own(store, clock, 3)
        with pytest.raises(Fenced):
            await second.publish([put(1)])
    await heartbeat.end()
    assert str(SignName(2, None)) not in await signs(store)
    await third.close()


async def test_an_observer_sees_heartbeats_entries_ends_and_newer_owners() -> None:
    store, clock = CountedStore(), ManualClock()
    journal = await own(store, clock)
    async with beating(store, journal, clock) as heartbeat:
        watch = OwnerWatch(store, 1, "host:1")
        assert [await watch.look() for _ in range(2)] == [Seen.NOTHING] * 2
        await clock.advance(30.0)
        assert [await watch.look() for _ in range(2)] == [Seen.ALIVE, Seen.NOTHING]
        await journal.publish([put(1)])
        assert [await watch.look() for _ in range(2)] == [Seen.ALIVE, Seen.NOTHING]
    await heartbeat.end()
    assert await watch.look() == Seen.ENDED
    second = await own(store, clock, 2)
    unfinished = OwnerWatch(store, 1, "host:1")
    await store.delete([str(SignName(1, None))])
    assert await unfinished.look() == Seen.REPLACED, "at the first look, too"
    await second.close()


def test_a_lease_passes_by_looks_and_an_observer_that_slept_counts_one_interval() -> None:
    lease = Lease(90.0, 0.0)
    assert lease.interval_s == 30.0
    assert not lease.pass_time(30.0)
    assert not lease.pass_time(DAY_S), "the owner may have slept as well"
    assert lease.pass_time(DAY_S + 30.0)
    lease.renew(DAY_S + 40.0)
    assert not lease.pass_time(DAY_S + 70.0)


def test_a_lease_within_which_a_living_owner_may_be_silent_is_refused() -> None:
    with pytest.raises(ValueError, match="twice heartbeat_s"):
        JournalOptions(heartbeat_s=30.0, lease_s=59.0)
