"""What the official client read through the Java tier, read cold through ours."""

from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchResult
from provider.clock import SystemClock
from provider.posix.store import PosixStore
from tests.support.cli import run, settings
from tests.support.golden import (
    GOLDEN_SETS,
    GOLDEN_TREES,
    ROCKETMQ_533,
    GoldenSet,
    expected,
    tree_name,
    unpacked,
)
from tests.support.golden_reads import java_reader, normal, read_all, seen_by_the_client, without
from tests.support.packed_tier import tier_packed

# What a broker answers becomes one of four words at the client (golden/README.md).
CLIENTS_WORD = {
    "FOUND": "FOUND",
    "NO_MATCHED_MESSAGE": "NO_MATCHED_MSG",
    "MESSAGE_WAS_REMOVING": "NO_MATCHED_MSG",
    "OFFSET_FOUND_NULL": "NO_NEW_MSG",
    "OFFSET_OVERFLOW_ONE": "NO_NEW_MSG",
    "OFFSET_TOO_SMALL": "OFFSET_ILLEGAL",
    "OFFSET_OVERFLOW_BADLY": "OFFSET_ILLEGAL",
}


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
async def test_every_message_reads_as_the_client_saw_it(
    golden: GoldenSet, kind: str, tmp_path: Path, *, packed: bool
) -> None:
    tree = unpacked(golden, kind)
    store = PosixStore(tmp_path / "tier" / tree.broker_directory.relative_to(tree.tier))
    if packed:
        assert await tier_packed(tree, store) == []
        assert {one.name[0] for one in await store.list("")} == {"@"}, "every byte is in a part"
    else:
        run(*settings(tree, tmp_path / "tier"), "tier", tree.store)
    found = await read_all(await TierReader.open(store, verify=True), expected(golden, "messages"))
    await store.close()
    wanted = [normal(row, golden) for row in expected(golden, "messages")]
    if golden.has_codas:  # they move what is behind them
        found = [without(row, "tier_physical_offset") for row in found]
        wanted = [without(row, "tier_physical_offset") for row in wanted]
    if golden.has_record_crc:  # valid in ours, Java's own are not
        for row in (*found, *wanted):
            row["properties"] = without(row["properties"], "__CRC32#")
    assert found == wanted


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
async def test_a_java_tier_reads_the_same_through_its_metadata(
    golden: GoldenSet, kind: str
) -> None:
    tree = unpacked(golden, kind)
    store = PosixStore(tree.broker_directory)
    reader = await java_reader(store, tree)
    wanted = [normal(row, golden) for row in expected(golden, "messages")]
    assert await read_all(reader, expected(golden, "messages")) == wanted
    await store.close()


@pytest.mark.parametrize("java", [False, True], ids=["ours", "java"])
def test_the_command_line_reads_a_queue_as_the_client_saw_it(*, java: bool, tmp_path: Path) -> None:
    golden = ROCKETMQ_533
    tree = unpacked(golden)
    options = settings(tree, tree.tier if java else tmp_path)
    if not java:
        run(*options, "tier", tree.store)
    extra = ["--java-metadata", tree.java_metadata] if java else []
    found = run(*options, "read", "G_Big", "1", *extra, "--digest", "--json").rows
    rows = [row for row in expected(golden, "messages") if row["topic"] == "G_Big"]
    wanted = [normal(row, golden) for row in rows if row["queue_id"] == 1]
    assert list(map(seen_by_the_client, found)) == wanted


def right_status(row: dict[str, Any], result: FetchResult) -> bool:
    name = result.status.name
    if name in {"NO_MATCHED_LOGIC_QUEUE", "NO_MESSAGE_IN_QUEUE"}:
        word = "NO_NEW_MSG" if row["offset"] == 0 else "OFFSET_ILLEGAL"
    else:
        word = CLIENTS_WORD[name]
    return row["status"] in {name, word}


async def check_pulls(fetcher: TieredMessageFetcher, golden: GoldenSet) -> None:
    rows = expected(golden, "pulls")
    assert len(rows) > 300
    for row in rows:
        result = await fetcher.get_message(
            "CG_expect",
            row["topic"],
            row["queue_id"],
            row["offset"],
            messages_max=row["max"],
            subscription=row.get("subscription"),
        )
        assert right_status(row, result), (row, result)
        offsets = result.messages.offsets.tolist()
        if golden.has_codas and len(offsets) > len(row["offsets"]):
            # 5.2.0 ends a read where its cache does; the next pull tells the rest.
            assert offsets[: len(row["offsets"])] == row["offsets"]
            assert row["next"] == row["offset"] + len(row["offsets"])
        else:
            assert offsets == row["offsets"], row
            assert result.next_offset == row["next"], (row, result)
        assert (result.min_offset, result.max_offset) == (row["min_offset"], row["max_offset"]), row


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
async def test_every_pull_gets_the_same_answer_from_our_tier(
    golden: GoldenSet, tmp_path: Path
) -> None:
    tree = unpacked(golden)
    run(*settings(tree, tmp_path), "tier", tree.store)
    store = PosixStore(tmp_path / tree.broker_directory.relative_to(tree.tier))
    async with TieredMessageFetcher(await TierReader.open(store), clock=SystemClock()) as fetcher:
        await check_pulls(fetcher, golden)
    await store.close()


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
async def test_every_pull_gets_the_same_answer_from_the_java_tier(golden: GoldenSet) -> None:
    tree = unpacked(golden)
    store = PosixStore(tree.broker_directory)
    reader = await java_reader(store, tree)
    pulls = [row for row in expected(golden, "pulls") if row["max_offset"] > 0]
    assert {QueueId(row["topic"], row["queue_id"]) for row in pulls} == set(reader.state.queues)
    async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
        await check_pulls(fetcher, golden)
    await store.close()
