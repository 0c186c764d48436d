"""What real brokers answered to searches by time, of our tier, of theirs, and of our hot log."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.queue.positions import Boundary, TimeRules
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from provider.posix.store import PosixStore
from tests.support.cli import run, settings
from tests.support.golden import (
    GOLDEN_SETS,
    ROCKETMQ_533,
    VARIANTS_520,
    GoldenSet,
    expected,
    tree_name,
    unpack,
    unpacked,
)
from tests.support.golden_reads import java_reader
from tests.support.packed_tier import tier_packed
from tests.support.time_oracle import offset_by_scan
from tieredstore.config.effective import Config
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.options import HotWriteOptions
from tieredstore.store.levels import Level
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore

Search = Callable[[QueueId, int, Boundary, TimeRules], Awaitable[int | None]]


def rules_of(golden: GoldenSet) -> TimeRules:
    """5.2.0 answers as the local store does, 5.3.3 and newer ones as the tiered store since 5.3."""
    return TimeRules.LOCAL if golden is VARIANTS_520 else TimeRules.TIERED


async def check_rows(golden: GoldenSet, search: Search) -> None:
    """Every row, beside a scan of the messages that the client read."""
    times: dict[QueueId, dict[int, int]] = {}
    misread: set[QueueId] = set()
    """Java's tiered store takes a part of a born host's IPv6 address for the time of a message."""
    for message in expected(golden, "messages"):
        queue = QueueId(message["topic"], message["queue_id"])
        times.setdefault(queue, {})[message["queue_offset"]] = message["store_timestamp"]
        if "[" in message["born_host"]:
            misread.add(queue)
    rules, wrong = rules_of(golden), set[QueueId]()
    for row in expected(golden, "offset_by_time"):
        queue, moment = QueueId(row["topic"], row["queue_id"]), row["timestamp"]
        boundary = Boundary[row.get("boundary", "LOWER")]
        end = len(times[queue])
        scanned = offset_by_scan(times[queue], moment, boundary, rules, first=0, end=end)
        assert await search(queue, moment, boundary, rules) == scanned, row
        if row["offset"] != scanned:
            wrong.add(queue)
    assert wrong <= misread
    assert bool(wrong) == bool(misread)


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
async def test_every_row_of_our_tier(golden: GoldenSet, tmp_path: Path, *, packed: bool) -> None:
    tree = unpacked(golden)
    store = PosixStore(tmp_path / tree.broker_directory.relative_to(tree.tier))
    if packed:
        await tier_packed(tree, store)
    else:
        run(*settings(tree, tmp_path), "tier", tree.store)
    reader = await TierReader.open(store)
    async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
        await check_rows(golden, fetcher.offset_by_time)
    await store.close()


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
async def test_every_row_of_the_tier_that_java_wrote(golden: GoldenSet) -> None:
    tree = unpacked(golden)
    store = PosixStore(tree.broker_directory)
    reader = await java_reader(store, tree)
    async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
        await check_rows(golden, fetcher.offset_by_time)
    await store.close()


async def test_every_row_of_the_brokers_own_store(tmp_path: Path) -> None:
    golden = ROCKETMQ_533
    tree = unpack(golden, "closed", tmp_path)
    options = HotWriteOptions(
        commit_log_bytes=golden.commit_log_file_bytes,
        consume_queue_bytes=golden.consume_queue_file_bytes,
    )
    async with open_hot_log(tree.store, options=options, clock=SystemClock()) as log:
        await check_rows(golden, log.offset_by_time)


async def test_every_row_of_a_store_with_hot_log_and_tier(tmp_path: Path) -> None:
    golden = ROCKETMQ_533
    tree = unpack(golden, "closed", tmp_path)
    config = Config.load(
        settings={
            "brokerClusterName": golden.cluster,
            "brokerName": golden.broker,
            "tieredStoreFilePath": str(tmp_path / "our tier"),
        },
        environment={},
    )
    options = HotWriteOptions(
        commit_log_bytes=golden.commit_log_file_bytes,
        consume_queue_bytes=golden.consume_queue_file_bytes,
    )
    for level in (Level.FORCE, Level.NOT_IN_MEM, Level.NOT_IN_DISK, Level.DISABLE):
        local = LocalMessageStore(tree.store, options=options)
        # Leaving the first block puts all of it into the tier.
        async with TieredMessageStore(local, local=local, config=config, level=level) as store:

            async def search(
                queue: QueueId,
                moment: int,
                boundary: Boundary,
                rules: TimeRules,
                store: TieredMessageStore = store,
            ) -> int:
                return await store.offset_by_time(*queue, moment, boundary, rules)

            await check_rows(golden, search)
