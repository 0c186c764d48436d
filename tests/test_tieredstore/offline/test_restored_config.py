"""Topics and offsets of groups in a directory that is restored from a tier."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.hot_store import appender_at
from tests.support.random_tier import owned
from tests.support.restored import (
    OPTIONS,
    broker,
    config_of,
    options,
    restored,
    small_groups,
    tier,
    topics_of,
)
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.jobs.restore_store import group_offsets
from tieredstore.session.tiering import topic_values

__all__ = ["broker", "small_groups", "tier"]  # fixtures


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
    for option in ("--topics-json", "--offsets"):
        done = run(*tier, "restore", tmp_path / "new", option, backup, status=2)
        assert "topics.json is damaged, or another file: " in done.err
    assert not (tmp_path / "new").exists()


def test_topics_keep_their_settings_without_a_backup(broker: FakeBroker, tmp_path: Path) -> None:
    words = options(tmp_path / "tier")
    attributes = {"message.type": "FIFO", "reserve.time": "48"}
    broker.create_topic("A", attributes, perm=4, readQueueNums=16, writeQueueNums=9, order=True)
    broker.create_topic("B")
    run(*words, "tier", broker.directory)
    report = restored(words, root := tmp_path / "restored")
    defaults = {"order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    wanted = {topic: defaults | dict(row) for topic, row in topics_of(broker.directory).items()}
    assert (topics_of(root), report.guessed) == (wanted, [])
    older = {"topicConfigTable": {"B": {"perm": 2, "readQueueNums": 3, "writeQueueNums": 1}}}
    restored(words, root := tmp_path / "given", topics=older)
    assert topics_of(root) == {
        "A": wanted["A"],
        "B": {"perm": 2, "readQueueNums": 3, "writeQueueNums": 2},
    }


def test_changed_settings_are_published_once(
    tier: list[str], broker: FakeBroker, tmp_path: Path
) -> None:
    async def publish() -> list[int]:
        async with owned(config_of(tier)) as owner:
            sequences: list[int] = []
            for _ in range(2):
                await owner.set_topics(*await topic_values(broker.directory))
                sequences.append(owner.state.sequence)
            return sequences

    broker.create_topic("A", writeQueueNums=1025)
    broker.create_topic("Empty")
    first, second = asyncio.run(publish())
    assert first == second
    report = restored(tier, root := tmp_path / "restored")
    assert topics_of(root)["A"]["writeQueueNums"] == 1025
    assert (report.guessed, report.summary["guessed_topics"]) == (["B"], ["B"])


def test_topics_without_settings_are_named(tier: list[str], tmp_path: Path) -> None:
    """A tier of before, or a broker without a topics.json that can be read."""
    root = tmp_path / "restored"
    said = run(*tier, "restore", root, "--processes", "1").out
    assert "no settings of A, B: permission 6, and as many queues as have messages" in said
    assert "--topics-json" in said
    assert {topic: row["writeQueueNums"] for topic, row in topics_of(root).items()} == {
        "A": 1,
        "B": 2,
    }


def test_retentions_are_those_of_the_tier(tier: list[str], tmp_path: Path) -> None:
    """Those of a backup are older, and a shorter one would delete messages."""

    async def keep_longer() -> None:
        async with owned(config_of(tier)) as owner:
            await owner.set_topics({"A": 100})

    asyncio.run(keep_longer())
    old = {"attributes": {"reserve.time": "1", "cleanup.policy": "DELETE"}}
    given = {"topicConfigTable": {"A": old, "B": old}, "confirmedReserveTimes": {"B": {"hours": 1}}}
    restored(tier, root := tmp_path / "restored", topics=given)
    kept = {topic: row["attributes"] for topic, row in topics_of(root).items()}
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


@pytest.mark.parametrize(
    ("topic", "row", "text"),
    [
        ("../A", {}, "'../A' is refused, for it holds a path separator"),
        ("..", {}, "it is a relative directory"),
        ("", {}, "it is empty"),
        ("A\n", {}, "it holds a control character"),
        ("A", {"topicName": "../B"}, "its row is that of '../B'"),
        ("A", {"writeQueueNums": 1 << 31}, "a number of its queues is not from 0 to 2147483647"),
        ("A", {"readQueueNums": -1}, "a number of its queues is not from 0 to 2147483647"),
    ],
)
def test_topics_that_no_broker_has_are_refused(
    topic: str, row: dict[str, object], text: str, tier: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "topics.json"
    path.write_text(json.dumps({"topicConfigTable": {topic: row}}))
    done = run(*tier, "restore", tmp_path / "new", "--topics-json", path, status=2)
    assert text in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("row", ['"0":-1', '"0":9223372036854775808', f'"0":{2**64}', '"-1":0'])
def test_offsets_that_no_broker_has_are_refused(row: str, tier: list[str], tmp_path: Path) -> None:
    assert "is neither a queue nor an offset" in refused(tier, tmp_path, "A@g", row)


def test_offsets_of_a_group_without_a_topic_are_refused(tier: list[str], tmp_path: Path) -> None:
    assert "'Ag' is not TOPIC@GROUP" in refused(tier, tmp_path, "Ag", '"0":1')


def refused(tier: list[str], tmp_path: Path, key: str, row: str) -> str:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"' + key + '":{' + row + "}}}")
    done = run(*tier, "restore", tmp_path / "new", "--offsets", path, status=2)
    assert not (tmp_path / "new").exists()
    return done.err
