"""Deleting what the journal has unpublished: late, once, and never what is in use."""

from container.metadata.operations import AddTombstones, DropTombstones, TakeOwnership
from container.metadata.records import Tombstone
from container.metadata.state import TierState
from container.names.queue_id import SegmentType
from container.names.rocketmq import segment_name
from container.upkeep.deletion import may_come_back, names_in_use, plan_deletions
from container.upkeep.options import UpkeepOptions
from provider.clock import ManualClock
from provider.errors import Unavailable
from tests.support.journal_run import own, own_with_upkeep, running
from tests.support.journal_store import DictStore
from tests.support.tier_values import Q0, begin_queue, commit

OPTIONS = UpkeepOptions(grace_s=60.0, interval_s=1.0)
LOG = SegmentType.COMMIT_LOG


def tombstone(name: str, clock: ManualClock, after_s: float = 100) -> AddTombstones:
    return AddTombstones((Tombstone(name, clock.now_ms() + int(after_s * 1000), "test"),))


async def test_an_object_goes_after_the_lag_and_its_tombstone_with_it() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    store.put("@parts/a", b"x")
    async with running(journal, upkeep):
        await journal.publish([tombstone("@parts/a", clock), tombstone("@parts/gone", clock)])
        await clock.advance(99)
        assert "@parts/a" in store.objects
        await clock.advance(5)
    assert "@parts/a" not in store.objects
    assert journal.state.tombstones == {}
    assert upkeep.statistics().figures["objects_deleted"] == 2  # not found is success


async def test_an_object_that_cannot_be_deleted_is_given_up_and_reported() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal, upkeep = await own_with_upkeep(view, clock, upkeep=OPTIONS)
    delete = view.delete
    tries = 0

    async def refuse(names) -> None:
        nonlocal tries
        if "@parts/a" in names:
            tries += len(names) == 1
            raise Unavailable("no", "@parts/a")
        await delete(names)

    view.delete = refuse  # type: ignore[method-assign]
    store.put("@parts/b", b"x")
    async with running(journal, upkeep):
        await journal.publish([tombstone("@parts/a", clock), tombstone("@parts/b", clock)])
        await clock.advance(2000)
    assert tries == OPTIONS.tombstone_tries_max
    assert "@parts/b" not in store.objects
    assert list(journal.state.tombstones) == ["@parts/a"]
    assert upkeep.statistics().figures["undeletable"] == 1


async def test_what_comes_into_use_while_the_owner_is_verified_is_not_deleted() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    verify_owner = journal.verify_owner

    async def withdrawn_meanwhile() -> None:
        await verify_owner()
        await journal.publish([DropTombstones(("@parts/a",))])

    journal.verify_owner = withdrawn_meanwhile  # type: ignore[method-assign]
    store.put("@parts/a", b"x")
    async with running(journal, upkeep):
        await journal.publish([tombstone("@parts/a", clock)])
        await clock.advance(200)
    assert journal.state.tombstones == {}
    assert "@parts/a" in store.objects


async def test_a_fenced_owner_deletes_nothing() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    store.put("@parts/a", b"x")
    async with running(journal, upkeep):
        await journal.publish([tombstone("@parts/a", clock)])
        await own(store.view(), clock, seed=1)
        await clock.advance(200)
    assert "@parts/a" in store.objects


def tier() -> TierState:
    state = TierState()
    state.apply([TakeOwnership(1, "me", "c", "b", 0)])
    state.apply(begin_queue())
    state.apply([commit(state.queues[Q0], 10, seal=True)])
    return state


def test_what_is_in_use_is_never_deleted_and_its_tombstone_goes() -> None:
    state = tier()
    name = segment_name(Q0, LOG, 0)
    assert name in names_in_use(state)
    state.apply([AddTombstones((Tombstone(name, 0, "a bug"),))])
    deletions = plan_deletions(state, 1, OPTIONS)
    assert (deletions.delete, deletions.drop) == ((), (name,))


def test_a_file_that_a_commit_may_be_writing_again_is_not_deleted() -> None:
    state = tier()
    name = segment_name(Q0, LOG, 1000)  # a cut took it away; the next segment begins there
    state.apply([AddTombstones((Tombstone(name, 0, "cut"),))])
    assert may_come_back(state, name)
    assert plan_deletions(state, 1, OPTIONS).delete == ()
    state.apply([commit(state.queues[Q0], 1)])
    assert state.tombstones == {}, "the file is in use again"


def test_a_file_below_the_end_of_its_log_cannot_come_back() -> None:
    state = tier()
    name = segment_name(Q0, LOG, 500)
    state.apply([AddTombstones((Tombstone(name, 0, "trimmed"),))])
    assert [one.object_name for one in plan_deletions(state, 1, OPTIONS).delete] == [name]
    assert plan_deletions(state, -1, OPTIONS).delete == ()
