"""The hot log alone: the statuses of RocketMQ's local store, row by row, waiting, deleting."""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from container.record.unit import FILLER_SIZE, ConsumeQueueUnit
from dispatcher.topic_filter import QUEUE_ID_MAX
from fetcher.result import FetchStatus
from fetcher.tag_filter import parse_subscription
from provider.clock import LoopHold, SystemClock
from provider.errors import Closed, Corrupt, Denied, Unavailable
from provider.posix.files import sync_directory
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.log import commit_log
from tieredstore.hot.options import ReadLimits, RetentionOptions
from tieredstore.store import local as local_read
from tieredstore.store.local import LocalMessageStore, Wish, choose_units

ALL_GOES = RetentionOptions(reserved_s=0, files_max=100)


def local(root: Path, **more: object) -> LocalMessageStore:
    return LocalMessageStore(root, options=SMALL, retention=ALL_GOES, clock=SystemClock(), **more)  # pyright: ignore[reportArgumentType] - as given


def put_many(count: int, first: int = 0) -> Sequence[NewMessage]:
    return [new_message(number) for number in range(first, first + count)]


async def test_statuses_of_a_queue_that_is_there_or_not(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        empty = await store.get_message("g", "Orders", 0, 5)
        assert (empty.status, empty.next_offset) == (FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        await store.put_messages(put_many(100))
        assert (await store.trim()).files
        first = await store.min_offset("Orders", 0)
        assert 0 < first < 100
        for offset, status, following in (
            (first - 1, FetchStatus.OFFSET_TOO_SMALL, first),
            (-1, FetchStatus.OFFSET_TOO_SMALL, first),
            (100, FetchStatus.OFFSET_OVERFLOW_ONE, 100),
            (101, FetchStatus.OFFSET_OVERFLOW_BADLY, 100),
            (first, FetchStatus.FOUND, None),
        ):
            result = await store.get_message("g", "Orders", 0, offset)
            assert result.status is status, offset
            assert following is None or result.next_offset == following
            assert (result.min_offset, result.max_offset) == (first, 100)
        assert await store.max_offset("Orders", 0) == 100
        assert await store.max_offset("Nothing", 0) == await store.min_offset("Nothing", 0) == 0


async def test_a_read_amid_a_deletion_is_told_what_there_is_now(tmp_path: Path) -> None:
    """A slow disk is still at it: the file is gone, and the directory is not synced yet."""
    loop = asyncio.get_running_loop()
    told: list[tuple[FetchStatus, int]] = []

    async with local(tmp_path) as store:
        await store.put_messages(put_many(100))

        async def read() -> None:
            result = await store.get_message("g", "Orders", 0, 0)
            told.append((result.status, result.next_offset))
            assert await store.earliest_message_time("Orders", 0) is not None

        def slowly(directory: str) -> None:
            asyncio.run_coroutine_threadsafe(read(), loop).result()
            sync_directory(directory)

        with patch.object(commit_log, "sync_directory", slowly):
            trimmed = await store.trim()
        assert len(told) == len(trimmed.files) > 1
        assert {status for status, _ in told} == {FetchStatus.OFFSET_TOO_SMALL}
        assert told[-1][1] == await store.min_offset("Orders", 0)


async def test_a_file_that_cannot_be_deleted_is_there_for_the_next_round(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(100))
        with (
            patch.object(Path, "unlink", side_effect=PermissionError(errno.EACCES, "not now")),
            pytest.raises(Denied),
        ):
            await store.trim()
        assert await store.min_offset("Orders", 0) == 0
        assert (await store.get_message("g", "Orders", 0, 0)).status is FetchStatus.FOUND
        assert (await store.trim()).files


async def test_no_message_in_queue_is_said_of_a_queue_whose_end_is_0(tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / "Orders" / "3").mkdir(parents=True)
    async with local(tmp_path) as store:
        assert store.log.queues() == [("Orders", 3)]
        result = await store.get_message("g", "Orders", 3, 7)
        assert (result.status, result.next_offset) == (FetchStatus.NO_MESSAGE_IN_QUEUE, 0)


async def test_found_null_where_no_file_has_the_unit(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(25))  # ten units a file
        units = tmp_path / "consumequeue/Orders/0/00000000000000000200"
        store.log._appender.flush_queues()  # a later sync would fail
        units.rename(tmp_path / "aside")
        result = await store.get_message("g", "Orders", 0, 13)
        assert (result.status, result.next_offset) == (FetchStatus.OFFSET_FOUND_NULL, 20)
        (tmp_path / "aside").rename(units)  # without it the store does not close cleanly


async def test_a_read_ends_with_the_file_of_units_and_goes_on_in_the_next(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(25))
        at, seen = 0, list[int]()
        while (result := await store.get_message("g", "Orders", 0, at)).messages:
            seen += [message.queue_offset for message in result.messages]
            assert result.next_offset <= (at // 10 + 1) * 10
            at = result.next_offset
        assert seen == list(range(25))


async def test_tags_are_compared_by_code_and_then_as_text(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        for number, tag in enumerate(("Aa", "BB", "C", "Aa")):  # the codes of Aa and BB are equal
            await store.put_message(NewMessage("T", 0, b"%d" % number, {"TAGS": tag}))
        found = await store.get_message("g", "T", 0, 0, subscription="Aa || D")
        assert [m.body for m in found.messages] == [b"0", b"3"]
        assert (found.status, found.next_offset) == (FetchStatus.FOUND, 4)
        nothing = await store.get_message("g", "T", 0, 1, subscription="D")
        assert (nothing.status, nothing.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, 4)
        with pytest.raises(ValueError, match="no tag"):
            await store.get_message("g", "T", 0, 0, subscription="||")
        with pytest.raises(ValueError, match="positive"):
            await store.get_message("g", "T", 0, 0, messages_max=0)


def units(count: int, size: int = 100, start: int = 0) -> list[ConsumeQueueUnit]:
    return [ConsumeQueueUnit(start + n * size, size, n % 3) for n in range(count)]


def wish(messages_max: int = 1000, bytes_max: int | None = None, tags: str = "*") -> Wish:
    return Wish(messages_max, bytes_max, parse_subscription(tags), ReadLimits())


@pytest.mark.parametrize(
    ("asked", "size", "taken"),
    [
        (wish(5), 100, 5),
        (wish(), 100, 32),
        (wish(), 262_144, 1),
        (wish(), 300_000, 1),
        (wish(), 131_072, 2),
        (wish(bytes_max=250), 100, 2),
        (wish(bytes_max=1), 100, 1),
    ],
)
def test_limits_of_what_is_in_memory(asked: Wish, size: int, taken: int) -> None:
    picks = choose_units(units(40, size), 7, asked, least=0, end=40 * size)
    assert (list(picks.indices), picks.next_offset) == (list(range(taken)), 7 + taken)


@pytest.mark.parametrize(("size", "taken"), [(100, 8), (65_536, 1), (32_768, 2), (70_000, 1)])
def test_limits_of_what_is_on_disk(size: int, taken: int) -> None:
    with patch.object(local_read, "is_estimated_resident", lambda *_: False):
        picks = choose_units(units(40, size), 0, wish(), least=0, end=40 * size)
    assert len(picks.indices) == taken


def test_a_read_ends_before_records_that_are_gone() -> None:
    picks = choose_units(units(10), 0, wish(), least=1000, end=1000)
    assert (picks.indices, picks.next_offset, picks.is_removing) == ([], 10, True)
    assert local_read.status_of(picks, 0) is FetchStatus.MESSAGE_WAS_REMOVING
    picks = choose_units(units(10), 0, wish(3), least=500, end=1000)
    assert (picks.indices, picks.next_offset, picks.is_removing) == ([], 5, True)
    filler = ConsumeQueueUnit(0, FILLER_SIZE, 0)
    for first in (units(2), [filler, *units(2)]):
        picks = choose_units([*first, filler, *units(2)], 0, wish(), least=0, end=1000)
        expects = ([0, 1], 2, False) if first[0] != filler else ([], 1, True)
        assert (picks.indices, picks.next_offset, picks.is_removing) == expects


async def test_what_is_deleted_amid_a_read_is_too_small_afterwards(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(100))
        await store.log.bounds(store.log.queues()[0])
        log = store.log
        real_pick = log.pick

        async def late_pick(*arguments: object) -> object:
            await store.trim()
            return await real_pick(*arguments)  # pyright: ignore[reportArgumentType] - as given

        with patch.object(log, "pick", late_pick):
            result = await store.get_message("g", "Orders", 0, 0)
        first = await store.min_offset("Orders", 0)
        assert result.status in {FetchStatus.MESSAGE_WAS_REMOVING, FetchStatus.OFFSET_TOO_SMALL}
        assert 0 < result.next_offset <= first


async def test_a_damaged_record_is_an_error_and_never_no_message(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(3))
        with (tmp_path / "commitlog/00000000000000000000").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 60)
        with pytest.raises(Corrupt, match="no record"):
            await store.get_message("g", "Orders", 0, 0)


async def test_where_a_message_is(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        assert not await store.is_in_store("Orders", 0, 0)  # RocketMQ says yes
        assert not await store.is_in_memory("Orders", 0, 0)
        await store.put_messages(put_many(100))
        assert await store.is_in_memory("Orders", 0, 0, 100)
        await store.trim()
        first = await store.min_offset("Orders", 0)
        for offset, there in ((first - 1, False), (first, True), (99, True), (100, False)):
            assert await store.is_in_store("Orders", 0, offset) == there
            assert await store.is_in_memory("Orders", 0, offset, 3) == there
            time = await store.message_store_time("Orders", 0, offset)
            assert (time is not None) == there
        assert await store.earliest_message_time("Orders", 0) is not None
        assert await store.earliest_message_time("Orders", 9) is None
        assert store.topics() == {"Orders": 1}
        assert store.statistics()["hot_files_deleted"] > 0


async def test_old_files_are_deleted_from_time_to_time_but_what_is_held_back(
    tmp_path: Path,
) -> None:
    clock = ManualClock(SystemClock().now_ms())  # files have the machine's times
    store = LocalMessageStore(tmp_path, options=SMALL, retention=ALL_GOES, clock=clock)
    held: int | None = 30
    store.hold_back(lambda _: held)
    async with store:
        await store.put_messages(put_many(100))
        while not store.statistics()["hot_files_deleted"]:
            await clock.advance(10)
        assert 0 < await store.min_offset("Orders", 0) <= 30
        before, held = await store.min_offset("Orders", 0), None
        while await store.min_offset("Orders", 0) == before:
            await clock.advance(10)


async def test_many_wait_and_each_is_woken_once_by_its_message(tmp_path: Path) -> None:
    clock = ManualClock()
    async with LocalMessageStore(tmp_path, options=SMALL, clock=clock) as store:
        await store.put_messages(put_many(2))
        assert await store.wait_for_message("Orders", 0, 1, 0)
        assert not await store.wait_for_message("Orders", 0, 2, 0)
        async with asyncio.TaskGroup() as group:
            waits = [
                group.create_task(store.wait_for_message("Orders", 0, offset, 60))
                for offset in (2, 2, 3, 4)
            ]
            other = group.create_task(store.wait_for_message("Orders", 1, 0, 60))
            await asyncio.sleep(0)
            assert store.statistics()["waiting"] == 5
            await store.put_message(new_message(2))
            assert await asyncio.gather(*waits[:2]) == [True, True]
            assert not any(wait.done() for wait in waits[2:])
            await store.put_messages(put_many(1))
            assert await waits[2]
            await clock.advance(60)
            assert await waits[3] is False
            assert await other is False
        assert store.statistics()["waiting"] == 0


async def test_closing_ends_waits_and_later_calls_with_closed(tmp_path: Path) -> None:
    store = local(tmp_path)
    with pytest.raises(Closed):
        await store.get_message("g", "Orders", 0, 0)
    async with store:
        waiting = asyncio.create_task(store.wait_for_message("Orders", 0, 0, 3600))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="open already"):
            await store.__aenter__()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await store.put_message(new_message(0))


async def test_an_iteration_gives_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(50))

        async def read(start: int, end: int) -> list[int]:
            seen: list[int] = []
            async for message in store.messages("g", "Orders", 0, start):
                seen.append(message.queue_offset)
                if message.queue_offset + 1 == end:
                    break
            return seen

        readers = [asyncio.create_task(read(start, 80)) for start in (0, 49, 70)]
        for number in range(50, 80):
            await store.put_message(new_message(number))
        for start, reader in zip((0, 49, 70), readers, strict=True):
            assert await reader == list(range(start, 80))


async def test_a_query_looks_at_the_queues_that_are_there_however_large_their_numbers(
    tmp_path: Path,
) -> None:
    ids = [0, 7, QUEUE_ID_MAX]
    async with local(tmp_path) as store:
        for queue_id in ids:
            await store.put_messages([new_message(1, queue_id=queue_id), new_message(2)])
        assert store.queue_ids("Orders") == ids
        assert store.queue_ids("Others") == []
        found = await store.query_message("Orders", "key-1")
        assert sorted(message.queue_id for message in found.messages) == ids


async def test_the_share_of_the_memory_that_counts_as_holding_the_newest_is_configured(
    tmp_path: Path,
) -> None:
    """`accessMessageInMemoryMaxRatio`, for limits of a read, and where the kernel does not tell."""
    few = ReadLimits(memory_share=0, disk_messages_max=3)
    with patch("tieredstore.hot.log.commit_log.resident", lambda *_: None):
        for limits, count in ((few, 3), (ReadLimits(), 10)):
            async with local(tmp_path, limits=limits) as store:
                if not await store.max_offset("Orders", 0):
                    await store.put_messages(put_many(40))
                found = await store.get_message("g", "Orders", 0, 0)
                assert len(found.messages) == count
                assert await store.is_in_memory("Orders", 0, 0) == (count == 10)
    with pytest.raises(ValueError, match="not within 0 to 1"):
        ReadLimits(memory_share=1.1)


@pytest.mark.parametrize(
    "verb", ["get_message", "put beside get_message", "offset_by_time", "message_store_time"]
)
async def test_a_row_of_reads_lets_other_tasks_run(tmp_path: Path, verb: str) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(10))
        store.log._hold = LoopHold(SystemClock(), 0)
        ran = asyncio.Event()

        async def read() -> None:
            if verb.endswith("get_message"):
                await store.get_message("g", "Orders", 0, 3)
                if verb.startswith("put"):
                    await store.put_message(new_message(0, topic="Out"))
            else:
                await getattr(store, verb)("Orders", 0, 3)

        await read()  # opens the files, by a thread
        asyncio.get_running_loop().call_soon(ran.set)
        for _ in range(10_000):
            await read()
            if ran.is_set():
                return
        raise AssertionError("reads starve the loop")


async def test_a_read_ends_before_a_damaged_record(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        places = await store.put_messages(put_many(9))
        with (tmp_path / "commitlog/00000000000000000000").open("r+b") as file:
            file.seek(places[5].position + 20)
            file.write(b"\xff" * 8)
        result = await store.get_message("g", "Orders", 0, 2)
        assert [message.queue_offset for message in result.messages] == [2, 3, 4]
        assert (result.status, result.next_offset) == (FetchStatus.FOUND, 5)
        with pytest.raises(Corrupt, match="no record"):
            await store.get_message("g", "Orders", 0, 5)
        found = await store.query_message("Orders", "key-7")
        assert [message.queue_offset for message in found.messages] == [7]
        assert (found.is_complete, found.unsearched, len(found.damage)) == (False, 1, 1)


async def test_an_iteration_passes_over_no_file_that_is_missing(tmp_path: Path) -> None:
    async with local(tmp_path) as store:
        await store.put_messages(put_many(25))
        units = tmp_path / "consumequeue/Orders/0/00000000000000000200"
        store.log._appender.flush_queues()  # a later sync would fail
        units.rename(tmp_path / "aside")
        messages = store.messages("g", "Orders", 0)
        for offset in range(10):
            assert (await anext(messages)).queue_offset == offset
        with pytest.raises(Unavailable, match="is missing"):
            await anext(messages)
        with pytest.raises(Unavailable, match="is missing"):
            await store.message_store_time("Orders", 0, 13)
        with pytest.raises(Unavailable, match="is missing"):
            await store.offset_by_time("Orders", 0, 0)
        (tmp_path / "aside").rename(units)  # without it the store does not close cleanly
