"""Store directories from tiers with expired heads, ends that were cut, and very many queues."""

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.hot_store import appender_at, new_message, put
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience, until
from tests.support.random_tier import owned
from tests.support.restored import (
    OPTIONS,
    A,
    broker,
    config_of,
    options,
    own_contents,
    restored,
    small_groups,
    tier,
)
from tieredstore.following.queues import poll_schedule

__all__ = ["broker", "small_groups", "tier"]  # fixtures

QUEUES = by_level(quick=300, full=600, nightly=10_000)


def test_a_queue_whose_oldest_messages_expired_begins_with_the_first_that_stays(
    broker: FakeBroker, tmp_path: Path
) -> None:
    settings = {
        "brokerClusterName": "C",
        "brokerName": "b",
        "tieredStoreExtentMaxSize": 1 << 10,
        "tieredStoreConsumeQueueMaxSize": 300,
        "tieredStoreCommitLogMaxSize": 2 << 10,
        "tieredStoreFileReservedTime": 1_000_000,
        "tieredStoreTopicReservedSize": 6 << 10,
        "tieredStoreDeleteFileInterval": 100,
        "tieredStoreDeleteFileEnable": True,
    }
    follower = tieredstore.follow(broker.directory, tmp_path / "tier", settings=settings)

    def expired() -> int:
        return follower.upkeep_statistics().figures["expired_messages"]

    async def expire() -> None:
        async with follower:
            await follower.drain()
            await until(lambda: expired() > 0, Patience("nothing expires"))

    asyncio.run(expire())
    words = options(tmp_path / "tier")
    report = restored(words, root := tmp_path / "restored")
    a = report.queues[0]
    assert report.is_whole
    assert 0 < a.first == a.tier_first < a.end == 150
    assert [one.queue_offset for one in own_contents(root)[A]] == list(range(a.first, 150))
    run(*words, "tier", root)
    assert run(*words, "check", "--json").rows == []


def test_a_queue_that_was_truncated_inside_an_extent_ends_there(
    tier: list[str], tmp_path: Path
) -> None:
    ends = [77, 76, 3]

    async def cut(end: int) -> None:
        async with owned(config_of(tier)) as owner:
            await owner.cut_queue(A, QueueOffset(end), "the test cuts")

    root = tmp_path / "restored"
    for end in ends:
        asyncio.run(cut(end))
        shutil.rmtree(root, ignore_errors=True)
        report = restored(tier, root)
        assert (report.queues[0].end, report.is_whole) == (end, True)
        assert [one.queue_offset for one in own_contents(root)[A]] == list(range(end))
        with appender_at(root, OPTIONS) as ours:
            assert put(ours, [new_message(1, topic="A")])[0].queue_offset == end
            ours.close()
    run(*tier, "tier", root)
    assert run(*tier, "check", "--json").rows == []
    assert len(run(*tier, "read", "A", "--json").rows) == ends[-1] + 1


def test_topics_that_their_broker_deleted_or_created_again(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_schedule, "SHARE_AT_REST", 1.0)  # all queues at every poll
    often = {"tieredStoreScanInterval": 0, "tieredStorePollInterval": 1}
    often["tieredStoreExtentMaxSize"] = 1 << 10

    async def deleted() -> None:
        opened = tieredstore.follow(
            broker.directory, tmp_path / "tier", settings=often, cluster="C", broker="b"
        )
        async with opened as follower:
            await follower.drain()
            broker.delete_topics("A", "B")
            await follower.drain()
            for number in range(155):
                broker.put(*A, b"new %d" % number)
            await follower.drain()

    asyncio.run(deleted())
    words = options(tmp_path / "tier")
    report = restored(words, root := tmp_path / "restored", offsets={"A@g": {0: 3}, "B@g": {1: 60}})
    a, b = report.queues
    assert (a.first, a.end, a.why) == (151, 155, "a gap")
    assert (b.first, b.end, b.why) == (47, 122, ""), "a deletion without a loss leaves no sign"
    assert [one.body for one in own_contents(root)[A]] == [b"new %d" % n for n in range(151, 155)]
    assert report.offsets.table == {"A@g": {0: 3}, "B@g": {1: 60}}
    with appender_at(root, OPTIONS) as ours:
        assert put(ours, [new_message(1, topic="A")])[0].queue_offset == 155
        assert put(ours, [new_message(1, topic="B", queue_id=1)])[0].queue_offset == 122
        ours.close()
    rows = run(*words, "tier", root, "--json", status=None).rows
    assert {row["topic"]: row["messages_new"] for row in rows if "topic" in row} == {"A": 1, "B": 1}


def test_a_directory_that_may_not_be_written_is_one_sentence(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mkdir", "open"):
        called = getattr(os, name)

        def refusing(path: Any, *words: Any, _called: Any = called, **more: Any) -> Any:
            if "restored" in str(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return _called(path, *words, **more)

        root = tmp_path / name / "restored"
        root.parent.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refusing)
            said = run(*tier, "restore", root, "--processes", "1", status=None)
        assert said.status == 2, said.err
        assert said.err.count("\n") == 1
        assert "permission" in said.err.lower()
        assert restored(tier, root).messages == 225


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(HANGS_AFTER_S)
def test_very_many_queues_are_restored_and_go_on(tmp_path: Path) -> None:
    store = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 20, consume_queue_bytes=400)
    for number in range(QUEUES):
        for turn in range(1 + number % 3):
            store.put("T", number, b"%d of %d" % (turn, number))
    words = [
        *options(tmp_path / "tier"),
        *("-D", f"mappedFileSizeCommitLog={1 << 20}"),
    ]
    run(*words, "tier", store.directory)
    report = restored(words, root := tmp_path / "restored")
    assert (len(report.queues), report.is_whole) == (QUEUES, True)
    sizes = OPTIONS.__class__(commit_log_bytes=1 << 20, consume_queue_bytes=400)
    with appender_at(root, sizes) as ours:
        for number in (0, 1, QUEUES - 1):
            (placed,) = put(ours, [new_message(1, topic="T", queue_id=number)])
            assert placed.queue_offset == 1 + number % 3
        ours.close()
    found = own_contents(root, sizes)
    assert found.keys() == {QueueId("T", number) for number in range(QUEUES)}
    for queue, messages in found.items():
        number = queue.queue_id
        bodies = [b"%d of %d" % (turn, number) for turn in range(1 + number % 3)]
        assert [one.body for one in messages][: len(bodies)] == bodies
    rows = run(*words, "tier", root, "--json").rows
    assert sum(row["messages_new"] for row in rows if "topic" in row) == 3
    assert run(*words, "check", "--json").rows == []
