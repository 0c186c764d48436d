"""Where the hot log is read: on the loop what the page cache has, else in a thread."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from container.queue.positions import Boundary
from provider.errors import Corrupt
from provider.posix.files import OpenFile, OpenFiles
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import new_message
from tieredstore.hot.hot_log import HotLog, open_hot_log
from tieredstore.hot.log.files import ReadFiles
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.hot.reading import HERE_BYTES_MAX

QUEUE = QueueId("Orders", 0)
OPTIONS = HotWriteOptions(commit_log_bytes=1 << 22)
MESSAGES = 40


class Hops:
    """Counts what is handed to threads from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        loop = asyncio.get_running_loop()
        self._real = loop.run_in_executor
        monkeypatch.setattr(loop, "run_in_executor", self._run)

    def _run(self, executor: Any, work: Any) -> Any:
        self.count += 1
        return self._real(executor, work)

    def taken(self) -> int:
        """How many since the last call."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
async def log(tmp_path: Path) -> AsyncGenerator[HotLog]:
    """A log with messages of one queue, which were read once."""
    async with open_hot_log(tmp_path, options=OPTIONS, clock=ManualClock()) as log:
        await log.append_many([new_message(number) for number in range(MESSAGES)])
        assert len(await log.get(QUEUE, 0, messages_max=8)) == 8
        yield log


def counting(monkeypatch: pytest.MonkeyPatch, error: int) -> list[int]:
    """Reads that are not to wait fail so; their places."""
    places: list[int] = []

    def failing(fd: int, buffers: Any, at: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        places.append(at)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "preadv", failing)
    return places


@pytest.fixture
def _telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that tells what is cached, which tmpfs does not; and all is."""
    real = os.preadv

    def cached(fd: int, buffers: Any, at: int, flags: int = 0) -> int:
        return real(fd, buffers, at, flags & ~os.RWF_NOWAIT)

    monkeypatch.setattr(os, "preadv", cached)


@pytest.mark.usefixtures("_telling")
async def test_what_is_cached_is_read_on_the_loop(
    log: HotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = Hops(monkeypatch)
    found = await log.get(QUEUE, 8, messages_max=32)
    assert [message.queue_offset for message in found] == list(range(8, 40))
    assert hops.taken() == 0
    await log.append(new_message(MESSAGES))
    assert [message.queue_offset for message in await log.get(QUEUE, MESSAGES)] == [MESSAGES]
    assert hops.taken() == 0


@pytest.mark.usefixtures("_telling")
async def test_moments_are_looked_for_on_the_loop(
    log: HotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_ms = await log.earliest_message_time(QUEUE)
    assert first_ms is not None
    assert await log.offset_by_time(QUEUE, first_ms) == 0
    hops = Hops(monkeypatch)
    assert await log.offset_by_time(QUEUE, first_ms) == 0
    assert await log.offset_by_time(QUEUE, first_ms, Boundary.UPPER) == MESSAGES - 1
    assert await log.message_store_time(QUEUE, MESSAGES - 1) == first_ms
    assert hops.taken() == 0


async def test_moments_are_looked_for_by_a_thread_where_something_is_not_cached(
    log: HotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_ms = await log.earliest_message_time(QUEUE)
    assert first_ms is not None
    places, hops = counting(monkeypatch, errno.EAGAIN), Hops(monkeypatch)
    assert await log.offset_by_time(QUEUE, first_ms + 1) == MESSAGES
    assert (len(places), hops.taken()) == (1, 1)
    assert await log.message_store_time(QUEUE, 3) == first_ms
    assert (len(places), hops.taken()) == (2, 1)


@pytest.mark.usefixtures("_telling")
async def test_much_is_read_by_a_thread(log: HotLog, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.append_many(
        [new_message(number, body_bytes=HERE_BYTES_MAX // 4) for number in range(6)]
    )
    hops = Hops(monkeypatch)
    assert len(await log.get(QUEUE, MESSAGES, messages_max=6, bytes_max=1 << 20)) == 6
    assert hops.taken() == 1
    assert len(await log.get(QUEUE, MESSAGES, messages_max=2, bytes_max=1 << 20)) == 2
    assert hops.taken() == 0


async def test_what_is_not_cached_is_read_by_a_thread(
    log: HotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, hops = counting(monkeypatch, errno.EAGAIN), Hops(monkeypatch)
    for _ in range(2):
        assert len(await log.get(QUEUE, 3, messages_max=2)) == 2
        assert (len(places), hops.taken()) == (1, 1)
        places.clear()


async def test_a_file_system_that_does_not_tell_is_not_asked_again(
    log: HotLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, hops = counting(monkeypatch, errno.EOPNOTSUPP), Hops(monkeypatch)
    for _ in range(3):
        assert len(await log.get(QUEUE, 3, messages_max=2)) == 2
    assert (places, hops.taken()) == ([60], 3)


async def test_files_that_were_deleted_are_not_kept_open(tmp_path: Path) -> None:
    options = replace(OPTIONS, commit_log_bytes=4096, consume_queue_bytes=200)
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=options, clock=clock) as log:
        await log.append_many([new_message(number) for number in range(100)])
        for offset in range(0, 100, 5):
            await log.get(QUEUE, offset, messages_max=5)
        old_s = clock.now_ms() / 1000 - 100 * 3600
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (old_s, old_s))
        trim = await log.trim(lambda _: None, RetentionOptions(files_max=1000))
        assert trim.files
        assert (await log.bounds(QUEUE)).min_offset > 50
        assert gone_but_open(tmp_path) == []


def gone_but_open(directory: Path) -> list[str]:
    """Deleted files below a directory of which this process has descriptors."""
    targets: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    ours = [target for target in targets if target.startswith(f"{directory}/")]
    return [target for target in ours if target.endswith(" (deleted)")]


async def test_a_queue_that_is_made_again_is_read_from_its_new_file(
    log: HotLog, tmp_path: Path
) -> None:
    await log.delete_topics(["Orders"])
    assert gone_but_open(tmp_path) == []
    placed = await log.append(new_message(7))
    assert placed.queue_offset == MESSAGES
    [found] = await log.get(QUEUE, MESSAGES)
    assert found.physical_offset == placed.position


def test_a_file_that_goes_while_it_is_opened_is_read_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0000"
    path.write_bytes(b"old")
    files, real = ReadFiles(4), OpenFiles.pin

    def slow(self: OpenFiles, name: str, *, writable: bool = False) -> OpenFile:
        file = real(self, name, writable=writable)
        monkeypatch.undo()
        path.unlink()
        files._deletions += 1  # of which the other half, `forget`, came before the file was kept
        return file

    monkeypatch.setattr(OpenFiles, "pin", slow)
    assert files.read(str(path), 0, 3, waits=True) == b"old"
    path.write_bytes(b"new")
    assert files.read(str(path), 0, 3, waits=True) == b"new"
    files.close()


@pytest.mark.parametrize("size", [-1, -(1 << 31)])
async def test_a_unit_of_a_negative_size_is_damage(log: HotLog, tmp_path: Path, size: int) -> None:
    await log.flush()
    (path,) = (tmp_path / "consumequeue" / "Orders" / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(5 * 20 + 8)
        file.write(size.to_bytes(4, "big", signed=True))
    assert [one.queue_offset for one in await log.get(QUEUE, 3, messages_max=8)] == [3, 4]
    with pytest.raises(Corrupt, match="no record of Orders/0 at offset 5"):
        await log.get(QUEUE, 5, messages_max=8)
    assert [one.queue_offset for one in await log.get(QUEUE, 6, messages_max=2)] == [6, 7]
