"""A broker with two queues, its tier, and directories that are restored from it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from container.record.unit import FILLER_SIZE
from provider.testing.manual_clock import ManualClock
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.hot_store import appender_at, contents
from tieredstore.config.effective import Config
from tieredstore.hot.log.commit_log import CommitLogWriter
from tieredstore.hot.log.record_scan import Damage, scan_file
from tieredstore.hot.options import HotWriteOptions
from tieredstore.offline.jobs import restore_plan
from tieredstore.offline.jobs import restore_store as job
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.jobs.restore_store import RestoreReport
from tieredstore.session.reader import existing_tier

OPTIONS = HotWriteOptions(commit_log_bytes=16 << 10, consume_queue_bytes=400)
SIZES = {"mappedFileSizeCommitLog": 16 << 10, "mappedFileSizeConsumeQueue": 400}
A, B = QueueId("A", 0), QueueId("B", 1)
ALL = Wanted()


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_plan, "GROUP_BYTES", 4 << 10)
    monkeypatch.setattr(restore_plan, "WRITTEN_ROWS", 20)
    monkeypatch.setattr(job, "SPARE_BYTES", 0)


def options(tier: Path | str) -> list[str]:
    values = {
        "brokerClusterName": "C",
        "brokerName": "b",
        "tieredStoreFilePath": tier,
        "tieredStoreExtentMaxSize": 1 << 10,
        **SIZES,
    }
    return [word for key, value in values.items() for word in ("-D", f"{key}={value}")]


def config_of(words: Sequence[str]) -> Config:
    return existing_tier(Config.load(defines=[word for word in words if word != "-D"]))


def restored(
    words: Sequence[str],
    root: Path,
    *,
    wanted: Wanted = ALL,
    engine: OneProcess | None = None,
    offsets: dict[str, dict[int, int]] | None = None,
    topics: dict[str, Any] | None = None,
) -> RestoreReport:
    return job.restore_store(
        config_of(words),
        engine or OneProcess(),
        root,
        wanted=wanted,
        offsets=offsets or {},
        topics=topics,
        clock=ManualClock(),
    )


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    """Two queues with messages of several CommitLog files, that of B beginning in mid-file."""
    made = FakeBroker(tmp_path / "store", commit_log_bytes=16 << 10, consume_queue_bytes=400)
    made.begin_queue(*B, 47)
    for number in range(150):
        made.put(*A, b"a%d" % number, tags=f"T{number % 3}", keys=f"k{number}")
        if number % 2:
            made.put(*B, b"b%d" % number * 40)
    return made


@pytest.fixture
def tier(broker: FakeBroker, tmp_path: Path) -> list[str]:
    words = options(tmp_path / "tier")
    run(*words, "tier", broker.directory)
    return words


def own_contents(
    root: Path, sizes: HotWriteOptions = OPTIONS
) -> dict[QueueId, list[StoredMessage]]:
    """All messages, as our own store reads a copy of the directory."""
    copy = root.with_name(f"{root.name}-copy")
    shutil.copytree(root, copy)
    with appender_at(copy, sizes) as ours:
        found = contents(ours)
        ours.close()
    shutil.rmtree(copy)
    return found


def as_stored(message: StoredMessage, *, has_crc: bool = False) -> bytes:
    """A record without its position, and without the checksum of all of it."""
    raw = bytearray(message.encode())
    raw[28:36] = bytes(8)
    return bytes(raw[:-20] if has_crc else raw)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def records(root: Path, file_bytes: int) -> list[StoredMessage]:
    """The records of the CommitLog in order, read as after a crash: whole and without a hole."""
    log = CommitLogWriter(root / "commitlog", file_bytes)
    found: list[StoredMessage] = []
    # A Java broker takes what fillers state for an end up to which their queue is built.
    assert log.bases[0] - file_bytes <= FILLER_SIZE < log.bases[0]
    for base in log.bases:
        end = base
        for one in scan_file(log, base, base, durable_end=-1):
            assert not isinstance(one, Damage)
            message, position = one
            if message is None:
                end = base + file_bytes
                break
            found.append(message)
            end = position + message.size
        assert end == base + file_bytes or base == log.bases[-1], "no blank ends the file"
        assert log.data_end(end) == end or end == base + file_bytes
    return found


def topics_of(root: Path) -> dict[str, dict[str, Any]]:
    """The table of topics; that of a store without a broker is empty."""
    path = root / "config" / "topics.json"
    return json.loads(path.read_bytes())["topicConfigTable"] if path.exists() else {}
