"""The console as a process, beside tiering, without its extra, and in a real browser."""

import asyncio
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provider.clock import SystemClock
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port, get
from tests.support.lacking import lacks
from tests.support.patience import Patience, communicated, until, wait_until
from tieredstore import console as console_room
from tieredstore import follow
from tieredstore.config.effective import Config
from tieredstore.console import server
from tieredstore.console.options import console_beside
from tieredstore.lifetime import running

NAMES = ("-D", "brokerClusterName=C", "-D", "brokerName=b")
ALERT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
PLUGIN = "org.apache.rocketmq.tieredstore.TieredMessageStore"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def tiered(directory: Path, topics: int = 1) -> Path:
    """A tier of `topics` topics with one message each."""
    broker = FakeBroker(directory / "store")
    for number in range(topics):
        broker.put(f"topic-{number:04}", 0, ALERT.encode())
    run(*NAMES, "--tier", directory / "tier", "tier", broker.directory)
    return directory / "tier"


@contextmanager
def served(*words: str | Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A process that serves the console at a port, from when it answers."""
    port = free_port()
    with subprocess.Popen(
        [*COMMAND, *map(str, words), "-D", f"tieredStoreConsolePort={port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            patience = Patience("it does not answer", pids=[process.pid])
            wait_until(lambda: get(port, "/")[0] == 200, patience)
            yield port, process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("command", ["console", "tier", "run", "serve"])
def test_a_process_serves_the_pages_until_a_signal(tmp_path: Path, command: str) -> None:
    tier = tiered(tmp_path)
    words = {
        "console": ["console", tier],
        "tier": ["tier", "--follow", tmp_path / "store"],
        "run": [
            "run",
            "-D",
            f"messageStorePlugIn={PLUGIN}",
        ],
        "serve": ["serve", "-D", f"tieredStoreServePort={free_port()}"],
    }[command]
    store = ("-D", f"storePathRootDir={tmp_path / 'own'}") if command == "run" else ()
    place = tmp_path / "tier-of-run" if command == "run" else tier
    with served(*words, *NAMES, "-D", f"tieredStoreFilePath={place}", *store) as (port, process):
        assert get(port, "/b/C/b")[0] == 200
        process.send_signal(signal.SIGTERM)
        _, err = communicated(process)
    assert process.returncode == 0, err
    assert f"the console is at http://127.0.0.1:{port}/" in err


async def test_a_port_that_is_taken_stops_no_tiering_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RETRY_S", 0.05)
    broker, port = FakeBroker(tmp_path / "store"), free_port()
    broker.put("A", 0, b"first")
    given = {"tieredStoreConsolePort": port}
    config = Config.named(tmp_path / "tier", "C", "b", None, given)
    console = console_beside([config], SystemClock())
    assert console is not None
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        async with (
            follow(tmp_path / "store", tmp_path / "tier", cluster="C", broker="b") as follower,
            running([follower.run, console.run]),
        ):
            refused = Patience("it is not refused")
            await until(lambda: "already in use" in console.unready_reason(), refused)
            assert (await follower.drain()).messages == 1
            other.close()
            await until(lambda: not console.unready_reason(), Patience(console.unready_reason))
            assert (await asyncio.to_thread(get, port, "/b/C/b/t/A"))[0] == 200
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    (error,) = errors
    assert f"port {port}" in error


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = tiered(tmp_path)
    monkeypatch.delattr(console_room, "server")
    monkeypatch.delitem(sys.modules, "tieredstore.console.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = run("console", tier, status=2)
    assert "pip install 'tieredstore[console]'" in done.err


def test_an_address_that_cannot_be_listened_at_is_named(tmp_path: Path) -> None:
    tier = tiered(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("console", tier, "-D", f"tieredStoreConsolePort={port}", status=2)
    assert f"127.0.0.1 port {port}" in done.err


@pytest.mark.slow
@pytest.mark.process
def test_a_browser_shows_a_thousand_queues_and_runs_no_script_of_a_message(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        lacks("A real browser needs Chromium, as `apt-get install chromium`.")
    tier = tiered(tmp_path, 1000)
    with served("console", tier) as (port, _):

        def shown(path: str) -> str:
            words = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")
            profile = f"--user-data-dir={tmp_path / 'browser'}"
            url = f"http://127.0.0.1:{port}{path}"
            done = subprocess.run(
                [browser, *words, profile, url],
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            )
            return done.stdout

        page = shown("/b/C/b")
        assert len(re.findall(r"<tr>", page)) == 101
        assert "Page 1 of 10" in page
        message = shown("/b/C/b/t/topic-0000/0/0")
        assert "<title>topic-0000/0 0 - tieredstore</title>" in message
        assert "&lt;script&gt;document.title" in message
        assert "<img" not in message
