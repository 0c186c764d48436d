"""Queues that begin above 0: their first message tells, whatever happens before it or meanwhile."""

import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.errors import Unavailable
from provider.object_store import Buffer
from tests.support.hot_store import SMALL, appender_at, new_message, put
from tieredstore.hot.appender import Appender
from tieredstore.hot.log.files import write_all
from tieredstore.hot.reading import first_with_record, read_messages

QUEUE = QueueId("Orders", 0)
UNITS_OF_FILE = SMALL.queue_file_bytes // 20
STARTS = [1, UNITS_OF_FILE - 1, UNITS_OF_FILE, 3 * UNITS_OF_FILE + 4]


def offsets_of(store: Appender) -> list[int]:
    """The offsets of what can be read, each verified by its record."""
    first, end = first_with_record(store, QUEUE), store.next_offsets.get(QUEUE, 0)
    found: list[int] = []
    while first + len(found) < end:
        at = first + len(found)
        messages = read_messages(store, QUEUE, at, end - at, 1 << 30)
        found += [message.queue_offset for message in messages]
    return found


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("end", ["closed", "killed", "killed without queues"])
def test_a_queue_begins_where_it_was_told_to_and_goes_on_there(
    start: int, end: str, tmp_path: Path
) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(0, queue_id=1)])
        store.continue_queues({QUEUE: start, QueueId("Orders", 2): 9})
        assert store.next_offsets == {QueueId("Orders", 1): 1}
        places = put(store, [new_message(n) for n in range(3)])
        places += put(store, [new_message(0, queue_id=1)])
        assert [place.queue_offset for place in places] == [start, start + 1, start + 2, 1]
        if end == "closed":
            store.close()
    if end == "killed without queues":
        for path in (tmp_path / "consumequeue/Orders/0").iterdir():
            path.unlink()
    with appender_at(tmp_path) as store:
        assert offsets_of(store) == [start, start + 1, start + 2]
        assert [one.queue_offset for one in put(store, [new_message(3)])] == [start + 3]
        assert QueueId("Orders", 2) not in store.next_offsets
        assert store.next_offset(QueueId("Orders", 2)) == 9


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("written_bytes", [0, 20, 50])
def test_a_first_message_that_cannot_be_written_is_put_there_later(
    written_bytes: int, start: int, tmp_path: Path, *, is_reopened: bool
) -> None:
    with appender_at(tmp_path) as store:
        store.continue_queues({QUEUE: start})
        left = [written_bytes]

        def write_some(fd: int, position: int, data: Buffer) -> None:
            raw = bytes(data)
            write_all(fd, position, raw[: left[0]])
            if len(raw) > left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= len(raw)

        with (
            patch("tieredstore.hot.log.consume_queues.write_all", write_some),
            pytest.raises(Unavailable),
        ):
            put(store, [new_message(n) for n in range(40)])
        assert not store.broken
        if not is_reopened:
            assert [one.queue_offset for one in put(store, [new_message(0)])] == [start]
            return
    with appender_at(tmp_path) as store:
        store.continue_queues({QUEUE: start})
        put(store, [new_message(0)])
        assert offsets_of(store) == [start]


@pytest.mark.parametrize("start", [8, UNITS_OF_FILE, 3 * UNITS_OF_FILE + 4])
@pytest.mark.parametrize("end", ["closed", "killed", "killed without queues"])
def test_a_queue_with_messages_continues_above_them(start: int, end: str, tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(n) for n in range(7)])
        assert not store.continue_queues({QUEUE: 7, QueueId("Orders", 1): 0}).queues
        assert not store.continue_queues({QUEUE: start}, {QUEUE: 6}).queues  # compared too early
        assert store.continue_queues({QUEUE: start}, {QUEUE: 7}).queues == {QUEUE}
        put(store, [new_message(0, queue_id=1)])
    with appender_at(tmp_path) as store:  # before the first message
        assert store.next_offset(QUEUE) == start
        assert "Orders" in (tmp_path / "config/topics.json").read_text()
        put(store, [new_message(n) for n in range(3)])
        if end == "closed":
            store.close()
    if end == "killed without queues":
        for path in (tmp_path / "consumequeue/Orders/0").iterdir():
            path.unlink()
    with appender_at(tmp_path) as store:
        assert offsets_of(store) == [start, start + 1, start + 2]
        assert [one.queue_offset for one in put(store, [new_message(3)])] == [start + 3]


def test_messages_of_a_log_that_was_lost_after_a_deletion_are_kept(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(n) for n in range(30)])
        store.delete_topics(["Orders"])
        put(store, [new_message(30)])
        store.close()
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    with appender_at(tmp_path) as store:
        assert store.next_offset(QUEUE) == 31
        put(store, [new_message(31), new_message(32)])
    for path in (tmp_path / "consumequeue/Orders/0").iterdir():
        path.unlink()
    with appender_at(tmp_path) as store:  # the log is read: its records are no deleted ones
        assert offsets_of(store) == [31, 32]


def test_files_that_go_amid_a_search_do_not_mislead_it(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(number) for number in range(100)])
        store.delete_oldest(store.log.bases[:2])
        first = first_with_record(store, QUEUE)
        assert first > 2 * UNITS_OF_FILE
        real_first = store.queues.first_offset

        def late(queue: QueueId) -> int:
            found = real_first(queue)
            store.queues.delete_below(queue, first)
            return found

        with patch.object(store.queues, "first_offset", late):
            assert first_with_record(store, QUEUE) == first
