"""The tables of a tier in Spark hold what its own readers read."""

import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from container.errors import Expired
from tests.support.cli import run
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.test_tieredstore.cli.test_brokers_option import CLUSTER, MESSAGES, of_tier, tier_of_three
from tests.test_tieredstore.offline.test_export import exported, with_odd_times
from tieredstore import sync
from tieredstore.config.sources import ConfigError
from tieredstore.message import Message
from tieredstore.offline import spark as tiers
from tieredstore.offline.spark import source
from tieredstore.offline.spark.conversion import ToSpark
from tieredstore.offline.spark.options import table_options
from tieredstore.offline.spark.source import TableReader
from tieredstore.offline.tables.schemas import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark


def read(
    spark: "SparkSession", tier: Path | str, table: str = "messages", **options: Any
) -> "DataFrame":
    tiers.register(spark)
    return spark.read.format("tieredstore").options(table=table, **options).load(str(tier))


def in_order(rows: Iterable["Row"]) -> list["Row"]:
    return sorted(rows, key=lambda row: (row.topic, row.queue_id, row.queue_offset))


def assert_same(rows: Iterable["Row"], messages: Iterable[Message]) -> None:
    found, wanted = in_order(rows), list(messages)
    assert [(row.topic, row.queue_id, row.queue_offset, bytes(row.body)) for row in found] == [
        (one.topic, one.queue_id, one.offset, one.body) for one in wanted
    ]
    assert [(row["keys"], row.properties, row.tags, row.msg_id) for row in found] == [
        (one.keys, one.properties, one.tags or None, one.msg_id) for one in wanted
    ]
    assert [int(row.store_timestamp.timestamp() * 1000 + 0.5) for row in found] == [
        one.store_timestamp for one in wanted
    ]
    assert [(row.body_crc, row.born_host, row.sys_flag) for row in found] == [
        (one.stored.body_crc, one.born_host, one.sys_flag) for one in wanted
    ]


def test_messages_are_those_that_the_fetcher_reads(
    spark: "SparkSession", golden_tier: Path
) -> None:
    rows = read(spark, golden_tier, topics="G_Orders,G_Big", splitBytes=65536).collect()
    with sync.open(golden_tier) as tier:
        assert_same(rows, [one for topic in ("G_Big", "G_Orders") for one in tier.messages(topic)])


def test_a_tier_of_the_java_store_is_read_with_its_metadata(spark: "SparkSession") -> None:
    tree = unpacked(ROCKETMQ_533)
    java = str(tree.java_metadata)
    rows = read(spark, tree.tier, javaMetadata=java, topics="G_Orders", splitBytes=65536).collect()
    with sync.open(tree.tier, java_metadata=java) as tier:
        assert_same(rows, tier.messages("G_Orders"))


def test_options_choose_what_is_read(spark: "SparkSession", golden_tier: Path) -> None:
    with sync.open(golden_tier) as tier:
        messages = list(tier.messages("G_Orders", 1))
    since, until = messages[100].store_timestamp, messages[300].store_timestamp
    found = read(
        spark,
        golden_tier,
        queues="G_Orders/1",
        startTime=since,
        endTime=until,
        startingOffsets='{"G_Orders/1": 120}',
        endingOffsets='{"G_Orders/1": 280}',
    )
    wanted = [m.offset for m in messages[120:280] if since <= m.store_timestamp < until]
    assert [row.queue_offset for row in in_order(found.select("*").collect())] == wanted
    assert (
        read(spark, golden_tier, queues="1,2", topics="G_Tx").select("queue_id").distinct().count()
        == 2
    )


def test_a_table_of_several_brokers_names_the_broker_of_each_row(
    spark: "SparkSession", tmp_path: Path
) -> None:
    tier = tier_of_three(tmp_path)
    for table in SCHEMAS:
        wanted = [
            (CLUSTER, name, *row)
            for name in MESSAGES
            for row in read(spark, tier, table, broker=name).collect()
        ]
        found = read(spark, tier, table, broker="*")
        assert found.columns[:2] == ["cluster", "broker"]
        assert sorted(map(str, map(tuple, found.collect()))) == sorted(map(str, wanted)), table
    named = tiers.messages(
        spark, tier, broker=["east-?", "west-1"], topics="Alone", columns=["body", "broker"]
    )
    assert [tuple(row) for row in named.collect()] == [(bytearray(b"alone"), "west-1")]
    brokers = read(spark, tier, broker="east-*").groupBy("broker").count().collect()
    assert dict(map(tuple, brokers)) == {"east-1": 4, "east-2": 6}
    for options, sentence in (
        ({"topics": "Alone", "broker": "east-*"}, "has nothing of Alone"),
        ({"broker": "north-*"}, "fits 'north-\\*'"),
    ):
        with pytest.raises(Exception, match=sentence):
            read(spark, tier, **options).collect()


def test_a_kept_plan_of_several_brokers_is_refused_where_one_has_other_rows(
    spark: "SparkSession", tmp_path: Path
) -> None:
    tier = tier_of_three(tmp_path)
    frame = read(spark, tier, broker="*")
    assert frame.count() == frame.count() == sum(MESSAGES.values()) + 1
    names = ("-D", f"brokerClusterName={CLUSTER}", "-D", "brokerName=east-2")
    run("--tier", tier, *names, "delete-topic", "Orders")
    with pytest.raises(Exception, match="was planned before this query"):
        frame.count()


