"""Files that are renamed or deleted under an open store, and descriptors that are short."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES
from provider.errors import StoreError, Unavailable
from tests.support.hot_store import appender_at, new_message, put, readable
from tieredstore.hot.log import directory
from tieredstore.hot.log.directory import InUse
from tieredstore.hot.options import HotWriteOptions
from tieredstore.hot.reading import first_with_record, read_messages

OPTIONS = HotWriteOptions(commit_log_bytes=1 << 16, consume_queue_bytes=6000)
LOG = "commitlog/" + "0" * 20
UNITS = "consumequeue/Orders/0/" + "0" * 20


def replaced_within(root: Path, name: str) -> None:
    aside = root.parent / "aside"
    (root / name).rename(aside)
    shutil.copy(aside, root / name)


MOVES: dict[str, Callable[[Path], object]] = {
    "log file replaced by a copy": lambda root: replaced_within(root, LOG),
    "log file deleted": lambda root: (root / LOG).unlink(),
    "units replaced by a copy": lambda root: replaced_within(root, UNITS),
    "units deleted": lambda root: (root / UNITS).unlink(),
    "store moved": lambda root: root.rename(root.parent / "moved"),
    "store deleted": shutil.rmtree,
}


@pytest.mark.parametrize("move", MOVES)
def test_what_has_no_name_any_more_is_not_acknowledged(move: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with appender_at(root, OPTIONS) as store:
        put(store, [new_message(0)])
        store.flush_queues()
        MOVES[move](root)
        put(store, [new_message(1)])
        flush = store.flush_queues if move.startswith("units") else store.flush
        with pytest.raises(Unavailable, match="renamed or deleted while the store was open"):
            flush()
        with pytest.raises(Unavailable, match="until the store is opened again"):
            put(store, [new_message(2)])
        store.close()
    assert not root.exists() or (root / "abort").exists(), "it was not closed cleanly"
    assert not (root / "consumequeue/Refunds").exists()


@pytest.mark.parametrize("left", ["nothing", "another file"])
def test_a_lock_that_is_deleted_lets_no_second_writer_in(left: str, tmp_path: Path) -> None:
    with appender_at(tmp_path, OPTIONS) as store:
        put(store, [new_message(0)])
        (tmp_path / "lock").unlink()
        (tmp_path / "abort").unlink()
        if left == "another file":
            (tmp_path / "lock").write_text("lock")
        with pytest.raises(InUse, match="writes the store"), appender_at(tmp_path, OPTIONS):
            pass
        (place,) = put(store, [new_message(1)])
        assert place.queue_offset == 1
    with appender_at(tmp_path, OPTIONS) as store:
        assert store.next_offsets == {QueueId("Orders", 0): 2}


def test_a_file_system_without_locks_of_directories_takes_a_store(tmp_path: Path) -> None:
    no_lock = patch("fcntl.flock", side_effect=OSError(errno.EBADF, "bad file descriptor"))
    with no_lock, appender_at(tmp_path, OPTIONS) as store:
        put(store, [new_message(0)])


@pytest.mark.parametrize("move", MOVES)
def test_what_was_durable_before_is_there_afterwards(move: str, tmp_path: Path) -> None:
    """What is in a file that exists. No offset of the five is given twice if any file exists."""
    root = tmp_path / "store"
    queue = QueueId("Orders", 0)
    with appender_at(root, OPTIONS) as store:
        put(store, [new_message(n) for n in range(5)])
        store.flush_queues()
        MOVES[move](root)
        put(store, [new_message(5)])  # not durable
        with suppress(Unavailable):
            (store.flush_queues if move.startswith("units") else store.flush)()
        store.close()
    if move == "store moved":
        (tmp_path / "moved").rename(root)
    with appender_at(root, OPTIONS) as store:
        bodies = readable(store)[0].get(queue, [])
        at = store.next_offset(queue)
        assert [one.queue_offset for one in put(store, [new_message(9)])] == [at]
    if move == "store deleted":
        assert (bodies, at) == ([], 0)
        return
    assert at in {5, 6}
    kept = 0 if move == "log file deleted" else at
    assert bodies == [new_message(n).body for n in range(kept)]


class FewDescriptors:
    """Opens fail with an error, while it is set, in the directory of a store."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.left = 1 << 30
        self._open, self._dup = os.open, os.dup

    def open(self, path: Any, *others: Any, **named: Any) -> int:
        self._take(path)
        return self._open(path, *others, **named)

    def dup(self, fd: int) -> int:
        self._take(None)
        return self._dup(fd)

    def _take(self, path: Any) -> None:
        if self.left <= 0:
            raise OSError(self.number, os.strerror(self.number), path)
        self.left -= 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_passes(number: int, tmp_path: Path) -> None:
    """Whichever call meets it: at most that call fails, and a later one succeeds."""
    few = FewDescriptors(number)
    acknowledged: list[bytes] = []
    failed = 0
    with (
        patch("os.open", few.open),
        patch("os.dup", few.dup),
        appender_at(tmp_path, HotWriteOptions(commit_log_bytes=4096)) as store,
    ):
        for turn in range(120):
            few.left = turn % 6
            message = new_message(turn, topic=f"Topic{turn % 40}", body_bytes=300)
            try:
                put(store, [message])
                acknowledged.append(message.body)
                store.flush_queues()
            except Unavailable:
                failed += 1
            few.left = 1 << 30
            store.flush()
        assert not store.broken
        assert failed > 10
        few.left = 1 << 30
        store.flush_queues()
        found = [body for bodies in readable(store)[0].values() for body in bodies]
        assert sorted(found) == sorted(acknowledged)
        store.close()


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("left", range(8))
def test_an_append_without_descriptors_leaves_nothing(
    left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, closes: bool
) -> None:
    """Its first units were written, and their file was closed for the one of another queue."""
    few = FewDescriptors(errno.EMFILE)
    batch = [new_message(n, topic=f"Topic{n}") for n in range(4)]
    options = replace(OPTIONS, files_open_max=1)
    with (
        patch("os.open", few.open),
        patch("os.dup", few.dup),
        appender_at(tmp_path, options) as store,
    ):
        put(store, batch)
        few.left = left
        try:
            put(store, batch * 2)
            end = 3
        except Unavailable:
            end = 1
        few.left = 1 << 30
        assert not store.broken
        if not closes:
            assert put(store, batch[:1])[0].queue_offset == end
        store.close()
    ends = {QueueId(one.topic, 0): end for one in batch}
    ends[QueueId("Topic0", 0)] += not closes
    with appender_at(tmp_path, options) as again:
        assert again.next_offsets == ends
        assert {queue: len(found) for queue, found in readable(again)[0].items()} == ends
        assert not caplog.text
        again.close()


