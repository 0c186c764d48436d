"""`put` appends what it is given, says where, and what it did when it cannot go on."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.names.queue_id import QueueId
from provider.testing.manual_clock import ManualClock
from tests.support.cli import COMMAND, run, settings
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.hot_store import appender_at, contents
from tests.support.patience import communicated, completed
from tieredstore.cli.main import cli
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.hot.options import HotWriteOptions

FILES = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 2000}
OPTIONS = HotWriteOptions(commit_log_bytes=65536, consume_queue_bytes=2000)


def options(tmp_path: Path, **more: object) -> list[str]:
    given = {"storePathRootDir": tmp_path / "store", **FILES, **more}
    return [part for key, value in given.items() for part in ("-D", f"{key}={value}")]


def put(tmp_path: Path, *words: str, **more: object) -> Result:
    return CliRunner().invoke(cli, [*options(tmp_path, **more), "put", *words])


def piped(tmp_path: Path, text: bytes | str, *words: str) -> "subprocess.CompletedProcess[str]":
    raw = text.encode() if isinstance(text, str) else text
    (tmp_path / "input").write_bytes(raw)
    with (tmp_path / "input").open("rb") as file:
        return completed([*COMMAND, *options(tmp_path), "put", *words], stdin=file)


def stored(tmp_path: Path) -> dict[QueueId, list[bytes]]:
    with appender_at(tmp_path / "store", OPTIONS) as appender:
        return {queue: [one.body for one in all_] for queue, all_ in contents(appender).items()}


def test_each_argument_is_a_message_with_the_options_of_all(tmp_path: Path) -> None:
    words = ["--queue", "2", "--tags", "T", "--keys", "a b", "--property", "x=1=2"]
    done = put(tmp_path, "Orders", "hello", "wörld", *words)
    assert (done.exit_code, done.stdout) == (0, "Orders\t2\t0\nOrders\t2\t1\n")
    assert not (tmp_path / "store" / "abort").exists(), "the store was closed"
    with appender_at(tmp_path / "store", OPTIONS) as appender:
        first, second = contents(appender)[QueueId("Orders", 2)]
    assert (first.body, second.body) == (b"hello", "wörld".encode())
    assert (first.tags, first.keys, first.property_map["x"]) == ("T", ["a", "b"], "1=2")


@pytest.mark.process
@pytest.mark.slow
def test_each_line_of_standard_input_is_a_message_and_empty_ones_are_none(tmp_path: Path) -> None:
    done = piped(tmp_path, b"one\n\n\xfftwo\nthree", "Orders")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Orders\t0\t0\nOrders\t0\t1\nOrders\t0\t2\n"
    assert stored(tmp_path) == {QueueId("Orders", 0): [b"one", b"\xfftwo", b"three"]}


@pytest.mark.process
@pytest.mark.slow
def test_what_read_prints_put_copies(tmp_path: Path) -> None:
    """A whole topic with its queues, properties, hosts, flags and times of birth."""
    tree = unpacked(ROCKETMQ_533)
    tier, copied = tmp_path / "tier", tmp_path / "copied"
    run(*settings(tree, tier), "tier", tree.store)
    lines = run(*settings(tree, tier), "read", "G_Orders", "--json").out
    done = piped(tmp_path, lines, "Copy", "--json", "--property", "copied=yes")
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["line"] for one in answers] == list(range(1, 2401))
    names = ("-D", "brokerName=c", "-D", f"tieredStoreFilePath={copied}")
    run(*names, "tier", tmp_path / "store")
    again = run(*names, "read", "Copy", "--json").rows
    before = [json.loads(line) for line in lines.splitlines()]
    for row in before:
        row["properties"]["copied"] = "yes"
    same = (
        *("queue_id", "queue_offset", "born_timestamp", "born_host", "store_host", "flag"),
        *("sys_flag", "reconsume_times", "properties", "body", "body_base64"),
    )
    assert [[row.get(name) for name in same] for row in again] == [
        [row.get(name) for name in same] for row in before
    ]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "words", "sentence"),
    [
        ('{"body":"a"}\n\nhello\n{"body":"b"}\n', ["--json"], "line 3: this is no JSON"),
        ('{"body":"a"}\n{"body":"b","queue_id":-1}', ["--json"], "line 2: the queue id is -1"),
    ],
)
def test_a_bad_line_is_named_and_all_before_it_are_there(
    tmp_path: Path, lines: str, words: list[str], sentence: str
) -> None:
    done = piped(tmp_path, lines, "Orders", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tieredstore: {sentence}")
    assert len(done.stderr.splitlines()) == 1
    assert stored(tmp_path) == {QueueId("Orders", 0): [b"a"]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Orders", "x", "--property", "novalue"], "it is name=value, not 'novalue'"),
        (["Orders", "x", "--property", "=v"], "it is name=value"),
        (["a/b", "x"], "this is no topic"),
        (["Orders", "x", "--queue", "-1"], "less than 0"),
        (["Orders", "x", "--property", "a\2b=c"], "the properties cannot be stored"),
    ],
)
def test_misuse_is_said_and_appends_nothing(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    done = put(tmp_path, *words)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stdout == ""


def test_the_store_must_be_named() -> None:
    done = CliRunner().invoke(cli, ["put", "Orders", "x"])
    assert done.exit_code == 2
    assert "the store is not named: give storePathRootDir" in done.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"storeType": "defaultRocksDB"}, "our own hot log writes its ConsumeQueues as files"),
        ({"enableDLegerCommitLog": "true"}, "our own hot log writes no DLedger"),
        ({"messageStorePlugIn": "nothing.there.Store"}, "the plug-in nothing.there.Store"),
        ({"maxMessageSize": 2}, "more than 2 (maxMessageSize)"),
        ({"mappedFileSizeCommitLog": 32768}, "65536"),
    ],
)
def test_what_the_store_cannot_be_is_said(
    tmp_path: Path, setting: dict[str, object], words: str
) -> None:
    assert put(tmp_path, "Orders", "x").exit_code == 0
    done = put(tmp_path, "Orders", "hello", **setting)
    assert done.exit_code == 2
    assert words in done.stderr
    assert stored(tmp_path) == {QueueId("Orders", 0): [b"x"]}


def test_a_store_that_another_process_writes_is_refused_by_its_name(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path / "store")
    directory.begin(ManualClock(1_795_262_400_000))
    try:
        done = put(tmp_path, "Orders", "x")
    finally:
        directory.close()
    assert (done.exit_code, done.stdout) == (4, "")
    writer = f"Process {os.getpid()} on {socket.gethostname()} (since 2026-11-21T12:00:00Z)"
    sentence = f"{writer} writes the store {tmp_path / 'store'}: stop it first"
    assert done.stderr == f"tieredstore: {sentence}\n"


@pytest.mark.process
@pytest.mark.slow
def test_a_signal_ends_it_behind_what_was_read_and_says_what_is_there(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, *options(tmp_path), "put", "Orders"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("one\ntwo\n")
    assert [process.stdout.readline() for _ in range(2)] == ["Orders\t0\t0\n", "Orders\t0\t1\n"]
    process.send_signal(signal.SIGINT)
    _, err = communicated(process)
    assert process.returncode == 130
    assert err == "tieredstore: interrupted: appended 2 messages: Orders/0 up to offset 1\n"
    assert not (tmp_path / "store" / "abort").exists(), "the store was closed"
    assert stored(tmp_path) == {QueueId("Orders", 0): [b"one", b"two"]}
