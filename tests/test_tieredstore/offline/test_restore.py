"""A store directory from a tier: the files are a broker's, and nothing is lost or twice in it."""

import asyncio
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from container.metadata.records import MADE_AGAIN_REASON, TOPIC_DELETED_REASON, Gap
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.ranges import QueueOffset
from tests.support.cli import run, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import GOLDEN_SETS, VARIANTS_520, GoldenSet, tree_name, unpacked
from tests.support.hot_store import appender_at, new_message, put
from tests.support.packed_objects import PackedTier
from tests.support.restored import (
    OPTIONS,
    A,
    B,
    as_stored,
    broker,
    options,
    own_contents,
    records,
    restored,
    small_groups,
    tier,
    topics_of,
)
from tieredstore.config.sources import ConfigError
from tieredstore.hot.log.durable_ends import Checkpoint
from tieredstore.hot.options import HotWriteOptions
from tieredstore.offline.jobs import restore_plan
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.scan.split import TierPlace

__all__ = ["broker", "small_groups", "tier"]  # fixtures


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
def test_a_directory_has_the_messages_and_units_of_the_one_that_java_wrote(
    golden: GoldenSet, tmp_path: Path
) -> None:
    tree = unpacked(golden)
    sizes = HotWriteOptions(
        commit_log_bytes=golden.commit_log_file_bytes,
        consume_queue_bytes=golden.consume_queue_file_bytes,
    )
    words = settings(tree, tmp_path / "tier")
    for key, value in (
        ("mappedFileSizeCommitLog", golden.commit_log_file_bytes),
        ("mappedFileSizeConsumeQueue", golden.consume_queue_file_bytes),
    ):
        words += ["-D", f"{key}={value}"]
    run(*words, "tier", tree.store, status=None)
    root = tmp_path / "restored"
    report = restored(words, root)
    java, ours = own_contents(tree.store, sizes), own_contents(root, sizes)
    assert {queue: len(found) for queue, found in ours.items()} == {
        QueueId(one.topic, one.queue_id): one.end - one.first for one in report.queues
    }
    for queue, found in ours.items():
        wanted = java[queue][-len(found) :]
        assert [as_stored(one, has_crc=golden.has_record_crc) for one in found] == [
            as_stored(one, has_crc=golden.has_record_crc) for one in wanted
        ]
    in_order = records(root, golden.commit_log_file_bytes)
    assert len(in_order) == report.messages
    units = {
        path.relative_to(tree.store): path
        for path in (tree.store / "consumequeue").rglob("0" * 16 + "*")
        if (root / path.relative_to(tree.store)).exists()
    }
    assert units
    for name, path in units.items():
        mine = (root / name).read_bytes()
        assert len(mine) == path.stat().st_size
        assert [mine[at + 8 : at + 20] for at in range(0, len(mine), 20)] == [
            unit[8:] for unit in _known(path.read_bytes(), mine)
        ]
    checkpoint = Checkpoint.decode((root / "checkpoint").read_bytes())
    assert checkpoint.log_timestamp == max(one.store_timestamp for one in in_order)
    assert (root / "checkpoint").stat().st_size == (tree.store / "checkpoint").stat().st_size
    assert not {"abort", "restoring"} & {path.name for path in root.iterdir()}
    ours_of, theirs = topics_of(root), topics_of(tree.store)
    assert all(row == theirs.get(topic, row) for topic, row in ours_of.items())


def _known(java: bytes, mine: bytes) -> list[bytes]:
    """Units that Java has, as far as the tier has them too: the rest is as it is in `mine`."""
    ends = range(0, len(mine), 20)
    return [
        java[at : at + 20] if mine[at + 8 : at + 12] != bytes(4) else mine[at : at + 20]
        for at in ends
    ]


def test_producers_and_the_tier_go_on_where_the_tier_ended(
    tier: list[str], broker: FakeBroker, tmp_path: Path
) -> None:
    root = tmp_path / "restored"
    report = restored(tier, root)
    assert (report.messages, report.is_whole) == (225, True)
    with appender_at(root, OPTIONS) as ours:
        assert [one.queue_offset for one in put(ours, [new_message(1, topic="A")])] == [150]
        assert put(ours, [new_message(1, topic="B", queue_id=1)])[0].queue_offset == 47 + 75
        ours.close()
    rows = run(*tier, "tier", root, "--json").rows
    assert [row["messages_new"] for row in rows if "topic" in row] == [1, 1]
    assert run(*tier, "check", "--json").rows == []
    bodies = [row["body"] for row in run(*tier, "read", "A", "--json").rows]
    assert len(bodies) == 151


