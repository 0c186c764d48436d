"""The stream: each message once in a sink that takes each batch once, however often it is ended."""

import random
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_broker import FakeBroker
from tests.support.patience import Patience, wait_until
from tieredstore import sync
from tieredstore.config.sources import ConfigError
from tieredstore.offline import spark as tiers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tieredstore.offline.spark.stream_reader import MessageStreamReader

pytestmark = pytest.mark.spark

QUEUES = 3


class GrowingTier:
    """A broker's store that is tiered on demand."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "tier"
        self._broker = FakeBroker(directory / "store", commit_log_bytes=1 << 22)
        self.sent: list[tuple[int, int, bytes]] = []

    def grow(self, count: int, *, new_tier: bool = False) -> None:
        """Tier `count` more messages of each queue."""
        for _ in range(count):
            for queue_id in range(QUEUES):
                body = b"%d" % len(self.sent)
                offset = self._broker.put("Orders", queue_id, body)
                self.sent.append((queue_id, offset, body))
        with sync.follow(
            self._broker.directory, self.path, broker="b", new_tier=new_tier
        ) as follower:
            follower.drain()


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    growing = GrowingTier(tmp_path)
    growing.grow(20)
    return growing


def stream(spark: "SparkSession", tier: GrowingTier, **options: Any) -> "DataFrame":
    tiers.register(spark)
    reader = spark.readStream.format("tieredstore").schema(
        "queue_id int, queue_offset bigint, body binary"
    )
    return reader.options(refreshInterval=0, **options).load(str(tier.path))


def into(frame: "DataFrame", sink: Path, *, at_once: bool = True) -> "StreamingQuery":
    """A query that appends to Parquet files, which take each batch exactly once."""
    writer = frame.writeStream.format("parquet").option("path", str(sink))
    writer = writer.option("checkpointLocation", f"{sink}-checkpoint")
    timed = (
        writer.trigger(availableNow=True) if at_once else writer.trigger(processingTime="0 seconds")
    )
    return timed.start()


def stop_behind(query: "StreamingQuery", batches: int) -> None:
    """End a query in the middle of whatever it does behind so many batches."""
    wait_until(
        lambda: len(query.recentProgress) >= batches or not query.isActive,
        Patience("the stream stands still", marks=lambda: len(query.recentProgress)),
    )
    query.stop()
    assert query.exception() is None


def held(spark: "SparkSession", sink: Path) -> list[tuple[int, int, bytes]]:
    rows = spark.read.parquet(str(sink)).collect()
    return [(row.queue_id, row.queue_offset, bytes(row.body)) for row in rows]


def test_stopped_at_random_and_restarted_the_sink_has_each_message_once(
    spark: "SparkSession", tier: GrowingTier, tmp_path: Path
) -> None:
    sink, rng = tmp_path / "sink", random.Random(7)
    for _ in range(3):
        frame = stream(spark, tier, maxRowsPerTrigger=rng.randrange(9, 30), splitBytes=8192)
        stop_behind(into(frame, sink, at_once=False), batches=rng.randrange(1, 3))
        tier.grow(rng.randrange(0, 9))
    into(stream(spark, tier, maxRowsPerTrigger=50), sink).awaitTermination()
    assert sorted(held(spark, sink)) == sorted(tier.sent)


def test_a_tier_that_was_made_again_is_not_gone_on_with(
    spark: "SparkSession", tier: GrowingTier, tmp_path: Path
) -> None:
    into(stream(spark, tier), tmp_path / "sink").awaitTermination()
    rmtree(tier.path)
    tier.grow(5, new_tier=True)
    query = into(stream(spark, tier, failOnDataLoss="false"), tmp_path / "sink")
    wait_until(lambda: not query.isActive, Patience("the stream does not end"))
    assert "the tier was recreated since" in str(query.exception())


def test_a_batch_has_no_more_rows_than_the_limit(
    spark: "SparkSession", tier: GrowingTier, tmp_path: Path
) -> None:
    query = into(stream(spark, tier, maxRowsPerTrigger=17), tmp_path / "sink")
    query.awaitTermination()
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(rows) == len(tier.sent)
    assert max(rows) <= 17


def at_time(tier: GrowingTier) -> dict[str, Any]:
    with sync.open(tier.path) as opened:
        return {"startTime": list(opened.messages("Orders", 1))[5].store_timestamp}


@pytest.mark.parametrize(
    ("options", "firsts"),
    [
        (lambda _: {"startingOffsets": "latest"}, [20, 20, 20]),
        (lambda _: {"startingOffsets": '{"Orders/1": 7}'}, [0, 7, 0]),
        (at_time, [6, 5, 5]),
    ],
    ids=["latest", "offsets", "time"],
)
def test_a_stream_begins_where_it_is_told(
    spark: "SparkSession",
    tier: GrowingTier,
    tmp_path: Path,
    options: Callable[[GrowingTier], dict[str, Any]],
    firsts: list[int],
) -> None:
    given, sink = options(tier), tmp_path / "sink"
    into(stream(spark, tier, **given), sink).awaitTermination()
    tier.grow(2)
    into(stream(spark, tier, **given), sink).awaitTermination()
    wanted = [one for one in tier.sent if one[1] >= firsts[one[0]]]
    assert sorted(held(spark, sink)) == sorted(wanted)


def test_wrong_options_are_said_by_the_query_and_not_before() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 - an extra
    from pyspark.sql.types import StructType  # noqa: PLC0415 - likewise

    from tieredstore.offline.spark.source import TieredStoreSource  # noqa: PLC0415 - likewise

    source = TieredStoreSource({"maxRowsPerTrigger": "0"})
    reader = source.streamReader(StructType([]))
    asked: list[Callable[[], object]] = [
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ]
    for ask in asked:
        with pytest.raises(ConfigError, match="maxRowsPerTrigger: 0 is less than 1"):
            ask()
    reader.stop()


def reader_of(tier: GrowingTier, **options: str) -> "MessageStreamReader":
    from tieredstore.offline.spark.conversion import ToSpark  # noqa: PLC0415 - needs PySpark
    from tieredstore.offline.spark.options import stream_options  # noqa: PLC0415 - likewise
    from tieredstore.offline.spark.stream_reader import MessageStreamReader  # noqa: PLC0415

    given = {"path": str(tier.path), **options}
    return MessageStreamReader(stream_options(given, now_ms=0), ToSpark(("body",)))


def test_a_beginning_behind_the_end_of_a_queue_is_refused(tier: GrowingTier) -> None:
    reader = reader_of(tier, startingOffsets='{"Orders/1": 21}')
    with pytest.raises(ConfigError, match="startingOffsets: Orders/1 ends at 20, before 21"):
        reader.initialOffset()
    reader.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"queues": "0,7"},
        {"queues": "Orders/0,Orders/7"},
        {"topicPattern": "Later.*|Orders", "queues": "0,7"},
    ],
)
def test_a_queue_that_has_no_message_yet_may_be_wanted(
    tier: GrowingTier, options: dict[str, str]
) -> None:
    reader = reader_of(tier, **options)
    begun = reader.initialOffset()
    assert [name for name in begun if not name.startswith("@")] == ["Orders/0"]
    reader.stop()


def test_a_pattern_that_no_topic_has_yet_may_be_wanted(tier: GrowingTier) -> None:
    reader = reader_of(tier, topicPattern="Later.*", queues="0")
    assert not [name for name in reader.initialOffset() if not name.startswith("@")]
    reader.stop()
