"""What the official client read through the Java tier, read cold through ours."""

from pathlib import Path
from typing import Any

import pytest

from container.java_metadata import parse_java_metadata
from container.java_tier import load_java_tier
from container.tier_reader import FixedMetadata, TierReader
from container.tier_records import QueueId
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchResult
from provider.clock import SystemClock
from provider.posix import PosixStore
from tests.support.cli import run, settings
from tests.support.golden import GOLDEN_SETS, GOLDEN_TREES, GoldenSet, expected, tree_name, unpacked

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
# A decoder that decompresses the body clears this bit of the sysFlag.
NOT_OURS = ("tier_physical_offset",)


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


def normal(row: dict[str, Any], golden: GoldenSet) -> dict[str, Any]:
    """An expected line in our form: hosts as `ip:port`."""
    row = dict(row)
    for name in ("born_host", "store_host"):
        row[name] = row[name].removeprefix("/")
    if golden.has_record_crc:  # valid in ours, Java's own are not
        row["properties"] = without(row["properties"], "__CRC32#")
    return row


def read_all(options: list[str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every message of the queues that `rows` name, in their order."""
    queues = dict.fromkeys((row["topic"], row["queue_id"]) for row in rows)
    found: list[dict[str, Any]] = []
    for topic, queue_id in queues:
        found += run(*options, "read", topic, str(queue_id), "--digest", "--json").rows
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_every_message_reads_as_the_client_saw_it(
    golden: GoldenSet, kind: str, tmp_path: Path
) -> None:
    tree = unpacked(golden, kind)
    options = settings(tree, tmp_path / "tier")
    run(*options, "tier", tree.store)
    rows = expected(golden, "messages")
    hidden = NOT_OURS if golden.has_codas else ()
    wanted = [without(normal(row, golden), *hidden) for row in rows]
    found = [without(row, *hidden) for row in read_all(options, rows)]
    if golden.has_record_crc:
        found = [{**row, "properties": without(row["properties"], "__CRC32#")} for row in found]
    assert found == wanted


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
    metadata = parse_java_metadata(tree.java_metadata.read_bytes(), path="metadata")
    state = await load_java_tier(store, metadata, cluster=golden.cluster, broker=golden.broker)
    reader = TierReader(store, FixedMetadata(state))
    pulls = [row for row in expected(golden, "pulls") if row["max_offset"] > 0]
    assert {QueueId(row["topic"], row["queue_id"]) for row in pulls} == set(state.queues)
    async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
        await check_pulls(fetcher, golden)
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_a_java_tier_reads_the_same_through_its_metadata(golden: GoldenSet, kind: str) -> None:
    tree = unpacked(golden, kind)
    options = [*settings(tree, tree.tier), "--java-metadata", str(tree.java_metadata)]
    rows = expected(golden, "messages")
    assert read_all(options, rows) == [
        {**normal(row, golden), "properties": row["properties"]} for row in rows
    ]
