"""A restore from a bucket is killed with SIGKILL again and again. The last run completes it."""

import subprocess
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.hot_store import appender_at, contents
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience, ended, wait_until
from tieredstore.following.directory.layout import RESTORING
from tieredstore.hot.options import HotWriteOptions

pytestmark = [pytest.mark.s3, pytest.mark.timeout(HANGS_AFTER_S)]

KILLS = by_level(quick=2, full=3, nightly=20)
OPTIONS = HotWriteOptions(commit_log_bytes=1 << 20, consume_queue_bytes=20_000)
MESSAGES = 6000


def done(root: Path) -> int:
    """Groups that the ledger of a directory has."""
    path = root / RESTORING
    return path.read_bytes().count(b"\n") - 1 if path.exists() else -1


def test_a_restore_from_a_bucket_that_is_killed_is_completed(s3_url: str, tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 20, consume_queue_bytes=20_000)
    for topic in ("A", "B"):
        broker.fill(topic, [0, 1, 2], MESSAGES // 2, 1024)
    words = ["--tier", s3_url, "-D", "brokerClusterName=C", "-D", "brokerName=b"]
    words += ["-D", "mappedFileSizeCommitLog=1048576", "-D", "mappedFileSizeConsumeQueue=20000"]
    words += ["-D", "tieredStoreExtentMaxSize=65536"]
    run(*words, "tier", broker.directory)
    root = tmp_path / "restored"
    for number in range(KILLS):
        process = subprocess.Popen(
            [*COMMAND, *words, "restore", str(root), "--processes", "1"],
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
    report = run(*words, "restore", root, "--json").rows[-1]["summary"]
    assert report["messages"] == MESSAGES
    with appender_at(root, OPTIONS) as ours, appender_at(broker.directory, OPTIONS) as theirs:
        found, wanted_messages = contents(ours), contents(theirs)
        assert found.keys() == {QueueId(topic, number) for topic in "AB" for number in range(3)}
        for queue, messages in found.items():
            assert [one.body for one in messages] == [one.body for one in wanted_messages[queue]]
        ours.close()
        theirs.close()
    run(*words, "tier", root)
    assert run(*words, "check", "--json").rows == []