def test_a_deletion_without_descriptors_leaves_no_bounds_of_files_that_are_gone(
    tmp_path: Path,
) -> None:
    """Nor is a later file deleted before it is durable."""
    few, queue = FewDescriptors(errno.EMFILE), QueueId("Orders", 0)
    with appender_at(tmp_path) as store, patch("os.open", few.open):
        put(store, [new_message(number) for number in range(120)])
        store.flush_queues()
        first, second, third = store.log.bases[:3]
        few.left = 2  # of `durableEnds` and its copy
        with pytest.raises(OSError, match="open files"):
            store.delete_oldest([first])
        few.left = 1 << 30
        at = first_with_record(store, queue)
        assert at > 0
        assert read_messages(store, queue, at, 1, 1)[0].body == new_message(at).body
        few.left = 0
        with pytest.raises(OSError, match="open files"):
            store.log.delete_oldest()
        assert store.log.bases[0] == second, "the first deletion is not durable yet"
        few.left = 1 << 30
        store.delete_oldest([second])
        assert store.log.min_position == third
        store.close()


def test_units_deleted_without_descriptors_leave_no_file_that_is_gone(tmp_path: Path) -> None:
    few, queue = FewDescriptors(errno.EMFILE), QueueId("Orders", 0)
    with appender_at(tmp_path) as store, patch("os.open", few.open):
        put(store, [new_message(number) for number in range(120)])
        store.flush_queues()
        first, second, *_ = store.queues.bases[queue]
        below = second // UNIT_BYTES + 2
        few.left = 0
        with pytest.raises(OSError, match="open files"):
            store.queues.delete_below(queue, below)
        assert not store.queues.path(queue, first).exists()
        assert store.queues.bases[queue][0] == second
        with pytest.raises(OSError, match="open files"):  # it is not durable yet
            store.queues.delete_below(queue, below)
        few.left = 1 << 30
        assert store.queues.delete_below(queue, below) == 0
        store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.EACCES])
def test_a_directory_that_cannot_be_described_for_a_while_loses_nothing(
    number: int, tmp_path: Path
) -> None:
    acknowledged = [new_message(0)]
    with appender_at(tmp_path, OPTIONS) as store:
        put(store, acknowledged)
        store.flush_queues()
        with patch.object(directory, "samestat", side_effect=OSError(number, "injected")):
            with pytest.raises((StoreError, OSError)):
                store.flush_queues()
            # The file of one queue is open, that of the other one is not.
            with pytest.raises((StoreError, OSError)):
                put(store, [new_message(1), new_message(2, topic="Refunds")])
        assert not store.broken
        acknowledged.append(new_message(3))
        put(store, acknowledged[1:])
        store.flush()
        store.flush_queues()
        store.close()
    with appender_at(tmp_path, OPTIONS) as again:
        found = [body for bodies in readable(again)[0].values() for body in bodies]
        assert found == [message.body for message in acknowledged]
        again.close()
