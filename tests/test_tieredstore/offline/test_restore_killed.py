"""A restore from a bucket is killed, or its bucket does not answer. The last run completes it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from tests.support.cli import COMMAND, Done, run
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.hot_store import appender_at, contents
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience, ended, wait_until
from tests.support.seaweedfs import SeaweedFs
from tieredstore.following.directory.layout import RESTORING
from tieredstore.hot.options import HotWriteOptions

pytestmark = [pytest.mark.s3, pytest.mark.scales, pytest.mark.timeout(HANGS_AFTER_S)]

KILLS = by_level(quick=2, full=2, nightly=20)
OPTIONS = HotWriteOptions(commit_log_bytes=1 << 20, consume_queue_bytes=20_000)
MESSAGES = by_level(quick=6_000, full=6_000, nightly=40_000)
"""Each kill waits for one or two of the groups, which are of 1 MiB."""


def done(root: Path) -> int:
    """Groups that the ledger of a directory has."""
    path = root / RESTORING
    return path.read_bytes().count(b"\n") - 1 if path.exists() else -1


@dataclass(frozen=True)
class Tiered:
    """A store directory that is tiered to a bucket."""

    directory: Path
    words: list[str]

    def assert_complete(self, root: Path) -> None:
        """A directory has every message, its broker goes on, and the tier is clean."""
        with appender_at(root, OPTIONS) as ours, appender_at(self.directory, OPTIONS) as theirs:
            found, wanted = contents(ours), contents(theirs)
            assert found.keys() == {QueueId(topic, number) for topic in "AB" for number in range(3)}
            for queue, messages in found.items():
                assert [one.body for one in messages] == [one.body for one in wanted[queue]]
            ours.close()
            theirs.close()
        run(*self.words, "tier", root)
        assert run(*self.words, "check", "--json").rows == []


@pytest.fixture
def tiered(s3_url: str, tmp_path: Path) -> Tiered:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 20, consume_queue_bytes=20_000)
    for topic in ("A", "B"):
        broker.fill(topic, [0, 1, 2], MESSAGES // 2, 1024)
    words = ["--tier", s3_url, "-D", "brokerClusterName=C", "-D", "brokerName=b"]
    words += ["-D", "mappedFileSizeCommitLog=1048576", "-D", "mappedFileSizeConsumeQueue=20000"]
    words += ["-D", "tieredStoreExtentMaxSize=65536"]
    run(*words, "tier", broker.directory)
    return Tiered(broker.directory, words)


def test_a_restore_from_a_bucket_that_is_killed_is_completed(
    tiered: Tiered, tmp_path: Path
) -> None:
    root = tmp_path / "restored"
    for number in range(KILLS):
        process = subprocess.Popen(
            [*COMMAND, *tiered.words, "restore", str(root), "--processes", "1"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wanted = done(root) + 1 + number % 2

        def is_there(process: subprocess.Popen[bytes] = process, wanted: int = wanted) -> bool:
            assert process.poll() is None, "it ended before it was killed"
            return done(root) >= wanted

        wait_until(is_there, Patience("nothing is restored", pids=[process.pid]))
        process.kill()
        ended(process)
    report = run(*tiered.words, "restore", root, "--json").rows[-1]["summary"]
    assert report["messages"] == MESSAGES
    tiered.assert_complete(root)


@pytest.mark.usefixtures("s3_retries_at_once")
def test_a_restore_from_a_bucket_that_does_not_answer_is_continued_after_the_outage(
    tiered: Tiered, seaweed: SeaweedFs, tmp_path: Path
) -> None:
    root = tmp_path / "restored"
    failed_at: list[int] = []
    reads = 2
    with FaultProxy(seaweed.endpoint) as proxy:
        words = [*tiered.words, "-D", f"objectStoreEndpoint={proxy.endpoint}"]

        def restored() -> Done:
            """Restore from a store that answers so many reads, and then none."""
            proxy.faults = [WireFault("reset", "GET", calls=tuple(range(reads, 1000)))]
            return run(*words, "restore", root, "--processes", "1", status=None)

        while (ran := restored()).status:
            assert ran.status == 3, ran.err
            failed_at.append(done(root))
            assert reads < MESSAGES // 100
            reads += MESSAGES // 3_000
    assert failed_at == sorted(failed_at), "groups were restored again"
    assert failed_at[-1] > 0
    assert "parts are of an earlier run" in ran.out
    tiered.assert_complete(root)
