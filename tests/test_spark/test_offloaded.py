"""Spark over a tier whose messages lie in its second store: the same rows as before."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cli import invoke
from tests.support.golden import GoldenTree
from tests.test_spark.test_jobs import SPLIT_BYTES, engine, tier
from tests.test_spark.test_stream import GrowingTier, held, into
from tests.test_spark.test_stream import tier as growing
from tests.test_spark.test_tables import read
from tests.test_tieredstore.offline.test_rebuild import config_of, options_of
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.spark import register
from tieredstore.session.reader import existing_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.offline.spark.engine import SparkEngine

__all__ = ["engine", "growing", "tier"]  # fixtures
pytestmark = [
    pytest.mark.spark,
    pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store"),
]
OFFLOAD = "tieredStoreOffloadPath"
LAG = ("-D", "tieredStoreOffloadDeletionLag=0", "-D", "tieredStoreJournalGraceTime=0")


def offload_all(tier: Path, second: Path, topics: list[str], options: Sequence[str] = ()) -> None:
    """Every closed segment, and the open ones; the first copies go at once."""
    for topic in topics:
        invoke(tier, *options, "-D", f"{OFFLOAD}={second}", *LAG, "offload", topic)


def topics_of(tier: Path, options: Sequence[str]) -> list[str]:
    lines = invoke(tier, *options, "topics", "--json").stdout.splitlines()
    return sorted({json.loads(line)["topic"] for line in lines})


def test_every_table_is_the_same_and_so_is_an_audit(
    spark: "SparkSession",
    engine: "SparkEngine",
    sound: tuple[GoldenTree, Path],
    tier: Path,
    tmp_path: Path,
) -> None:
    tree, second, options = sound[0], tmp_path / "second", options_of(sound[0], tier)
    tables = {"messages": "", "units": "", "keys": "", "gaps": ""}

    def rows(**more: Any) -> dict[str, list[str]]:
        found = {name: read(spark, tier, name, splitBytes=65536, **more) for name in tables}
        return {name: sorted(map(str, frame.collect())) for name, frame in found.items()}

    before = rows()
    counts = audit(config_of(tree, tier), OneProcess(), split_bytes=SPLIT_BYTES[1]).counts
    offload_all(tier, second, topics_of(tier, options), options)
    assert not list(tier.glob("*/*/G_*/*/COMMIT_LOG/*"))
    assert rows(**{OFFLOAD: second}) == before
    settings = {"tieredStoreFilePath": str(tier), OFFLOAD: str(second)}
    config = existing_tier(Config.load(settings=settings))
    found = audit(config, engine, split_bytes=SPLIT_BYTES[1], bodies=True)
    assert (found.findings, found.counts) == ([], counts)


def test_a_stream_goes_on_over_an_offload(
    spark: "SparkSession", growing: GrowingTier, tmp_path: Path
) -> None:
    sink, second = tmp_path / "sink", tmp_path / "second"
    register(spark)

    def reads_on() -> None:
        reader = spark.readStream.format("tieredstore").options(refreshInterval=0)
        reader = reader.schema("queue_id int, queue_offset bigint, body binary")
        reader = reader.option(OFFLOAD, str(second)).option("maxRowsPerTrigger", 25)
        into(reader.load(str(growing.path)), sink).awaitTermination()

    reads_on()
    offload_all(growing.path, second, ["Orders"])
    reads_on()
    assert sorted(held(spark, sink)) == sorted(growing.sent)
    again = tmp_path / "again"
    sink = again
    reads_on()
    assert sorted(held(spark, again)) == sorted(growing.sent)
