"""Deleting what the journal has unpublished: late, once, and never what is in use."""

from dataclasses import replace
from itertools import pairwise

from container.metadata.operations import (
    AddTombstones,
    CutQueue,
    DropTombstones,
    TakeOwnership,
)
from container.metadata.records import Tombstone
from container.metadata.state import TierState
from container.names.queue_id import SegmentType
from container.names.rocketmq import segment_name
from container.options import UpkeepOptions
from container.steps import may_come_back, names_in_use, plan_deletions, still_due
from container.upkeep.tombstones import DELETED
from provider.errors import Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock, settle
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


async def test_the_lag_begins_when_an_object_is_unpublished_and_not_when_that_was_planned() -> None:
    """Between the two there may be an outage; readers who opened before its end still read it."""
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    store.put("@parts/a", b"x")
    planned = tombstone("@parts/a", clock, OPTIONS.grace_s)
    async with running(journal, upkeep):
        await clock.advance(50)
        await journal.publish([planned])
        await clock.advance(OPTIONS.grace_s - 1)
        assert "@parts/a" in store.objects
        await clock.advance(5)
    assert "@parts/a" not in store.objects


async def test_an_owner_takes_what_became_due_of_late_for_unpublished_when_it_began() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    names = {"@parts/late", "@parts/old"}
    for name in names:
        store.put(name, b"x")
    async with running(journal, upkeep):
        await clock.advance(2 * OPTIONS.grace_s)
        late = tombstone("@parts/late", clock, -OPTIONS.grace_s + 1)
        await journal.publish([late, tombstone("@parts/old", clock, -OPTIONS.grace_s)])
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        for _ in range(2):
            await clock.advance(OPTIONS.grace_s / 2 - 1)
            assert "@parts/late" in store.objects
        assert "@parts/old" not in store.objects
        await clock.advance(5)
    assert not names & store.objects.keys()


async def test_d11_an_object_that_cannot_be_deleted_is_reported_and_tried_for_ever() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    options = replace(OPTIONS, tombstone_retry_s_max=1_000.0)
    journal, upkeep = await own_with_upkeep(view, clock, upkeep=options)
    delete = view.delete
    tried_s: list[float] = []

    async def refuse(names) -> None:
        if "@parts/a" in names:
            if len(names) == 1:
                tried_s.append(clock.monotonic_s())
            raise Unavailable("no", "@parts/a")
        await delete(names)

    view.delete = refuse  # type: ignore[method-assign]
    store.put("@parts/a", b"x")
    store.put("@parts/b", b"x")
    async with running(journal, upkeep):
        await journal.publish([tombstone("@parts/a", clock), tombstone("@parts/b", clock)])
        await clock.advance(130)
        assert upkeep.statistics().steps["tombstones"].failures == 1
        assert upkeep.statistics().figures["undeletable"] == 0
        await clock.advance(10_000)
        assert "@parts/b" not in store.objects
        assert list(journal.state.tombstones) == ["@parts/a"]
        assert upkeep.statistics().figures["undeletable"] == 1
        waits_s = [round(later - sooner, -1) for sooner, later in pairwise(tried_s)]
        assert waits_s[:6] == [60, 120, 240, 480, 960, 1_000]
        assert waits_s[6:] == [1_000] * len(waits_s[6:]) != []
    newer, kept = await own_with_upkeep(store.view(), clock, seed=1, upkeep=options)
    async with running(newer, kept):
        await settle()
        await clock.advance(1_100)
    assert "@parts/a" not in store.objects
    assert newer.state.tombstones == {}


async def test_d11_what_was_given_up_by_an_older_program_is_tried_again() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    store.put("@parts/a", b"x")
    async with running(journal, upkeep):
        await journal.publish([AddTombstones((Tombstone("@parts/a", 0, "test", tries=3),))])
        await clock.advance(5)
    assert "@parts/a" not in store.objects


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


def test_d11_tombstones_that_may_come_back_do_not_fill_a_run() -> None:
    state = tier()
    names = [segment_name(Q0, LOG, 1000 + at) for at in range(OPTIONS.tombstones_per_step_max + 5)]
    state.apply([AddTombstones(tuple(Tombstone(name, 0, "cut") for name in names))])
    state.apply([AddTombstones((Tombstone("@parts/a", 0, "test"),))])
    assert [one.object_name for one in plan_deletions(state, 1, OPTIONS).delete] == ["@parts/a"]


def test_a_run_deletes_a_bounded_number() -> None:
    state = tier()
    dead = tuple(Tombstone(f"@parts/{at}", 0, "test") for at in range(1_500))
    state.apply([AddTombstones(dead)])
    assert len(plan_deletions(state, 1, OPTIONS).delete) == OPTIONS.tombstones_per_step_max


def test_the_second_look_finds_what_a_cut_has_made_usable_again() -> None:
    state = tier()
    dead = tuple(Tombstone(name, 0, "cut") for name in ("@parts/a", segment_name(Q0, LOG, 500)))
    state.apply([AddTombstones(dead)])
    assert still_due(state, dead) == dead
    cut = replace(state.queues[Q0], next_offset=QueueOffset(0), commit_log=(), consume_queue=())
    state.apply([CutQueue(cut, "test")])
    assert still_due(state, dead) == dead[:1]
    state.apply([DropTombstones(("@parts/a",))])
    assert still_due(state, dead) == ()


async def test_what_must_stay_keeps_nothing_else_from_being_deleted() -> None:
    store, clock = DictStore(), ManualClock()
    options = replace(OPTIONS, tombstones_per_step_max=2)
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=options)
    store.put("@parts/z", b"x")
    async with running(journal, upkeep):
        for name in "abcd":  # published long after they were planned: they rest
            await journal.publish([tombstone(f"@parts/{name}", clock, -1)])
        await clock.advance(OPTIONS.grace_s - 5)
        again = Tombstone("@parts/z", clock.now_ms(), DELETED)
        await journal.publish([AddTombstones((again,))])
        await clock.advance(2)
        assert "@parts/z" not in store.objects
        assert len(journal.state.tombstones) == 4


def test_only_the_tombstones_that_are_named_are_looked_at() -> None:
    names = [f"@parts/1/{number}" for number in range(4)]
    state = TierState()
    state.apply([AddTombstones(tuple(Tombstone(name, 5, "freed") for name in names))])
    plan = plan_deletions(state, 5, UpkeepOptions(), among=[names[2], "@parts/1/gone", names[0]])
    assert [one.object_name for one in plan.delete] == [names[2], names[0]]