@pytest.mark.parametrize("broker", ["*", "e*,w*"])
def test_a_kept_plan_of_several_brokers_is_refused_where_there_is_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    tier = tier_of_three(tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"tieredStoreFilePath={tier}\nbrokerClusterName={CLUSTER}\n")
    options = table_options({"conf": str(conf), "broker": broker}, now_ms=0)
    reader = TableReader(options, ToSpark(("body",)))
    planned = reader.partitions()
    conf.unlink()  # workers have none
    monkeypatch.setattr(source, "_query_began_ms", lambda: 1 << 60)

    def rows() -> int:
        return sum(batch.num_rows for one in planned for batch in reader.read(pickled(one)))

    before = rows()
    assert before == sum(MESSAGES.values()) + 1
    shutil.copytree(tmp_path / "east-1", tmp_path / "north")
    run(*of_tier(tier), "-D", "brokerName=north", "tier", tmp_path / "north")
    if broker != "*":
        assert rows() == before, "it does not fit"
        run(*of_tier(tier), "-D", "brokerName=east-9", "tier", tmp_path / "north")
    with pytest.raises(Expired, match="was planned before this query"):
        rows()


def pickled(partition: Any) -> Any:
    """As a worker has it."""
    return pickle.loads(pickle.dumps(partition))


def test_only_the_named_columns_are_made(spark: "SparkSession", golden_tier: Path) -> None:
    columns = ["tags", "queue_offset"]
    frame = tiers.messages(spark, str(golden_tier), columns=columns, queues="G_Orders/0")
    assert frame.columns == ["tags", "queue_offset"]
    assert {row.tags for row in frame.where("tags = 'TagA'").collect()} == {"TagA"}


def test_times_that_spark_cannot_say_are_null() -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    times = [0, last, last + 1, first, first - 1, 1_790_000_000_000_000, 2**63 - 1, -(2**63), None]
    batch = pa.record_batch([pa.array(times, pa.timestamp("ms", tz="UTC"))], ["store_timestamp"])
    schema = StructType([StructField("Store_Timestamp", TimestampType())])
    found = ToSpark.of("messages", schema).converted(batch)
    said = [0, last * 1000, None, first * 1000, *[None] * 5]
    assert found.column(0).cast(pa.int64()).to_pylist() == said
    assert found.schema.names == ["Store_Timestamp"], "as the query spells it"


def test_names_and_times_that_are_odd_are_those_of_an_export_too(
    spark: "SparkSession", tmp_path: Path
) -> None:
    topic = "%RETRY%日志"
    growing, out = with_odd_times(tmp_path, topic), tmp_path / "out"
    exported(growing.tier, out)
    for frame in (spark.read.parquet(str(out)), read(spark, growing.tier)):
        rows = frame.where(f"topic = '{topic}'").collect()
        assert sorted(bytes(row.body) for row in rows) == growing.bodies
        assert sum(row.store_timestamp is None for row in rows) == 2
        assert sum(row.born_timestamp is None for row in rows) == 2


def test_columns_have_any_case(spark: "SparkSession", golden_tier: Path) -> None:
    frame = tiers.messages(spark, golden_tier, columns=["Tags", "BODY"], queues="G_Orders/0")
    assert frame.columns == ["tags", "body"]
    reader = spark.read.format("tieredstore").option("queues", "G_Orders/0")
    mine = reader.schema("Queue_Offset bigint, BODY binary").load(str(golden_tier))
    assert mine.columns == ["Queue_Offset", "BODY"]
    assert mine.where("queue_offset < 5").count() == 5


def test_a_table_that_is_none_is_one_sentence(spark: "SparkSession", golden_tier: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table 'segment': write segments"):
        tiers.table(spark, golden_tier, "segment")


def test_units_keys_segments_and_gaps_are_those_of_the_metadata(
    spark: "SparkSession", golden_tier: Path
) -> None:
    units = in_order(read(spark, golden_tier, "units", topics="G_Orders").collect())
    with sync.open(golden_tier) as tier:
        messages = list(tier.messages("G_Orders"))
        state = tier.queues()
    assert [(row.queue_id, row.queue_offset, row.position, row.size) for row in units] == [
        (one.queue_id, one.offset, one.stored.physical_offset, one.stored.size) for one in messages
    ]
    keys = read(spark, golden_tier, "keys", topics="G_Orders").collect()
    assert {(row.queue_id, row.position, row.size) for row in keys} <= {
        (row.queue_id, row.position, row.size) for row in units
    }
    segments = [row.asDict() for row in read(spark, golden_tier, "segments").collect()]
    listed = run("--tier", golden_tier, "segments", "--json").rows
    assert [(row["path"], row["size"], row["sealed"]) for row in segments] == [
        (row["path"], row["size"], row["sealed"]) for row in listed
    ]
    assert read(spark, golden_tier, "gaps").count() == sum(len(queue.gaps) for queue in state)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": "G_Order"}, "G_Orders"),
        ({"topic": "G_Orders"}, "there is no option topic: did you mean topics?"),
        ({"table": "message"}, "there is no 'message': write messages"),
        ({"startTime": "yesterday"}, "'yesterday' is no time"),
        ({"table": "gaps", "startTime": "-2h"}, "the table gaps has no store times"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    spark: "SparkSession", golden_tier: Path, options: dict[str, str], sentence: str
) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    with pytest.raises(PySparkException) as raised:
        read(spark, golden_tier, **options).collect()
    assert sentence in str(raised.value)


def test_a_path_that_is_no_tier_is_one_sentence(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    with pytest.raises(PySparkException, match="there is no tier"):
        read(spark, tmp_path).collect()
