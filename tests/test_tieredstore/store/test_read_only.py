"""`read_store`: a store directory and its tier, read beside the process that writes them."""

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import tieredstore
import tieredstore.sync
from fetcher.result import FetchStatus
from provider.errors import Closed
from tests.support.fake_broker import FakeBroker
from tests.support.hot_store import SMALL
from tieredstore import NewMessage, StoreReader
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import NotAStore
from tieredstore.hot.options import RetentionOptions
from tieredstore.store.local import LocalMessageStore

ALL_GOES = RetentionOptions(reserved_s=0, files_max=100)


async def bodies(reader: StoreReader, topic: str) -> list[bytes]:
    return [message.body async for message in reader.read(topic)]


async def test_messages_are_read_while_they_are_written(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path / "s", options=SMALL) as store:
        await store.put_message(NewMessage("T", 0, b"0"))
        async with tieredstore.read_store(tmp_path / "s") as reader:
            assert await bodies(reader, "T") == [b"0"]
            for number in range(1, 200):
                await store.put_message(NewMessage("T", 0, b"%d" % number))
            assert await bodies(reader, "T") == [b"0"]  # as of the last refresh
            assert await reader.refresh()
            assert await bodies(reader, "T") == [b"%d" % number for number in range(200)]
            assert not await reader.refresh()
            await store.put_message(NewMessage("New", 3, b"n"))
            await reader.refresh()
            assert reader.topics() == {"New": 1, "T": 1}
            assert (await reader.min_offset("New", 3), await reader.max_offset("New", 3)) == (0, 1)


async def test_reads_have_the_statuses_of_the_store_itself(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path / "s", options=SMALL) as store:
        for number in range(20):
            tags = {"TAGS": f"Tag{number % 2}"}
            await store.put_message(NewMessage("T", 0, b"%d" % number, tags))
        async with tieredstore.read_store(tmp_path / "s") as reader:
            for place in (("T", 0, 0), ("T", 0, 7), ("T", 0, 20), ("T", 0, 25), ("Nowhere", 0, 0)):
                for subscription in (None, "Tag1"):
                    own = await store.get_message("g", *place, subscription=subscription)
                    found = await reader.get_message("g", *place, subscription=subscription)
                    assert found.status == own.status, place
                    # The store itself reads less at once.
                    assert list(own.messages) == list(found.messages)[: len(own.messages)]
                    assert bool(own.messages) == bool(found.messages)
                    if not own.messages:
                        assert found.next_offset == own.next_offset
            with pytest.raises(ValueError, match="SQL92"):
                await reader.get_message("g", "T", 0, 0, subscription="a > 1")
    with pytest.raises(Closed):
        reader.topics()


async def test_a_reader_waits_for_messages_of_queues_old_and_new(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path / "s", options=SMALL) as store:
        await store.put_message(NewMessage("T", 0, b"0"))
        async with tieredstore.read_store(tmp_path / "s") as reader:
            assert not await reader.wait_for_message("T", 0, 1, 0.0)
            following = reader.read("T", follow=True)
            assert (await anext(following)).body == b"0"
            for number in (1, 2, 3):
                coming = asyncio.ensure_future(anext(following))
                await store.put_message(NewMessage("T", number % 2, b"%d" % number))
                assert (await asyncio.wait_for(coming, 30)).body == b"%d" % number
            await following.aclose()


async def test_messages_that_moved_to_the_tier_are_read_there(tmp_path: Path) -> None:
    places = (tmp_path / "s", tmp_path / "t")
    sent = [b"%d" % number for number in range(100)]
    opened = tieredstore.open_store(*places, broker="b", hot=SMALL)
    async with AsyncExitStack() as stack:
        async with opened as store:
            new = [NewMessage("T", 0, body) for body in sent]
            times = [one.store_timestamp for one in [await store.put_message(one) for one in new]]
            reader = tieredstore.read_store(*places, broker="b")
            await stack.enter_async_context(reader)
        # Its end tiered the messages. The next writer deletes them from the hot log.
        local = LocalMessageStore(places[0], options=SMALL, retention=ALL_GOES)
        local.hold_back(lambda _: len(sent))
        async with local:
            assert (await local.trim()).files
        # The reader knows neither the tier's messages nor that the files are gone.
        assert await bodies(reader, "T") == sent
        assert await reader.min_offset("T", 0) == 0
        assert not await reader.is_in_store("T", 0, 0)
        for at in (times[0], times[30], times[99]):
            assert await reader.offset_by_time("T", 0, at) == times.index(at)
        assert await reader.offset_by_time("T", 0, times[99] + 1) == 100
        found = await reader.get_message("g", "T", 0, 5, messages_max=2)
        assert [one.body for one in found.messages] == [b"5", b"6"]


async def test_nothing_is_written_into_the_store(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "s")
    broker.put_many("T", 0, [b"a", b"b"])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    settings = {"tieredStorePinPath": str(tmp_path / "pins")}
    async with tieredstore.read_store(tmp_path / "s", settings=settings) as reader:
        assert await bodies(reader, "T") == [b"a", b"b"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == before
    assert not (tmp_path / "pins").exists()


async def test_messages_of_a_topic_that_is_refused_are_not_searched(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "s")
    broker.put_many("Late", 0, [b"a", b"b"])
    async with tieredstore.read_store(tmp_path / "s") as reader:
        assert await bodies(reader, "Late") == [b"a", b"b"]
        broker.create_topic("Late", {"+cleanup.policy": "COMPACTION"})
        while await reader.max_offset("Late", 0):
            await reader.refresh()
        assert await bodies(reader, "Late") == []
        found = await reader.get_message("g", "Late", 0, 0)
        assert found.status is FetchStatus.NO_MESSAGE_IN_QUEUE


async def test_places_without_a_store_and_stores_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        await tieredstore.read_store(tmp_path).__aenter__()
    for name in ("a", "b"):
        async with tieredstore.open_store(tmp_path / name, tmp_path / "t", broker=name) as store:
            await store.put_message(NewMessage("T", 0, b"x"))
    with pytest.raises(ConfigError):
        await tieredstore.read_store(tmp_path / "a", tmp_path / "t", broker="b").__aenter__()


WRITER = """
import sys, tieredstore.sync
with tieredstore.sync.open_store(sys.argv[1], sys.argv[2], broker="b") as store:
    for line in sys.stdin:
        print(store.append("T", line.strip()).offset, flush=True)
"""


def test_another_process_reads_what_was_put_and_survives_the_writers_death(tmp_path: Path) -> None:
    places = (str(tmp_path / "s"), str(tmp_path / "t"))
    command = [sys.executable, "-c", WRITER, *places]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        try:
            writer.stdin.write(b"first\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == b"0\n"
            with tieredstore.sync.read_store(*places, broker="b") as reader:
                assert [one.body for one in reader.read("T")] == [b"first"]
                writer.stdin.write(b"second\n")
                writer.stdin.flush()
                assert reader.wait_for_message("T", 0, 1, 60.0)
                writer.kill()
                writer.wait()
                reader.refresh()
                assert [one.body for one in reader.read("T")] == [b"first", b"second"]
                assert reader.get_message("g", "T", 0, 2).status is FetchStatus.OFFSET_OVERFLOW_ONE
        finally:
            writer.kill()
    assert (tmp_path / "s" / "abort").exists()
