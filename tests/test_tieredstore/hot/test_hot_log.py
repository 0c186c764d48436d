"""The log as tasks use it: acknowledgements, order, groups, reading, closing."""

import asyncio
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.clock import SystemClock
from provider.errors import Closed, OutOfRange, Unavailable
from provider.testing.manual_clock import ManualClock, settle
from tests.support.hot_store import SMALL, new_message
from tieredstore.hot.encoding import AppendPlan, MessageRefused, NewMessage
from tieredstore.hot.hot_log import HotLog, open_hot_log
from tieredstore.hot.log import commit_log
from tieredstore.hot.log.directory import InUse
from tieredstore.hot.options import HotWriteOptions

QUEUE = QueueId("Orders", 0)
SYNC = replace(SMALL, flush="SYNC_FLUSH")


async def bodies(log: HotLog, queue: QueueId) -> list[bytes]:
    """All messages of a queue, in as many reads as it takes."""
    at, end = await log.bounds(queue)
    found: list[bytes] = []
    while at < end:
        messages = await log.get(queue, at)
        assert [m.queue_offset for m in messages] == list(range(at, at + len(messages)))
        found += [m.body for m in messages]
        at += len(messages)
    return found


@pytest.mark.parametrize("options", [SMALL, SYNC], ids=["async", "sync"])
async def test_messages_of_many_tasks_are_there_in_the_order_of_each(
    options: HotWriteOptions, tmp_path: Path
) -> None:
    async def produce(log: HotLog, task: int) -> None:
        for number in range(20):
            message = new_message(task * 100 + number, queue_id=task % 3)
            if number % 4:
                await log.append(message)
            else:
                places = await log.append_many([message, message._replace(body=b"twin")])
                assert places[1].queue_offset > places[0].queue_offset

    async with open_hot_log(tmp_path, options=options, clock=SystemClock()) as log:
        async with asyncio.TaskGroup() as group:
            for task in range(6):
                group.create_task(produce(log, task))
        written = {queue: await bodies(log, queue) for queue in log.queues()}
    assert sum(map(len, written.values())) == 6 * 25
    for found in written.values():
        for task in range(6):
            mine = [b for b in found if b != b"twin" and int(b.partition(b":")[0]) // 100 == task]
            assert mine == sorted(mine, key=lambda b: int(b.partition(b":")[0]))
    assert not (tmp_path / "abort").exists()
    async with open_hot_log(tmp_path, options=options, clock=SystemClock()) as log:
        assert {queue: await bodies(log, queue) for queue in log.queues()} == written


async def test_with_sync_flush_an_acknowledgement_waits_for_the_disk_and_shares_it(
    tmp_path: Path,
) -> None:
    permit, syncs = threading.Semaphore(0), []
    real = os.fdatasync

    def held(fd: int) -> None:
        if "commitlog" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            permit.acquire()
            syncs.append(fd)
        real(fd)

    options = replace(SYNC, commit_log_bytes=1 << 20)
    async with open_hot_log(tmp_path, options=options, clock=ManualClock()) as log:
        with patch("os.fdatasync", held):
            async with asyncio.TaskGroup() as group:
                first = group.create_task(log.append(new_message(0)))
                while not log._ends.unflushed:  # noqa: ASYNC110 - a thread's work
                    await asyncio.sleep(0.001)
                others = [group.create_task(log.append(new_message(n))) for n in range(1, 9)]
                while log._appender.next_offsets.get(QUEUE, 0) < 9:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                assert not first.done()
                assert (await log.bounds(QUEUE)).max_offset == 0, "not acknowledged, not visible"
                permit.release()
                assert (await first).queue_offset == 0
                assert log.durable_offset(QUEUE) >= 1
                permit.release(9)
            assert [task.result().queue_offset for task in others] == list(range(1, 9))
            assert len(syncs) <= 3, "those that wait share a sync"
            permit.release(9)
    assert log.durable_offset(QUEUE) == 9


async def test_with_async_flush_the_disk_follows_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
        await log.append(new_message(0))
        assert (await log.bounds(QUEUE)).max_offset == 1
        assert log.durable_offset(QUEUE) == 0
        log.news.clear()
        await clock.advance(SMALL.flush_interval_s)
        await asyncio.wait_for(log.news.wait(), 60)
        assert log.durable_offset(QUEUE) == 1
        await log.append(new_message(1))
        await log.flush()
        assert log.durable_offset(QUEUE) == 2


async def test_after_an_interval_without_appends_the_disk_follows_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
        await clock.advance(10 * SMALL.flush_interval_s)
        await log.append(new_message(0))
        await asyncio.wait_for(log.news.wait(), 60)
        assert log.durable_offset(QUEUE) == 1
        log.news.clear()
        await log.append(new_message(1))
        await clock.advance(0.9 * SMALL.flush_interval_s)
        await settle()
        assert log.durable_offset(QUEUE) == 1
        await clock.advance(0.2 * SMALL.flush_interval_s)
        await asyncio.wait_for(log.news.wait(), 60)
        assert log.durable_offset(QUEUE) == 2


async def test_one_refused_message_refuses_its_call_alone(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        results = await asyncio.gather(
            log.append(new_message(0)),
            log.append_many([new_message(1), NewMessage("", 0, b"")]),
            log.append(new_message(2)),
            return_exceptions=True,
        )
        assert isinstance(results[1], MessageRefused)
        assert [body[:2] for body in await bodies(log, QUEUE)] == [b"0:", b"2:"]
        batch = [new_message(n, body_bytes=300) for n in range(10)]
        with pytest.raises(MessageRefused, match="The batch has"):
            await log.append_many(batch, together=True)
        assert await log.append_many([]) == []


async def test_a_cancelled_call_takes_nothing_back(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        task = asyncio.get_running_loop().create_task(log.append(new_message(0)))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await log.append(new_message(1))
        assert len(await bodies(log, QUEUE)) == 2


async def test_appends_wait_while_much_waits(tmp_path: Path) -> None:
    options = replace(SMALL, waiting_bytes_max=1000, commit_log_bytes=1 << 20)
    async with open_hot_log(tmp_path, options=options, clock=ManualClock()) as log:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(log.append(new_message(number, body_bytes=900)))
            await asyncio.sleep(0)
            assert log._calls._waiting_bytes <= 1000 + 900 + 256
        assert len(await bodies(log, QUEUE)) == 50


async def test_reading_says_what_is_out_of_range_and_bounds_bytes(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        await log.append_many([new_message(n) for n in range(12)])
        for offset in (-1, 12):
            with pytest.raises(OutOfRange, match="offsets below 12 are there"):
                await log.get(QUEUE, offset)
        assert len(await log.get(QUEUE, 0, bytes_max=1)) == 1
        assert len(await log.get(QUEUE, 0, bytes_max=300)) == 2
        assert len(await log.get(QUEUE, 0, messages_max=5)) == 5
        assert len(await log.get(QUEUE, 0)) == 10, "one ConsumeQueue file holds 10 units"
        with pytest.raises(OutOfRange):
            await log.get(QueueId("Other", 0), 0)
        assert await log.bounds(QueueId("Other", 0)) == (0, 0)


async def test_a_second_opening_is_refused_and_a_closed_log_says_so(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        with pytest.raises(InUse, match=r"writes the store .*: stop it first"):
            async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()):
                pass
        await log.append(new_message(0))
    for call in (log.append(new_message(1)), log.bounds(QUEUE), log.flush()):
        with pytest.raises(Closed):
            await call
    await log.close()


async def test_what_was_handed_in_is_written_by_close(tmp_path: Path) -> None:
    async with open_hot_log(tmp_path, options=SYNC, clock=ManualClock()) as log:
        tasks = [
            asyncio.get_running_loop().create_task(log.append(new_message(n))) for n in range(9)
        ]
        await asyncio.sleep(0)
    assert [(await task).queue_offset for task in tasks] == list(range(9))


async def test_a_failed_sync_is_told_to_those_who_wait_and_all_after(tmp_path: Path) -> None:
    def failing(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    async with open_hot_log(tmp_path, options=SYNC, clock=ManualClock()) as log:
        await log.append(new_message(0))
        with patch("os.fdatasync", failing), pytest.raises(Unavailable, match="may be lost"):
            await log.append(new_message(1))
        with pytest.raises(Unavailable, match="until the store is opened again"):
            await log.append(new_message(2))
        assert len(await bodies(log, QUEUE)) == 1
    async with open_hot_log(tmp_path, options=SYNC, clock=ManualClock()) as log:
        assert [body[:2] for body in await bodies(log, QUEUE)] == [b"0:", b"1:"]
        await log.append(new_message(2))


@pytest.mark.parametrize("is_closing", [False, True], ids=["open", "closing"])
async def test_who_waits_for_the_disk_is_told_of_a_failure_elsewhere(
    tmp_path: Path, is_closing: object
) -> None:
    """The sync of the ConsumeQueues may fail while an append waits for the CommitLog's."""
    async with open_hot_log(tmp_path, options=SYNC, clock=ManualClock()) as log:
        appender = log._appender
        real = appender.carry_out

        def broken_after(plan: AppendPlan) -> None:
            real(plan)
            appender.broken = "a write may be lost"

        with patch.object(appender, "carry_out", broken_after):
            task = asyncio.get_running_loop().create_task(log.append(new_message(0)))
            await asyncio.sleep(0)
            if is_closing:
                await log.close()
            with pytest.raises(Unavailable, match="a write may be lost"):
                await asyncio.wait_for(task, 60)


def test_options_have_bounds() -> None:
    assert HotWriteOptions(consume_queue_bytes=30).queue_file_bytes == 40
    assert HotWriteOptions().memory_bytes_max == 80 << 20
    for changes in (
        {"commit_log_bytes": 98},
        {"flush_interval_s": 0},
        {"flush": "NEVER"},
        {"waiting_bytes_max": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(changes))):
            replace(SMALL, **changes)


async def test_what_was_acknowledged_stays_readable_while_older_messages_become_durable(
    tmp_path: Path,
) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        first = await log.append(new_message(0))
        log._ends.flushing()
        for number in (1, 2):
            await log.append(new_message(number))
        log._ends.flushed(first.position + first.size)  # a sync that began before the others
        assert await bodies(log, QUEUE) == [new_message(number).body for number in range(3)]
        assert log.durable_offset(QUEUE) == 1


async def test_what_can_be_read_never_shrinks_when_an_older_group_becomes_durable(
    tmp_path: Path,
) -> None:
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        ends: list[int] = []
        log.tell(lambda told: ends.append(told[QUEUE]))
        await log.append(new_message(0))
        goes_on = threading.Event()
        with patch.object(commit_log, "sync_written", lambda *_: goes_on.wait()):
            flush = asyncio.create_task(log.flush())
            await asyncio.sleep(0)
            await log.append(new_message(1))
            goes_on.set()
            await flush
        assert log.end_offset(QUEUE) == (await log.bounds(QUEUE)).max_offset == 2
        assert ends == [1, 2]
        assert log.durable_offset(QUEUE) >= 1
