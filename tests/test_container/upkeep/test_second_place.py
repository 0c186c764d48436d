"""A second store is known again: what another one says, and what older programs left."""

from contextlib import suppress
from dataclasses import replace

import pytest

from container.check.metadata import refuse_other_second_store
from container.errors import NewerVersion
from container.metadata.objects import home_of, mark_name, place_of
from container.metadata.operations import PutAttempt
from container.tier_view import TierReader
from provider.errors import Corrupt, Denied, StoreError
from provider.stores.packed_segments import PARTS_PREFIX, PartName
from provider.testing.faulty import Fault, Kind
from provider.testing.memory import MemoryStore
from tests.support.messages import TOPIC
from tests.support.offloaded import BY_HAND, away, by_hand, in_second, segments, world
from tests.support.owned_tier import OwnedWorld, put_each_minute

PLACE = BY_HAND.offload_place
OTHER_PLACE = "s3://second/another"


async def offloaded() -> OwnedWorld:
    """A tier that was offloaded by an owner which has ended."""
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 20)
        await by_hand(tier)
    it.kill_all()
    return it


async def refused(it: OwnedWorld, place: str) -> str:
    reader = await TierReader.open(it.view())
    with pytest.raises((Denied, Corrupt)) as told:
        await refuse_other_second_store(it.view(), reader.state.attempts, place)
    return told.value.reason


async def test_the_first_offload_says_where_and_whose_it_is() -> None:
    it = await offloaded()
    reader = await TierReader.open(it.view())
    attempts = reader.state.attempts
    assert place_of(attempts) == PLACE
    assert it.second is not None
    assert mark_name(home_of(attempts)) in it.second._shared.objects
    await refuse_other_second_store(it.view(), attempts, PLACE)
    await refuse_other_second_store(it.view(), attempts, OTHER_PLACE)  # it was copied there
    await refuse_other_second_store(it.view(), attempts, "")
    assert await it.findings() == []


async def test_another_store_is_refused_in_a_sentence_with_both_places() -> None:
    it = await offloaded()
    it.second = MemoryStore()
    said = await refused(it, OTHER_PLACE)
    assert OTHER_PLACE in said
    assert "set tieredStoreOffloadPath to that" in said
    assert f"offloaded to {PLACE}" in said
    assert "has nothing of this tier" in await refused(it, PLACE)


async def assert_nothing_is_made_elsewhere(it: OwnedWorld) -> None:
    """An owner with an empty store in the second one's place is refused; then that is back."""
    second, it.second = it.second, MemoryStore()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 20)
        with pytest.raises(Denied, match="has nothing of this tier"):
            await by_hand(tier)
    assert it.second._shared.objects == {}
    it.kill_all()
    it.second = second


async def test_nothing_is_made_in_another_store() -> None:
    it = await offloaded()
    await assert_nothing_is_made_elsewhere(it)
    async with it.owned() as tier:
        await by_hand(tier)
        assert await it.reads_back() == 40


async def test_a_copied_place_is_taken_over_by_the_next_offload() -> None:
    it = await offloaded()
    async with it.owned(replace(BY_HAND, offload_place=OTHER_PLACE)) as tier:
        await put_each_minute(tier, it.clock, 20)
        await by_hand(tier)
        assert place_of(tier.state.attempts) == OTHER_PLACE
        assert await it.reads_back() == 40


async def test_a_tier_that_an_older_program_offloaded_reads_and_gets_its_mark() -> None:
    it = await offloaded()
    assert it.second is not None
    async with it.owned() as tier:
        known = tier.state.attempts["second store"]
        await tier.journal.publish([PutAttempt(replace(known, place=""))])
        del it.second._shared.objects[mark_name(home_of(tier.state.attempts))]
        reader = await TierReader.open(it.view())
        await refuse_other_second_store(it.view(), reader.state.attempts, OTHER_PLACE)
        assert await it.reads_back() == 20
    it.kill_all()
    await assert_nothing_is_made_elsewhere(it)
    async with it.owned() as tier:
        assert await by_hand(tier)
        assert place_of(tier.state.attempts) == PLACE
        assert mark_name(home_of(tier.state.attempts)) in it.second._shared.objects
        assert await it.reads_back() == 40


async def test_what_is_no_mark_of_ours_is_told() -> None:
    it = await offloaded()
    assert it.second is not None
    attempts = (await TierReader.open(it.view())).state.attempts
    name = mark_name(home_of(attempts))
    for raw in (b"", b"{}", b"[1]", b"\xff"):
        it.second._shared.objects[name] = bytearray(raw)
        assert "is no mark of a second store" in await refused(it, PLACE)
    it.second._shared.objects[name] = bytearray(b'{"format":1,"home":"0011223344556677"}')
    assert "another tier has its home here" in await refused(it, PLACE)
    it.second._shared.objects[name] = bytearray(b'{"format":2,"home":"0011223344556677"}')
    with pytest.raises(NewerVersion):
        await refuse_other_second_store(it.view(), attempts, PLACE)


@pytest.mark.parametrize("kind", ["refused", "lost_reply"])
@pytest.mark.parametrize("number", range(1, 17))
async def test_a_first_offload_that_fails_at_any_request_is_ended_by_the_next(
    kind: Kind, number: int
) -> None:
    """The second store's requests up to the mark: the probe's, and its own."""
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 6)
        it.seconds[-1].faults = (Fault(kind, calls=(number,)),)
        with suppress(StoreError):  # whether it matters what the probe's last call answers
            await by_hand(tier)
        assert it.seconds[-1].struck
        it.seconds[-1].faults = ()
        await by_hand(tier)
        assert await away(it) == len(await segments(it))
        assert place_of(tier.state.attempts) == PLACE
        assert await it.reads_back() == 6
    it.kill_all()
    async with it.owned():
        await it.pass_time(1_500)
        assert {PartName.parse(name) is None for name in in_second(it)} == {False}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("why", ["away", "another"])
async def test_the_first_copy_stays_until_the_second_store_is_seen(
    why: str, *, packed: bool
) -> None:
    """It may be the last one by then."""
    it = world(packed=packed)
    place = PARTS_PREFIX if packed else f"{TOPIC}/"
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 20)
        await by_hand(tier)
        sources = await it.names(place)
        assert sources
        second, name = it.second, mark_name(home_of(tier.state.attempts))
        assert second is not None
        mark = second._shared.objects[name]
        if why == "away":
            it.seconds[-1].faults = (Fault("refused", "read", name),)
        else:
            del second._shared.objects[name]
        await it.pass_time(5_000)
        assert await it.names(place) == sources
        assert "tombstones" in tier.upkeep.statistics().errors
        it.seconds[-1].faults = ()
        second._shared.objects[name] = mark
        await it.pass_time(5_000)
        assert await it.names(place) == set()
        assert await it.reads_back() == 20
        assert not tier.upkeep.statistics().errors
