"""The page that a Prometheus server reads, from a real `tier --follow`."""

import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, run, settings
from tests.support.golden import ROCKETMQ_533, unpacked

TRIES_MAX = 200


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def value_of(text: str, name: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def wait_for_messages(port: int, count: int, process: "subprocess.Popen[str]") -> str:
    """The first page that says that `count` messages were tiered."""
    for _ in range(TRIES_MAX):
        assert process.poll() is None
        try:
            text = page(port)
        except (urllib.error.URLError, ConnectionError):
            text = ""
        if value_of(text, "rocketmq_tiered_store_messages_dispatch_total") >= count:
            return text
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("the page never told of all messages")


@pytest.mark.slow
def test_a_follower_serves_its_metrics_on_loopback(tmp_path: Path) -> None:
    tree = unpacked(ROCKETMQ_533)
    port = free_port()
    options = [*settings(tree, tmp_path), "-D", f"tieredStoreMetricsPort={port}"]
    process = subprocess.Popen(
        [*COMMAND, *options, "tier", str(tree.store), "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        text = wait_for_messages(port, 3396, process)
        assert value_of(text, "rocketmq_tiered_store_dispatch_behind{") == 0
        assert value_of(text, "tieredstore_outage") == 0
        assert value_of(text, "tieredstore_upkeep_failing{") == 0
        assert 'tieredstore_upkeep_runs_total{step="snapshot"}' in text
        assert value_of(text, 'tieredstore_provider_requests_total{outcome="ok",verb="append"}') > 0
        taken = [*settings(tree, tmp_path / "b"), "-D", f"tieredStoreMetricsPort={port}"]
        done = run(*taken, "tier", tree.store, "--follow", status=2)
        assert "tieredStoreMetricsPort" in done.err
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
