"""Every exit status: its meaning in `--help` and `docs/command-line.md`, and a run with it."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import tieredstore.sync
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.patience import HANGS_AFTER_S, communicated
from tieredstore.cli.failures import explain
from tieredstore.cli.main import cli
from tieredstore.cli.signals import ENDING, EndingSignals, answer_watchdog
from tieredstore.cli.streams import MEANINGS

PAGE = Path(__file__).parents[3] / "docs/command-line.md"
HELD = """
import asyncio
import tieredstore.cli.signals
from tieredstore.follower import Follower

async def held(*_, **__):
    print("held", flush=True)
    await asyncio.Event().wait()

Follower.{method} = held
tieredstore.cli.signals.ECHO_S = 0.0

from tieredstore.__main__ import main

main()
"""
"""A command line whose follower never comes to the end of one of its methods."""


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store")
    broker.put("T", 0)
    return broker


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    return ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]


def held(method: str, *words: str | Path) -> "subprocess.Popen[str]":
    """A process whose follower hangs in `method`."""
    return subprocess.Popen(
        [sys.executable, "-c", HELD.format(method=method), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hangs(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "held\n"


def test_the_page_and_help_have_one_table() -> None:
    rows = re.findall(r"^\| ([0-9, ]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == dict(MEANINGS)
    shown = " ".join(CliRunner().invoke(cli, ["--help"]).output.split())
    for status, meaning in MEANINGS.items():
        assert f"{status} {meaning}" in shown


def test_0_success(broker: FakeBroker, given: list[str]) -> None:
    assert run(*given, "tier", broker.directory).complaints == ""


def test_1_findings(broker: FakeBroker, given: list[str]) -> None:
    run(*given, "tier", broker.directory)
    assert "Nope" in run(*given, "read", "Nope", "0", status=1).err


@pytest.mark.parametrize("words", [["tier", "none"], ["tier"], ["tire"], ["tier", "--fallow"]])
def test_2_wrong_use(given: list[str], words: list[str]) -> None:
    assert len(run(*given, *words, status=2).complaints.splitlines()) == 1


@pytest.mark.process
@pytest.mark.slow
def test_3_storage_unavailable(broker: FakeBroker, given: list[str]) -> None:
    run(*given, "tier", broker.directory)
    with Path("/dev/full").open("wb") as full:
        for words in (["topics"], ["tier", str(broker.directory)]):
            done = subprocess.run([*COMMAND, *given, *words], stdout=full, check=False)
            assert done.returncode == 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (MemoryError("Unable to allocate 4.00 MiB for an array"), "out of memory"),
        (RuntimeError("can't start new thread"), "limit of processes"),
    ],
)
def test_3_memory_unavailable(error: BaseException, words: str) -> None:
    status, sentence = explain(error)
    assert (status, words in sentence, "bug" in sentence) == (3, True, False)


def test_4_another_owner(broker: FakeBroker, given: list[str], tmp_path: Path) -> None:
    with tieredstore.sync.follow(broker.directory, tmp_path / "tier", broker="b"):
        assert "owns the tier and lives" in run(*given, "tier", broker.directory, status=4).err


def test_70_a_bug(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.config.effective.Config.load", lambda **_: 1 / 0)
    result = CliRunner().invoke(cli, [*given, "config"])
    assert (result.exit_code, "a bug of tieredstore's" in result.stderr) == (70, True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "word"),
    [
        (signal.SIGHUP, "ended by SIGHUP"),
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "terminated"),
    ],
)
def test_129_130_143_a_signal_ends_a_run_and_says_how_far_it_came(
    broker: FakeBroker, given: list[str], number: signal.Signals, word: str
) -> None:
    process = held("drain", *given, "tier", broker.directory)
    assert hangs(process)
    process.send_signal(number)
    _, err = communicated(process)
    assert process.returncode == 128 + number
    assert err.splitlines()[-1].startswith(f"tieredstore: {word}: tiered 0 messages")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_follower_at_once(
    broker: FakeBroker, given: list[str], number: signal.Signals
) -> None:
    process = held("stop", *given, "tier", broker.directory, "--follow")
    assert process.stderr is not None
    while "this process owns the tier" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert hangs(process)  # it is committing what waits
    process.send_signal(number)
    _, err = communicated(process)
    assert process.returncode == 128 + number
    assert "a second signal ends at once" in err
    run(*given, "tier", broker.directory)  # takes the tier without a word


@pytest.mark.process
def test_nohup_keeps_a_follower_from_ending_at_sighup(broker: FakeBroker, given: list[str]) -> None:
    command = ["nohup", *COMMAND, *given, "tier", str(broker.directory), "--follow"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "this process owns the tier" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)  # the first that counts: a second one would end at once
    _, err = communicated(process)
    assert (process.returncode, "none is waiting" in err) == (0, True)


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from tieredstore.__main__ import main

main()
"""


@pytest.mark.process
def test_ctrl_c_while_modules_are_loaded_shows_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "config"], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


async def test_signals_that_come_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` and `make` signal a process and its group: the command gets two for one."""
    ended: list[int] = []
    asked: list[str] = []
    taken = asyncio.Event()
    times = iter((5.0, 5.1, 5.5))

    def now_s() -> float:
        taken.set()
        return next(times)

    monkeypatch.setattr(os, "_exit", ended.append)
    loop = asyncio.get_running_loop()
    EndingSignals(lambda: asked.append("asked"), now_s=now_s)
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
            await taken.wait()
            taken.clear()
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
    assert (asked, ended) == (["asked"], [128 + signal.SIGHUP])


async def test_a_watchdog_hears_a_loop_that_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, address = asyncio.get_running_loop(), str(tmp_path / "notify@run")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.setblocking(False)  # noqa: FBT003 - the library's own
        supervisor.bind(address)
        for period_us, pid in (("0", ""), ("no", ""), ("20000", "1")):
            monkeypatch.setenv("WATCHDOG_USEC", period_us)
            monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))
            answer_watchdog()
        with pytest.raises(BlockingIOError):
            supervisor.recv(64)
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        answer_watchdog()
        assert [await loop.sock_recv(supervisor, 64) for _ in range(3)] == [b"WATCHDOG=1"] * 3


@pytest.mark.process
def test_a_follower_answers_the_watchdog_while_it_opens(
    broker: FakeBroker, given: list[str]
) -> None:
    name = f"tieredstore-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(f"\0{name}")
        supervisor.settimeout(HANGS_AFTER_S)
        environment = {**os.environ, "NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "100000"}
        words = [*COMMAND, *given, "tier", str(broker.directory), "--follow"]
        process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
        assert [supervisor.recv(64) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        process.terminate()
        communicated(process)
    assert process.returncode == 0
