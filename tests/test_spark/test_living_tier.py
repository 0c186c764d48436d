"""A query and a stream on S3 beside an owner: what happens between plan and read lacks no row."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.living_jobs import COLUMNS, once
from tests.support.living_tier import LOSSES, MOVES, LivingTier, Row
from tests.support.patience import HANGS_AFTER_S
from tieredstore.offline import spark as tiers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.seaweedfs import SeaweedFs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(HANGS_AFTER_S)]
LEFT = "after this was planned: run it again"
OUTAGE = "outage"
REFUSED = 20
"""Requests that the service refuses in an outage that passes."""


@pytest.fixture
def proxy(
    spark: "SparkSession", seaweed: "SeaweedFs", s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """What the workers reach the service by."""
    del s3_url  # sets the environment
    with FaultProxy(seaweed.endpoint) as found:
        for name, value in {**seaweed.environment, "AWS_ENDPOINT_URL": found.endpoint}.items():
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        yield found


@pytest.fixture
def tier(tmp_path: Path, s3_url: str) -> LivingTier:
    """Old and new messages of topics A and B, in six parts."""
    made = LivingTier(tmp_path, s3_url, second=f"{s3_url}-second")
    for _ in range(2):
        made.grow(20)
    made.age()
    made.grow(20)
    return made


@pytest.fixture
def happens(tier: LivingTier, proxy: FaultProxy, event: str) -> Callable[[], None]:
    """Lets the event happen."""

    def refuse() -> None:
        proxy.faults = [WireFault("busy", calls=tuple(range(1, REFUSED + 1)))]

    return refuse if event == OUTAGE else lambda: {**MOVES, **LOSSES}[event](tier)


BY_DAY = ("compaction", "topic made again", OUTAGE)
"""One event of each kind; jobs on the local engine meet each event by day."""
EVENTS = pytest.mark.parametrize(
    "event",
    [
        pytest.param(one, marks=[] if one in BY_DAY else [pytest.mark.nightly])
        for one in (*MOVES, *LOSSES, OUTAGE)
    ],
)


def options_of(tier: LivingTier, **more: str) -> dict[str, str]:
    named = {"broker": "b", "damaged": "skip", "splitBytes": "2000", **more}
    return named | {name: text for name, text in tier.settings.items() if "Offload" in name}


def rows_of(frame: "DataFrame") -> list[Row]:
    return [(topic, queue, offset, bytes(body)) for topic, queue, offset, body in frame.collect()]


@EVENTS
def test_a_query_reads_the_rows_of_its_plan_or_says_to_run_it_again(
    spark: "SparkSession", tier: LivingTier, happens: Callable[[], None], event: str
) -> None:
    frame = tiers.messages(spark, tier.url, columns=COLUMNS, **options_of(tier))
    planned, query = set(tier.rows), frame.select("*")
    plan: Any = query._jdf
    plan.queryExecution().executedPlan()
    happens()
    if event in LOSSES:
        with pytest.raises(PySparkException, match=LEFT):
            query.collect()
    else:
        assert once(rows_of(query)) == planned
    assert once(rows_of(frame.select("*"))) == set(tier.rows)


@EVENTS
def test_a_stream_has_each_row_once_and_says_what_it_lacks(
    spark: "SparkSession",
    tier: LivingTier,
    happens: Callable[[], None],
    event: str,
    tmp_path: Path,
) -> None:
    tiers.register(spark)
    sink: dict[int, list[Row]] = {}
    waiting = [happens]

    def take(frame: "DataFrame", number: int) -> None:
        if number and waiting:
            waiting.pop()()
        sink[number] = rows_of(frame)

    def run(**more: str) -> None:
        reader: Any = spark.readStream.format("tieredstore").options(**options_of(tier, **more))
        reader = reader.schema("topic string, queue_id int, queue_offset bigint, body binary")
        writer = reader.load(tier.url).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    if event in LOSSES:
        with pytest.raises(PySparkException, match=LEFT):
            run()
        with pytest.raises(PySparkException, match="failOnDataLoss=false"):
            run()
    run(failOnDataLoss="false")
    run(failOnDataLoss="false")  # a run ends where the tier ended at its start: rows of the event
    assert once([row for rows in sink.values() for row in rows]) == set(tier.rows)
