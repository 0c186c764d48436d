"""A tier in an object store gets lost units and index files back; or nothing changes at all."""

import asyncio
import json
from dataclasses import replace
from random import SystemRandom
from typing import Any

import pytest

from container.check.tier import check_tier
from container.errors import Owned
from container.names.queue_id import SegmentType
from container.names.rocketmq import index_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.tier import Tier, TierIdentity
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.errors import Fenced
from provider.stores.packed_segments import PackedDriver
from tests.support.cli import invoke
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.packed_objects import PackedTier, in_thread
from tests.test_tieredstore.offline.test_rebuild import Dies, Killed, same_answers
from tieredstore import follow
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.session.owner import open_owner

SPLIT_BYTES = (64 << 10, 1 << 40)


@pytest.fixture
def tier(packed_tier: PackedTier) -> PackedTier:
    return packed_tier


async def lose_all(tier: PackedTier) -> None:
    """Take away all index files, and of all units the bytes; objects of units alone go whole."""
    objects = {
        name: bytearray(raw)
        for name, raw in tier.objects.items()
        if not name.startswith(INDEX_PREFIX)
    }
    assert len(objects) < len(tier.objects)
    logs = {one.object_name for one in await tier.extents(SegmentType.COMMIT_LOG)}
    for one in await tier.extents(SegmentType.CONSUME_QUEUE):
        if one.object_name in logs:
            objects[one.object_name][one.object_offset : one.object_offset + one.length] = bytes(
                one.length
            )
        else:
            objects.pop(one.object_name, None)
    tier.put({name: bytes(raw) for name, raw in objects.items()})


async def is_sound(tier: PackedTier, *, answers: bool = False) -> None:
    async def checked(reader: TierReader) -> None:
        assert [str(one) async for one in check_tier(reader)] == []
        if answers:
            await same_answers(reader, tier.tree)

    await tier.read(checked)
    report = await in_thread(lambda: audit(tier.config, OneProcess()))
    assert [str(one) for one in report.findings] == []


@pytest.mark.slow
@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
async def test_lost_units_and_index_files_come_back_in_new_objects(
    tier: PackedTier, split_bytes: int
) -> None:
    before = await tier.read(published)
    assert any(queue["manifests"] for queue in before["queues"].values())
    await lose_all(tier)
    report = await in_thread(lambda: restore(tier.config, OneProcess(), split_bytes=split_bytes))
    assert (report.faults, report.findings) == ([], [])
    assert len(report.files) > 50
    assert await tier.read(published) == before, "but for where bytes lie"
    await is_sound(tier, answers=split_bytes == SPLIT_BYTES[0])
    again = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert (again.files, again.messages) == ([], 0)


async def test_index_files_come_back_beside_those_of_a_tier_whose_metadata_were_lost(
    tier: PackedTier,
) -> None:
    """Owners of higher epochs had made files of the names that the next ones would use."""
    objects = {name: raw for name, raw in tier.objects.items() if name.startswith("@parts/")}
    taken = {index_name(IndexBase(epoch, number).number) for epoch in (2, 3) for number in (1, 7)}
    tier.put({**objects, **dict.fromkeys(taken, b"of the tier before")})
    await in_thread(lambda: remake(tier.config, OneProcess()))
    made = {name for name in tier.objects if name.startswith(INDEX_PREFIX)} - taken
    assert made
    tier.put({name: raw for name, raw in tier.objects.items() if name not in made})
    report = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert [(one.path, one.fault) for one in report.files] == [(name, "") for name in sorted(made)]
    await is_sound(tier)


async def published(reader: TierReader) -> dict[str, Any]:
    """What is published, but for the names of objects, and who owns it."""
    state = reader.state

    def nameless(segments: Any) -> list[Any]:
        return [
            replace(
                one,
                extents=tuple(e._replace(object_name="", object_offset=0) for e in one.extents),
            )
            for one in segments
        ]

    return {
        "topics": dict(state.topics),
        "queues": {
            name: {
                "offsets": (queue.min_offset, queue.next_offset, queue.gaps, queue.generation),
                "log": nameless(queue.commit_log),
                "units": nameless(queue.consume_queue),
                "manifests": [replace(ref, object_name="") for ref in queue.manifests],
            }
            for name, queue in state.queues.items()
        },
        "index": sorted(
            (replace(one, object_name="", base=0) for one in state.index_files.values()), key=str
        ),
    }


async def test_a_store_goes_on_behind_what_was_made_again(tier: PackedTier) -> None:
    await lose_all(tier)
    await in_thread(lambda: restore(tier.config, OneProcess()))
    golden = tier.tree.golden
    named: dict[str, Any] = {"cluster": golden.cluster, "broker": golden.broker}
    async with follow(tier.tree.store, tier.url, **named) as follower:
        assert (await follower.drain()).messages == 0
    await is_sound(tier)


async def test_a_dry_run_says_the_same_and_writes_nothing(tier: PackedTier) -> None:
    await lose_all(tier)
    left = tier.objects
    dry = await in_thread(lambda: restore(tier.config, OneProcess(), dry_run=True))
    assert dry.is_dry
    assert tier.objects == left
    made = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert (dry.files, dry.messages) == (made.files, made.messages)


