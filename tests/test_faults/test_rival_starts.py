"""A second start beside a living owner, from other sessions, users and namespaces of one host."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest

from tests.support.cli import COMMAND
from tests.support.fake_broker import FakeBroker
from tests.support.lacking import lacks
from tests.support.own_network import Outside
from tests.support.patience import Patience, communicated, ended, wait_until

LEASE_S = 10
"""So long that an owner on a busy machine shows a sign within it."""
SETTINGS = (
    "brokerName=b",
    "tieredStoreOwnerHeartbeatInterval=1000",
    f"tieredStoreOwnerLease={LEASE_S * 1000}",
    "tieredStoreOwnerCheckInterval=500",
    "tieredStoreTakeoverTimeout=0",
    "tieredStoreGroupCommitTimeout=100",
)
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
PLACES: dict[str, tuple[str, ...]] = {
    "another session": ("env", "XDG_RUNTIME_DIR=/nonexistent", "TMPDIR=/var/tmp"),
    "another user": (
        *("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"),
        *("--inh-caps", "+dac_override,+dac_read_search"),
        *("--ambient-caps", "+dac_override,+dac_read_search"),
    ),
    "another PID namespace": NEW_NAMESPACE,
    "another mount namespace": ("unshare", "--mount"),
}
pytestmark = pytest.mark.slow


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where another user reads, too; each run of pytest shuts others out of its own place."""
    with TemporaryDirectory(prefix="tieredstore-rivals-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"body"] * 10)
    return broker


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.s3)])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "tier")
    return str(request.getfixturevalue("s3_url"))


BY_DAY = {
    ("directory", "another user"),
    ("directory", "another PID namespace"),
    ("s3", "another PID namespace"),
}
FROM_ELSEWHERE = [
    pytest.param(
        *one,
        marks=[pytest.mark.s3] * (one[0] == "s3") + [pytest.mark.nightly] * (one not in BY_DAY),
    )
    for one in product(("directory", "s3"), PLACES)
]


def command(broker: FakeBroker, tier: str, *words: str) -> list[str]:
    given = [part for one in (*SETTINGS, f"tieredStoreFilePath={tier}") for part in ("-D", one)]
    return [*COMMAND, *given, "tier", str(broker.directory), *words]


def can(place: str, words: Sequence[str] = ()) -> None:
    """Skip where this machine does not let a test run a process there."""
    words = words or (*PLACES[place], "true")
    if shutil.which(words[0]) is None:
        lacks(f"A process in {place} needs {words[0]}.")
    if subprocess.run(words, capture_output=True, check=False).returncode:
        lacks(f"A process in {place} needs rights that this user lacks.")


@contextlib.contextmanager
def owner(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A follower that owns the tier by now."""
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        patience = Patience("the follower does not own the tier", pids=[process.pid])
        wait_until(
            lambda: "this process owns the tier" in log.read_text() or process.poll() is not None,
            patience,
        )
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def start(command: list[str]) -> tuple[int, str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, said = communicated(process)
    return process.returncode, said


@pytest.mark.process
@pytest.mark.parametrize(("tier", "place"), FROM_ELSEWHERE, indirect=["tier"])
def test_a_start_from_elsewhere_names_the_living_owner_and_leaves_it_the_tier(
    broker: FakeBroker, tier: str, tmp_path: Path, place: str
) -> None:
    can(place)
    with owner(command(broker, tier, "--follow"), tmp_path / "log") as process:
        status, said = start([*PLACES[place], *command(broker, tier)])
        assert (status, f"process {process.pid} on " in said) == (4, True), said
        broker.put_many("A", 0, [b"more"] * 10)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0, (tmp_path / "log").read_text()
    assert start(command(broker, tier))[0] == 0, "after a clean end"


@pytest.mark.process
def test_a_start_from_another_network_meets_the_living_owner(
    broker: FakeBroker, tier: str, tmp_path: Path
) -> None:
    where = urlsplit(os.environ.get("AWS_ENDPOINT_URL") or "http://127.0.0.1:9")
    with (
        Outside(tmp_path / "socket", where.port or 80) as outside,
        owner(command(broker, tier, "--follow"), tmp_path / "log") as process,
    ):
        can("another network", (*outside.words, "true"))
        status, said = start([*outside.words, *command(broker, tier)])
        assert (status, f"process {process.pid} on " in said) == (4, True), said
        assert process.poll() is None


@pytest.mark.process
def test_an_owner_in_another_pid_namespace_lives_and_dies(
    broker: FakeBroker, tier: str, tmp_path: Path
) -> None:
    can("another PID namespace")
    elsewhere = [*NEW_NAMESPACE, *command(broker, tier, "--follow")]
    with owner(elsewhere, tmp_path / "log"):
        status, said = start(command(broker, tier))
        assert (status, "owns the tier and lives" in said) == (4, True), said
    status, said = start(command(broker, tier))
    assert status == 0, said
    assert f"waiting {LEASE_S} s for a sign of life" in said


@pytest.mark.process
def test_a_killed_owner_of_this_host_is_replaced_without_a_wait(
    broker: FakeBroker, tier: str, tmp_path: Path
) -> None:
    with owner(command(broker, tier, "--follow"), tmp_path / "log") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        status, said = start(command(broker, tier))
    assert (status, "sign of life" in said) == (0, False), said


@pytest.mark.process
def test_a_standby_takes_over_when_the_owner_is_stopped(
    broker: FakeBroker, tier: str, tmp_path: Path
) -> None:
    log = tmp_path / "standby"
    with (
        owner(command(broker, tier, "--follow"), tmp_path / "log") as first,
        log.open("wb") as errors,
    ):
        words = command(broker, tier, "--follow", "--standby")
        standby = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            patience = Patience("the standby does not go on", pids=[standby.pid])
            words_said = f"standing by: process {first.pid} on "
            wait_until(lambda: words_said in log.read_text(), patience)
            assert "this process owns the tier" not in log.read_text()
            os.kill(first.pid, signal.SIGSTOP)
            patience = Patience("the standby does not take over", pids=[standby.pid])
            wait_until(lambda: "this process owns the tier" in log.read_text(), patience)
            os.kill(first.pid, signal.SIGCONT)
            assert ended(first) == 4
            assert standby.poll() is None
            standby.send_signal(signal.SIGTERM)
            assert ended(standby) == 0, log.read_text()
        finally:
            standby.kill()
            standby.wait()
