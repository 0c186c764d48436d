"""`run` keeps the configured store open: it appends, tiers, and ends cleanly at a signal."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.cli import COMMAND, complaints, run
from tests.support.golden import ROCKETMQ_533
from tests.support.http import free_port, get
from tests.support.odd_s3 import OddS3, Refusal
from tests.support.patience import Patience, communicated, wait_until
from tieredstore.cli.main import cli
from tieredstore.cli.signals import ECHO_S
from tieredstore.hot.log.directory import StoreDirectory

HANGING = """
import asyncio
from tieredstore import ForwardingMessageStore, MessageRefused

class Hanging(ForwardingMessageStore):
    def __init__(self, context, inner):
        super().__init__(inner)

    async def stop(self):
        print("hanging", flush=True)
        await asyncio.Event().wait()
"""

AWAY = Refusal(status=400, code="ExpiredToken")


def options(tmp_path: Path, **more: object) -> list[str]:
    given: dict[str, object] = {
        "storePathRootDir": tmp_path / "store",
        "tieredStoreFilePath": tmp_path / "tier",
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 65536,
        "mappedFileSizeConsumeQueue": 2000,
        "tieredStoreGroupCommitTimeout": 20,
        "flushIntervalCommitLog": 10,
        **more,
    }
    return [part for key, value in given.items() for part in ("-D", f"{key}={value}")]


@contextmanager
def started(
    words: list[str], environment: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """A process, which is killed if the test leaves it running."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def asked(process: "subprocess.Popen[str]", line: str) -> dict[str, Any]:
    """Give the process a line, and take its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    return json.loads(process.stdout.readline())


def tiered(tmp_path: Path) -> int:
    """Messages in the tier; 0 while there is none."""
    done = run("-D", f"tieredStoreFilePath={tmp_path / 'tier'}", "topics", "--json", status=None)
    return sum(row["commit_offset"] - row["min_offset"] for row in done.rows) if done.out else 0


@pytest.mark.process
@pytest.mark.slow
def test_what_it_is_given_is_answered_and_tiered_and_a_signal_ends_it(tmp_path: Path) -> None:
    port = free_port()
    with started([*options(tmp_path, tieredStoreMetricsPort=port), "run", "--put"]) as process:
        first = asked(process, '{"topic": "Orders", "body": "one"}')
        assert (first["line"], first["topic"], first["queue_offset"]) == (1, "Orders", 0)
        assert asked(process, "hello")["error"].startswith("this is no JSON")
        assert asked(process, '{"body": "x"}') == {
            "line": 3,
            "error": "the message names no topic",
        }
        second = asked(process, '{"topic": "Orders", "queue_id": 3, "body": "two"}')
        assert (second["line"], second["queue_id"], second["queue_offset"]) == (4, 3, 0)
        wait_until(lambda: tiered(tmp_path) == 2, Patience("not tiered", pids=[process.pid]))
        status, page = get(port, "/metrics")
        assert status == 200
        assert "rocketmq_tiered_store_messages_dispatch_total{" in page
        # While it runs, nobody else writes the store.
        writer = f"tieredstore: Process {process.pid} on {socket.gethostname()} (since 20"
        sentence = f"Z) writes the store {tmp_path / 'store'}: stop it first\n"
        for words in (["put", "Orders", "x"], ["run", "-D", f"tieredStoreFilePath={tmp_path}/b"]):
            refused = run(*options(tmp_path), *words, status=4)
            assert refused.complaints.startswith(writer)
            assert refused.complaints.endswith(sentence)
        assert not (tmp_path / "b").exists()
        process.send_signal(signal.SIGTERM)
        out, err = communicated(process)
    assert (process.returncode, out, complaints(err)) == (0, "", "")
    assert "appended 2 messages: Orders/0 up to offset 0, Orders/3 up to offset 0" in err
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.process
@pytest.mark.slow
def test_the_end_of_its_input_ends_nothing_and_what_waits_is_tiered_at_the_end(
    tmp_path: Path,
) -> None:
    run(*options(tmp_path), "put", "Orders", "one", "two")
    given = options(tmp_path, tieredStoreGroupCommitTimeout=600_000)
    with started([*given, "run", "--json"]) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        said = [process.stderr.readline() for _ in range(2)]
        assert " this process owns the tier " in said[1]
        process.send_signal(signal.SIGINT)
        out, err = communicated(process)
    assert (process.returncode, complaints(err)) == (0, "")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (row["topic"], row["messages_new"], row["behind"]) == ("Orders", 2, 0)
    assert tiered(tmp_path) == 2


@pytest.mark.process
@pytest.mark.slow
def test_a_second_signal_ends_it_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "acme_hanging.py").write_text(HANGING)
    given = options(
        tmp_path,
        messageStorePlugIn="acme_hanging.Hanging,tieredstore.TieredMessageStore",
        flushDiskType="SYNC_FLUSH",
    )
    with started([*given, "run", "--put"], {"PYTHONPATH": str(tmp_path)}) as process:
        assert process.stdout is not None
        assert asked(process, '{"topic": "Orders", "body": "one"}')["queue_offset"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "hanging\n"
        time.sleep(2 * ECHO_S)  # an earlier one counts as the same request
        process.send_signal(signal.SIGTERM)
        communicated(process)
    assert process.returncode == 143
    assert (tmp_path / "store" / "abort").exists()
    done = run(*options(tmp_path), "put", "Orders", "two")
    assert done.out == "Orders\t0\t1\n"


@pytest.mark.process
@pytest.mark.slow
def test_a_standby_that_waits_ends_at_the_first_signal(tmp_path: Path) -> None:
    elsewhere = options(tmp_path, storePathRootDir=tmp_path / "elsewhere")
    with started([*options(tmp_path), "run"]) as first:
        assert first.stderr is not None
        assert any("this process owns the tier" in line for line in first.stderr)
        with started([*elsewhere, "run", "--standby"]) as second:
            assert second.stderr is not None
            waits = f"standing by: process {first.pid} on "
            assert any(waits in line for line in second.stderr)
            second.send_signal(signal.SIGTERM)
            out, err = communicated(second)
        assert (second.returncode, out, complaints(err)) == (0, "", "")
        assert first.poll() is None


@pytest.mark.process
@pytest.mark.slow
def test_the_file_of_a_java_broker_starts_it(tmp_path: Path) -> None:
    """With its plug-in's Java name, its sizes, and keys that only a broker knows."""
    words = [
        *("--conf", str(ROCKETMQ_533.broker_conf)),
        *("-D", f"storePathRootDir={tmp_path / 'store'}"),
        *("-D", f"storePathCommitLog={tmp_path / 'log'}"),
        *("-D", f"tieredStoreFilePath={tmp_path / 'tier'}"),
        *("-D", "flushIntervalCommitLog=10", "-D", "tieredStoreGroupCommitTimeout=20"),
    ]
    with started([*words, "run", "--put"]) as process:
        answer = asked(process, '{"topic": "Orders", "body": "one"}')
        assert answer["queue_offset"] == 0
        wait_until(lambda: tiered(tmp_path) == 1, Patience("not tiered", pids=[process.pid]))
        process.send_signal(signal.SIGTERM)
        _, err = communicated(process)
    assert (process.returncode, complaints(err)) == (0, "")
    (log,) = (tmp_path / "log").iterdir()
    assert log.stat().st_size == 1048576
    assert not (tmp_path / "store" / "commitlog").exists()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"tieredStorageLevel": "DISABLE"}, "nothing is tiered: tieredStorageLevel is DISABLE"),
        ({"messageStorePlugIn": ","}, "nothing is tiered: messageStorePlugIn names no Tiered"),
    ],
)
def test_a_store_without_a_tier_is_said_and_works(
    tmp_path: Path, setting: dict[str, object], words: str
) -> None:
    with started([*options(tmp_path, **setting), "run", "--put"]) as process:
        assert asked(process, '{"topic": "Orders", "body": "one"}')["queue_offset"] == 0
        process.send_signal(signal.SIGTERM)
        _, err = communicated(process)
    assert process.returncode == 0
    assert words in complaints(err)
    assert not list((tmp_path / "tier").glob("*/*/@journal/*"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"messageStorePlugIn": "org.apache.acme.Store"}, "is a Java class, which is not loaded"),
        ({"tieredStoreFilePath": ""}, "tieredStoreFilePath is not set"),
        ({"tieredStoreFilePath": "{}/store/tier"}, "lie inside one another"),
        ({"brokerName": ""}, "brokerName is not set"),
        ({"diskMaxUsedSpaceRatio": 95}, "diskMaxUsedSpaceRatio 0.95"),
    ],
)
def test_what_cannot_work_is_said_and_leaves_the_store_closed(
    tmp_path: Path, setting: dict[str, object], words: str
) -> None:
    given = {name: str(value).format(tmp_path) for name, value in setting.items()}
    done = CliRunner().invoke(cli, [*options(tmp_path, **given), "run"])
    assert done.exit_code == 2
    assert words in complaints(done.stderr)
    assert not (tmp_path / "store" / "abort").exists()
    StoreDirectory(tmp_path / "store").close()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_stop_while_the_tier_is_away_says_what_is_not_in_it(
    tmp_path: Path, *, is_noticed: bool
) -> None:
    given = options(tmp_path, tieredStoreShutdownTimeout=1000)
    with started([*given, "run", "--put"]) as process:
        assert asked(process, '{"topic": "Orders", "body": "one"}')["queue_offset"] == 0
        wait_until(lambda: tiered(tmp_path) == 1, Patience("not tiered", pids=[process.pid]))
        (tmp_path / "tier").rename(tmp_path / "away")
        assert asked(process, '{"topic": "Orders", "body": "two"}')["queue_offset"] == 1
        if is_noticed:  # then its journal is known to be gone
            assert process.stderr is not None
            assert any("nothing reaches the tier at present" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, err = communicated(process)
    assert process.returncode == 3
    assert "tieredstore: 1 message of 1 queue are not in the tier: " in err
    assert "; the next start continues there" in err
    assert not (tmp_path / "store" / "abort").exists(), "the store was closed all the same"
    (tmp_path / "away").rename(tmp_path / "tier")
    with started([*given, "run"]) as process:
        wait_until(lambda: tiered(tmp_path) == 2, Patience("not tiered", pids=[process.pid]))
        process.send_signal(signal.SIGTERM)
        out, err = communicated(process)
    assert (process.returncode, complaints(err)) == (0, "")
    assert " Orders" in out


@contextmanager
def reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[OddS3]:
    """An S3 that commands find by the environment."""
    with OddS3() as server:
        for name, value in {**server.environment, "XDG_RUNTIME_DIR": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        yield server


def s3_options(tmp_path: Path, port: int, **more: object) -> list[str]:
    place = {"tieredStoreFilePath": "s3://odd/t", "tieredStoreMetricsPort": port}
    return options(tmp_path, **place, **more)


@pytest.mark.process
@pytest.mark.slow
def test_a_tier_that_is_away_at_the_start_is_waited_for_while_puts_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    given = s3_options(tmp_path, port)
    with reached(monkeypatch, tmp_path) as server:
        run(*given, "put", "Orders", "zero")
        server.odd.refusals.append(AWAY)
        with started([*given, "run", "--put"]) as process:
            assert asked(process, '{"topic": "Orders", "body": "one"}')["queue_offset"] == 1
            status, page = get(port, "/readyz")
            assert (status, "the tier is away: " in page) == (503, True)
            server.odd.refusals.clear()
            wait_until(
                lambda: get(port, "/readyz")[0] == 200, Patience("not ready", pids=[process.pid])
            )
            assert asked(process, '{"topic": "Orders", "body": "two"}')["queue_offset"] == 2
            process.send_signal(signal.SIGTERM)
            _, err = communicated(process)
        assert process.returncode == 0
        assert "not ready: " in err
        assert "the tier answers" in err
        read = run(*given, "read", "Orders", "0", "--json")
        assert [row["body"] for row in read.rows] == ["zero", "one", "two"]


@pytest.mark.process
@pytest.mark.slow
def test_a_tier_that_stays_away_ends_a_start_with_3_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = s3_options(tmp_path, 0)
    with reached(monkeypatch, tmp_path) as server:
        run(*given, "put", "Orders", "zero")
        server.odd.refusals.append(AWAY)
        with started([*given, "run", "--put"]) as process:
            assert asked(process, '{"topic": "Orders", "body": "one"}')["queue_offset"] == 1
            process.send_signal(signal.SIGTERM)
            _, err = communicated(process)
        assert process.returncode == 3
        assert "what was put is not in the tier, which was away since the start" in err
        limit = ("-D", "tieredStoreStartTimeout=5000")
        with started([*given, *limit, "run", "--put"]) as process:
            assert asked(process, '{"topic": "Orders", "body": "two"}')["queue_offset"] == 2
            ended = Patience("it does not end", pids=[process.pid])
            wait_until(lambda: process.poll() is not None, ended)
            _, err = communicated(process)
        assert process.returncode == 3
        assert "tieredStoreStartTimeout" in err.splitlines()[-1]
        server.odd.refusals.clear()
        with started([*given, "run", "--put"]) as process:
            assert asked(process, '{"topic": "Orders", "body": "three"}')["queue_offset"] == 3
            process.send_signal(signal.SIGTERM)
            communicated(process)
        assert process.returncode == 0
        read = run(*given, "read", "Orders", "0", "--json")
        assert [row["body"] for row in read.rows] == ["zero", "one", "two", "three"]