async def test_a_run_that_is_killed_before_its_entry_changes_nothing_that_is_published(
    tier: PackedTier,
) -> None:
    await lose_all(tier)
    before = await tier.read(extents_published)
    left = tier.objects
    with pytest.raises(Killed):
        await in_thread(lambda: restore(tier.config, Dies()))
    assert await tier.read(extents_published) == before
    made = tier.objects.keys() - left.keys()
    assert any(name.startswith("@parts/") for name in made)
    assert any(name.startswith(INDEX_PREFIX) for name in made)
    report = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert report.faults == []
    golden = tier.tree.golden
    named: dict[str, Any] = {"cluster": golden.cluster, "broker": golden.broker}
    async with follow(tier.tree.store, tier.url, **named) as follower:
        await follower.drain()  # the next owner finds what the killed run left
    await is_sound(tier)

    async def buried(reader: TierReader) -> set[str]:
        return made & reader.state.tombstones.keys()

    assert await tier.read(buried) == {
        name for name in made if name.startswith(("@parts/", INDEX_PREFIX))
    }


async def extents_published(reader: TierReader) -> Any:
    return (dict(reader.state.queues), dict(reader.state.index_files))


@pytest.mark.leaves_findings("checksum", why="the test stops what would repair it")
async def test_a_living_owner_and_a_newer_one_are_told(tier: PackedTier) -> None:
    await lose_all(tier)
    async with open_owner(tier.config, clock=SystemClock()):
        journal = [name for name in tier.objects if name.startswith("@journal/")]
        with pytest.raises(Owned, match="owns the tier and lives"):
            await in_thread(lambda: restore(tier.config, OneProcess()))
        assert [name for name in tier.objects if name.startswith("@journal/")] == journal

    class TakesOver(OneProcess):
        """An engine beside which another process takes the tier."""

        def map_group(self, *args: Any, **options: Any) -> Any:
            made = super().map_group(*args, **options)
            take_over(tier)
            return made

    before = await tier.read(extents_published)
    with pytest.raises(Fenced):
        await in_thread(lambda: restore(tier.config, TakesOver()))
    assert await tier.read(extents_published) == before


def take_over(tier: PackedTier) -> None:
    async def taken() -> None:
        store, golden = tier.store, tier.tree.golden
        other = await Tier.own(
            store,
            TierIdentity(golden.cluster, golden.broker, "another"),
            segments=PackedDriver(store, rng=SystemRandom()),
            clock=SystemClock(),
            rng=SystemRandom(),
        )
        await other.journal.close()
        await store.close()

    asyncio.run(taken())


async def test_what_the_log_has_lost_too_is_told_and_all_else_comes_back(
    tier: PackedTier,
) -> None:
    await lose_all(tier)
    objects = dict(tier.objects)
    log = (await tier.extents(SegmentType.COMMIT_LOG))[0]
    raw = bytearray(objects[log.object_name])
    raw[log.object_offset + 6] ^= 8  # the magic of one record
    tier.put({**objects, log.object_name: bytes(raw)})
    report = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert {one.finding for one in report.findings} == {"log-gap"}
    assert 0 < len(report.faults) < len(report.files) / 2
    again = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert [file.path for file in again.files] == [file.path for file in report.faults]


@pytest.mark.leaves_findings("object-missing", "unreadable", why="a part is lost")
async def test_of_a_part_that_is_gone_what_its_messages_give_is_told(tier: PackedTier) -> None:
    log = (await tier.extents(SegmentType.COMMIT_LOG))[0]
    objects = tier.objects
    units = [
        one
        for one in await tier.extents(SegmentType.CONSUME_QUEUE)
        if one.object_name == log.object_name
    ]
    tier.put({name: raw for name, raw in objects.items() if name != log.object_name})
    report = await in_thread(lambda: restore(tier.config, OneProcess()))
    assert 0 < len(report.faults) <= len(units)
    assert {one.finding for one in report.findings} <= {"log-gap"}


@pytest.mark.slow
def test_the_command_on_s3(s3_url: str) -> None:
    tier = PackedTier(unpacked(ROCKETMQ_533), s3_url)
    asyncio.run(tier.make(batch_messages_max=1000))

    async def lose() -> int:
        store = tier.store
        names = [one.name for one in await store.list(INDEX_PREFIX)]
        units = await tier.extents(SegmentType.CONSUME_QUEUE)
        part = units[0].object_name
        raw = bytearray(await store.read(part))
        mine = [one for one in units if one.object_name == part]
        for one in mine:
            raw[one.object_offset + 3] ^= 1
        await store.delete([part])
        await store.create(part, [bytes(raw)])
        await store.delete(names)
        await store.close()
        return len(names) + len(mine)

    lost = asyncio.run(lose())
    assert lost > 2
    words = ("rebuild", "--processes", "1", "--json")
    done = invoke(s3_url, *tier.options, *words)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[-1]["summary"]["files"] == lost
    assert "nothing is wrong" in invoke(s3_url, *tier.options, "check").output
    assert (
        "no index file is missing"
        in invoke(s3_url, *tier.options, "rebuild", "--processes", "1").output
    )