def test_the_log_is_in_store_order_and_each_queue_in_its_own_under_a_clock_that_went_back(
    broker: FakeBroker, tmp_path: Path
) -> None:
    broker.now_ms -= 100
    for number in range(60):
        broker.put(*(A if number % 2 else B), b"later %d" % number)
    words = options(tmp_path / "tier")
    run(*words, "tier", broker.directory)
    restored(words, root := tmp_path / "restored")
    found = own_contents(root)
    for messages in found.values():
        places = [one.physical_offset for one in messages]
        assert places == sorted(places)
        assert all(b.queue_offset == a.queue_offset + 1 for a, b in pairwise(messages))
    latest: dict[QueueId, int] = {}
    keys: list[int] = []
    for one in records(root, OPTIONS.commit_log_bytes):
        queue = QueueId(one.topic, one.queue_id)
        latest[queue] = max(latest.get(queue, 0), one.store_timestamp)
        keys.append(latest[queue])
    descents = [a - b for a, b in pairwise(keys) if a > b]
    assert max(descents, default=0) <= 20, "neighbours overlap by one extent of 1 KiB at most"
    assert len(descents) < 40


def test_a_queue_begins_after_its_last_gap(broker: FakeBroker, tmp_path: Path) -> None:
    words = options(tmp_path / "tier")
    run(*words, "tier", broker.directory)
    for number in range(200):
        broker.put(*A, b"lost or not %d" % number * 10)
    while len(list((broker.directory / "commitlog").iterdir())) > 2:
        broker.delete_oldest_file()
    run(*words, "tier", broker.directory, status=1)
    report = restored(words, root := tmp_path / "restored")
    (a, b) = report.queues
    assert (a.topic, a.end, a.why, report.is_whole) == ("A", 350, "a gap", False)
    assert 150 < a.first < 350
    assert (b.first, b.end, b.why) == (47, 122, "")
    found = own_contents(root)
    assert [one.queue_offset for one in found[A]] == list(range(a.first, 350))
    done = run(*words, "restore", tmp_path / "by-command", "--processes", "1", status=1)
    assert "A       0       0 to" in done.out, done.out


@pytest.mark.leaves_findings("body-crc", "checksum", why="a record is damaged in the tier")
@pytest.mark.parametrize(
    ("text", "shift"), [(b"a77", 0), (b"k77", 0), (b"a77", -5), (b"a77", -36)]
)  # of a body, a key, the prepared transaction, the time
def test_a_queue_begins_after_damage(
    text: bytes, shift: int, tier: list[str], tmp_path: Path
) -> None:
    (log,) = (tmp_path / "tier").glob("*/b/A/0/COMMIT_LOG/*")
    raw = bytearray(log.read_bytes())
    place = raw.index(text) + shift
    raw[place] ^= 1
    log.write_bytes(raw)
    report = restored(tier, root := tmp_path / "restored")
    assert [(one.first, one.why) for one in report.queues] == [
        (report.queues[0].first, "damage in the tier"),
        (47, ""),
    ]
    assert 78 <= report.queues[0].first < 90
    assert len(own_contents(root)[A]) == 150 - report.queues[0].first
    assert json.loads(json.dumps(report.summary))["messages"] == report.messages


