"""A tier in an object store without metadata comes back from its parts; or nothing changes."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from container.check.tier import check_tier
from container.errors import Owned
from container.names.queue_id import SegmentType
from container.names.rocketmq import index_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase, SignName
from container.options import JournalOptions, UpkeepOptions
from container.record.header import layout_of
from container.record.unit import UNIT_BYTES
from container.record.verification import walk_records
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.errors import NotFound, Unavailable
from provider.stores.packed_segments import PartName
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, expected, unpacked
from tests.support.packed_objects import Objects, PackedTier, in_thread
from tests.test_tieredstore.offline.test_packed_restore import is_sound
from tests.test_tieredstore.offline.test_rebuild import Dies, Killed
from tests.test_tieredstore.test_encrypted_tier import KEYS, master
from tieredstore import follow
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_job import ObjectSink
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.scan.sources import place_of
from tieredstore.process_name import owner_name
from tieredstore.session.places import directory_of
from tieredstore.session.takeover import Takeover

SPLIT_BYTES = (64 << 10, 1 << 40)


@pytest.fixture
def tier(packed_tier: PackedTier) -> PackedTier:
    return packed_tier


async def lose_metadata(tier: PackedTier) -> None:
    """Leave nothing but parts, and of these all units as zeros."""
    objects = {
        name: bytearray(raw) for name, raw in tier.objects.items() if name.startswith("@parts/")
    }
    for one in await tier.extents(SegmentType.CONSUME_QUEUE):
        end = one.object_offset + one.length
        objects[one.object_name][one.object_offset : end] = bytes(one.length)
    tier.put({name: bytes(raw) for name, raw in objects.items()})


async def units_of(tier: PackedTier) -> dict[str, bytes]:
    """The units of every queue."""

    async def read(reader: TierReader) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, queue in reader.state.queues.items():
            container = reader.container(name)
            assert container is not None
            units = await container.units(queue.min_offset, queue.next_offset)
            assert len(units) * UNIT_BYTES == (queue.next_offset - queue.min_offset) * UNIT_BYTES
            found[str(name)] = units.tobytes()
        return found

    return await tier.read(read)


@pytest.mark.slow
@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
async def test_a_tier_of_parts_alone_gets_all_back(tier: PackedTier, split_bytes: int) -> None:
    before = await units_of(tier)
    await lose_metadata(tier)
    assert {name.split("/")[0] for name in tier.objects} == {"@parts"}
    report = await in_thread(lambda: remake(tier.config, OneProcess(), split_bytes=split_bytes))
    assert (report.faults, report.findings) == ([], [])
    assert report.messages == len(expected(ROCKETMQ_533, "messages"))
    assert await units_of(tier) == before
    await is_sound(tier, answers=split_bytes == SPLIT_BYTES[0])
    with pytest.raises(ConfigError, match="has a journal, which is not replaced"):
        await in_thread(lambda: remake(tier.config, OneProcess()))


async def test_a_store_goes_on_with_what_was_made_anew(tier: PackedTier) -> None:
    await in_thread(lambda: tier.put(without_metadata(tier)))
    await in_thread(lambda: remake(tier.config, OneProcess()))
    golden = tier.tree.golden
    named: dict[str, Any] = {"cluster": golden.cluster, "broker": golden.broker}
    async with follow(tier.tree.store, tier.url, **named) as follower:
        assert (await follower.drain()).messages == 0
    await is_sound(tier)


def without_metadata(tier: PackedTier) -> Objects:
    """All but the metadata: index files of the tier before stay, too."""
    return {
        name: raw
        for name, raw in tier.objects.items()
        if name.startswith("@parts/") or not name.startswith("@")
    }


async def test_what_nothing_refers_to_any_more_gets_tombstones(tier: PackedTier) -> None:
    left = without_metadata(tier)
    tier.put({**left, "@parts/0000000001/" + "0" * 32: bytes(100)})
    await in_thread(lambda: remake(tier.config, OneProcess()))

    async def buried(reader: TierReader) -> set[str]:
        return set(reader.state.tombstones)

    dead = await tier.read(buried)
    assert {name for name in left if name.startswith(INDEX_PREFIX)} <= dead
    assert "@parts/0000000001/" + "0" * 32 in dead
    logs = {one.object_name for one in await tier.extents(SegmentType.COMMIT_LOG)}
    assert not dead & logs
    assert {name for name in left if name.startswith("@parts/")} <= dead | logs


async def test_a_dry_run_and_one_that_is_killed_leave_no_tier(tier: PackedTier) -> None:
    await lose_metadata(tier)
    left = tier.objects
    dry = await in_thread(lambda: remake(tier.config, OneProcess(), dry_run=True))
    assert tier.objects == left
    with pytest.raises(Killed):
        await in_thread(lambda: remake(tier.config, DiesInTheSecondPass()))
    assert len(tier.objects) > len(left)
    assert not any(name.startswith("@journal") for name in tier.objects)
    with pytest.raises(NotFound):
        await tier.read(check)
    made = await in_thread(lambda: remake(tier.config, OneProcess()))
    assert (made.messages, made.findings) == (dry.messages, [])
    await is_sound(tier)


def test_an_owner_that_lives_is_told(tier: PackedTier) -> None:
    tier.put(without_metadata(tier))
    left = tier.objects
    where, clock = directory_of(tier.config), SystemClock()
    name = owner_name(clock, beat_s=30.0, rng=Random(7))
    sign = {str(SignName(3, 1)): name.encode()}
    tier.put(left | sign)
    owner = Takeover(where, tier.store, JournalOptions(), clock=clock, take_over=False)
    owner.own(name)
    with pytest.raises(Owned, match="owns the tier and lives"):
        remake(tier.config, OneProcess())
    owner.close()
    assert tier.objects == left | sign


def test_a_target_that_is_made_twice_is_one_object(tier: PackedTier) -> None:
    left = len(tier.objects)
    names = {"index/a": index_name(IndexBase(9, 1).number)}
    sink = ObjectSink(place_of(tier.config), 9, "00" * 16, names, {"units/b": "x/0/y"})
    for target in ("index/a", "units/b", "units/c"):
        assert sink.write(target, b"the same") == sink.write(target, b"the same")
    assert len(tier.objects) == left + 3
    for target in ("index/a", "units/c"):
        with pytest.raises(Unavailable):
            sink.write(target, b"others")
    assert replace(sink, run="11" * 16).write("units/c", b"others") in tier.objects


class DiesInTheSecondPass(OneProcess):
    """An engine that ends when units and index files are made."""

    passes = 0

    def map_group(self, *args: Any, **options: Any) -> Any:
        self.passes += 1
        engine = Dies() if self.passes > 1 else super()
        return engine.map_group(*args, **options)


async def check(reader: TierReader) -> None:
    assert [str(one) async for one in check_tier(reader)] == []


async def test_of_a_lost_part_the_messages_are_a_gap_and_all_others_come_back(
    tier: PackedTier,
) -> None:
    logs = await tier.extents(SegmentType.COMMIT_LOG)
    lost = logs[len(logs) // 2].object_name
    objects = without_metadata(tier)
    del objects[lost]
    tier.put(objects)
    report = await in_thread(lambda: remake(tier.config, OneProcess()))
    assert {one.finding for one in report.findings} == {"log-gap"}
    wanted = len(expected(ROCKETMQ_533, "messages"))
    assert 0 < report.messages < wanted

    async def counted(reader: TierReader) -> tuple[int, int]:
        queues = reader.state.queues.values()
        gaps = sum(gap.end - gap.start for queue in queues for gap in queue.gaps)
        return sum(queue.next_offset - queue.min_offset for queue in queues), gaps

    offsets, gaps = await tier.read(counted)
    assert offsets - gaps == report.messages
    assert gaps > 0
    await tier.read(check)
    found = await in_thread(lambda: audit(tier.config, OneProcess()))
    assert (list(found.findings), found.counts["messages"]) == ([], report.messages)


async def test_what_a_pass_made_that_was_gone_over_again_gets_tombstones(tier: PackedTier) -> None:
    """A queue with a gap needs two passes: the cuts of the first are those of one without."""
    logs = await tier.extents(SegmentType.COMMIT_LOG)
    objects = without_metadata(tier)
    del objects[logs[len(logs) // 2].object_name]
    tier.put(objects)
    await in_thread(lambda: remake(tier.config, OneProcess()))

    async def unknown(reader: TierReader) -> set[str]:
        state = reader.state
        known = {*state.parts, *state.tombstones, *state.index_files}
        return {name for name in tier.objects if name.startswith(("@parts/", INDEX_PREFIX))} - known

    assert await tier.read(unknown) == set()


@pytest.mark.parametrize("place", [6, layout_of(0).body + 1], ids=["magic", "body"])
async def test_a_damaged_record_costs_that_one_message(tier: PackedTier, place: int) -> None:
    log = (await tier.extents(SegmentType.COMMIT_LOG))[0]
    objects = without_metadata(tier)
    raw = bytearray(objects[log.object_name])
    raw[log.object_offset + place] ^= 8
    tier.put({**objects, log.object_name: bytes(raw)})
    report = await in_thread(lambda: remake(tier.config, OneProcess()))
    wanted = len(expected(ROCKETMQ_533, "messages"))
    assert report.messages == wanted - 1


@pytest.mark.parametrize(("rotten", "newer_by"), [("older", 0), ("newer", 1), ("both", 1)])
async def test_of_two_copies_the_one_that_passes_its_checksums_counts(
    tier: PackedTier, rotten: str, newer_by: int
) -> None:
    log = max(await tier.extents(SegmentType.COMMIT_LOG), key=lambda one: one.length)
    objects = without_metadata(tier)
    first = PartName.parse(log.object_name)
    assert first is not None
    copied = str(first._replace(epoch=first.epoch + newer_by, nonce="f" * 32))
    objects[copied] = objects[log.object_name]
    for name, which in ((log.object_name, "older"), (copied, "newer")):
        if rotten in (which, "both"):
            raw = bytearray(objects[name])
            raw[log.object_offset + layout_of(0).body + 1] ^= 8
            objects[name] = bytes(raw)
    tier.put(objects)
    report = await in_thread(lambda: remake(tier.config, OneProcess()))
    wanted = len(expected(ROCKETMQ_533, "messages"))
    assert report.messages == wanted - (rotten == "both")
    if rotten == "both":
        assert report.findings
    else:
        assert report.findings == []
        await is_sound(tier)


async def test_damage_that_no_checksum_covers_cuts_no_older_log_off(tier: PackedTier) -> None:
    """A newer copy of the log's beginning has a wrong time in its second record."""
    objects = without_metadata(tier)
    logs = [
        objects[one.object_name][one.object_offset :][: one.length]
        for one in await tier.extents(SegmentType.COMMIT_LOG)
    ]
    whole = max(logs, key=lambda raw: len(walk_records(raw).starts))
    walk = walk_records(whole)
    copy = bytearray(whole[: walk.starts[3]])
    copy[int(walk.starts[1]) + layout_of(0).store_timestamp + 7] ^= 1
    objects[str(PartName(9, "f" * 32))] = bytes(copy)
    tier.put(objects)
    report = await in_thread(lambda: remake(tier.config, OneProcess()))
    assert report.messages == len(expected(ROCKETMQ_533, "messages"))
    (one,) = report.findings
    assert (one.finding, "newer owner" in one.detail) == ("copies-differ", True)


