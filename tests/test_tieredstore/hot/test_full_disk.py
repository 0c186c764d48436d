"""A disk that fills while appending: the call fails, nothing is torn, and writing resumes."""

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.errors import Unavailable
from provider.object_store import Buffer
from tests.support.hot_store import appender_at, contents, new_message, put, units_after
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.options import HotWriteOptions

OPTIONS = HotWriteOptions(commit_log_bytes=8192, consume_queue_bytes=4000)


class SparseDisk:
    """A file system of few blocks that sparse files take when they are first written to."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        self._blocks: set[tuple[int, int]] = set()
        self._pwrite = os.pwrite

    def leave(self, blocks: int) -> None:
        """Only so many more can be taken."""
        self.blocks_max = len(self._blocks) + blocks

    def pwrite(self, fd: int, data: Buffer, position: int) -> int:
        """Writes up to where the room ends; there it fails."""
        inode, view, end = os.fstat(fd).st_ino, memoryview(data), position + len(data)
        for block in range(position // 4096, -(-end // 4096)):
            if (inode, block) not in self._blocks:
                if len(self._blocks) >= self.blocks_max:
                    end = block * 4096
                    break
                self._blocks.add((inode, block))
        if end <= position:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwrite(fd, view[: end - position], position)


@pytest.fixture
def disk() -> Iterator[SparseDisk]:
    found = SparseDisk(blocks_max=12)
    with patch("os.pwrite", found.pwrite):
        yield found


def test_a_full_disk_fails_the_append_and_nothing_else(tmp_path: Path, disk: SparseDisk) -> None:
    acknowledged: list[NewMessage] = []
    with appender_at(tmp_path, OPTIONS) as store:
        failures = 0
        for number in range(100):
            group = [new_message(number * 3 + n, queue_id=n, body_bytes=700) for n in range(3)]
            end, offsets = store.end, dict(store.next_offsets)
            failure = failure_of(store, group)
            if failure:
                assert "the file system is full" in failure
                assert (store.end, store.next_offsets) == (end, offsets)
                failures += 1
                disk.blocks_max += failures % 3 == 0  # room for one more block now and then
            else:
                acknowledged += group
            assert bodies(store) == [message.body for message in acknowledged]
            if failures == 10:
                break
        assert failures == 10
        assert len(acknowledged) > 12
        written = store.log.read(store.log.base_of(store.end), 8192)
        assert not any(written[store.end % 8192 :]), "what was written of the failed is taken back"
        for queue, end in store.next_offsets.items():
            assert units_after(store, queue, end) == []
        disk.blocks_max = 1000
        put(store, [new_message(999)])
    with appender_at(tmp_path, OPTIONS) as store:
        found = bodies(store)
        assert found == sorted(
            [m.body for m in acknowledged] + [new_message(999).body], key=number_of
        )


def test_what_a_failed_write_left_is_taken_back_without_room_for_what_follows(
    tmp_path: Path, disk: SparseDisk
) -> None:
    """Zeros over the holes behind it would need the blocks that there are none of."""
    disk.blocks_max = 1000
    with appender_at(tmp_path, replace(OPTIONS, commit_log_bytes=1 << 16)) as store:
        put(store, [new_message(1)])
        disk.leave(3)
        for number in range(2, 5):
            assert "is full" in failure_of(store, [new_message(number, body_bytes=30_000)])
            assert not store.broken
        disk.blocks_max = 1000
        put(store, [new_message(5, body_bytes=30_000)])
        assert [number_of(body) for body in bodies(store)] == [1, 5]


def test_a_new_topic_on_a_full_disk_is_refused_and_later_taken(
    tmp_path: Path, disk: SparseDisk
) -> None:
    with appender_at(tmp_path, OPTIONS) as store:
        put(store, [new_message(1)])
        disk.blocks_max = 0
        with pytest.raises(Unavailable):
            put(store, [new_message(2, topic="Other")])
        assert QueueId("Other", 0) not in store.next_offsets
        disk.blocks_max = 1000
        put(store, [new_message(3, topic="Other")])
        assert [m.body for m in contents(store)[QueueId("Other", 0)]] == [new_message(3).body]
    assert set(json.loads((tmp_path / "config/topics.json").read_bytes())["topicConfigTable"]) == {
        "Orders",
        "Other",
    }


def failure_of(store: Appender, group: list[NewMessage]) -> str:
    """Append; what was said where that failed."""
    try:
        put(store, group)
    except Unavailable as error:
        return str(error)
    return ""


def number_of(body: bytes) -> int:
    return int(body.partition(b":")[0])


def bodies(store: Appender) -> list[bytes]:
    return sorted((m.body for found in contents(store).values() for m in found), key=number_of)
