"""`df.write` appends messages to a store: all of a job or none, and a named write once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_spark.test_stream import GrowingTier, stream
from tieredstore import sync
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.offline import spark as tiers
from tieredstore.offline.spark.engine import said_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ["topic", "queue_id", "tags", "keys", "properties", "body"]


def write(frame: "DataFrame", place: Path, mode: str = "append", **options: Any) -> None:
    tiers.register(frame.sparkSession)
    options = {"tieredStoreFilePath": place / "tier", "broker": "b", **options}
    frame.write.format("tieredstore").mode(mode).options(**options).save(str(place / "store"))


def fields(message: Any) -> tuple[Any, ...]:
    properties = {name: text for name, text in message.properties.items() if name != "SPARK_WRITE"}
    return message.topic, message.queue_id, message.body, message.tags, message.keys, properties


def test_messages_of_one_tier_are_written_into_another(
    spark: "SparkSession", golden_tier: Path, tmp_path: Path
) -> None:
    """Queue by queue in order, with all that columns say; the second time nothing is appended."""
    frame = tiers.messages(spark, str(golden_tier), columns=COLUMNS, topics="G_Keys,G_Big")
    for _ in range(2):
        write(frame, tmp_path, writeId="copy")
    with sync.open(golden_tier) as before, sync.open(tmp_path / "tier") as after:
        assert after.topics() == ["G_Big", "G_Keys"]
        for topic in after.topics():
            wanted = [fields(message) for message in before.messages(topic)]
            assert [fields(message) for message in after.messages(topic)] == wanted
    assert [path.name for path in (tmp_path / "store" / "writes").rglob("*.*")] == ["copy.json"]


def test_a_job_that_fails_leaves_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    text = "if(id = 77, repeat('x', 5000000), 'x')"
    frame = spark.range(0, 80, 1, 4).selectExpr("'T' AS topic", f"binary({text}) AS body")
    with pytest.raises(PySparkException) as raised:
        write(frame, tmp_path)
    assert "row 17 of partition 3: the body has 5000000 bytes, more than 4194304" in said_by(
        raised.value
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    write(frame.where("length(body) < 9"), tmp_path)
    with sync.open(tmp_path / "tier") as tier:
        assert sum(queue.max_offset for queue in tier.queues("T")) == 79


def test_a_stream_is_written_batch_by_batch_each_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    source = GrowingTier(tmp_path)
    source.grow(8)
    place = tmp_path / "copy"

    def append(batch: "DataFrame", number: int) -> None:
        frame = batch.selectExpr("'Copies' AS topic", "queue_id", "body")
        write(frame, place, writeId=f"copies-{number}")
        write(frame, place, writeId=f"copies-{number}")  # as after a failure

    for _ in range(2):
        frame = stream(spark, source, maxRowsPerTrigger=20).writeStream.foreachBatch(append)
        frame = frame.option("checkpointLocation", str(tmp_path / "checkpoint"))
        frame.trigger(availableNow=True).start().awaitTermination()
        source.grow(1)
    with sync.open(place / "tier") as tier:
        found = [(one.queue_id, one.offset, one.body) for one in tier.messages("Copies")]
    assert sorted(found) == sorted(source.sent[:-3])


@pytest.mark.parametrize(
    ("columns", "mode", "sentence"),
    [
        (["'T' AS topic", "binary('') AS body"], "overwrite", "write mode('append')"),
        (["'T' AS topic"], "append", "there is no column body: a message has topic and body"),
        (["'T' AS topic", "'' AS body"], "append", "the column body is string, not binary"),
        (["'a/b' AS topic", "binary('') AS body"], "append", "the topic 'a/b' names no directory"),
    ],
)
def test_wrong_use_is_one_sentence(
    spark: "SparkSession", tmp_path: Path, columns: list[str], mode: str, sentence: str
) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    with pytest.raises(PySparkException) as raised:
        write(spark.range(3).selectExpr(*columns), tmp_path, mode)
    assert sentence in said_by(raised.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_store_in_use_is_one_sentence(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    writer = StoreDirectory(tmp_path / "store")
    try:
        with pytest.raises(PySparkException) as raised:
            write(spark.range(3).selectExpr("'T' AS topic", "binary('') AS body"), tmp_path)
        assert f"writes the store {tmp_path / 'store'}: stop it first" in said_by(raised.value)
    finally:
        writer.close()
