"""Who appends: the loop where nothing holds it up, else the thread; in the order of the calls."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from provider.errors import Unavailable
from provider.object_store import Buffer
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import new_message
from tieredstore.hot.appending import HERE_BYTES_MAX, HERE_MESSAGES_MAX, PAUSES, WEIGHT_BYTES
from tieredstore.hot.encoding import MessageRefused, NewMessage
from tieredstore.hot.hot_log import HotLog, open_hot_log
from tieredstore.hot.options import HotWriteOptions

OPTIONS = HotWriteOptions(commit_log_bytes=1 << 22)


class Appending:
    """Notes in which thread each write to a CommitLog file is made, and makes it take its time."""

    def __init__(self, log: HotLog, clock: ManualClock) -> None:
        self.here: list[bool] = []
        self.takes_s = 0.0
        self._clock = clock
        files = log._appender.log
        self._real, self._real_one = files.write, files.write_one
        files.write = self.write  # type: ignore[method-assign]
        files.write_one = self.write_one  # type: ignore[method-assign]

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        self._note()
        self._real(position, parts)

    def write_one(self, position: int, record: bytes) -> None:
        self._note()
        self._real_one(position, record)

    def _note(self) -> None:
        self.here.append(threading.current_thread() is threading.main_thread())
        self._clock._elapsed_s += self.takes_s


def batch(count: int, start: int, body_bytes: int = 20) -> Sequence[NewMessage]:
    return [new_message(number, body_bytes=body_bytes) for number in range(start, start + count)]


async def test_the_loop_appends_what_is_small_once_files_are_open(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=OPTIONS, clock=clock) as log:
        appending = Appending(log, clock)
        for number in range(3):
            assert (await log.append(new_message(number))).queue_offset == number
        await log.append_many(batch(8, 3))
        assert appending.here == [False, True, True, True], "the first one makes files"
        await log.append(new_message(11, queue_id=1))
        await log.append(new_message(12, queue_id=1))
        assert appending.here[4:] == [False, True], "a new queue is entered in a file"
        await log.append_many(batch(100, 13, body_bytes=HERE_BYTES_MAX // 100))
        assert appending.here[6:] == [False], "much to write takes long"


async def test_a_file_is_begun_by_the_thread(tmp_path: Path) -> None:
    clock = ManualClock()
    options = replace(OPTIONS, commit_log_bytes=4096, consume_queue_bytes=200)
    async with open_hot_log(tmp_path, options=options, clock=clock) as log:
        appending = Appending(log, clock)
        for number in range(10):
            await log.append(new_message(number, body_bytes=10))
        assert appending.here == [False] + [True] * 9
        await log.append(new_message(10))
        assert appending.here[10:] == [False], "ten units fill a ConsumeQueue file"
        await log.append(new_message(11, body_bytes=3000))
        assert appending.here[11:] == [False] * 2, "a blank ends the file, and a new one begins"


async def test_what_was_called_first_is_appended_first(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=OPTIONS, clock=ManualClock()) as log:
        await log.append(new_message(0))
        async with asyncio.TaskGroup() as group:
            sizes = [10, HERE_BYTES_MAX, 10, 10, HERE_BYTES_MAX, 10]
            calls = [
                group.create_task(log.append(new_message(number, body_bytes=size)))
                for number, size in enumerate(sizes, 1)
            ]
        assert [call.result().queue_offset for call in calls] == [1, 2, 3, 4, 5, 6]


async def test_after_a_slow_write_the_thread_appends_for_a_while(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=OPTIONS, clock=clock) as log:
        appending = Appending(log, clock)
        await log.append(new_message(0))
        appending.takes_s = 0.2
        await log.append(new_message(1))
        await log.append(new_message(2))
        appending.takes_s = 0
        await log.append(new_message(3))
        assert appending.here == [False, True, False, False]
        await clock.advance(PAUSES * 0.2)
        await log.append(new_message(4))
        assert appending.here[4:] == [True]


async def test_a_task_that_only_appends_lets_others_run(tmp_path: Path) -> None:
    options = replace(OPTIONS, commit_log_bytes=1 << 24)
    async with open_hot_log(tmp_path, options=options, clock=ManualClock()) as log:
        await log.append(new_message(0))
        runs = 0
        is_over = False

        async def other() -> None:
            nonlocal runs
            while not is_over:
                runs += 1
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(other())
        for number in range(1, 1 + 4 * HERE_MESSAGES_MAX):
            await log.append(new_message(number))
        assert 4 <= runs <= 12
        runs = 0
        for number in range(2 * HERE_MESSAGES_MAX):
            await log.append(new_message(number, body_bytes=WEIGHT_BYTES))
        is_over = True
        assert 3 <= runs <= 9, "large messages count twice"
        await task


async def test_a_write_that_fails_here_is_told_and_taken_back(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=OPTIONS, clock=clock) as log:
        await log.append(new_message(0))
        appending = Appending(log, clock)
        with pytest.raises(MessageRefused):
            await log.append_many([new_message(1), new_message(2)._replace(queue_id=-1)])
        with (
            patch(
                "tieredstore.hot.log.consume_queues.write_all", side_effect=OSError(28, "no space")
            ),
            pytest.raises(Unavailable, match="full"),
        ):
            await log.append(new_message(1))
        assert (await log.append(new_message(1))).queue_offset == 1
        assert appending.here[-2:] == [True, True]


@pytest.mark.parametrize("is_open", [True, False], ids=["by the loop", "by the thread"])
async def test_an_error_that_nobody_foresaw_is_told_to_all_who_wait(
    tmp_path: Path, *, is_open: bool
) -> None:
    async with open_hot_log(tmp_path, options=OPTIONS, clock=ManualClock()) as log:
        if is_open:
            await log.append(new_message(0))
        with patch.object(log._appender, "plan_alike", side_effect=IndexError("unforeseen")):
            calls = [log.append_many(batch(8, 0)), log.append(new_message(8))]
            async with asyncio.timeout(60):
                first, _ = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, IndexError)
        appended = await log.append_many(batch(8, 0))
        assert appended[0].queue_offset <= 2
