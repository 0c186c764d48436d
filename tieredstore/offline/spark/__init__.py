"""A tier in Spark: tables, a stream, a writer, and the engine that runs our jobs on a cluster.

    from tieredstore.offline import spark as tiers

    tiers.register(spark)
    orders = spark.read.format("tieredstore").option("topics", "G_Orders").load("tier")
    tiers.messages(spark, "tier", columns=["topic", "queue_offset", "tags", "body"])
    rows.write.format("tieredstore").mode("append").save("store")

Needs the extra `tieredstore[spark]`, and Java where Spark itself runs. Works through Spark Connect,
too: nothing here needs a SparkContext. `docs/spark.md` lists the requirements of workers.

`options.py` parses the options; `source.py` is the data source, over `../tables/`, and the writer,
over `../writing/`; `stream_reader.py` and `stream_offsets.py` are the stream; `engine.py` is the
engine. Spark is imported on first use.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

from tieredstore.offline import ExtraMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Plain = str | int | bool | None
    Option = Plain | datetime | os.PathLike[str] | Collection[str | int] | Mapping[str, int]

PLANS_AGAIN: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark 4.3 plans a source in Python where it pushes filters into it, else once a DataFrame."""
EACH_ROW: Final = "queue_id IS NOT NULL"
"""A filter that each row of each table passes, so that each query is planned."""
QUEUE_ID: Final = "queue_id"


class SparkMissing(ExtraMissing):
    """A requirement of Spark is missing. The sentence names it."""


def register(spark: "SparkSession") -> None:
    """Let `spark.read`, `spark.readStream` and `df.write` have the format `tieredstore`.

    Sets `spark.sql.python.filterPushdown.enabled` in the session, so that each query with a filter
    is planned.

    Raises:
        SparkMissing: PySpark, pandas or pyarrow is not there, or is of a wrong version.
    """
    require_spark()
    from tieredstore.offline.spark.source import TieredStoreSource  # noqa: PLC0415 - needs PySpark

    # Each time, with a warning by Spark: a source has the environment of its registration.
    spark.dataSource.register(TieredStoreSource)
    spark.conf.set(PLANS_AGAIN, "true")


def messages(
    spark: "SparkSession",
    where: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    **options: "Option",
) -> "DataFrame":
    """Return the messages of a tier as a DataFrame that reads and decodes only some columns.

    Spark does not report the columns of a query to a source in Python, so `select` alone saves no
    work; `columns` does. Each query of the DataFrame, or of a view of it, reads the messages that
    are published when it is planned. All scans of a query read the same messages.

    Args:
        spark: the session; the format is registered.
        where: the tier's directory or URL.
        columns: names of columns, in any case, in this order; None: all.
        options: as `.option(name, value)`, such as `topics="G_Orders"`; a list becomes values
            separated by commas, a dict becomes a JSON object.

    Raises:
        SparkMissing: as `register`.
        ConfigError: there is no such column. A wrong option is an `AnalysisException` of the query.
    """
    return table(spark, where, "messages", columns=columns, **options)


def table(
    spark: "SparkSession",
    where: str | os.PathLike[str],
    name: str,
    *,
    columns: Sequence[str] | None = None,
    **options: "Option",
) -> "DataFrame":
    """Return a table of a tier, as `messages`: messages, units, keys, segments or gaps.

    Raises:
        SparkMissing: as `register`.
        ConfigError: there is no such table or column; names the nearest.
    """
    register(spark)
    from tieredstore.offline.spark.options import FORMAT, KEPT_PLAN, OF_PUSHED, brokers_named  # noqa: PLC0415 - with all of a tier
    from tieredstore.offline.tables.schemas import columns_of, sql_types  # noqa: PLC0415 - needs Arrow

    given = {option: option_text(value) for option, value in options.items()}
    of_brokers = bool(brokers_named(given))
    wanted = columns_of(name, columns, of_brokers=of_brokers)
    made = wanted if QUEUE_ID in wanted else (*wanted, QUEUE_ID)
    reader = spark.read.format(FORMAT).schema(sql_types(name, made, of_brokers=of_brokers))
    # Each query is planned, but for what a cache has lost and reads again.
    reader = reader.option("table", name).option(KEPT_PLAN, OF_PUSHED)
    for option, value in given.items():
        reader = reader.option(option, value)
    return reader.load(os.fspath(where)).where(EACH_ROW).select(*wanted)


def option_text(value: "Option") -> "Plain":
    """A value as an option holds it, for Spark itself makes `[A, B]` of a list.

    Raises:
        ValueError: one of a list holds a comma.
    """
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, list | tuple | set | frozenset | range):
        return cast("Plain", value)
    parts = [str(one) for one in cast("Collection[str | int]", value)]
    for part in parts:
        if "," in part:
            raise ValueError(f"{part!r} holds a comma, which separates the values of an option")
    return ",".join(parts)


def require_spark() -> None:
    """Make sure that Spark can be used from this Python.

    Raises:
        SparkMissing: PySpark, pandas or pyarrow is not there, or is of a wrong version.
    """
    from tieredstore.offline.spark.session import lacking  # noqa: PLC0415 - checks versions

    if sentence := lacking():
        raise SparkMissing(sentence)
