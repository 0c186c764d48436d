"""Deleted topics: gone at once and for good, whatever ends the process; then made again above."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.clock import SystemClock
from provider.errors import Corrupt, OutOfRange, Unavailable
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, appender_at, contents, new_message, put
from tieredstore.hot.appender import Appender
from tieredstore.hot.hot_log import HotLog, open_hot_log
from tieredstore.hot.log.durable_ends import is_checked
from tieredstore.hot.options import RetentionOptions

KEPT, GONE, ALSO_GONE = QueueId("Kept", 0), QueueId("Gone", 0), QueueId("Gone", 3)
CHANGES = ("open", "pwrite", "fsync", "fdatasync", "replace", "link", "unlink", "rmdir")
"""Calls before which a process may die."""
GREEDY = RetentionOptions(
    reserved_s=0, disk_clean_ratio=1e-9, disk_forcible_ratio=1e-9, files_max=1000
)


class Dies(BaseException):
    """The process ends here."""


@contextmanager
def ended_at(step: int, error: type[BaseException] | None = None) -> Iterator[list[str]]:
    """End the process, or fail, before the call of that number which may change the disk."""
    made: list[str] = []

    def counted(verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            made.append(verb)
            if len(made) - 1 == step:
                raise Dies if error is None else OSError(errno.ENOSPC, "no space")
            return real(*args, **options)

        return call

    calls: dict[str, Any] = {verb: counted(verb, getattr(os, verb)) for verb in CHANGES}
    with patch.multiple(os, **calls):
        yield made


def filled(root: Path) -> None:
    """Three queues over several files; the topic that goes has the first and the last record."""
    with appender_at(root) as store:
        for number in range(30):
            put(store, [new_message(number, topic="Gone"), new_message(number, topic="Kept")])
            put(store, [new_message(number, topic="Gone", queue_id=3)])
        store.close()


def bodies(store: Appender) -> dict[QueueId, list[bytes]]:
    return {queue: [m.body for m in found] for queue, found in contents(store).items()}


WHOLE = {
    queue: [new_message(number).body for number in range(30)] for queue in (GONE, ALSO_GONE, KEPT)
}
REST = {KEPT: WHOLE[KEPT]}


def topics_in(root: Path) -> set[str]:
    return set(json.loads((root / "config/topics.json").read_text())["topicConfigTable"])


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_deleted_topic_is_gone_at_once_and_after_a_start(end: str, tmp_path: Path) -> None:
    filled(tmp_path)
    with appender_at(tmp_path) as store:
        deletion = store.delete_topics({"Gone", "Never"})
        assert (deletion.queues, deletion.failed) == ({GONE, ALSO_GONE}, None)
        assert bodies(store) == REST
        assert not (tmp_path / "consumequeue/Gone").exists()
        assert topics_in(tmp_path) == {"Kept"}
        if end == "closed":
            store.close()
    with appender_at(tmp_path) as store:
        assert bodies(store) == REST
        assert store.recovered.messages_scanned <= 30, "it begins near the end"
        put(store, [new_message(30, topic="Kept")])
        assert topics_in(tmp_path) == {"Kept"}


def steps_of_deletion(root: Path) -> int:
    filled(root)
    with appender_at(root) as store, ended_at(-1) as made:
        store.delete_topics({"Gone"})
    return len(made)


@pytest.mark.slow
def test_a_deletion_that_is_killed_anywhere_is_not_begun_or_is_ended(tmp_path: Path) -> None:
    steps = steps_of_deletion(tmp_path / "whole")
    assert steps > 10
    seen: set[bool] = set()
    for step in range(steps):
        root = tmp_path / str(step)
        filled(root)
        with appender_at(root) as store, ended_at(step), pytest.raises(Dies):
            store.delete_topics({"Gone"})
        with appender_at(root) as store:
            is_whole = bodies(store) == WHOLE
            assert is_whole or bodies(store) == REST, step
            assert (root / "consumequeue/Gone").exists() == is_whole, step
            assert topics_in(root) == ({"Gone", "Kept"} if is_whole else {"Kept"}), step
            seen.add(is_whole)
            store.delete_topics({"Gone"})
            assert bodies(store) == REST
            assert [one.queue_offset for one in put(store, [new_message(7, topic="Gone")])] == [30]
        with appender_at(root) as store:
            assert bodies(store) == {**REST, GONE: [new_message(7).body]}
    assert seen == {True, False}


@pytest.mark.slow
def test_a_deletion_that_fails_anywhere_is_ended_when_it_is_repeated(tmp_path: Path) -> None:
    for step in range(steps_of_deletion(tmp_path / "whole")):
        root = tmp_path / str(step)
        filled(root)
        with appender_at(root) as store:
            with ended_at(step, OSError):
                try:
                    failed = store.delete_topics({"Gone"}).failed
                except Unavailable:
                    assert bodies(store) == WHOLE, step
                    if store.broken:
                        continue
                else:
                    assert bodies(store) == REST, step
                    del failed  # a checkpoint that cannot be written is no failure
            first = store.next_offset(GONE)
            again = put(store, [new_message(9, topic="Gone")])  # before it is repeated
            assert [one.queue_offset for one in again] == [first] == [30], step
            assert store.delete_topics({"Gone"}).failed is None
            assert bodies(store) == REST, step
            assert not (root / "consumequeue/Gone").exists()
            assert [one.queue_offset for one in put(store, [new_message(9, topic="Gone")])] == [31]
            assert bodies(store) == {**REST, GONE: [new_message(9).body]}, step


@pytest.mark.parametrize("queues", ["there", "lost"])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_topic_is_made_again_above_its_old_end_as_often_as_one_likes(
    queues: str, end: str, tmp_path: Path
) -> None:
    filled(tmp_path)
    expected: list[bytes] = []
    for turn in range(3):
        with appender_at(tmp_path) as store:
            store.delete_topics({"Gone"})
            first = 30 + 4 * turn
            messages = [new_message(100 * turn + n, topic="Gone") for n in range(4)]
            places = put(store, messages[:1]) + put(store, messages[1:])
            assert [one.queue_offset for one in places] == list(range(first, first + 4))
            expected = [one.body for one in messages]
            assert bodies(store) == {**REST, GONE: expected}
            if end == "closed":
                store.close()
        if queues == "lost":
            for path in (tmp_path / "consumequeue/Gone/0").iterdir():
                path.unlink()
        with appender_at(tmp_path) as store:
            assert bodies(store) == {**REST, GONE: expected}


def test_what_is_remembered_of_a_queue_goes_when_its_old_records_are_gone(tmp_path: Path) -> None:
    filled(tmp_path)
    with appender_at(tmp_path) as store:
        store.delete_topics({"Gone"})
        put(store, [new_message(1, topic="Gone")])
        assert set(store.deleted) == {GONE, ALSO_GONE}
        while store.log.base_of(store.end) <= store.deleted[GONE].position:
            put(store, [new_message(1, topic="Kept")])
        while len(store.log.bases) > 1:
            store.log.delete_oldest()
        store.delete_topics({"Kept"})
        assert set(store.deleted) == {ALSO_GONE, KEPT}, "it would begin at 0"
    with appender_at(tmp_path) as store:
        assert put(store, [new_message(1, topic="Gone", queue_id=3)])[0].queue_offset == 30


def test_a_damaged_file_of_deleted_queues_is_an_error_that_names_it(tmp_path: Path) -> None:
    filled(tmp_path)
    with appender_at(tmp_path) as store:
        store.delete_topics({"Gone"})
    path = tmp_path / "config/deletedQueues.json"
    copy = tmp_path / "config/deletedQueues.json.copy"
    whole, of_older = path.read_bytes(), '{"queues": [{"topic": "Gone", "queueId": 0, '
    for text in (
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"queues": [{"topic": "Gone"}]}',
        of_older.encode() + b'"nextOffset": 3, "position": 1e400}]}',
        of_older.encode() + b'"nextOffset": 3.0, "position": 1}]}',
        of_older.encode() + b'"nextOffset": -1, "position": 1}]}',
        whole[:-1],
        whole.replace(b"30", b"20"),
    ):
        path.write_bytes(text)
        if is_checked(text):
            copy.write_bytes(text)
        else:
            copy.unlink(missing_ok=True)
        with (
            pytest.raises(Corrupt, match="messages would be back") as failure,
            appender_at(tmp_path),
        ):
            pass
        assert failure.value.path == str(path)
        assert "Error" not in str(failure.value)


@pytest.mark.parametrize("harm", ["lost", "rot", "empty", "no checksum"])
@pytest.mark.parametrize("name", ["deletedQueues.json", "deletedQueues.json.copy"])
def test_one_of_two_copies_of_the_deleted_queues_is_enough(
    name: str, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    with appender_at(tmp_path) as store:
        store.delete_topics({"Gone"})
    path = tmp_path / "config" / name
    raw = path.read_bytes()
    if harm == "lost":
        path.unlink()
    else:
        changed = {"rot": raw.replace(b"30", b"31"), "empty": b"", "no checksum": b'{"queues":[]}'}
        path.write_bytes(changed[harm])
    with appender_at(tmp_path) as store:
        assert bodies(store) == REST
        assert put(store, [new_message(1, topic="Gone")])[0].queue_offset == 30
    assert ("its copy" in caplog.text) == (not name.endswith("copy"))
    assert path.read_bytes() == raw, "the start makes it whole again"


@pytest.mark.parametrize("life", ["closed", "killed"])
def test_an_older_copy_of_the_deleted_queues_is_not_believed(
    life: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    names = ("deletedQueues.json", "deletedQueues.json.copy")
    paths = [tmp_path / "config" / name for name in names]
    with appender_at(tmp_path) as store:
        store.delete_topics({"Kept"})
        older = paths[0].read_bytes()
        store.delete_topics({"Gone"})
        if life == "closed":
            store.close()
    newer = paths[0].read_bytes()
    for path in paths:
        path.write_bytes(older)
        with appender_at(tmp_path) as store:
            assert store.next_offset(QueueId("Gone", 0)) == 30
            assert "Gone" not in {queue.topic for queue in store.next_offsets}
        assert [one.read_bytes() for one in paths] == [newer, newer], "the start mends it"
    assert "older" in caplog.text
    for path in paths:
        path.write_bytes(older)
    with pytest.raises(Corrupt, match="not as it was last written"), appender_at(tmp_path):
        pass


def test_deleted_queues_of_a_log_that_was_lost_are_older_than_those_of_the_next_one(
    tmp_path: Path,
) -> None:
    root, kept = tmp_path / "store", tmp_path / "kept"
    for life in range(2):
        with appender_at(root, clock=ManualClock(1000 * life)) as store:
            put(store, [new_message(number) for number in range(3 + life)])
            store.delete_topics({"Orders"})
            store.close()
        if life == 0:
            root.rename(kept)
    for name in ("deletedQueues.json", "deletedQueues.json.copy"):
        shutil.copy(kept / "config" / name, root / "config" / name)
    with pytest.raises(Corrupt, match="not as it was last written"), appender_at(root):
        pass


def test_the_loss_of_both_copies_of_the_deleted_queues_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "config/deletedQueues.json"
    with appender_at(tmp_path) as store:
        store.delete_topics({"Gone"})
    path.unlink()
    path.with_name(path.name + ".copy").unlink()
    for _ in range(2):
        with pytest.raises(Corrupt, match="or missing") as failure, appender_at(tmp_path):
            pass
        assert failure.value.path == str(path)
    path.write_text('{"queues": []}')  # the error names it
    with appender_at(tmp_path) as store:
        assert store.next_offset(QueueId("Gone", 0)) == 30


def test_deleted_queues_of_an_older_version_are_read(tmp_path: Path) -> None:
    filled(tmp_path)
    with appender_at(tmp_path) as store:
        store.delete_topics({"Gone"})
        rows = [
            {"topic": topic, "queueId": n, "nextOffset": one.next_offset, "position": one.position}
            for (topic, n), one in store.deleted.items()
        ]
    (tmp_path / "config/deletedQueues.json.copy").unlink()
    path = tmp_path / "config/deletedQueues.json"
    path.write_text(json.dumps({"queues": rows}, ensure_ascii=False, indent="\t"))
    with appender_at(tmp_path) as store:
        assert bodies(store) == REST
    path.write_bytes(path.read_bytes().replace(b"30", b"20"))  # a checksum has been added
    with appender_at(tmp_path) as store:
        assert bodies(store) == REST
        assert put(store, [new_message(1, topic="Gone")])[0].queue_offset == 30


async def walked(log: HotLog, queue: QueueId) -> list[bytes]:
    at, end = await log.bounds(queue)
    found: list[bytes] = []
    while at < end:
        messages = await log.get(queue, at)
        found += [m.body for m in messages]
        at = messages[-1].queue_offset + 1
    return found


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_what_was_handed_in_before_goes_and_what_comes_after_stays(
    flush: Any, tmp_path: Path
) -> None:
    options = replace(SMALL, flush=flush)
    async with open_hot_log(tmp_path, options=options, clock=SystemClock()) as log:
        loop = asyncio.get_running_loop()
        ends: dict[int, int] = {}
        for turn in range(5):
            before = [
                loop.create_task(
                    log.append_many([new_message(n, topic="Gone", body_bytes=900)] * 3)
                )
                for n in range(20)
            ]
            other = loop.create_task(log.append(new_message(turn, topic="Kept")))
            await asyncio.sleep(0)  # they are handed in
            gone = loop.create_task(log.delete_topics(["Gone"]))
            await asyncio.sleep(0)
            after = loop.create_task(log.append(new_message(turn, topic="Gone", queue_id=0)))
            await asyncio.wait([*before, other, gone, after])
            assert not any(one.exception() for one in (*before, other, gone))
            ends[turn] = 60 * (turn + 1) + turn
            assert after.result().queue_offset == ends[turn]
            assert tuple(await log.bounds(GONE)) == (ends[turn], ends[turn] + 1)
            assert await walked(log, GONE) == [new_message(turn).body]
            await log.flush()
            assert log.durable_offset(GONE) == ends[turn] + 1
        await log.delete_topics(["Gone"])
        assert (log.queues(), log.has(GONE), log.end_offset(GONE)) == ([KEPT], False, 0)
        with pytest.raises(OutOfRange):
            await log.get(GONE, ends[4])
        assert await walked(log, KEPT) == [new_message(turn).body for turn in range(5)]


async def test_the_files_of_a_deleted_topic_wait_for_no_tier(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        for number in range(100):
            await log.append(new_message(number, topic="Gone"))
        await log.append(new_message(0, topic="Kept"))
        ends = {GONE: 0, KEPT: 0}
        assert (await log.trim(ends.get, GREEDY)).files == ()
        await log.delete_topics({"Gone"})
        assert len((await log.trim(ends.get, GREEDY)).files) > 1
        assert await walked(log, KEPT) == [new_message(0).body]


async def test_a_disk_that_fails_says_so_and_the_topic_goes_when_it_is_repeated(
    tmp_path: Path,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with open_hot_log(tmp_path, options=SMALL, clock=SystemClock()) as log:
        await log.append(new_message(0, topic="Gone"))
        with patch("os.replace", full), pytest.raises(Unavailable):
            await log.delete_topics({"Gone"})
        assert await walked(log, GONE) == [new_message(0).body]
        with patch("os.rmdir", full), pytest.raises(Unavailable):
            await log.delete_topics({"Gone"})
        assert not log.has(GONE)
        assert (tmp_path / "consumequeue/Gone").exists()
        await log.delete_topics({"Gone"})
        assert not (tmp_path / "consumequeue/Gone").exists()


def test_a_first_file_that_a_power_failure_took_of_a_topic_made_again_is_rebuilt(
    tmp_path: Path,
) -> None:
    """Its records follow the deletion, whose position is the durable end."""
    queue = QueueId("Orders", 0)
    with appender_at(tmp_path) as store:
        put(store, [new_message(number) for number in range(8)])
        store.close()
    with appender_at(tmp_path) as store:
        store.delete_topics({"Orders"})
        put(store, [new_message(number) for number in range(8, 13)])
        store.flush()
    first, second = sorted((tmp_path / "consumequeue/Orders/0").iterdir())
    first.unlink()
    assert second.name.endswith("200")
    for _ in range(2):
        with appender_at(tmp_path) as store:
            found = [message.body for message in contents(store)[queue]]
            assert found == [new_message(number).body for number in range(8, 13)]
            assert store.next_offset(queue) == 13
