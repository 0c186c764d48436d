"""Whether bytes of a file are in the page cache, as the kernel tells it."""

import asyncio
import os
from pathlib import Path
from unittest.mock import patch

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tieredstore.hot import reading
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.log import commit_log, files
from tieredstore.hot.log.files import estimated_bytes, is_estimated_resident, resident

QUEUE = QueueId("Orders", 0)


def test_pages_that_were_written_are_resident_until_the_kernel_drops_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDWR)
    try:
        assert resident(fd, 5000, 100_000)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        dropped = resident(fd, 5000, 100_000)
        assert dropped is False
        os.pread(fd, 1, 1 << 19)
        assert resident(fd, 1 << 19, 1)
    finally:
        os.close(fd)


def test_holes_of_a_sparse_file_are_not_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.truncate(1 << 30)
        file.flush()
        assert resident(file.fileno(), 1 << 29, 4096) is False


def test_where_it_cannot_be_asked_nothing_is_said(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert resident(file.fileno(), 0, 4096) is None  # not opened for reading
        assert resident(file.fileno(), 0, 0) is None
        with patch.object(files, "_calls", lambda: None):
            assert resident(file.fileno(), 0, 4096) is None


def test_the_estimate_is_the_newest_two_fifths_of_memory() -> None:
    share = estimated_bytes()
    assert 0.3 < share / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) < 0.5
    assert is_estimated_resident(0, share)
    assert not is_estimated_resident(0, share + 1)


async def test_messages_count_over_files_and_without_those_of_others(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        await log.append_many([new_message(n, queue_id=n % 2) for n in range(100)])
        assert await log.is_resident(QUEUE, 0, 50)
        assert await log.is_resident(QUEUE, 49, 50)  # those that are not there do not count
        assert not await log.is_resident(QUEUE, 50)
        assert not await log.is_resident(QUEUE, -1)
        assert not await log.is_resident(QueueId("Nothing", 0), 0)
        asked: list[tuple[int, int]] = []

        def only_the_first(_: int, start: int, length: int) -> bool:
            asked.append((start, length))
            return len(asked) < 2

        with patch.object(commit_log, "resident", only_the_first):
            assert not await log.is_resident(QUEUE, 0, 50)
        assert len(asked) == 2
        with (
            patch.object(commit_log, "resident", lambda *_: None),
            patch.object(reading, "is_estimated_resident", lambda *_: False),
        ):
            assert not await log.is_resident(QUEUE, 0)


def write_position(path: Path, at: int, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(position.to_bytes(8, "big", signed=True))


async def test_a_unit_that_points_out_of_the_log_is_not_resident(tmp_path: Path) -> None:
    """Whichever of several it is: the read that follows says what is wrong with it."""
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        await log.append_many([new_message(n) for n in range(3)])
        assert await log.is_resident(QUEUE, 0, 3)
        path = tmp_path / "consumequeue" / "Orders" / "0" / "00000000000000000000"
        for position in (-(1 << 62), 1 << 40):
            await asyncio.to_thread(write_position, path, UNIT_BYTES, position)
            assert not await log.is_resident(QUEUE, 0, 3)
            assert await log.is_resident(QUEUE, 0, 1)
