"""A store directory from a tier: the files are a broker's, and nothing is lost or twice in it."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from container.errors import InUse
from container.metadata.records import MADE_AGAIN_REASON, TOPIC_DELETED_REASON, Gap
from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from provider.errors import Denied, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.cli import run, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import GOLDEN_SETS, VARIANTS_520, GoldenSet, tree_name, unpacked
from tests.support.hot_store import appender_at, contents, new_message, put
from tests.support.packed_objects import PackedTier
from tests.support.random_tier import owned
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.log_directories import open_layout
from tieredstore.following.options import HotLogOptions
from tieredstore.hot.log.commit_log import CommitLogWriter
from tieredstore.hot.log.durable_ends import Checkpoint
from tieredstore.hot.log.record_scan import Damage, scan_file
from tieredstore.hot.options import HotWriteOptions
from tieredstore.offline.jobs import restore_store as job
from tieredstore.offline.jobs.engine import OneProcess, Piece
from tieredstore.offline.jobs.restore_store import Ledger, RestoreReport, Wanted, group_offsets
from tieredstore.offline.scan.planning import TierPlan
from tieredstore.session.reader import existing_tier

OPTIONS = HotWriteOptions(commit_log_bytes=16 << 10, consume_queue_bytes=400)
SIZES = {"mappedFileSizeCommitLog": 16 << 10, "mappedFileSizeConsumeQueue": 400}
A, B = QueueId("A", 0), QueueId("B", 1)
ALL = Wanted()


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "GROUP_BYTES", 4 << 10)
    monkeypatch.setattr(job, "SPARE_BYTES", 0)


def options(tier: Path | str) -> list[str]:
    values = {
        "brokerClusterName": "C",
        "brokerName": "b",
        "tieredStoreFilePath": tier,
        "tieredStoreExtentMaxSize": 1 << 10,
        **SIZES,
    }
    return [word for key, value in values.items() for word in ("-D", f"{key}={value}")]


def config_of(words: Sequence[str]) -> Config:
    return existing_tier(Config.load(defines=[word for word in words if word != "-D"]))


def restored(
    words: Sequence[str],
    root: Path,
    *,
    wanted: Wanted = ALL,
    engine: OneProcess | None = None,
    offsets: dict[str, dict[int, int]] | None = None,
    topics: dict[str, Any] | None = None,
) -> RestoreReport:
    return job.restore_store(
        config_of(words),
        engine or OneProcess(),
        root,
        wanted=wanted,
        offsets=offsets or {},
        topics=topics,
        clock=ManualClock(),
    )


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    """Two queues with messages of several CommitLog files, that of B beginning in mid-file."""
    made = FakeBroker(tmp_path / "store", commit_log_bytes=16 << 10, consume_queue_bytes=400)
    made.begin_queue(*B, 47)
    for number in range(150):
        made.put(*A, b"a%d" % number, tags=f"T{number % 3}", keys=f"k{number}")
        if number % 2:
            made.put(*B, b"b%d" % number * 40)
    return made


@pytest.fixture
def tier(broker: FakeBroker, tmp_path: Path) -> list[str]:
    words = options(tmp_path / "tier")
    run(*words, "tier", broker.directory)
    return words


def own_contents(
    root: Path, sizes: HotWriteOptions = OPTIONS
) -> dict[QueueId, list[StoredMessage]]:
    """All messages, as our own store reads a copy of the directory."""
    copy = root.with_name(f"{root.name}-copy")
    shutil.copytree(root, copy)
    with appender_at(copy, sizes) as ours:
        found = contents(ours)
        ours.close()
    shutil.rmtree(copy)
    return found


def as_stored(message: StoredMessage, *, has_crc: bool = False) -> bytes:
    """A record without its position, and without the checksum of all of it."""
    raw = bytearray(message.encode())
    raw[28:36] = bytes(8)
    return bytes(raw[:-20] if has_crc else raw)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def records(root: Path, file_bytes: int) -> list[StoredMessage]:
    """The records of the CommitLog in order, read as after a crash: whole and without a hole."""
    log = CommitLogWriter(root / "commitlog", file_bytes)
    found: list[StoredMessage] = []
    assert log.bases[0] == file_bytes
    for base in log.bases:
        end = base
        for one in scan_file(log, base, base, durable_end=-1):
            assert not isinstance(one, Damage)
            message, position = one
            if message is None:
                end = base + file_bytes
                break
            found.append(message)
            end = position + message.size
        assert end == base + file_bytes or base == log.bases[-1], "no blank ends the file"
        assert log.data_end(end) == end or end == base + file_bytes
    return found


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
    ours_of, theirs = _topics(root), _topics(tree.store)
    assert all(row.keys() == theirs.get(topic, row).keys() for topic, row in ours_of.items())


def _topics(root: Path) -> dict[str, dict[str, Any]]:
    """The table of topics; that of a store without a broker is empty."""
    path = root / "config" / "topics.json"
    return json.loads(path.read_bytes())["topicConfigTable"] if path.exists() else {}


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


class Ending(OneProcess):
    """An engine whose process is killed after some items."""

    def __init__(self, count: int) -> None:
        self.count = count

    def map_group(self, items: Sequence[Any], *words: Any, **more: Any) -> list[Piece]:
        super().map_group(items[: self.count], *words, **more)
        raise KeyboardInterrupt


def test_an_ended_run_is_no_store_and_the_next_one_completes_it(
    tier: list[str], tmp_path: Path
) -> None:
    restored(tier, whole := tmp_path / "whole")
    root = tmp_path / "restored"
    for count in (0, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            restored(tier, root, engine=Ending(count))
        with pytest.raises(Denied, match="restore"):
            open_layout(root, HotLogOptions())
        with pytest.raises(Denied, match="restore"), appender_at(root, OPTIONS):
            pass
        marker = root / "commitlog" / f"{0:020}"
        assert 0 < marker.stat().st_size != OPTIONS.commit_log_bytes, "a Java broker starts"
    report = restored(tier, root)
    assert report.groups_before == 3
    assert files(root) == files(whole)
    with pytest.raises(ConfigError, match="not empty"):
        restored(tier, root)


@pytest.mark.parametrize("name", ["fsync", "ftruncate", "unlink", "pwritev", "mkdir", "replace"])
def test_a_run_that_ends_at_any_call_is_completed(
    name: str, tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(tier, whole := tmp_path / "whole")
    called = getattr(os, name)
    for number in range(1000):
        left = number * 3

        def failing(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
            return called(*arguments, **more)

        root = tmp_path / f"restored-{number}"
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                restored(tier, root)
            except KeyboardInterrupt:
                assert (
                    not root.exists() or list(root.iterdir()) == [] or (root / "restoring").exists()
                )
            else:
                assert files(root) == files(whole)
                break
        restored(tier, root)
        assert files(root) == files(whole)
        shutil.rmtree(root)


def test_a_changed_tier_begins_the_directory_again(
    tier: list[str], broker: FakeBroker, tmp_path: Path
) -> None:
    root = tmp_path / "restored"
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(2))
    broker.put(*A, b"one more")
    run(*tier, "tier", broker.directory)
    report = restored(tier, root)
    assert (report.groups_before, report.messages) == (0, 226)


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


@pytest.mark.leaves_findings("body-crc", "checksum", why="a body is damaged in the tier")
def test_a_queue_begins_after_damage(tier: list[str], tmp_path: Path) -> None:
    (log,) = (tmp_path / "tier").glob("*/b/A/0/COMMIT_LOG/*")
    raw = bytearray(log.read_bytes())
    place = raw.index(b"a77")
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


@pytest.mark.parametrize("reason", [TOPIC_DELETED_REASON, MADE_AGAIN_REASON])
def test_a_topic_that_its_broker_deleted_is_left_out(
    reason: str,
    tier: list[str],
    broker: FakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = job.plan

    def with_gap(*arguments: Any, **more: Any) -> TierPlan:
        found = planned(*arguments, **more)
        queue = found.state.queues[B]
        gap = Gap(queue.next_offset, QueueOffset(queue.next_offset + 5), reason, 1)
        state = replace(queue, next_offset=gap.end, gaps=(gap,))
        found.state.queues[B] = state
        return found

    monkeypatch.setattr(job, "plan", with_gap)
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
        assert _topics(root)["B"] == row
    else:
        assert report.offsets.table == offsets
        assert (report.queues[1].first, report.queues[1].end, report.deleted) == (127, 127, [])


def test_groups_continue_at_the_tiers_end_at_most(tier: list[str], tmp_path: Path) -> None:
    offsets = {"A@g": {0: 100}, "B@g": {1: 130}, "C@g": {0: 7}}
    offsets |= {"RMQ_SYS_TRANS_HALF_TOPIC@t": {0: 9}}
    report = restored(tier, root := tmp_path / "restored", offsets=offsets)
    assert group_offsets(offsets, report.queues) == report.offsets
    empty = {"C@g": {0: 0}, "RMQ_SYS_TRANS_HALF_TOPIC@t": {0: 0}}
    assert report.offsets.table == {"A@g": {0: 100}, "B@g": {1: 122}, **empty}
    assert report.offsets.beyond == [("B", "g", 1, 8), ("C", "g", 0, 7)]
    assert report.offsets.before == []
    assert not report.is_whole
    document = json.loads((root / "config" / "consumerOffset.json").read_bytes())
    assert document["offsetTable"]["B@g"] == {"1": 122}


def test_groups_are_named_that_pass_over_messages_of_the_tier(
    tier: list[str], tmp_path: Path
) -> None:
    offsets = {"A@g": {0: 100}, "B@g": {1: 7}, "A@h": {0: 150}}
    report = restored(tier, tmp_path / "r", wanted=Wanted(frozenset()), offsets=offsets)
    assert report.offsets.before == [("A", "g", 0, 50), ("B", "g", 1, 75)]
    assert report.is_whole
    assert report.summary["passed_over"] == [
        {"topic": "A", "group": "g", "queue_id": 0, "messages": 50},
        {"topic": "B", "group": "g", "queue_id": 1, "messages": 75},
    ]


def test_topics_keep_the_settings_of_a_backup(
    tier: list[str], broker: FakeBroker, tmp_path: Path
) -> None:
    backup = tmp_path / "topics.json"
    rows = {
        "A": {"topicName": "A", "perm": 4, "readQueueNums": 8, "writeQueueNums": 6, "order": True},
        "B": {"topicName": "B", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
        "Empty": {"topicName": "Empty", "perm": 6, "readQueueNums": 3, "writeQueueNums": 3},
    }
    version = {"counter": 41, "stateVersion": 3, "timestamp": 1}
    backup.write_text(json.dumps({"dataVersion": version, "topicConfigTable": rows}))
    root = tmp_path / "restored"
    run(*tier, "restore", root, "--processes", "1", "--topics-json", backup)
    document = json.loads((root / "config" / "topics.json").read_bytes())
    rows["B"] |= {"readQueueNums": 2, "writeQueueNums": 2}
    assert document["topicConfigTable"] == rows
    assert document["dataVersion"]["counter"] == 42
    with appender_at(root, OPTIONS) as ours:
        ours.close()
    for bad, text in ((tmp_path / "none", "cannot be read"), (tmp_path, "cannot be read")):
        for option in ("--topics-json", "--offsets"):
            done = run(*tier, "restore", tmp_path / "new", option, bad, status=2)
            assert text in done.err
    backup.write_text("{")
    done = run(*tier, "restore", tmp_path / "new", "--topics-json", backup, status=1)
    assert "topics cannot be read" in done.err
    assert not (tmp_path / "new").exists()


def test_retentions_are_those_of_the_tier(tier: list[str], tmp_path: Path) -> None:
    """Those of a backup are older, and a shorter one would delete messages."""

    async def keep_longer() -> None:
        async with owned(config_of(tier)) as owner:
            await owner.set_retention({"A": 100})

    asyncio.run(keep_longer())
    old = {"attributes": {"reserve.time": "1", "cleanup.policy": "DELETE"}}
    given = {"topicConfigTable": {"A": old, "B": old}, "confirmedReserveTimes": {"B": {"hours": 1}}}
    restored(tier, root := tmp_path / "restored", topics=given)
    kept = {topic: row["attributes"] for topic, row in _topics(root).items()}
    assert kept["A"] == {"reserve.time": "100", "cleanup.policy": "DELETE"}
    assert kept["B"] == {"cleanup.policy": "DELETE"}
    assert "confirmedReserveTimes" not in json.loads((root / "config/topics.json").read_bytes())


def test_the_offsets_that_serve_kept_are_restored_with_the_place_of_the_log(
    tier: list[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "consumerOffset.json").write_text('{"offsetTable":{"A@g":{0:100}}}')
    words = [*tier, "-D", f"tieredStoreServeStatePath={state}"]
    words += ["-D", f"storePathCommitLog={tmp_path / 'log'}"]
    said = run(*words, "restore", root := tmp_path / "restored", "--processes", "1").out
    document = json.loads((root / "config" / "consumerOffset.json").read_bytes())
    assert document["offsetTable"] == {"A@g": {"0": 100}}
    assert f"move {root / 'commitlog'} there" in said


@pytest.mark.parametrize("row", ['"0":-1', '"0":9223372036854775808', f'"0":{2**64}', '"-1":0'])
def test_offsets_that_no_broker_has_are_refused(row: str, tier: list[str], tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"A@g":{' + row + "}}}")
    done = run(*tier, "restore", tmp_path / "new", "--offsets", path, status=1)
    assert "is neither a queue nor an offset" in done.err
    assert not (tmp_path / "new").exists()


def test_one_process_restores_into_a_directory(tier: list[str], tmp_path: Path) -> None:
    with Ledger(root := tmp_path / "restored"), pytest.raises(InUse, match="another process"):
        restored(tier, root)
    assert restored(tier, root).messages == 225


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


def test_what_cannot_be_restored_is_refused_with_the_reason(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("")
    assert "is not empty" in run(*tier, "restore", other, status=2).err
    said = run(*tier, "restore", tmp_path / "new", "--topic", "None", status=2).err
    assert "no topic None" in said
    small = [*tier, "-D", "mappedFileSizeCommitLog=1024"]
    assert "make it larger" in run(*small, "restore", tmp_path / "small", status=2).err
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        place = other / "file" if name == "file" else tmp_path / name
        assert "is no directory" in run(*tier, "restore", place, status=2).err
    inside = tmp_path / "tier" / "restored"
    assert "lie inside one another" in run(*tier, "restore", inside, status=2).err
    assert not inside.exists()
    monkeypatch.setattr(job, "SPARE_BYTES", 1 << 60)
    with pytest.raises(Unavailable, match="bytes free"):
        restored(tier, tmp_path / "full")


def test_a_directory_with_a_file_of_the_ledgers_name_is_not_emptied(
    tier: list[str], tmp_path: Path
) -> None:
    root = tmp_path / "other"
    (root / "commitlog").mkdir(parents=True)
    (root / "restoring").write_text("")
    log = root / "commitlog" / f"{0:020}.log"
    log.write_text("messages")
    with pytest.raises(ConfigError, match="not empty"):
        restored(tier, root)
    assert log.read_text() == "messages"
    log.unlink()
    assert restored(tier, root).messages == 225


def test_a_line_of_the_ledger_that_a_full_disk_cut_off_counts_for_nothing(
    tier: list[str], tmp_path: Path
) -> None:
    restored(tier, whole := tmp_path / "whole")
    root = tmp_path / "restored"
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(1))
    with (root / "restoring").open("ab") as ledger:
        ledger.write(b"1")
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(1))
    assert restored(tier, root).groups_before == 1
    assert files(root) == files(whole)


def test_a_disk_that_is_full_in_the_middle_is_one_sentence_and_the_next_run_continues(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(tier, whole := tmp_path / "whole")
    written, left = os.pwritev, 2

    def failing(*arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(*arguments)

    root = tmp_path / "restored"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        said = run(*tier, "restore", root, "--processes", "1", status=None)
    assert said.status == 3
    assert "the file system is full" in said.err
    assert said.err.count("\n") == 1
    assert restored(tier, root).groups_before == 2
    assert files(root) == files(whole)


def test_a_file_that_cannot_be_synced_begins_the_directory_again(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a write that is lost once, and the next descriptor syncs without error."""
    restored(tier, whole := tmp_path / "whole")
    root, called = tmp_path / "restored", os.fsync

    def failing(fd: int) -> None:
        if "consumequeue" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        called(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            restored(tier, root)
    for path in (root / "commitlog").glob("*[1-9]*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert restored(tier, root).groups_before == 0
    assert files(root) == files(whole)


def test_the_ledger_is_not_durable_before_the_file_without_which_it_is_complete(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, called = tmp_path / "restored", os.fsync
    durable: list[str] = []

    def noting(fd: int) -> None:
        durable.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        called(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        restored(tier, root)
    assert {"restored", "commitlog"} <= set(durable[: durable.index("restoring")])


def test_a_boot_without_a_name_is_not_the_same_one(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "boot_id", lambda: "")
    root = tmp_path / "restored"
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(2))
    assert restored(tier, root).groups_before == 0


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
    run(*words, "metadata", "import", tree.java_metadata)
    report = restored(words, root := tmp_path / "restored")
    assert (report.messages, report.is_whole) == (408, True)
    assert len(records(root, golden.commit_log_file_bytes)) == 408
    run(*words, "tier", root)
