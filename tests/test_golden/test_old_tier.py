"""Tiers that older versions wrote are read, continued and checked by the code of today."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from tests.support.cli import run
from tests.support.golden import GOLDEN, VARIANTS_533, expected, extract, unpacked
from tests.support.golden_reads import normal, read_all, seen_by_the_client, without

OWNERS = {"95830d4": 5, "d710648": 4}
"""How many owners each version's tier has had; the last was killed."""
CUT, GAP = QueueId("V_Plain", 1), QueueId("V_Plain", 2)
LOST = range(40, 50)
"""Offsets of the gap: the broker had deleted them before they were tiered."""


@pytest.fixture(params=OWNERS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tier(version: str, tmp_path: Path) -> Path:
    """A copy of the tier that the test may change."""
    extract(GOLDEN / f"tier-0.1.0-{version}" / "tier.tar.xz", tmp_path)
    return tmp_path / "tier"


def directory_in(tier: Path) -> Path:
    return tier / broker_directory(VARIANTS_533.cluster, VARIANTS_533.broker)


def options(tier: Path) -> list[str]:
    """The settings of the tier's makers that a reader, a checker and a next owner need."""
    values = {
        "brokerClusterName": VARIANTS_533.cluster,
        "brokerName": VARIANTS_533.broker,
        "tieredStoreFilePath": tier,
        "tieredStoreCommitLogMaxSize": 3000,
        "tieredStoreConsumeQueueMaxSize": 100,
        "tieredStoreExtentMaxSize": 1500,
        "tieredStoreJournalGraceTime": 0,
    }
    return [part for key, value in values.items() for part in ("-D", f"{key}={value}")]


async def assert_holds(tier: Path, ends: Mapping[QueueId, int] | None = None) -> None:
    """Every message up to the ends (default: all) is as the official client read it."""
    store = PosixStore(directory_in(tier))
    reader = await TierReader.open(store, verify=True)
    reader.state.check()
    rows = [
        row
        for row in expected(VARIANTS_533, "messages")
        if (ends is None or row["queue_offset"] < ends[queue_of(row)])
        and not (queue_of(row) == GAP and row["queue_offset"] in LOST)
    ]
    found = await read_all(reader, rows)
    await store.close()
    assert len(rows) > 300
    assert [comparable(row) for row in found] == [
        comparable(normal(row, VARIANTS_533)) for row in rows
    ]


def queue_of(row: Mapping[str, Any]) -> QueueId:
    return QueueId(row["topic"], row["queue_id"])


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what the lost messages shift."""
    return without(row, "tier_physical_offset") if queue_of(row) == GAP else row


async def test_it_has_a_cut_a_gap_and_all_kinds_of_objects(tier: Path, version: str) -> None:
    directory = directory_in(tier)
    kinds = {path.name for path in directory.iterdir() if path.name.startswith("@")}
    assert kinds >= {"@journal", "@snapshot", "@boundary", "@manifest", "@cut", "@lock"}
    assert list((directory / "@cut").glob("*/V_Plain/1/*/*"))
    store = PosixStore(directory)
    reader = await TierReader.open(store)
    state = reader.state
    assert state.broker.epoch == OWNERS[version]
    (gap,) = state.queues[GAP].gaps
    assert range(gap.start, gap.end) == LOST
    assert state.tombstones
    assert any(queue.commit_log[-1].sealed_ms is None for queue in state.queues.values())
    await store.close()


async def test_every_message_of_it_reads_as_the_client_saw_it(tier: Path) -> None:
    store = PosixStore(directory_in(tier))
    state = (await TierReader.open(store)).state
    ends = {queue: record.next_offset for queue, record in state.queues.items()}
    await store.close()
    assert ends[CUT] < 80, "something is left to be tiered"
    await assert_holds(tier, ends)
    assert run(*options(tier), "check", "--json").rows == []


async def test_it_is_continued_to_the_end_of_the_store_and_is_sound(tier: Path) -> None:
    run(*options(tier), "tier", unpacked(VARIANTS_533).store)
    await assert_holds(tier)
    assert run(*options(tier), "check", "--json").rows == []


def test_its_metadata_is_exported_for_the_java_store(tier: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "java.json"
    run(*options(tier), "metadata", "export", metadata)
    words = ("V_Seg", "0", "--java-metadata", metadata, "--digest", "--json")
    rows = [row for row in expected(VARIANTS_533, "messages") if queue_of(row) == ("V_Seg", 0)]
    found = run(*options(tier), "read", *words).rows
    assert list(map(seen_by_the_client, found)) == [normal(row, VARIANTS_533) for row in rows]
