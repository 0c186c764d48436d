"""Queries of one DataFrame or view: each is planned of its own, and its scans share no filter."""

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from container.errors import Expired
from tests.support.lacking import lacks
from tests.support.level import by_level
from tests.support.living_tier import LivingTier
from tests.support.spark_settings import ROOT, Job, connect_url, java_machine
from tests.test_spark.test_cluster import found_by
from tieredstore.offline import spark as tiers
from tieredstore.offline.spark.conversion import ToSpark
from tieredstore.offline.spark.options import table_options
from tieredstore.offline.spark.source import TableReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ["topic", "queue_id", "queue_offset"]


def wanted(tier: LivingTier, *topics: str) -> list[tuple[str, int, int]]:
    return sorted(row[:3] for row in tier.rows if not topics or row[0] in topics)


def found(frame: "DataFrame") -> list[tuple[Any, ...]]:
    """The rows of a new query; a DataFrame that is collected twice is one query for Spark."""
    return sorted(tuple(row) for row in frame.select("*").collect())


BY_NIGHT = [pytest.mark.nightly]


@pytest.fixture
def view(
    request: pytest.FixtureRequest, spark: "SparkSession", tier: LivingTier
) -> Iterator[Callable[[str], "DataFrame"]]:
    """A view of a tier that was made in one of the ways; runs SQL over it, `m`."""
    tiers.register(spark)
    if request.param == "messages":
        frame = tiers.messages(spark, tier.url, columns=COLUMNS, broker="b")
        frame.createOrReplaceTempView("m")
    elif request.param == "SQL":
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW m USING tieredstore "
            f"OPTIONS (path '{tier.url}', broker 'b')"
        )
    else:
        reader = spark.read.format("tieredstore").option("broker", "b")
        reader = reader.option("pushFilters", request.param == "pushFilters")
        reader.load(tier.url).createOrReplaceTempView("m")
    yield spark.sql
    spark.catalog.dropTempView("m")


VIEWS = ["messages", "options", "pushFilters", "SQL"]
BY_DAY = {("pushFilters", "true"), ("SQL", "false")}
"""A client of Spark Connect asks a view of `messages`; that with options is as the one of SQL."""
TURNS = by_level(quick=1, full=1, nightly=2)
QUERIES = {
    "scalar subquery": """
        SELECT (SELECT count(*) FROM m WHERE topic = 'A') AS a, (SELECT count(*) FROM m) AS b""",
    "union": """
        SELECT sum(a), sum(b) FROM (SELECT 1 AS a, 0 AS b FROM m WHERE topic = 'A'
        UNION ALL SELECT 0, 1 FROM m WHERE topic IN ('A', 'B'))""",
    "self-join": """
        SELECT count(x.topic), count(*) FROM m y LEFT JOIN (SELECT * FROM m WHERE topic = 'A') x
        ON x.topic = y.topic AND x.queue_id = y.queue_id AND x.queue_offset = y.queue_offset""",
    "CTE": """
        WITH a AS (SELECT * FROM m WHERE topic = 'A'), b AS (SELECT * FROM m)
        SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)""",
    "IN subquery": """
        SELECT count_if(topic = 'A'), count(*) FROM m
        WHERE topic IN (SELECT topic FROM m WHERE queue_offset = 3)""",
    "EXISTS, in any case": """
        SELECT count_if(TOPIC = 'A'), count(*) FROM M x WHERE EXISTS
        (SELECT 1 FROM m y WHERE y.Topic = x.topic AND y.QUEUE_OFFSET = x.queue_offset)""",
    "EXCEPT ALL": """
        SELECT (SELECT count(*) FROM (SELECT topic, queue_offset FROM m EXCEPT ALL
        SELECT topic, queue_offset FROM m WHERE topic = 'B')), (SELECT count(*) FROM m)""",
    "window": """
        SELECT count_if(topic = 'A'), count(*) FROM (SELECT topic, row_number()
        OVER (PARTITION BY topic ORDER BY queue_offset) AS n FROM m) WHERE n > 0""",
    "unfiltered, filtered": """
        SELECT (SELECT count(*) FROM m WHERE topic = 'A' AND queue_offset >= 0), n FROM
        (SELECT count(*) AS n FROM m)""",
}


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize(
    ("view", "is_adaptive"),
    [
        pytest.param(*one, marks=[] if one in BY_DAY else BY_NIGHT)
        for one in product(VIEWS, ["true", "false"])
    ],
    indirect=["view"],
)
def test_scans_of_one_query_share_no_filter(
    spark: "SparkSession",
    tier: LivingTier,
    view: Callable[[str], "DataFrame"],
    is_adaptive: str,
) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", is_adaptive)
    try:
        for _ in range(TURNS):
            assert_queries(view, tier)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def assert_queries(sql: Callable[[str], "DataFrame"], tier: LivingTier) -> None:
    """Each of the queries counts the messages of topic A, and all."""
    for name, query in QUERIES.items():
        (row,) = sql(query).collect()
        assert tuple(row) == (len(wanted(tier, "A")), len(wanted(tier))), name


