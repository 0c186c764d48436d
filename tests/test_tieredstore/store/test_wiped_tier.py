"""Directories of a store of our own and its tier that are removed, moved or put back."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from container.names.queue_id import QueueId
from fetcher.result import FetchStatus
from provider.errors import Closed, Unavailable
from tests.support.hot_store import SMALL, new_message
from tests.support.patience import Patience, until
from tests.support.tiered_world import GREEDY

assert (
    tieredstore.LocalMessageStore
)  # its imports read files, so they are not left to a running loop
QUICK = {"tieredStoreGroupCommitTimeout": 10, "tieredStoreShutdownTimeout": 300}


async def tiered(store: Any, end: int) -> None:
    """Return once the queue is tiered up to `end`."""
    patience = Patience("it is not tiered")
    while await store.commit_offset("T", 0) < end:
        patience.look()
        await asyncio.sleep(0.01)


async def test_a_tier_that_is_removed_while_a_store_is_open_is_said_and_ends_in_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tieredstore.store")
    tier = tmp_path / "tier"

    async def run() -> None:
        async with tieredstore.open_store(
            tmp_path / "store", tier, broker="b", settings=QUICK
        ) as store:
            await store.put_message(tieredstore.NewMessage("T", 0, b"one"))
            await tiered(store, 1)
            shutil.rmtree(tier)
            await store.put_message(tieredstore.NewMessage("T", 0, b"two"))
            await until(lambda: bool(caplog.records), Patience("nothing is said"))
            assert await store.commit_offset("T", 0) == 1

    with pytest.raises(Unavailable, match="journal was removed while the store was open") as raised:
        await run()
    assert "mount its volume or bring the tier back; if it is lost for good" in str(raised.value)
    assert "nothing reaches the tier at present" in caplog.records[0].getMessage()
    with pytest.raises(tieredstore.ConfigError, match="new_tier=True"):
        async with tieredstore.open_store(tmp_path / "store", tier, broker="b", settings=QUICK):
            pass
    async with tieredstore.open_store(
        tmp_path / "store", tier, broker="b", settings=QUICK, new_tier=True
    ) as store:  # what the hot log has is tiered again
        await tiered(store, 2)


END = 100


def small_store(root: Path, *, durable: bool = False, new_tier: bool = False) -> Any:
    """A store whose hot log deletes what the tier has when it is trimmed."""
    return tieredstore.open_store(
        root / "store",
        root / "tier",
        broker="b",
        settings=QUICK,
        hot=SMALL,
        retention=GREEDY,
        durable=durable,
        new_tier=new_tier,
    )


async def put(store: Any, end: int) -> None:
    """Put messages up to the one at offset `end`."""
    start = store._local.log.next_offset(QueueId("Orders", 0))
    places = await store.put_messages([new_message(number) for number in range(start, end)])
    assert [one.queue_offset for one in places] == list(range(start, end))


async def trimmed(root: Path) -> int:
    """A closed store whose tier alone has the oldest messages; the hot log's first offset."""
    async with small_store(root) as store:
        await put(store, END)
        await store.cold.tier_now()
        await store._local.trim()
        first = await store._local.min_offset("Orders", 0)
    assert first > 40
    return first


async def read_at_each_level(store: Any, *spans: range) -> None:
    """Each message of these spans, once and at its offset, and none else."""
    for level in ("NOT_IN_DISK", "NOT_IN_MEM", "FORCE"):
        await store.set_level(level)
        at, passed = await store.min_offset("Orders", 0), []
        for span in spans:
            while at < span.stop:
                result = await store.get_message("g", "Orders", 0, at)
                numbers = [one.queue_offset for one in result.messages]
                assert [one.body for one in result.messages] == [
                    new_message(number).body for number in numbers
                ]
                assert numbers or result.status is FetchStatus.OFFSET_FOUND_NULL
                passed += numbers
                at = result.next_offset
        assert passed == [number for span in spans for number in span]