def test_only_newer_messages_and_some_topics_are_restored_and_all_queues_go_on(
    tier: list[str], broker: FakeBroker, tmp_path: Path
) -> None:
    since = broker.now_ms - 60
    report = restored(tier, tmp_path / "new", wanted=Wanted(since_ms=since))
    found = own_contents(tmp_path / "new")
    for one in report.queues:
        messages = found[QueueId(one.topic, one.queue_id)]
        assert one.why == "not asked for"
        assert messages[0].queue_offset == one.first
        assert since - 30 < messages[0].store_timestamp <= since + 2
    report = restored(tier, root := tmp_path / "of-b", wanted=Wanted(frozenset({"B"})))
    assert (report.messages, report.is_whole) == (75, True)
    with appender_at(root, OPTIONS) as ours:
        assert put(ours, [new_message(1, topic="A")])[0].queue_offset == 150
        ours.close()
    run(*tier, "tier", root)
    report = restored(tier, tmp_path / "none", wanted=Wanted(since_ms=broker.now_ms + 1))
    assert report.messages == 0
    with appender_at(tmp_path / "none", OPTIONS) as ours:
        assert put(ours, [new_message(1, topic="A")])[0].queue_offset == 151
        ours.close()


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["--since", "1w"], 1),
        (["--since", "-1w", "--topics", "A,Young"], 1),
        (["--since", "12h"], 0),
        (["--topics", "B, Young"], 76),
        (["--topics", "B", "--topic", "A", "--topics", "Young"], 226),
    ],
)
def test_the_command_takes_an_age_and_lists_of_topics(
    words: list[str], messages: int, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.now_ms = SystemClock().now_ms() - 86_400_000
    broker.put("Young", 0, b"of yesterday")
    tier = options(tmp_path / "tier")
    run(*tier, "tier", broker.directory)
    summary = run(*tier, "restore", tmp_path / "restored", *words, "--json").rows[-1]["summary"]
    assert summary["messages"] == messages


@pytest.mark.parametrize("reason", [TOPIC_DELETED_REASON, MADE_AGAIN_REASON])
def test_a_topic_that_its_broker_deleted_is_left_out(
    reason: str,
    tier: list[str],
    broker: FakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_seen = restore_plan.as_seen

    async def with_gap(reader: TierReader, state: TierState, place: TierPlace) -> Any:
        queue = state.queues[B]
        gap = Gap(queue.next_offset, QueueOffset(queue.next_offset + 5), reason, 1)
        state.queues[B] = replace(queue, next_offset=gap.end, gaps=(gap,))
        return await as_seen(reader, state, place)

    monkeypatch.setattr(restore_plan, "as_seen", with_gap)
    offsets = {"B@g": {1: 122}}
    report = restored(tier, root := tmp_path / "restored", offsets=offsets)
    if reason == TOPIC_DELETED_REASON:
        assert ({one.topic for one in report.queues}, report.deleted) == ({"A"}, ["B"])
        assert not (root / "consumequeue" / "B").exists()
        assert report.offsets.table == {}
        broker.put("B", 0, b"of a new topic")
        run(*tier, "tier", broker.directory)
        row = {"topicName": "B", "perm": 4, "readQueueNums": 2, "writeQueueNums": 2}
        topics = {"topicConfigTable": {"B": row}}
        report = restored(tier, root := tmp_path / "again", topics=topics)
        assert ([one.topic for one in report.queues], report.deleted) == (["A", "B"], [])
        assert topics_of(root)["B"] == row
    else:
        assert report.offsets.table == offsets
        assert (report.queues[1].first, report.queues[1].end, report.deleted) == (127, 127, [])


async def test_a_tier_is_restored_beside_its_owner(broker: FakeBroker, tmp_path: Path) -> None:
    tier, root = tmp_path / "tier", tmp_path / "restored"
    follower = tieredstore.follow(
        broker.directory,
        tier,
        cluster="C",
        broker="b",
        settings={"tieredStoreExtentMaxSize": 1 << 10},
    )
    async with follower:
        await follower.drain()
        report = await asyncio.to_thread(restored, options(tier), root)
        assert (report.messages, report.is_whole) == (225, True)
        broker.put(*A, b"one more")
        await follower.drain()
    with pytest.raises(ConfigError, match="not empty"):
        await asyncio.to_thread(restored, options(tier), root)


def test_a_tier_in_an_object_store_is_restored(packed_tier: PackedTier, tmp_path: Path) -> None:
    golden = packed_tier.tree.golden
    sizes = [
        *("-D", f"mappedFileSizeCommitLog={golden.commit_log_file_bytes}"),
        *("-D", f"mappedFileSizeConsumeQueue={golden.consume_queue_file_bytes}"),
    ]
    report = restored([*packed_tier.options, *sizes], root := tmp_path / "restored")
    assert (report.messages, report.is_whole) == (3396, True)
    assert len(records(root, golden.commit_log_file_bytes)) == 3396


def test_a_tier_that_rocketmq_wrote_and_we_took_over_is_restored(tmp_path: Path) -> None:
    tree = unpacked(VARIANTS_520)  # whose segments end with codas
    golden = tree.golden
    shutil.copytree(tree.tier, tmp_path / "tier")
    words = [*settings(tree, tmp_path / "tier")]
    words += ["-D", f"mappedFileSizeCommitLog={golden.commit_log_file_bytes}"]
    words += ["-D", f"mappedFileSizeConsumeQueue={golden.consume_queue_file_bytes}"]
    said = run(*words, "restore", root := tmp_path / "restored", status=1).err
    assert "`tieredstore metadata import FILE` before" in said
    run(*words, "metadata", "import", tree.java_metadata)
    report = restored(words, root)
    assert (report.messages, report.is_whole) == (408, True)
    assert len(records(root, golden.commit_log_file_bytes)) == 408
    run(*words, "tier", root)
