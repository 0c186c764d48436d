"""The journal with one owner at a time: group commit, unknown outcomes, fencing, closing."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace

import pytest

from container.errors import Refused
from container.journal.frame import Frame, FrameKind
from container.metadata import operations as op
from container.metadata.codec import decode_operations
from container.metadata.records import Queue, Topic
from container.names.queue_id import QueueId
from container.names.tier_objects import BOUNDARY_PREFIX, JOURNAL_PREFIX, EntryName
from container.options import JournalOptions
from provider.errors import Closed, Corrupt, Denied, Fenced, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock, settle
from tests.support.journal_run import mark, own, running
from tests.support.journal_store import DictStore, Faults


async def test_a_published_transaction_is_in_the_state_and_in_its_entry() -> None:
    store = DictStore()
    journal = await own(store.view())
    async with running(journal):
        sequence = await journal.publish([op.PutTopic(Topic("T", 0))])
    assert sequence == 2
    assert "T" in journal.state.topics
    raw = store.objects[str(EntryName(2))]
    frame = Frame.decode(raw, FrameKind.ENTRY, path="p")
    assert (frame.epoch, frame.sequence) == (1, 2)
    assert decode_operations(frame.payload, path="p") == [op.PutTopic(Topic("T", 0))]
    assert repr(journal) == "<Journal in order: epoch 1, entry 2, 0 waiting>"


async def test_a_hundred_publishes_at_once_cost_few_entries() -> None:
    store = DictStore()
    journal = await own(store.view(faults=Faults(turns_max=3)))
    async with running(journal):
        before = store.counts.copy()
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(journal.publish(mark(f"m{number}")))
    assert store.counts["create"] - before["create"] <= 2
    assert store.counts["list"] - before["list"] <= 2
    assert len(journal.state.tombstones) == 100
    assert (await own(store.view())).state.tombstones == journal.state.tombstones


async def test_entries_are_bounded_in_transactions_and_bytes() -> None:
    store = DictStore()
    options = JournalOptions(entry_transactions_max=10, entry_bytes_max=500)
    journal = await own(store.view(), options=options)
    async with running(journal), asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(journal.publish(mark(f"m{number}" + "x" * (100 * (number > 9)))))
    frames = [Frame.decode(raw, FrameKind.ENTRY, path="p") for raw in store.objects.values()]
    assert max(len(frame.payload) for frame in frames) <= 550
    assert journal.statistics().entries > 5


async def test_a_lost_reply_is_settled_by_reading_back() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal = await own(view, clock)
    async with running(journal), asyncio.TaskGroup() as group:
        view.faults.lost_reply = 1.0
        published = group.create_task(journal.publish(mark("m")))
        await settle()
        assert journal.statistics().unsettled
        assert "unsettled" in repr(journal)
        assert not journal.state.tombstones
        view.faults.lost_reply = 0.0
        await clock.advance(10)
        assert await published == 2
        assert await journal.publish(mark("n")) == 3
    assert not journal.statistics().unsettled
    assert all(len(versions) == 1 for versions in store.ever.values())


async def test_an_entry_that_is_seen_counts_only_once_the_store_vouches_for_it() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal = await own(view, clock)
    create, tries = view.create, 0

    async def visible_before_it_is_durable(name: str, buffers) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await create(name, buffers)
        if tries < 3:
            raise Unavailable("the directory could not be synced", name)
        await create(name, buffers)

    view.create = visible_before_it_is_durable  # type: ignore[method-assign]
    async with running(journal), asyncio.TaskGroup() as group:
        published = group.create_task(journal.publish(mark("m")))
        await settle()
        await clock.advance(0.12)  # one more try
        assert not published.done()
        assert not journal.state.tombstones
        await clock.advance(10)
        assert await published == 2
    assert tries == 3


async def test_no_later_number_is_begun_while_the_store_is_away() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal = await own(view, clock)
    async with running(journal), asyncio.TaskGroup() as group:
        view.down = True
        group.create_task(journal.publish(mark("m")))
        await settle()
        group.create_task(journal.publish(mark("n")))
        await clock.advance(3600)
        assert journal.statistics().waiting == 2
        view.down = False
        await clock.advance(10)
    assert store.names("@journal/") == [str(EntryName(n)) for n in (1, 2, 3)]


async def test_a_refused_transaction_fails_alone() -> None:
    journal = await own(DictStore().view())
    async with running(journal), asyncio.TaskGroup() as group:
        good = group.create_task(journal.publish([op.PutTopic(Topic("T", 0))]))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="would replace"):
            await journal.publish([op.PutTopic(Topic("T", 5))])  # not durable yet, but seen
        also = group.create_task(journal.publish([op.PutTopic(Topic("U", 1))]))
    assert (good.result(), also.result()) == (2, 3) or good.result() == also.result() == 2
    assert sorted(journal.state.topics) == ["T", "U"]


async def test_cancelling_a_publish_neither_undoes_it_nor_hurts_others() -> None:
    store = DictStore()
    journal = await own(store.view(faults=Faults(turns_max=3)))
    async with running(journal), asyncio.TaskGroup() as group:
        first = group.create_task(journal.publish(mark("a")))
        second = group.create_task(journal.publish(mark("b")))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 2
    assert sorted(journal.state.tombstones) == ["a", "b"]
    assert sorted((await own(store.view())).state.tombstones) == ["a", "b"]


async def test_a_cancelled_worker_goes_on_where_it_was() -> None:
    store = DictStore()
    for steps in range(12):
        journal = await own(store.view(faults=Faults(turns_max=2)), seed=steps)
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(journal.run())
            published = group.create_task(journal.publish(mark(f"s{steps}")))
            for _ in range(steps):
                await asyncio.sleep(0)
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
            async with running(journal):
                await published
    assert len((await own(store.view())).state.tombstones) == 12


async def test_an_old_owner_is_fenced_and_stays_so() -> None:
    store = DictStore()
    old = await own(store.view())
    async with running(old):
        await old.publish(mark("a"))
        await old.verify_owner()
        new = await own(store.view(), seed=1)
        assert new.epoch == 2
        with pytest.raises(Fenced):
            await old.publish(mark("b"))
        with pytest.raises(Fenced):
            await old.publish(mark("c"))
        with pytest.raises(Fenced):
            await old.verify_owner()
    with pytest.raises(Fenced):
        await old.run()
    async with running(new):
        await new.publish(mark("d"))
    assert sorted(new.state.tombstones) == ["a", "d"]


async def test_an_import_is_published_with_the_fence_or_nothing_is_written() -> None:
    store = DictStore()
    queue = Queue(QueueId("T", 0), QueueOffset(0), QueueOffset(0))
    imported = [op.PutTopic(Topic("T", 0)), op.PutQueue(queue)]
    with pytest.raises(Refused, match="limit"):
        await own(store.view(), options=JournalOptions(transaction_bytes_max=50), imported=imported)
    with pytest.raises(Refused, match="topic is not there"):
        await own(store.view(), imported=imported[1:])
    assert store.objects == {}
    journal = await own(store.view(), imported=imported)
    assert list(journal.state.queues.values()) == [replace(queue, used_below=(0, 0))]
    (name,) = store.objects
    with pytest.raises(Refused, match="already"):
        await own(store.view(), seed=1, imported=imported)
    assert list(store.objects) == [name]
    assert (await own(store.view(), seed=2)).state.queues == journal.state.queues


async def test_an_owner_that_asks_learns_that_it_is_fenced() -> None:
    store = DictStore()
    old = await own(store.view())
    await own(store.view(), seed=1)
    with pytest.raises(Fenced):
        await old.verify_owner()
    with pytest.raises(Fenced):
        await old.publish(mark("x"))


async def test_an_owner_is_not_fenced_by_an_entry_of_its_own_that_was_cut() -> None:
    store = DictStore()
    view = store.view()
    journal = await own(view)
    listed, cut = view.list, list[int]()

    async def cut_since(prefix: str, *, after: str = ""):
        """As if upkeep wrote a snapshot between the listing and the read of what it has."""
        if prefix != JOURNAL_PREFIX or cut:
            return await listed(prefix, after=after)
        cut.append(await journal.publish(mark("a")))
        found = await listed(prefix, after=after)
        await journal.publish(mark("b"))
        del store.objects[str(EntryName(cut[0]))]
        return found

    async with running(journal):
        view.list = cut_since  # type: ignore[method-assign]
        await journal.verify_owner()
        await journal.publish(mark("c"))
    assert cut
    assert not journal.is_over


async def test_an_entry_that_lands_while_its_owner_is_found_fenced_changes_no_verdict() -> None:
    store = DictStore()
    view = store.view()
    old = await own(view)
    listed = view.list

    async def fenced_while_listing(prefix: str, *, after: str = ""):
        found = await listed(prefix, after=after)
        if prefix == BOUNDARY_PREFIX and not old.is_over:
            await own(store.view(), seed=1)
            with pytest.raises(Fenced):
                await old.verify_owner()  # as a step of upkeep asks, while the entry is written
        return found

    view.list = fenced_while_listing  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        working = group.create_task(fails_as_fenced(old.run()))
        publishing = group.create_task(fails_as_fenced(old.publish(mark("a"))))
    assert working.done()
    assert publishing.done()
    assert sorted((await own(store.view(), seed=2)).state.tombstones) == ["a"]


async def fails_as_fenced(work: Awaitable[object]) -> None:
    with pytest.raises(Fenced):
        await work


async def test_the_fence_survives_lost_replies() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    create = view.create

    async def lose_first_reply(name: str, buffers) -> None:
        await create(name, buffers)
        view.create = create  # type: ignore[method-assign]
        raise Unavailable("reply lost", name)

    view.create = lose_first_reply  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        owned = group.create_task(own(view, clock))
        await settle()
        await clock.advance(10)
    assert owned.result().epoch == 1
    assert store.names("@journal/") == [str(EntryName(1))]


async def test_another_brokers_tier_is_refused_in_a_sentence() -> None:
    store = DictStore()
    await own(store.view())
    with pytest.raises(Denied, match="belongs to broker 'b' of cluster 'c', not to 'b' of 'other'"):
        await own(store.view(), cluster="other")


@pytest.mark.parametrize("at", [0, 5, 10, 20, 30, 43, 45, 60])
async def test_a_damaged_entry_in_the_middle_is_named_and_not_the_end(at: int) -> None:
    store = DictStore()
    journal = await own(store.view())
    async with running(journal):
        for number in range(5):
            await journal.publish(mark(f"m{number}"))
    store.damage(str(EntryName(3)), at)
    store.damage(str(EntryName(4)))  # which holds a copy of it
    with pytest.raises(Corrupt) as caught:
        await own(store.view())
    assert caught.value.path == str(EntryName(3))


async def test_a_missing_entry_in_the_middle_is_named_and_not_the_end() -> None:
    store = DictStore()
    journal = await own(store.view())
    async with running(journal):
        for number in range(5):
            await journal.publish(mark(f"m{number}"))
    del store.objects[str(EntryName(3))]
    store.damage(str(EntryName(4)))  # which holds a copy of it
    with pytest.raises(Corrupt, match="missing") as caught:
        await own(store.view())
    assert caught.value.path == str(EntryName(3))


async def test_close_waits_for_what_is_in_flight_then_refuses() -> None:
    store = DictStore()
    journal = await own(store.view(faults=Faults(turns_max=3)))
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(journal.run())
        published = group.create_task(journal.publish(mark("a")))
        await asyncio.sleep(0)
        await journal.close()
        assert published.done() or await published
        await worker
    with pytest.raises(Closed):
        await journal.publish(mark("b"))


async def test_close_gives_up_after_its_deadline() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal = await own(view, clock)
    view.down = True

    async def refused() -> None:
        with pytest.raises(Closed):
            await journal.publish(mark("a"))

    async with asyncio.TaskGroup() as group:
        group.create_task(journal.run())
        group.create_task(refused())
        closed = group.create_task(journal.close())
        await settle()
        await clock.advance(9)
        assert not closed.done()
        await clock.advance(2)
        assert closed.done()


async def test_an_idle_journal_asks_the_store_for_nothing() -> None:
    store, clock = DictStore(), ManualClock()
    journal = await own(store.view(), clock)
    async with running(journal):
        await journal.publish(mark("a"))
        await clock.advance(24 * 3600)
        before = store.requests
        await clock.advance(48 * 3600)
        assert store.requests == before
