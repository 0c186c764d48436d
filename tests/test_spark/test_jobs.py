"""Rebuild and audit on Spark: the same bytes and the same findings as in one process."""

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from container.check.tier import check_tier
from container.names.rocketmq import INDEX_QUEUE
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from tests.support.golden import GoldenTree
from tests.test_tieredstore.offline.test_audit import flip, only
from tests.test_tieredstore.offline.test_rebuild import (
    SPLIT_BYTES,
    all_of,
    broker_of,
    config_of,
    derived_of,
    remove_derived,
    remove_metadata,
    same_answers,
)
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.offline.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

AUDIT_SPLIT_BYTES = 1 << 20
BY_DAY = [
    pytest.param(one, marks=[] if one == min(SPLIT_BYTES) else [pytest.mark.nightly])
    for one in SPLIT_BYTES
]


@pytest.fixture
def engine(spark: "SparkSession") -> "SparkEngine":
    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415 - imports PySpark

    return SparkEngine(spark)


@pytest.fixture
def tier(sound: tuple[GoldenTree, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound[1], tmp_path / "tier"))


@pytest.mark.parametrize("split_bytes", BY_DAY)
def test_lost_consume_queues_and_index_files_come_back_byte_for_byte(
    engine: "SparkEngine", sound: tuple[GoldenTree, Path], tier: Path, split_bytes: int
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before, derived = all_of(broker), derived_of(broker)
    remove_derived(broker)
    report = restore(config_of(tree, tier), engine, split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    assert {file.path for file in report.files} == derived.keys()
    assert all_of(broker) == before


@pytest.mark.parametrize("split_bytes", BY_DAY)
def test_a_tier_of_commit_logs_alone_gets_all_back_and_answers_the_same(
    engine: "SparkEngine", sound: tuple[GoldenTree, Path], tier: Path, split_bytes: int
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = all_of(broker)
    remove_derived(broker)
    remove_metadata(broker)
    report = remake(config_of(tree, tier), engine, split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    after = all_of(broker)
    for name, raw in before.items():
        if not name.startswith("@") and not name.startswith(INDEX_QUEUE.topic):
            assert after[name] == raw, name

    async def check() -> None:
        store = PosixStore(broker)
        reader = await TierReader.open(store, verify=True)
        assert [str(one) async for one in check_tier(reader)] == []
        await same_answers(reader, tree)
        await store.close()

    asyncio.run(check())


@pytest.mark.leaves_findings(
    "body-crc",
    "checksum",
    "unit-outside-log",
    "units-do-not-join",
    "index-item",
    "index-key-missing",
    why="the test damages a log, keys of a message in it, and units",
)
def test_an_audit_finds_the_same_on_both_engines(
    engine: "SparkEngine", sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    config = config_of(sound[0], tier)
    found = audit(config, engine, split_bytes=AUDIT_SPLIT_BYTES, bodies=True)
    assert (found.findings, found.counts["messages"], found.counts["units"]) == ([], 3396, 3396)
    assert (
        found.counts
        == audit(config, OneProcess(), split_bytes=AUDIT_SPLIT_BYTES, bodies=True).counts
    )
    flip(only(tier, "G_Orders/0/COMMIT_LOG/*"), 3000)
    flip(only(tier, "G_Keys/1/CONSUME_QUEUE/*"), 25)
    one, two = (
        audit(config, either, split_bytes=AUDIT_SPLIT_BYTES, bodies=True)
        for either in (engine, OneProcess())
    )
    assert one.findings
    assert one.findings == two.findings
