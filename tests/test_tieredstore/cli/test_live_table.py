"""What `tier --follow` shows on a terminal, and `tier` beside its bar."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import QueueState
from dispatcher.statistics import QueueStatistics
from provider.ranges import QueueOffset
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.test_tieredstore.cli.test_follow_reports import statistics
from tieredstore.cli.live_table import Rate, columns_for, cut_off, head_of, listed
from tieredstore.metrics.summary import TopicSummary


def test_the_head_tells_backlog_lag_and_what_is_left() -> None:
    done = QueueOffset(10)
    late = QueueStatistics(QueueId("T", 0), QueueState.READY, "", done, done, 90_000, 75.0, 0)
    up_to_date = head_of(statistics(messages=5), 2.0)
    assert up_to_date == "5 messages tiered · up to date · 2 a second"
    assert head_of(statistics(late, messages=1500, next_commit_s=41.2), 0.0) == (
        "1,500 messages tiered · next commit in 41 s · 90,000 behind, the oldest for 75 s"
    )
    assert head_of(statistics(late, messages=1500), 25.0) == (
        "1,500 messages tiered · 90,000 behind, the oldest for 75 s · 25 a second · 1:00:00 to go"
    )


@pytest.mark.parametrize(
    ("width", "lost", "columns"),
    [
        (100, True, "topic queues messages new size behind lost"),
        (80, False, "topic queues messages new size behind"),
        (79, False, "topic messages new size behind"),
        (60, True, "topic messages new behind lost"),
        (40, False, "topic messages behind"),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns(width: int, columns: str, *, lost: bool) -> None:
    assert columns_for(width, are_lost=lost) == columns.split()


def test_long_topics_are_cut_off_and_numbers_never() -> None:
    rows = [["订单" * 30, "12,345"], ["short", "1"]]
    cut = cut_off(["topic", "new"], rows, 30)
    assert cut == [["订单" * 4 + "…", "12,345"], ["short", "1"]]
    assert cut_off(["topic", "new"], rows, 5)[0] == ["订单订…", "12,345"]
    assert cut_off(["topic", "new"], [], 30) == []


def test_the_rate_is_of_the_last_looks() -> None:
    rate = Rate()
    for second in range(20):
        rate.add(float(second), 0 if second < 10 else 1000 * (second - 9))
    assert rate.per_second == 1000


def test_topics_in_need_of_a_look_come_onto_a_small_screen_first() -> None:
    topics = [TopicSummary(f"T{number}") for number in range(6)]
    topics[5].over.append((0, "stopped", "why"))
    topics[3].behind = 7
    topics[1].messages_new = 2
    shown, more = listed(topics, 3)
    assert ([one.topic for one in shown], more) == (["T1", "T3", "T5"], "and 3 more topics; ")
    assert listed(topics, 9) == (topics, "")


class Terminal:
    """A pseudo terminal, and what was written to it."""

    def __init__(self, columns: int = 100, rows: int = 30) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.written = ""

    def read_until(self, words: str) -> None:
        """Read until `words` were written, or the other side is closed."""
        while words not in self.written:
            try:
                raw = os.read(self.ours, 65536)
            except OSError:  # nobody has it open any more
                raw = b""
            if not raw:
                return
            self.written += raw.decode()

    def run(self, *arguments: str | Path) -> "subprocess.Popen[bytes]":
        """Start a command on it."""
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(self.theirs)
        return process


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store")
    for _ in range(3):
        broker.put("Orders", 0)
    return broker


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    return ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]


def test_a_follower_shows_a_table_on_a_terminal_and_log_lines_above_it(
    broker: FakeBroker, given: list[str]
) -> None:
    terminal = Terminal()
    process = terminal.run(*given, "tier", broker.directory, "--follow")
    terminal.read_until("3 messages tiered · up to date")
    (broker.directory / "consumequeue" / "Orders" / "stranger").mkdir()
    broker.put("Orders", 0)
    terminal.read_until("stranger")
    terminal.read_until("4 messages tiered · up to date")
    process.send_signal(signal.SIGINT)
    terminal.read_until("\0")
    assert process.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.written)
    assert re.search(r"^ Orders +1 +3 +3 +\d+ B", plain, re.MULTILINE)
    assert "Ctrl-C commits what is waiting and ends" in plain
    for said in ("WARNING ", "INFO    stopped: tiered 4 messages"):
        (line,) = [line for line in terminal.written.splitlines() if said in line]
        assert "\x1b[2K" in line  # the table was taken away for it, and drawn again below
    assert terminal.written.count("\x1b[?25l") == terminal.written.count("\x1b[?25h")


@pytest.mark.process
def test_a_terminal_that_is_closed_ends_a_follower_cleanly(
    broker: FakeBroker, given: list[str]
) -> None:
    terminal = Terminal()
    process = terminal.run(*given, "tier", broker.directory, "--follow")
    terminal.read_until("3 messages tiered · up to date")
    os.close(terminal.ours)
    broker.put("Orders", 0)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 0
    assert [row["commit_offset"] for row in run(*given, "topics", "--json").rows] == [4]


def test_json_logs_are_not_mixed_with_a_table(broker: FakeBroker, given: list[str]) -> None:
    terminal = Terminal()
    words = ["--log-format", "json", *given, "tier", broker.directory, "--follow", "--json"]
    process = terminal.run(*words)
    terminal.read_until("this process owns the tier")
    process.send_signal(signal.SIGTERM)
    terminal.read_until("\0")
    assert process.wait() == 0
    assert "\x1b" not in terminal.written


@pytest.mark.process
@pytest.mark.slow
def test_a_store_of_our_own_shows_the_same_table(given: list[str], tmp_path: Path) -> None:
    own = [*given, "-D", f"storePathRootDir={tmp_path / 'own'}"]
    run(*own, "put", "Orders", "one", "two", "three")
    terminal = Terminal()
    process = terminal.run(*own, "run")
    terminal.read_until("3 messages tiered · up to date")
    process.send_signal(signal.SIGINT)
    terminal.read_until("\0")
    assert process.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.written)
    assert re.search(r"^ Orders +1 +3 +3 +\d+ B", plain, re.MULTILINE)
    assert terminal.written.count("\x1b[?25l") == terminal.written.count("\x1b[?25h")
