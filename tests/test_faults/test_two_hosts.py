"""Two hosts with one tier: a standby tiers on when the owner's process, power or network fails.

A host is a network, PID and UTS namespace with runtime and state directories of its own. Both see
the store directory of the broker. Each reaches the bucket over a link of its own.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.lacking import lacks
from tests.support.own_network import Outside
from tests.support.patience import HANGS_AFTER_S, Patience, ended, wait_until

LEASE_S = 10
SETTINGS = (
    *("-D", "brokerName=b"),
    *("-D", f"tieredStoreOwnerHeartbeatInterval={LEASE_S * 1000 // 3}"),
    *("-D", f"tieredStoreOwnerLease={LEASE_S * 1000}"),
    *("-D", "tieredStoreOwnerCheckInterval=1000"),
    *("-D", "tieredStoreGroupCommitTimeout=100"),
)
NAMESPACES = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
NAMED = ("sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh")
OWNS = "this process owns the tier"


class Host(ExitStack):
    """Host with the follower of one broker, `--standby`."""

    def __init__(self, directory: Path, broker: FakeBroker, tier: str) -> None:
        super().__init__()
        directory.mkdir()
        self.log = directory / "log"
        self._socket = directory / "socket"
        self._own = (f"XDG_RUNTIME_DIR={directory}", f"XDG_STATE_HOME={directory}")
        self._name = directory.name
        given = (*SETTINGS, "-D", f"tieredStoreFilePath={tier}")
        self._command = (*COMMAND, *given, "tier", str(broker.directory), "--follow", "--standby")
        self.process: subprocess.Popen[bytes]
        """The host: what is in its namespaces ends with it."""

    def __enter__(self) -> Self:
        port = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 80
        outside = self.enter_context(Outside(self._socket, port))
        host = ("env", *self._own, *outside.words, *NAMESPACES, *NAMED, self._name)
        if subprocess.run((*host, "true"), capture_output=True, check=False).returncode:
            self.close()
            lacks("A host of its own needs namespaces, and rights that this user lacks.")
        errors = self.enter_context(self.log.open("wb"))
        self.process = subprocess.Popen(
            (*host, *self._command), stdout=subprocess.DEVNULL, stderr=errors
        )
        self.callback(self.process.wait)
        self.callback(self.process.kill)
        return super().__enter__()

    def wait_for(self, words: str) -> None:
        """Wait until the follower has logged something."""
        patience = Patience(self.log.read_text, pids=[self.process.pid])
        wait_until(lambda: words in self.log.read_text(), patience)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the follower."""
        pid = self.process.pid
        *_, follower = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(follower), number)

    def link(self, state: str) -> None:
        """Set the link to the bucket `up` or `down`: then connections stay, and nothing passes."""
        inside = ("nsenter", "-t", str(self.process.pid), "-n")
        subprocess.run((*inside, "ip", "link", "set", "lo", state), check=True)


def power_off(host: Host) -> None:
    """End the host without a word to those whom it was connected with."""
    host.link("down")
    host.process.kill()


FAILURES: dict[str, Callable[[Host], None]] = {
    "its process is killed": lambda host: host.send(signal.SIGKILL),
    "its power fails": power_off,
    "its network is cut": lambda host: host.link("down"),
}


@pytest.mark.nightly
@pytest.mark.s3
@pytest.mark.process
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_standby_on_another_host_tiers_on_when(failure: str, s3_url: str, tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    first, second = (Host(tmp_path / name, broker, s3_url) for name in ("host-a", "host-b"))
    names = ("-D", "brokerName=b", "--tier", s3_url)

    def wait_for_messages(count: int, host: Host) -> None:
        def has_them() -> bool:
            rows = run(*names, "topics", "--json", status=None).rows
            return [row["commit_offset"] for row in rows] == [count]

        wait_until(has_them, Patience(host.log.read_text, pids=[host.process.pid]), 0.2)

    with first, ExitStack() as later:
        first.wait_for(OWNS)
        later.enter_context(second)
        broker.put_many("T", 0, [b"before"] * 10)
        wait_for_messages(10, first)
        second.wait_for("standing by: process ")
        assert OWNS not in second.log.read_text()
        FAILURES[failure](first)
        broker.put_many("T", 0, [b"after"] * 10)
        second.wait_for(OWNS)
        wait_for_messages(20, second)
        if failure == "its network is cut":
            assert first.process.poll() is None, first.log.read_text()
            first.link("up")
            said = first.log.read_text
            patience = Patience(said, marks=said, pids=[first.process.pid])
            wait_until(lambda: first.process.poll() is not None, patience)
            assert first.process.returncode == 4, first.log.read_text()
            assert "took this tier over" in first.log.read_text()
        broker.put_many("T", 0, [b"later"] * 10)
        wait_for_messages(30, second)
        second.send(signal.SIGTERM)
        assert ended(second.process) == 0, second.log.read_text()
    run(*names, "check")
    offsets = [row["queue_offset"] for row in run(*names, "read", "T", "0", "--json").rows]
    assert offsets == list(range(30))
