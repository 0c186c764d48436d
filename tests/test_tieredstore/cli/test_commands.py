"""What each command prints, for people and for programs, over a golden store."""

import json
import os
import pty
import signal
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from container.journal.frame import Frame
from container.names.queue_id import QueueId
from tests.support.cli import COMMAND, complaints, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, VARIANTS_520, GoldenTree, expected, unpack, unpacked
from tests.support.on_terminal import on_terminal
from tests.support.patience import communicated, completed
from tieredstore.cli.main import cli
from tieredstore.config.keys import KEYS

WIDTH = 80


def invoke(*arguments: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result


def rows(*arguments: str | Path, status: int = 0) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json", status=status)
    assert status or complaints(result.stderr) == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def tree() -> GoldenTree:
    return unpacked(ROCKETMQ_533)


@pytest.fixture(scope="module")
def options(tree: GoldenTree, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a tier of the golden store; read only."""
    given = settings(tree, tmp_path_factory.mktemp("commands") / "tier")
    assert CliRunner().invoke(cli, [*given, "tier", str(tree.store)]).exit_code == 0
    return given


def messages(topic: str, queue_id: int) -> list[dict[str, Any]]:
    return [
        row
        for row in expected(ROCKETMQ_533, "messages")
        if (row["topic"], row["queue_id"]) == (topic, queue_id)
    ]


def test_tier_sums_up_by_topic_and_again_finds_nothing_new(
    tree: GoldenTree, tmp_path: Path
) -> None:
    given = settings(tree, tmp_path / "tier")
    first = {row["topic"]: row for row in rows(*given, "tier", tree.store)}
    again = {row["topic"]: row for row in rows(*given, "tier", tree.store)}
    for topic in {row["topic"] for row in expected(ROCKETMQ_533, "messages")}:
        count = sum(row["topic"] == topic for row in expected(ROCKETMQ_533, "messages"))
        assert first[topic]["messages"] == first[topic]["messages_new"] == count
        assert again[topic]["messages"] == count
        assert again[topic]["messages_new"] == again[topic]["commit_log_bytes_new"] == 0
        assert again[topic]["behind"] == again[topic]["lost"] == 0
        assert again[topic]["over"] == []


@pytest.mark.parametrize(
    "words",
    [["topics"], ["segments", "G_Orders"], ["read", "G_Orders", "0"], ["config"], ["check"]],
    ids=" ".join,
)
def test_what_people_see_fits_80_columns(
    options: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, WIDTH)
    result = invoke(*options, *words)
    assert result.stdout
    long = [line for line in result.stdout.splitlines() if len(line.rstrip()) > WIDTH]
    assert [line for line in long if str(options) not in line and "(-D)" not in line] == []


def test_topics_names_every_queue(options: list[str], tree: GoldenTree) -> None:
    found = {(row["topic"], row["queue_id"]): row for row in rows(*options, "topics")}
    assert list(found) == [tuple(queue) for queue in tree.queues()]
    wanted = messages("G_Orders", 1)
    assert found["G_Orders", 1] == {
        "topic": "G_Orders",
        "queue_id": 1,
        "min_offset": 0,
        "commit_offset": len(wanted),
        "first_timestamp": wanted[0]["store_timestamp"],
        "last_timestamp": wanted[-1]["store_timestamp"],
        "commit_log_bytes": sum(row["store_size"] for row in wanted),
        "gaps": [],
    }


def test_segments_are_the_files_of_the_tree(options: list[str], tree: GoldenTree) -> None:
    found = rows(*options, "segments")
    for row in found:
        assert (tree.broker_directory / row["path"]).stat().st_size == row["size"]
        assert row["state"] == "COPY_FINISHED"
    orders = rows(*options, "segments", "G_Orders", "0")
    assert orders == [row for row in found if (row["topic"], row["queue_id"]) == ("G_Orders", 0)]
    assert [(row["type"], row["sealed"]) for row in orders] == [
        ("COMMIT_LOG", True),
        ("COMMIT_LOG", False),
        ("CONSUME_QUEUE", True),
        ("CONSUME_QUEUE", False),
    ]


def test_read_begins_and_ends_where_it_is_told(options: list[str]) -> None:
    read = [*options, "read", "G_Orders", "0"]
    every = [row["queue_offset"] for row in rows(*read)]
    assert every == list(range(len(messages("G_Orders", 0))))
    part = rows(*read, "--offset", "17", "--max", "5")
    assert [row["queue_offset"] for row in part] == [17, 18, 19, 20, 21]
    assert rows(*read, "--offset", str(len(every))) == []


def test_read_filters_by_tags_to_the_end_of_the_queue(options: list[str]) -> None:
    found = rows(*options, "read", "G_Orders", "0", "--tags", "TagA || 订单", "--digest")
    wanted = [
        row["queue_offset"]
        for row in messages("G_Orders", 0)
        if row["properties"].get("TAGS") in {"TagA", "订单"}
    ]
    assert wanted
    assert [row["queue_offset"] for row in found] == wanted


def test_read_gives_bodies_as_text_or_base64_and_digests_instead(options: list[str]) -> None:
    text = rows(*options, "read", "G_Keys", "0", "--max", "1")[0]
    assert text["body"] == "b0"
    assert "body_base64" not in text
    binary = rows(*options, "read", "G_Orders", "0", "--max", "1")[0]
    assert "body" not in binary
    assert binary["body_base64"]
    digest = rows(*options, "read", "G_Orders", "0", "--max", "1", "--digest")[0]
    wanted = messages("G_Orders", 0)[0]
    assert digest["body_sha256"] == wanted["body_sha256"]
    assert digest["body_length"] == wanted["body_length"]


def test_read_once_ends_with_status_and_offsets(options: list[str]) -> None:
    once = [*options, "read", "G_Orders", "0", "--once"]
    found = rows(*once, "--max", "3", "--offset", "2")
    assert [row["queue_offset"] for row in found[:-1]] == [2, 3, 4]
    assert found[-1] == {"status": "FOUND", "next_offset": 5, "min_offset": 0, "max_offset": 600}
    assert rows(*once, "--offset", "600")[-1]["status"] == "OFFSET_OVERFLOW_ONE"
    assert rows(*once, "--offset", "700")[-1]["status"] == "OFFSET_OVERFLOW_BADLY"
    nothing = rows(*options, "read", "G_None", "0", "--once", status=1)
    assert nothing[-1]["status"] == "NO_MATCHED_LOGIC_QUEUE"


@pytest.mark.leaves_findings("checksum", "body-crc", why="a byte is changed")
def test_check_tells_findings_and_ends_with_1(tree: GoldenTree, tmp_path: Path) -> None:
    given = settings(tree, tmp_path / "tier")
    invoke(*given, "tier", tree.store)
    assert rows(*given, "check") == []
    log = next((tmp_path / "tier").glob("*/*/G_Orders/0/COMMIT_LOG/*0000"))
    raw = bytearray(log.read_bytes())
    raw[1000] ^= 1
    log.write_bytes(raw)
    found = rows(*given, "check", status=1)
    assert {"finding", "path", "position", "detail"} == found[0].keys()
    assert "checksum" in {row["finding"] for row in found}
    last = invoke(*given, "check", status=1).stdout.splitlines()[-1]
    assert last.endswith(": 1 finding")


@pytest.mark.leaves_findings("journal", "entry-damaged", why="an entry is damaged")
def test_check_goes_on_behind_a_damaged_journal(tree: GoldenTree, tmp_path: Path) -> None:
    given = [*settings(tree, tmp_path / "tier"), "-D", "tieredStoreGroupCommitCount=10"]
    invoke(*given, "tier", tree.store)
    entries = sorted((tmp_path / "tier").glob("*/*/@journal/*"))
    assert len(entries) > 2
    entries[-1].write_bytes(entries[-1].read_bytes()[: Frame.SIZE + 1])
    result = invoke(*given, "check", "--json", status=1)
    kinds = {json.loads(line)["finding"] for line in result.stdout.splitlines()}
    assert {"journal", "entry-damaged"} <= kinds
    assert "@journal" in invoke(*given, "topics", status=1).stderr


def test_config_tells_every_value_with_its_origin(options: list[str]) -> None:
    found = {row["key"]: row for row in rows(*options, "config")}
    assert found.keys() == KEYS.keys()
    assert found["brokerName"]["value"] == "golden-a"
    assert found["brokerName"]["origin"] == "-D"
    assert found["tieredStoreGroupCommitTimeout"]["value"] == 500
    assert found["tieredStoreGroupCommitTimeout"]["unit"] == "ms"
    text = invoke("--conf", ROCKETMQ_533.broker_conf, "config").stdout
    assert "messageStorePlugIn" in text
    assert "changes nothing" in text


def test_config_tells_one_setting_whole() -> None:
    shown = invoke("--tier", "s3://b/t", "config", "tieredStoreGroupCommitTimeout").stdout
    for words in (
        "tieredStoreGroupCommitTimeout = 75000 ms\n",
        "origin    default in an object store\n",
        "default   500 ms; in an object store 75000 ms\n",
        "values    at least 0 ms\n",
        "variable  TIEREDSTORE_TIERED_STORE_GROUP_COMMIT_TIMEOUT\n",
    ):
        assert words in shown
    assert "values    0 to 65535\n" in invoke("config", "tieredStoreMetricsPort").stdout
    (row,) = rows("-D", "flushDiskType=SYNC_FLUSH", "config", "flushDiskType")
    assert (row["value"], row["origin"]) == ("SYNC_FLUSH", "-D")
    assert row["values"] == "ASYNC_FLUSH or SYNC_FLUSH"
    asked = invoke("config", "tieredStoreFilPath", status=2).stderr
    assert "did you mean tieredStoreFilePath" in asked
    assert "no Java heap" in invoke("config", "readAheadCacheSizeThresholdRate", status=2).stderr
    assert "goes with" in invoke("config", "brokerName", "--env", status=2).stderr


def test_config_tells_what_was_changed_and_its_variables(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nreadAheadMinFactor=2\nbrokerId=0\n")
    names = [f"TIEREDSTORE_OBJECT_STORE_{name}_KEY" for name in ("ACCESS", "SECRET")]
    secret = dict.fromkeys(names, "hidden")
    given = ["--conf", str(conf), "-D", "tieredStoreCrcCheckEnable=false", "config", "--changed"]
    shown = CliRunner(env=secret).invoke(cli, given).stdout
    for words in (f"brokerName = b   ({conf}:1)", "readAheadMinFactor", "brokerId", "Secret key"):
        assert words in shown
    assert "brokerClusterName" not in shown
    assert "memory" not in shown
    found = rows(*given)
    assert {row["key"] for row in found if row["used"]} == {
        "brokerName",
        "tieredStoreCrcCheckEnable",
    }
    variables = CliRunner(env=secret).invoke(cli, [*given, "--env"]).stdout
    assert variables.splitlines() == [
        "TIEREDSTORE_BROKER_NAME=b",
        "TIEREDSTORE_TIERED_STORE_CRC_CHECK_ENABLE=false",
        *(f"#{name}=set" for name in names),
    ]
    again = dict(line.split("=", 1) for line in variables.splitlines() if line[0] != "#")
    text = CliRunner(env=again).invoke(cli, ["config", "--env"]).stdout
    assert {line for line in text.splitlines() if line[0] != "#"} == {
        f"{name}={value}" for name, value in again.items()
    }


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_following_ends_cleanly_at_a_signal(
    tree: GoldenTree, tmp_path: Path, number: signal.Signals
) -> None:
    given = settings(tree, tmp_path / "tier")
    command = [*COMMAND, *given, "tier", str(tree.store), "--follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "tier").glob("*/*/@journal/*")):
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    process.send_signal(number)
    out, err = communicated(process)
    assert (process.returncode, complaints(err)) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert sum(row["messages"] for row in found) == len(expected(ROCKETMQ_533, "messages"))
    assert all(row["behind"] == 0 and row["over"] == [] for row in found)
    assert rows(*given, "check") == []


def test_repair_cuts_a_tier_that_is_ahead_and_only_on_a_word(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    given = settings(tree, tmp_path / "ours")
    invoke(*given, "tier", tree.store)
    units = max((tree.store / "consumequeue" / "G_Tx" / "0").iterdir())
    raw = bytearray(units.read_bytes())
    end = 10 * 20
    raw[end:] = bytes(len(raw) - end)  # the broker lost its newest messages
    units.write_bytes(raw)
    stopped = {row["topic"]: row for row in rows(*given, "tier", tree.store, status=1)}
    assert [one["queue_id"] for one in stopped["G_Tx"]["over"]] == [0]
    assert "repair G_Tx 0" in stopped["G_Tx"]["over"][0]["reason"]
    repair = [*given, "repair", "G_Tx", "0", "--cut-to-hot", "--store", str(tree.store)]
    asked = invoke(*repair, status=2)
    assert "offsets 10 to 15" in asked.stderr
    assert "use --yes" in asked.stderr
    assert rows(*repair, "--yes") == [
        {"topic": "G_Tx", "queue_id": 0, "cut_to": 10, "next_offset": 16, "messages": 6}
    ]
    assert "nothing is to be cut" in invoke(*repair, "--yes").stdout
    assert len(rows(*given, "read", "G_Tx", "0")) == 10


def test_a_java_tier_becomes_ours_and_goes_on(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    given = settings(tree, tree.tier)
    found = rows(*given, "metadata", "import", tree.java_metadata)
    assert sum(row["messages"] for row in found) == len(expected(ROCKETMQ_533, "messages"))
    assert rows(*given, "check") == []
    again = rows(*given, "tier", tree.store)
    assert sum(row["messages_new"] for row in again) == 0
    assert rows(*given, "check") == []


@pytest.mark.parametrize(
    "unit",
    [(0, 0, 0), (-(2**62), -(2**31), 0), (2**62, 100, 0), (2**63 - 1, 100, 0), (1, -5, 7)],
    ids=str,
)
def test_a_java_tier_with_an_impossible_unit_is_not_imported(
    tmp_path: Path, unit: tuple[int, int, int]
) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    given = settings(tree, tree.tier)
    _, path = tree.segments(QueueId("G_Orders", 1), "CONSUME_QUEUE")[0]
    raw = bytearray(path.read_bytes())
    struct.pack_into(">qiq", raw, 20 * 7, *unit)
    path.write_bytes(raw)
    refused = invoke(*given, "metadata", "import", tree.java_metadata, status=1)
    assert "G_Orders/1" in refused.stderr
    assert invoke(*given, "topics", status=1).stdout == ""


def test_codas_of_an_old_java_tier_are_imported_with_it(tmp_path: Path) -> None:
    tree = unpack(VARIANTS_520, "closed", tmp_path)
    given = settings(tree, tree.tier)
    before = rows(*given, "topics", "--java-metadata", tree.java_metadata)
    invoke(*given, "metadata", "import", tree.java_metadata)
    assert rows(*given, "check") == []
    after = rows(*given, "topics")
    for one, other in zip(before, after, strict=True):
        assert {**one, "first_timestamp": 0, "last_timestamp": 0} == {
            **other,
            "first_timestamp": 0,
            "last_timestamp": 0,
        }


@pytest.mark.process
@pytest.mark.slow
def test_long_work_shows_its_progress_on_a_terminal_and_its_output_where_it_belongs(
    tmp_path: Path,
) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    given = settings(tree, tree.tier)
    for words, title, output in (
        (["metadata", "import", tree.java_metadata], "importing", "are ours"),
        (["check"], "checking", "nothing is wrong"),
        (["tier", tree.store], "tiering", "G_Orders"),
    ):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [*COMMAND, *given, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env={**os.environ, "TERM": "xterm"},
            check=True,
        )
        os.close(theirs)
        assert title in os.read(ours, 4096).decode(errors="replace")
        os.close(ours)
        assert output in done.stdout
        assert title not in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_more_queues_than_a_shell_allows_open_files_are_tiered(
    tree: GoldenTree, tmp_path: Path
) -> None:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    for queue_id in range(40):
        broker.put("A", queue_id, b"body")
    words = [*settings(tree, tmp_path / "tier"), "tier", str(broker.directory), "--json"]
    command = ["bash", "-c", 'ulimit -Sn 64; exec "$@"', "bash", *COMMAND, *words]
    done = completed(command)
    assert json.loads(done.stdout)["messages"] == 40