async def test_a_tier_put_back_from_a_copy_lacks_what_the_hot_log_has_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with small_store(tmp_path) as store:
        await put(store, 40)
        await store.cold.tier_now()
    shutil.copytree(tmp_path / "tier", tmp_path / "copy")
    first = await trimmed(tmp_path)
    shutil.rmtree(tmp_path / "tier")
    (tmp_path / "copy").rename(tmp_path / "tier")
    async with small_store(tmp_path) as store:
        assert "the tier was put back from a copy" in caplog.text
        assert (await store.min_offset("Orders", 0), await store.max_offset("Orders", 0)) == (
            0,
            END,
        )
        await put(store, END + 5)
        await store.cold.tier_now()
        (gap,) = store.cold.span(QueueId("Orders", 0)).gaps
        assert (gap.start, gap.end) == (40, first)
        await read_at_each_level(store, range(40), range(first, END + 5))
    async with tieredstore.open(tmp_path / "tier") as tier:
        assert [finding async for finding in tier.check()] == []


async def test_a_new_tier_of_a_trimmed_hot_log_begins_where_that_does(tmp_path: Path) -> None:
    first = await trimmed(tmp_path)
    shutil.rmtree(tmp_path / "tier")
    with pytest.raises(tieredstore.ConfigError, match="new_tier=True"):
        async with small_store(tmp_path):
            pass
    async with small_store(tmp_path, new_tier=True) as store:
        await put(store, END + 5)
        await store.cold.tier_now()
        assert await store.min_offset("Orders", 0) == first
        result = await store.get_message("g", "Orders", 0, 0)
        assert (result.status, result.next_offset) == (FetchStatus.OFFSET_TOO_SMALL, first)
        await read_at_each_level(store, range(first, END + 5))


@pytest.mark.parametrize("way", ["durable put", "put", "new topic", "trim", "nothing"])
@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_store_that_is_moved_away_while_it_is_open_takes_nothing_more(
    tmp_path: Path, way: str, *, is_made_anew: bool
) -> None:
    """Another store in its place is left alone, and the tier gets none of its messages."""
    root, moved, another = tmp_path / "store", tmp_path / "moved", tmp_path / "another"
    other: dict[Path, bytes] = {}
    if is_made_anew:
        async with tieredstore.LocalMessageStore(another, options=SMALL) as local:
            await local.put_messages([new_message(number) for number in range(7, 77)])

    async def live() -> None:
        async with small_store(tmp_path, durable=way == "durable put") as store:
            log = store._local.log
            await put(store, 40)
            await log.flush()
            root.rename(moved)
            if is_made_anew:  # without a wait, amid which the store may find out
                another.rename(root)
                other.update(files_below(root))
            if way == "durable put":
                with pytest.raises(Unavailable, match="renamed or deleted while the store was op"):
                    await put(store, 41)
            elif way == "put":
                await put(store, 41)  # a power failure may take it
                with pytest.raises(Unavailable, match="renamed or deleted while the store was op"):
                    await log.flush()
            elif way == "new topic":
                with pytest.raises(Unavailable, match="renamed or deleted while the store was op"):
                    await store.put_message(new_message(0, topic="Other"))
            elif way == "trim":
                with pytest.raises(Unavailable, match="was moved or deleted"):
                    await store._local.trim()
                return
            if way != "nothing":
                with pytest.raises(Unavailable, match="until the store is opened again"):
                    await put(store, 42)

    said = ""
    try:
        await live()
    except (Unavailable, Closed) as error:
        said = str(error)
    ends = (
        "until the store is opened again",
        "replaced by another one while it was followed",
        "the store directory was moved or deleted",
    )
    assert any(end in said for end in ends) or (not said and way == "durable put")
    assert files_below(root) == other
    shutil.rmtree(root, ignore_errors=True)
    moved.rename(root)
    async with small_store(tmp_path) as store:
        assert await store.max_offset("Orders", 0) in {40, 41}
        await put(store, END)
        await store.cold.tier_now()
        await read_at_each_level(store, range(END))


def files_below(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
