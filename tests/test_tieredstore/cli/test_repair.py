"""What `tieredstore repair` takes away, and that tiering goes on behind it."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tieredstore.sync
from container.names.queue_id import QueueId
from container.record.checksum import body_crc_of
from container.record.message import StoredMessage
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli


def invoke(broker: FakeBroker, *arguments: str, status: int = 0) -> Result:
    tier = broker.directory.parent / "tier"
    settings = {"brokerName": "b", "brokerClusterName": "C", "tieredStoreFilePath": str(tier)}
    options = [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
    result = CliRunner().invoke(cli, [*options, *arguments])
    assert result.exit_code == status, result.output
    return result


def tiered(broker: FakeBroker, *, status: int = 0) -> dict[str, object]:
    said = invoke(broker, "tier", str(broker.directory), "--json", status=status).stdout
    (row,) = said.splitlines()
    return json.loads(row)


def repaired(broker: FakeBroker) -> dict[str, object]:
    words = ("repair", "A", "0", "--cut-to-hot", "--yes", "--json")
    return json.loads(invoke(broker, *words, "--store", str(broker.directory)).stdout)


def put_another(broker: FakeBroker, offset: int) -> None:
    """Let the store have another message of the same size at an offset."""
    unit = broker.unit("A", 0, offset)
    place = unit.position % broker.commit_log_bytes
    raw = broker.log_path(unit.position).read_bytes()[place : place + unit.size]
    message = StoredMessage.decode(raw, path="", position=0)
    body = bytes(len(message.body))
    other = message._replace(body=body, body_crc=body_crc_of(body))
    broker.damage(unit.position, other.encode())


def test_repair_finds_a_difference_far_below_newest_messages_that_are_the_same(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    broker.put_many("A", 0, [b"body"] * 100)
    tiered(broker)
    for offset in range(40, 70):
        put_another(broker, offset)
    said = json.dumps(tiered(broker, status=1)["over"])
    assert "different messages at offset 68, and the same below offset 40" in said
    assert repaired(broker) == {
        "topic": "A", "queue_id": 0, "cut_to": 40, "next_offset": 100, "messages": 60,
    }  # fmt: skip
    assert tiered(broker)["messages_new"] == 60
    assert (
        "nothing is to be cut"
        in invoke(
            broker, "repair", "A", "0", "--cut-to-hot", "--store", str(broker.directory)
        ).stdout
    )
    assert invoke(broker, "check", "--json").stdout == ""


def test_repair_cuts_to_where_a_gap_begins_if_the_hot_log_ends_within_it(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)
    broker.put_many("A", 0, [b"body"] * 20)
    tiered(broker)
    broker.put_many("A", 0, [b"body"] * 10)
    shutil.copytree(broker.directory, tmp_path / "backup")
    broker.put_many("A", 0, [b"body"] * 170)
    lost = broker.unit("A", 0, 50).position
    while lost >= broker.min_position:
        broker.delete_oldest_file()
    assert int(str(tiered(broker, status=1)["lost"])) > 10
    shutil.rmtree(broker.directory)
    (tmp_path / "backup").rename(broker.directory)
    said = json.dumps(tiered(broker, status=1)["over"])
    assert "the tier ends at offset 200 but the hot log at 30" in said
    assert repaired(broker)["cut_to"] == 20
    row = tiered(broker)
    assert (row["messages"], row["messages_new"], row["lost"]) == (30, 10, 0)
    assert invoke(broker, "check", "--json").stdout == ""


def cut_off(tmp_path: Path, *queues: tuple[str, int]) -> FakeBroker:
    """A broker that lost the last three of six messages of `queues`, which are tiered."""
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    every = [("A", 0), ("A", 1), ("A", 2), ("A", 3), ("B", 0)]
    for queue in every:
        broker.put_many(*queue, [b"body"] * 3)
    broker.put_many("Whole", 0, [b"body"] * 30)
    for queue in every:
        broker.put_many(*queue, [b"late %d" % number for number in range(3)])
    said = invoke(broker, "tier", str(broker.directory), "--json").stdout
    assert sum(json.loads(row)["messages"] for row in said.splitlines()) == 60
    for topic, queue_id in queues:
        units = broker.queue_files(QueueId(topic, queue_id))[0]
        raw = bytearray(units.read_bytes())
        raw[60:] = bytes(len(raw) - 60)
        units.write_bytes(raw)
    return broker


def test_stopped_queues_with_one_reason_share_a_sentence(tmp_path: Path) -> None:
    broker = cut_off(tmp_path, ("A", 0), ("A", 1), ("A", 2), ("A", 3), ("B", 0))
    said = invoke(broker, "tier", str(broker.directory), status=1).stderr
    (line,) = [line for line in said.splitlines() if " ERROR " in line]
    assert "5 queues are stopped, such as A/0: the tier ends at offset 6" in line
    assert line.endswith("`tieredstore repair --cut-to-hot` does that for all of them")


def test_one_command_repairs_all_stopped_queues_and_a_dry_run_says_which(tmp_path: Path) -> None:
    broker = cut_off(tmp_path, ("A", 1), ("A", 3), ("B", 0))
    words = ("repair", "--cut-to-hot", "--store", str(broker.directory))
    rows = [
        {"topic": topic, "queue_id": queue, "cut_to": 3, "next_offset": 6, "messages": 3}
        for topic, queue in (("A", 1), ("A", 3), ("B", 0))
    ]
    planned = invoke(broker, *words, "--dry-run", "--json").stdout.splitlines()
    assert [json.loads(row) for row in planned] == rows
    assert "3 queues, 9 messages in all" in invoke(broker, *words, "--dry-run").stdout
    topic = invoke(broker, "repair", "A", *words[1:], "--yes", "--json").stdout.splitlines()
    assert [json.loads(row) for row in topic] == rows[:2]
    rest = invoke(broker, *words, "--yes", "--json").stdout.splitlines()
    assert [json.loads(row) for row in rest] == rows[2:]
    assert "nothing is to be cut" in invoke(broker, *words).stdout
    assert invoke(broker, "tier", str(broker.directory)).exit_code == 0
    assert "no such topic" in invoke(broker, "repair", "Z", *words[1:], status=1).stderr


def test_what_is_cut_is_saved_first_and_a_file_is_never_written_over(tmp_path: Path) -> None:
    broker = cut_off(tmp_path, ("A", 1), ("B", 0))
    words = ("repair", "--cut-to-hot", "--store", str(broker.directory), "--yes")
    saved = tmp_path / "saved.jsonl"
    before = [
        json.loads(line)
        for topic, queue in (("A", "1"), ("B", "0"))
        for line in invoke(
            broker, "read", topic, queue, "--offset", "3", "--json"
        ).stdout.splitlines()
    ]
    saved.write_text("mine")
    refused = invoke(broker, *words, "--save", str(saved), status=2)
    assert "so nothing is cut: file exists" in refused.stderr
    saved.unlink()
    invoke(broker, *words, "--save", str(saved))
    assert [json.loads(line) for line in saved.read_text().splitlines()] == before
    assert [row["body"] for row in before] == ["late 0", "late 1", "late 2"] * 2


def test_a_queue_that_cannot_be_told_of_stops_no_repair_of_the_others(tmp_path: Path) -> None:
    broker = cut_off(tmp_path, ("A", 1), ("B", 0))
    path = broker.queue_files(QueueId("Whole", 0))[0]
    path.write_bytes(path.read_bytes()[:100])
    other = FakeBroker(tmp_path / "other", consume_queue_bytes=400)
    words = ("repair", "--cut-to-hot", "--store", str(broker.directory), "--yes", "--json")
    done = invoke(broker, *words, status=1)
    assert [json.loads(row)["topic"] for row in done.stdout.splitlines()] == ["A", "B"]
    assert "damaged" in done.stderr
    assert "Whole/0" in done.stderr
    other.put_many("A", 0, [b"other"] * 2)
    words = ("repair", "--cut-to-hot", "--store", str(other.directory), "--yes", "--json")
    left = invoke(broker, *words, status=1)
    assert left.stdout == "", "nothing of A/0 would stay"
    assert "--leave-nothing" in left.stderr


def test_a_dry_run_takes_nothing_and_works_beside_a_living_owner(tmp_path: Path) -> None:
    broker = cut_off(tmp_path, ("A", 1), ("B", 0))
    words = ("repair", "--cut-to-hot", "--store", str(broker.directory))
    saved = ("--save", str(tmp_path / "saved"))

    def files() -> dict[Path, tuple[bytes, int]]:
        found = (path for path in (tmp_path / "tier").rglob("*") if path.is_file())
        found = (path for path in found if path.parent.name != "@owner")  # signs of life
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}

    before = files()
    alone = invoke(broker, *words, "--dry-run", "--json", *saved).stdout
    assert len(alone.splitlines()) == 2
    assert files() == before
    with tieredstore.sync.follow(
        broker.directory, tmp_path / "tier", cluster="C", broker="b"
    ) as owner:
        owner.drain()
        before = files()
        assert invoke(broker, *words, "--dry-run", "--json", *saved).stdout == alone
        refused = invoke(broker, *words, "--yes", *saved, status=4).stderr
        assert "owns the tier and lives" in refused
        assert files() == before
        assert not (tmp_path / "saved").exists(), "nothing is saved where nothing may be cut"


def test_messages_that_cannot_be_saved_are_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cut_off(tmp_path, ("A", 1), ("B", 0))
    words = ("repair", "--cut-to-hot", "--store", str(broker.directory), "--yes", "--save")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.cli.commands.repair.os.fsync", full)
        said = invoke(broker, *words, str(tmp_path / "saved"), status=3).stderr
    assert "file system is full" in said
    rows = invoke(broker, *words[:-2], "--dry-run", "--json").stdout.splitlines()
    assert len(rows) == 2
    log = broker.directory.parent / "tier"
    (path,) = log.glob("*/b/B/0/COMMIT_LOG/*")
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"late 2")
    raw[at] ^= 1
    path.write_bytes(raw)
    said = invoke(broker, *words, str(tmp_path / "other"), status=1).stderr
    assert "B/0/COMMIT_LOG" in said
    raw[at] ^= 1
    path.write_bytes(raw)
    (row,) = invoke(broker, *words[:-2], "--dry-run", "--json").stdout.splitlines()
    assert '"topic":"B"' in row, "A was saved and cut"


@pytest.mark.slow
def test_a_hundred_queues_that_cannot_be_cut_are_said_in_a_few_lines(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    broker.put("Whole", 0)
    for queue in range(100):
        broker.put("A", queue)
    invoke(broker, "tier", str(broker.directory))
    other = FakeBroker(tmp_path / "other", consume_queue_bytes=400)
    for queue in range(100):
        other.put("A", queue, b"another")
    words = ("repair", "--cut-to-hot", "--store", str(other.directory), "--dry-run")
    lines = invoke(broker, *words, status=1).stderr.splitlines()
    assert len(lines) == 9
    assert "--leave-nothing" in lines[0]
    assert lines[-1] == "tieredstore: nothing would stay of 92 more queues"
    listed = invoke(broker, *words, "--leave-nothing").stdout.splitlines()
    assert len(listed) == 21
    assert listed[-1] == "100 queues, 100 messages in all"
    stopped = invoke(broker, "tier", str(other.directory), status=1).stderr
    said = [line for line in stopped.splitlines() if " ERROR " in line]
    assert "100 queues are stopped, such as A/" in said[-1]
    assert len(said) <= 10, "one for each second in which more of them are met"


@pytest.mark.parametrize("stay", [15, 20], ids=["inside a file", "where a file begins"])
def test_check_calls_nothing_wrong_that_a_repair_has_cut_off(tmp_path: Path, stay: int) -> None:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=2000)
    broker.put_many("A", 0, [b"a longer body" * 4] * 30)
    size = broker.unit("A", 0, 0).size
    files = ("-D", f"tieredStoreCommitLogMaxSize={10 * size}")
    invoke(broker, *files, "tier", str(broker.directory))
    (units,) = broker.queue_files(QueueId("A", 0))
    raw = bytearray(units.read_bytes())
    units.write_bytes(raw[: 20 * stay] + bytes(len(raw) - 20 * stay))
    assert repaired(broker)["cut_to"] == stay
    assert invoke(broker, "check", "--json").stdout == ""
    (journal,) = (tmp_path / "tier").glob("*/b/@journal")
    before = {path.name for path in journal.iterdir()}
    units.write_bytes(raw)
    put_another(broker, stay)
    invoke(broker, *files, "tier", str(broker.directory))
    for path in journal.iterdir():
        if path.name not in before:  # as if a backup from before were restored
            path.unlink()
    (found,) = map(json.loads, invoke(broker, "check", "--json", status=1).stdout.splitlines())
    assert found["finding"] == "unpublished"
    assert f"offsets {stay} to " in found["detail"]
    invoke(broker, *files, "tier", str(broker.directory))
    assert invoke(broker, "check", "--json").stdout == ""