CONNECT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.support.living_tier import LivingTier
from tests.test_spark.test_fresh_tables import COLUMNS, assert_queries, found, wanted
from tieredstore.offline import spark as tiers

tier = LivingTier(Path(sys.argv[2]), sys.argv[2] + "/tier")
tier.grow(20)
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
frame = tiers.messages(spark, tier.url, columns=[one.upper() for one in COLUMNS], broker="b")
frame.createOrReplaceTempView("m")
assert_queries(spark.sql, tier)
tier.grow(3)
assert_queries(spark.sql, tier)
cached = frame.cache()
assert found(cached) == found(cached) == wanted(tier)
print('FOUND "nothing else"')
spark.stop()
"""


@pytest.mark.slow
def test_a_client_of_spark_connect_has_the_same(spark: "SparkSession", tmp_path: Path) -> None:
    if find_spec("grpc") is None:
        lacks("grpcio is not installed: it is in the group `spark`.")
    script = tmp_path / "client.py"
    script.write_text(CONNECT)
    words = [connect_url(spark), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)}
    job = Job([sys.executable, str(script), *words], environment)
    found_by(job, tmp_path, [java_machine(spark)])


EVERYTHING = "SELECT topic, queue_id, queue_offset FROM m"


def test_each_query_reads_what_is_published(spark: "SparkSession", tier: LivingTier) -> None:
    frame = tiers.messages(spark, tier.url, columns=COLUMNS, broker="b")
    no_queue = tiers.messages(spark, tier.url, columns=["tags"], broker="b", topics="A")
    units = tiers.table(spark, tier.url, "units", columns=COLUMNS, broker="b")
    frame.createOrReplaceTempView("m")

    def check() -> None:
        assert found(frame) == found(units) == found(spark.sql(EVERYTHING)) == wanted(tier)
        ours = frame.where("topic = 'A'")
        assert found(ours) == found(frame.join(ours, COLUMNS, "left_semi")) == wanted(tier, "A")
        assert found(ours.union(frame.where("Topic = 'B'"))) == wanted(tier)
        assert no_queue.columns == ["tags"]
        assert no_queue.count() == len(wanted(tier, "A"))

    check()
    tier.grow(3)
    check()
    tier.expire()
    check()
    cached = frame.cache()
    try:
        before = wanted(tier)
        tier.grow(1)
        assert found(cached) == before, "what is cached is planned by then"
        tier.grow(1)
        assert found(cached) == before, "what is cached stays"
    finally:
        cached.unpersist(blocking=True)
    check()


def test_a_session_that_pushes_no_filter_reads_no_old_plan(
    spark: "SparkSession", tier: LivingTier
) -> None:
    """Neither another one, which has the view alone, nor one whose setting was taken back."""
    frame = tiers.messages(spark, tier.url, columns=COLUMNS, broker="b")
    frame.createOrReplaceGlobalTempView("everywhere")
    assert found(frame) == wanted(tier)
    other = spark.newSession()
    assert other.conf.get(tiers.PLANS_AGAIN) == "false"
    try:
        assert found(other.table("global_temp.everywhere")) == wanted(tier)
        tier.grow(1)
        with pytest.raises(PySparkException, match=TOO_OLD):
            found(other.table("global_temp.everywhere"))
        assert found(frame) == wanted(tier)
        tier.grow(1)
        spark.conf.set(tiers.PLANS_AGAIN, "false")
        with pytest.raises(PySparkException, match=TOO_OLD):
            found(frame)
    finally:
        tiers.register(spark)
        spark.catalog.dropGlobalTempView("everywhere")
    assert found(frame) == wanted(tier)


def test_a_view_of_sql_is_planned_by_each_query_with_a_filter(
    spark: "SparkSession", tier: LivingTier
) -> None:
    tiers.register(spark)
    source = f"USING tieredstore OPTIONS (path '{tier.url}', broker 'b')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW w {source}")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW m AS SELECT * FROM w WHERE queue_id IS NOT NULL")
    assert found(spark.sql(EVERYTHING)) == wanted(tier)
    tier.grow(3)
    assert found(spark.sql(EVERYTHING)) == wanted(tier)
    tier.expire()
    assert found(spark.sql(EVERYTHING)) == wanted(tier)


@pytest.fixture(params=["DataFrame", pytest.param("view", marks=BY_NIGHT)])
def kept(
    request: pytest.FixtureRequest, spark: "SparkSession", tier: LivingTier
) -> Callable[..., "DataFrame"]:
    """Makes a frame whose plan Spark keeps."""

    def frame(**options: str) -> "DataFrame":
        tiers.register(spark)
        options |= {"path": tier.url, "broker": "b"}
        if request.param == "DataFrame":
            return spark.read.format("tieredstore").options(**options).load().select(*COLUMNS)
        given = ", ".join(f"{name} '{text}'" for name, text in options.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW w USING tieredstore OPTIONS ({given})")
        return spark.sql("SELECT topic, queue_id, queue_offset FROM w")

    return frame


TOO_OLD = "the DataFrame or view was planned before this query: the tier has changed since"


def test_a_query_with_the_plan_of_an_earlier_one_is_refused_once_the_tier_has_other_rows(
    tier: LivingTier, kept: Callable[..., "DataFrame"]
) -> None:
    frame = kept()
    frame.explain()  # is planned before it is collected
    for _ in range(2):
        assert sorted(map(tuple, frame.collect())) == found(frame) == wanted(tier)
    tier.compact()
    assert found(frame) == wanted(tier), "it has the same rows"
    tier.grow(1)
    for query in (frame.collect, frame.select("*").collect, frame.count, frame.limit(1).collect):
        with pytest.raises(PySparkException, match=TOO_OLD):
            query()
    assert found(frame.where("queue_id IS NOT NULL")) == wanted(tier)
    assert found(frame) == wanted(tier), "the plan is that of the filter"
    tier.expire()  # another task may say first that its rows are gone
    with pytest.raises(PySparkException, match=f"{TOO_OLD}|or create the DataFrame or view again"):
        frame.count()
    assert found(frame.where("topic = 'B'")) == wanted(tier, "B")


def test_a_plan_that_was_kept_is_refused_for_rows_that_it_is_to_have_alone(
    tier: LivingTier, kept: Callable[..., "DataFrame"]
) -> None:
    other, none = kept(topics="B"), kept(topicPattern="New")
    ended = kept(endingOffsets='{"A/0": 50, "A/1": 50}', topics="A")
    used = kept(keptPlan="use", topics="A")
    assert (found(other), found(ended), none.count()) == (wanted(tier, "B"), wanted(tier, "A"), 0)
    before = wanted(tier, "A")
    assert found(used) == before
    tier.grow(1, "A")
    assert found(used) == before
    assert (found(other), found(ended), none.count()) == (wanted(tier, "B"), before, 0)
    tier.grow(1, "New")
    with pytest.raises(PySparkException, match=TOO_OLD):
        none.count()


@pytest.mark.parametrize(
    "table",
    ["keys", "units", *(pytest.param(one, marks=BY_NIGHT) for one in ("segments", "gaps"))],
)
def test_plans_of_other_tables_are_refused_too(
    spark: "SparkSession", tier: LivingTier, table: str
) -> None:
    tiers.register(spark)
    reader = spark.read.format("tieredstore").options(broker="b", table=table)
    frame = reader.load(tier.url)
    assert frame.count() == frame.count()
    tier.grow(1)
    with pytest.raises(PySparkException, match=TOO_OLD):
        frame.count()


def test_a_plan_reads_what_was_published_then(tier: LivingTier) -> None:
    given = {"path": tier.url, "broker": "b", "pushFilters": "true"}
    reader = TableReader(table_options(given, now_ms=0), ToSpark(tuple(COLUMNS)))
    planned, before = reader.partitions(), wanted(tier)

    def rows() -> list[tuple[Any, ...]]:
        batches = [batch for part in planned for batch in reader.read(part)]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    tier.take_over()
    assert rows() == before
    tier.expire()
    with pytest.raises(Expired, match="or create the DataFrame or view again"):
        rows()