def test_a_place_without_parts_is_one_sentence(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    place = f"memory://bucket/{tmp_path.name}"
    with pytest.raises(NotFound, match=r"no tier in this place"):
        remake(Config.load(settings={"tieredStoreFilePath": place}), OneProcess())


def test_a_tier_is_not_begun_beside_parts_of_another_one(tier: PackedTier) -> None:
    tier.put({name: raw for name, raw in tier.objects.items() if name.startswith("@parts/")})
    left = tier.objects
    said = invoke(tier.url, *tier.options, "tier", tier.tree.store, status=2).output
    assert "rebuild --metadata" in said
    assert tier.objects == left


def test_what_a_repair_cut_off_does_not_come_back_in_place_of_what_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    url = f"memory://bucket/{tmp_path.name}"
    whole, cut = FakeBroker(tmp_path / "whole"), FakeBroker(tmp_path / "cut")
    for broker, count in ((whole, 30), (cut, 6)):
        for number in range(count):
            broker.put("Orders", 0, b"%d" % number)
            broker.put("Others", 0, b"%d" % (number % 6))
    named = ("-D", "brokerClusterName=C", "-D", "brokerName=b")
    invoke(url, *named, "tier", whole.directory)
    for number in range(9):
        cut.put("Orders", 0, b"another %d" % number)
        cut.put("Others", 0, b"another %d" % number)
    invoke(url, *named, "tier", cut.directory, status=1)
    invoke(url, *named, "repair", "--cut-to-hot", "--store", cut.directory, "--yes")
    invoke(url, *named, "tier", cut.directory)
    rows = [invoke(url, "read", topic, "--json").stdout for topic in ("Orders", "Others")]
    assert [len(text.splitlines()) for text in rows] == [15, 15]
    for name in [name for name in memory.store if "/@parts/" not in name]:
        memory.rm_file(name)
    config = Config.load(
        defines=[word for word in (*named, f"tieredStoreFilePath={url}") if word != "-D"]
    )
    made = remake(config, OneProcess())
    assert (made.messages, made.findings) == (30, [])
    assert rows == [invoke(url, "read", topic, "--json").stdout for topic in ("Orders", "Others")]
    assert "nothing is wrong" in invoke(url, "check").output
    memory.store.clear()


async def test_what_was_merged_counts_once_beside_what_it_was_made_of(tier: PackedTier) -> None:
    tier.put({})
    merging = UpkeepOptions(extents_max=4, merge_fan=2, merge_extents_min=1)
    await tier.make(batch_messages_max=4, upkeep=merging)
    before = await units_of(tier)

    async def freed(reader: TierReader) -> int:
        names = reader.state.tombstones
        return sum(name in tier.objects for name in names if name.startswith("@parts/"))

    assert await tier.read(freed) > 1
    await in_thread(lambda: tier.put(without_metadata(tier)))
    report = await in_thread(lambda: remake(tier.config, OneProcess()))
    assert report.findings == []
    assert await units_of(tier) == before
    await is_sound(tier)


def test_an_encrypted_tier_comes_back_with_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(KEYS, master("a", 1))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    broker = FakeBroker(tmp_path / "store")
    for number in range(300):
        broker.put("Orders", number % 3, b"%d" % number)
    url = f"memory://bucket/{tmp_path.name}"
    named = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")
    invoke(url, *named, "tier", broker.directory)
    rows = invoke(url, "read", "Orders", "--json").stdout
    kept = ("/@parts/", "/@keys/")
    for name in [name for name in memory.store if not any(part in name for part in kept)]:
        memory.rm_file(name)
    made = remake(Config.load(settings=dict.fromkeys(["tieredStoreFilePath"], url)), OneProcess())
    assert (made.messages, made.findings) == (300, [])
    assert "nothing is wrong" in invoke(url, "check").output
    assert invoke(url, "read", "Orders", "--json").stdout == rows
    memory.store.clear()


@pytest.mark.slow
def test_the_command_on_s3(s3_url: str) -> None:
    tier = PackedTier(unpacked(ROCKETMQ_533), s3_url)
    asyncio.run(tier.make(batch_messages_max=1000))

    async def lose() -> None:
        store = tier.store
        names = [one.name for one in await store.list("")]
        await store.delete([name for name in names if not name.startswith("@parts/")])
        await store.close()

    asyncio.run(lose())
    done = invoke(s3_url, *tier.options, "rebuild", "--metadata", "--processes", "1", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[-1]["summary"]["messages"] == len(expected(ROCKETMQ_533, "messages"))
    assert "nothing is wrong" in invoke(s3_url, *tier.options, "check").output
    report = audit(tier.config, OneProcess())
    assert [str(one) for one in report.findings] == []
