"""What the commands say and answer where a part of the store cannot be read."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.names.queue_id import QueueId
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    broker.put_many("A", 0, [b"x"] * 10)
    broker.put_many("B", 0, [b"x"] * 10)
    return broker


def invoke(broker: FakeBroker, *arguments: str, status: int) -> Result:
    options = ["-D", "brokerName=broker-a", "-D", "brokerClusterName=Cluster"]
    tier = broker.directory.parent / "tier"
    result = CliRunner().invoke(cli, [*options, "-D", f"tieredStoreFilePath={tier}", *arguments])
    assert result.exit_code == status, result.output
    return result


def fail_at(monkeypatch: pytest.MonkeyPatch, call: str, place: Path) -> None:
    before: Callable[..., object] = getattr(os, call)

    def guarded(path: object, *args: object, **more: object) -> object:
        if str(path) == str(place):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return before(path, *args, **more)

    monkeypatch.setattr(os, call, guarded)


def test_a_queue_that_cannot_be_read_is_stopped_until_it_can_be_and_nothing_is_cut(
    broker: FakeBroker,
) -> None:
    store = str(broker.directory)
    invoke(broker, "tier", store, status=0)
    for topic in "AB":
        broker.put(topic, 0)
    (path,) = broker.queue_files(QueueId("A", 0))
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, "open", path)
        said = invoke(broker, "tier", store, status=1).output
        assert "A/0 is stopped: cannot be read now: Input/output error" in said
        assert str(path) in said
        assert "B/0" not in said
        assert "--cut-to-hot" not in said
        cut = ("repair", "A", "0", "--cut-to-hot", "--yes", "--store", store)
        assert "cannot be read" in invoke(broker, *cut, status=3).stderr
    rows = invoke(broker, "tier", store, "--json", status=0).stdout.splitlines()
    assert [json.loads(row)["messages"] for row in rows] == [11, 11]


def test_a_queue_that_is_damaged_at_its_first_look_is_told_and_nothing_of_it_is_cut(
    broker: FakeBroker,
) -> None:
    store = str(broker.directory)
    broker.put_many("A", 0, [b"x"] * 30)
    invoke(broker, "tier", store, status=0)
    for topic in "AB":
        broker.put(topic, 0)
    path = broker.queue_files(QueueId("A", 0))[0]
    whole = path.read_bytes()
    os.truncate(path, 100)
    said = invoke(broker, "tier", store, status=1).output
    assert f"A/0 is damaged: the file was truncated ({path}" in said
    assert "B/0" not in said
    assert "--cut-to-hot" not in said
    cut = ("repair", "A", "0", "--cut-to-hot", "--leave-nothing", "--yes", "--store", store)
    said = invoke(broker, *cut, status=1).stderr
    assert "so the place of the cut is unknown; mend it first: the file" in said
    path.write_bytes(whole)
    rows = invoke(broker, "tier", store, "--json", status=0).stdout.splitlines()
    assert [json.loads(row)["messages"] for row in rows] == [41, 11]


def test_a_queue_that_is_not_tiered_or_not_there_any_more_is_not_cut(broker: FakeBroker) -> None:
    store = str(broker.directory)
    invoke(broker, "tier", store, status=0)
    broker.create_topic("A", {"cleanup.policy": "COMPACTION"})
    shutil.rmtree(broker.directory / "consumequeue" / "B")
    for topic, reason in (("A", "is not tiered: "), ("B", "has no such queue")):
        cut = ("repair", topic, "0", "--cut-to-hot", "--leave-nothing", "--yes", "--store", store)
        said = invoke(broker, *cut, status=1).stderr
        assert reason in said
        assert "the place of the cut is unknown" in said
    rows = invoke(broker, "topics", "--json", status=0).stdout.splitlines()
    assert [json.loads(row)["commit_offset"] for row in rows] == [10, 10]


def test_a_cut_that_leaves_nothing_of_a_queue_needs_a_word_more(broker: FakeBroker) -> None:
    invoke(broker, "tier", str(broker.directory), status=0)
    other = FakeBroker(broker.directory.parent / "other", consume_queue_bytes=400)
    other.put_many("A", 0, [b"y"] * 5)
    cut = ("repair", "A", "0", "--cut-to-hot", "--yes", "--store", str(other.directory))
    said = invoke(broker, *cut, status=2).stderr
    assert "nothing of it would stay in the tier" in said
    assert "offsets 0 to 9" in said
    assert "--leave-nothing" in said
    (row,) = invoke(broker, *cut, "--leave-nothing", "--json", status=0).stdout.splitlines()
    assert (json.loads(row)["cut_to"], json.loads(row)["messages"]) == (0, 10)


def test_a_topic_that_cannot_be_read_is_said_and_ends_a_run_with_1(broker: FakeBroker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, "scandir", broker.directory / "consumequeue" / "A")
        result = invoke(broker, "tier", str(broker.directory), status=1)
    assert result.stderr.count("queues of A are not looked for") == 1
    assert "Input/output error" in result.stderr


def test_a_commit_log_without_consume_queues_is_said_and_ends_a_run_with_1(
    broker: FakeBroker,
) -> None:
    (broker.directory / "consumequeue").rename(broker.directory.parent / "away")
    result = invoke(broker, "tier", str(broker.directory), status=1)
    assert result.stderr.count(str(broker.directory / "consumequeue")) == 1
    assert "is missing or has no queues, though the CommitLog has messages" in result.stderr
