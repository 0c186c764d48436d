"""A stream has each message once from its first beginning on, and reports what left the tier."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from container.errors import Expired
from container.options import HOUR_MS
from provider.clock import SystemClock
from tests.support.fake_broker import FakeBroker
from tests.support.golden import GOLDEN, VARIANTS_533, extract
from tests.support.living_tier import LivingTier
from tieredstore import sync
from tieredstore.offline import spark as tiers
from tieredstore.offline.spark.conversion import ToSpark
from tieredstore.offline.spark.options import stream_options
from tieredstore.offline.spark.stream_offsets import MissingMessages, Offsets
from tieredstore.offline.spark.stream_reader import MessageStreamReader
from tieredstore.reader.cursor import parse_moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVERYTHING = ReadAllAvailable()
Row = tuple[str, int, int]
Event = Callable[[LivingTier], None]


class Stream:
    """A query's reader as Spark calls it; each instance is a driver that was started again."""

    def __init__(self, tier: LivingTier | Path, *, now_ms: int = 0, **options: Any) -> None:
        place = tier if isinstance(tier, Path) else tier.url
        given = {"path": str(place), "refreshInterval": "0", "broker": "b", **options}
        self.reader = MessageStreamReader(
            stream_options(given, now_ms=now_ms), ToSpark(("topic", "queue_id", "queue_offset"))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def end_after(self, start: Offsets, limit: ReadLimit = EVERYTHING) -> Offsets:
        """The end of the next batch, as the checkpoint has it."""
        return json.loads(json.dumps(self.reader.latestOffset(start, limit)))

    def rows(self, start: Offsets, end: Offsets) -> list[Row]:
        """The messages of a batch."""
        parts = self.reader.partitions(start, end)
        batches = [batch for part in parts for batch in self.reader.read(part)]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def first_batch(self) -> Offsets:
        """Plan the first batch, and die before it is done: its end is in the checkpoint."""
        return self.end_after(self.reader.initialOffset())

    def drained(self, start: Offsets | None, limit: ReadLimit = EVERYTHING) -> list[list[Row]]:
        """All batches from an offset on; from the beginning where there is none."""
        found: list[list[Row]] = []
        while (end := self.end_after(at := start or self.reader.initialOffset(), limit)) != at:
            found.append(self.rows(at, end))
            start = end
        return found


def flat(batches: list[list[Row]]) -> list[Row]:
    return sorted(row for batch in batches for row in batch)


def wanted(tier: LivingTier, *topics: str) -> list[Row]:
    return sorted(row[:3] for row in tier.rows if not topics or row[0] in topics)


def restarted(tier: LivingTier, first: Offsets, **options: Any) -> list[Row]:
    """What a new driver reads that finds the first batch planned and not done."""
    with Stream(tier, **options) as stream:
        rows = stream.rows(stream.reader.initialOffset(), first)
        assert rows == [], "the first batch is empty"
        return flat(stream.drained(first))


BEGINNINGS: dict[str, tuple[dict[str, str], int]] = {
    "earliest": ({}, 0),
    "offsets": ({"startingOffsets": '{"A/1": 7, "B/0": 50}'}, 0),
    "time ago": ({"startTime": "-2h"}, 3_600_000),
    "time": ({"startTime": "2026-01-01T00:00:00Z"}, 0),
}


@pytest.mark.parametrize("form", BEGINNINGS)
def test_a_stream_killed_in_its_first_batch_begins_where_it_began(
    tier: LivingTier, form: str
) -> None:
    options, later_ms = BEGINNINGS[form]
    now_ms = parse_moment("2026-01-01", now_ms=0) if form == "time" else now_of(tier)
    with Stream(tier, now_ms=now_ms, **options) as stream:
        rows = flat(stream.drained(None))
        first = stream.first_batch()
    assert rows
    tier.grow(3)
    tier.compact()
    more = [row for row in wanted(tier) if row[2] >= 50 and row not in rows]
    found = restarted(tier, first, now_ms=now_ms + later_ms, **options)
    assert found == sorted(rows + more)


def now_of(tier: LivingTier) -> int:
    """A moment two hours after some of the messages, and before others."""
    with sync.open(tier.url, broker="b") as opened:
        first = opened.messages("A", 0)
        times = [message.store_timestamp for message in first]
    return times[20] + 2 * 3_600_000


def test_latest_has_what_comes_after_the_first_answer(tier: LivingTier) -> None:
    before = wanted(tier)
    with Stream(tier, startingOffsets="latest") as stream:
        first = stream.first_batch()
        tier.grow(3)
        assert stream.rows(stream.reader.initialOffset(), first) == []
        tier.grow(2)
    found = restarted(tier, first, startingOffsets="latest")
    assert found == [row for row in wanted(tier) if row not in before]


def test_what_expires_before_the_second_batch_is_data_loss(tier: LivingTier) -> None:
    with Stream(tier) as stream, Stream(tier) as restarted_one:
        first = stream.first_batch()
        tier.expire()
        for one in (stream, restarted_one):
            assert one.rows(one.reader.initialOffset(), first) == []
            with pytest.raises(MissingMessages, match=r"messages 0 to \d+ of A/0 expired"):
                one.drained(first)
    with Stream(tier, failOnDataLoss="false") as stream:
        assert flat(stream.drained(first)) == wanted(tier)


def deleted(tier: LivingTier) -> None:
    tier.delete_topic("A")


def created_again(tier: LivingTier) -> None:
    tier.delete_topic("A")
    tier.grow(60, "A")


@pytest.mark.parametrize("event", [deleted, created_again])
@pytest.mark.parametrize("read", ["nothing", "some"])
@pytest.mark.parametrize(
    "options", [{}, {"topics": "A"}, {"topics": "A,B"}, {"topicPattern": "[AC]"}, {"queues": "A/1"}]
)
def test_a_deleted_topic_is_data_loss(
    tier: LivingTier, event: Event, read: str, options: dict[str, Any]
) -> None:
    with Stream(tier, **options) as stream:
        at = stream.first_batch()
        if read == "some":
            at = stream.end_after(at, ReadMaxRows(10))
        event(tier)
        with pytest.raises(MissingMessages, match=r"A/\d was (deleted|truncated or recreated)"):
            stream.end_after(at)
    with (
        Stream(tier, **options) as again,
        pytest.raises(MissingMessages, match=r"A/\d was (deleted|truncated or recreated)"),
    ):
        again.end_after(at)


def test_a_deleted_topic_ends_no_stream_that_may_lack_messages(tier: LivingTier) -> None:
    with Stream(tier, failOnDataLoss="false", topics="A,B") as stream:
        first = stream.first_batch()
        tier.delete_topic("A")
        assert flat(stream.drained(first)) == wanted(tier, "B")
    assert restarted(tier, first, failOnDataLoss="false", topics="A,B") == wanted(tier, "B")


@pytest.mark.parametrize("count", [7, 60])
@pytest.mark.parametrize("read", ["nothing", "some"])
@pytest.mark.parametrize("rows_max", [EVERYTHING, ReadMaxRows(10)])
def test_a_topic_made_again_is_read_from_its_first_message(
    tier: LivingTier, count: int, read: str, rows_max: ReadLimit
) -> None:
    options: dict[str, Any] = {"failOnDataLoss": "false"}
    with Stream(tier, **options) as stream:
        at = stream.first_batch()
        if read == "some":
            at = stream.end_after(at)
        for _ in range(2):
            tier.delete_topic("A")
            assert flat(stream.drained(at)) == ([] if read == "some" else wanted(tier, "B"))
            tier.grow(count, "A")
            end = stream.end_after(at, rows_max)
            rows = stream.rows(at, end)
            with Stream(tier, **options) as again:
                assert again.rows(at, end) == rows, "a batch is the same after a restart"
            rows = flat([rows, *stream.drained(end, rows_max)])
            assert rows == [row for row in wanted(tier) if read == "nothing" or row[0] == "A"]


def test_a_topic_made_again_under_a_planned_batch_is_read_once(tier: LivingTier) -> None:
    with Stream(tier, failOnDataLoss="false") as stream:
        start = stream.first_batch()
        end = stream.end_after(start)
        created_again(tier)
        rows = stream.rows(start, end)
        assert sorted(rows) == wanted(tier, "B")
        assert flat([rows, *stream.drained(end)]) == wanted(tier)


@pytest.mark.parametrize("state", ["running", "restarted", "grown", "grown past"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_tier_put_back_from_an_older_copy_is_not_gone_on_with(
    tier: LivingTier, fails: str, state: str
) -> None:
    copy = tier.copied()
    tier.grow(5)
    stream = Stream(tier, failOnDataLoss=fails)
    start = stream.first_batch()
    end = stream.end_after(start)
    tier.put_back(copy)
    for _ in range({"grown": 1, "grown past": 4}.get(state, 0)):  # each by an owner of its own
        tier.grow(60, "A")
    if state != "running":
        stream.reader.stop()
        stream = Stream(tier, failOnDataLoss=fails)
    with stream:
        for ask in (stream.end_after, lambda at: stream.rows(start, at)):
            with pytest.raises(MissingMessages, match="put back from an older copy"):
                ask(end)


def test_merges_make_no_batch(tier: LivingTier) -> None:
    with Stream(tier) as stream:
        start = stream.first_batch()
        end = stream.end_after(start)
        tier.compact()
        assert stream.end_after(end) == end


def test_a_deleted_topic_that_a_restart_does_not_want_is_no_loss(tier: LivingTier) -> None:
    with Stream(tier) as stream:
        first = stream.first_batch()
    tier.delete_topic("A")
    with Stream(tier, topics="B") as stream:
        assert flat(stream.drained(first)) == wanted(tier, "B")


@pytest.mark.parametrize("fails", ["true", "false"])
def test_messages_that_expire_under_a_task_are_data_loss(tier: LivingTier, fails: str) -> None:
    with Stream(tier, failOnDataLoss=fails) as stream:
        start = stream.first_batch()
        end = stream.end_after(start)
        parts = stream.reader.partitions(start, end)
        tier.expire()
        rows: list[Row] = []
        try:
            for part in parts:
                for batch in stream.reader.read(part):
                    rows += [tuple(row.values()) for row in batch.to_pylist()]
        except Expired:
            assert fails == "true"
        else:
            assert fails == "false"
            assert sorted(rows) == wanted(tier)


def test_batches_count_messages_and_not_expired_offsets(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 22)
    broker.begin_queue("T", 0, 1_000_000)
    for number in range(10):
        broker.put("T", 0, b"%d" % number)
    with sync.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
        follower.drain()
    options: dict[str, Any] = {"startingOffsets": '{"T/0": 0}', "failOnDataLoss": "false"}
    with Stream(tmp_path / "tier", **options) as stream:
        batches = stream.drained(None, ReadMaxRows(4))
    assert [len(batch) for batch in batches] == [0, 4, 4, 2]


def without_initial(offsets: Offsets) -> Offsets:
    return {name: offset for name, offset in offsets.items() if name != "@initial"}


def test_checkpoints_of_older_programs_continue(tier: LivingTier) -> None:
    """They have no `@initial`, and messages in the first batch."""
    with Stream(tier) as stream:
        start = stream.first_batch()
        old = without_initial(stream.end_after(start, ReadMaxRows(30)))
        first = stream.rows(stream.reader.initialOffset(), old)
        assert len(first) == 30
        assert sorted(first + flat(stream.drained(old))) == wanted(tier)
    for options in ({"startingOffsets": "latest"}, {"startTime": "-2h"}):
        with Stream(tier, now_ms=now_of(tier), **options) as stream:
            begun = stream.reader.initialOffset()
            with pytest.raises(MissingMessages, match="begin with a new checkpoint"):
                stream.rows(begun, old)
            assert flat(stream.drained(old)) == [row for row in wanted(tier) if row not in first]


class KilledError(Exception):
    """The end of a driver at one of the steps of a batch."""


class Driver:
    """Runs a query into a sink that takes each batch once, by its number."""

    def __init__(self, spark: "SparkSession", tier: Path | str, checkpoint: Path) -> None:
        self.sink: dict[int, list[Row]] = {}
        self._spark = spark
        self._tier = str(tier)
        self._checkpoint = checkpoint

    def run(self, options: dict[str, str]) -> None:
        """Run the query to the end of the tier."""
        self._query(options, self._take)

    def run_until(self, options: dict[str, str], batch: int, step: str) -> None:
        """Run the query until it is killed at a step of a batch."""

        def take(frame: "DataFrame", number: int) -> None:
            if number == batch and step == "before the sink":
                raise KilledError
            self._take(frame, number)
            if number == batch and step == "after the sink":
                raise KilledError

        try:
            self._query(options, take)
        except Exception as error:
            if "KilledError" not in str(error):
                raise
        if step == "after the commit":
            self._forget_after(batch)

    def _forget_after(self, batch: int) -> None:
        """Let later batches never have been."""
        for number in set(self.sink) - set(range(batch + 1)):
            del self.sink[number]
            for log in ("offsets", "commits"):
                (self._checkpoint / log / f"{number}").unlink(missing_ok=True)
                (self._checkpoint / log / f".{number}.crc").unlink(missing_ok=True)

    def _take(self, frame: "DataFrame", number: int) -> None:
        self.sink[number] = [tuple(row) for row in frame.collect()]

    def _query(self, options: dict[str, str], take: Callable[["DataFrame", int], None]) -> None:
        reader = self._spark.readStream.format("tieredstore").option("broker", "b")
        reader = reader.schema("topic string, queue_id int, queue_offset bigint")
        frame = reader.options(**{"maxRowsPerTrigger": "25", **options}).load(self._tier)
        writer = frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()


STARTS = {"A/1": 7, "B/0": 50}
BETWEEN_MS = SystemClock().now_ms() - 50 * HOUR_MS
"""After the old messages, and before the new ones, which begin at offset `OLD`."""
OLD = 40
FORMS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "earliest": ({}, {}),
    "latest": ({"startingOffsets": "latest"}, {"startingOffsets": "latest"}),
    "offsets": ({"startingOffsets": json.dumps(STARTS)}, {"startingOffsets": '{"A/1": 0}'}),
    "time ago": ({"startTime": "-20w"}, {"startTime": "-2h"}),  # as if 20 weeks were over
    "less time ago": ({"startTime": "-50h"}, {"startTime": "-1s"}),
    "time": (
        {"startTime": datetime.fromtimestamp(BETWEEN_MS / 1000, UTC).isoformat()},
        {"startTime": "2020-01-01"},
    ),
    "milliseconds": ({"startTime": f"{BETWEEN_MS}"}, {"startTime": "1600000000000"}),
}
"""Options of the first start and of the second one, which have no effect."""


def is_wanted(form: str, row: Row, before: list[Row]) -> bool:
    """Whether a stream that began in this form, when `before` was there, has a message."""
    topic, queue_id, offset = row
    if form == "latest":
        return row not in before
    if form == "offsets":
        return offset >= STARTS.get(f"{topic}/{queue_id}", 0)
    return offset >= OLD or form in {"earliest", "time ago"}


STEPS = ["before the sink", "after the sink", "after the commit"]


BY_DAY = {("earliest", 0, step) for step in STEPS} | {
    (form, 0, STEPS[-1]) for form in ("latest", "offsets", "time ago")
}
"""Every step, and every kind of form, once; the plan of a killed batch is that of its form.

A reader without Spark begins at a time by day, too.
"""


@pytest.mark.parametrize(
    ("form", "batch", "step"),
    [
        pytest.param(*one, marks=[] if one in BY_DAY else [pytest.mark.nightly])
        for one in (*product(FORMS, [0], STEPS), ("earliest", 1, "after the sink"))
    ],
)
@pytest.mark.slow
def test_spark_has_each_message_once_whatever_step_of_the_first_batches_is_killed(
    request: pytest.FixtureRequest, tier: LivingTier, batch: int, step: str, form: str
) -> None:
    spark, scratch = request.getfixturevalue("spark"), request.getfixturevalue("tmp_path")
    tiers.register(spark)
    begun, then = FORMS[form]
    driver, before = Driver(spark, tier.url, scratch / "checkpoint"), wanted(tier)
    driver.run_until(begun, batch, step)
    tier.grow(3)
    driver.run(then)
    rows = [row for row in wanted(tier) if is_wanted(form, row, before)]
    assert flat(list(driver.sink.values())) == rows
    assert driver.sink[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("state", ["committed", "begun"])
def test_spark_goes_on_with_checkpoints_that_an_older_version_wrote(
    request: pytest.FixtureRequest, state: str
) -> None:
    spark, scratch = request.getfixturevalue("spark"), request.getfixturevalue("tmp_path")
    tiers.register(spark)
    extract(GOLDEN / "tier-0.1.0-d710648" / "tier.tar.xz", scratch)
    extract(GOLDEN / "checkpoint-0.1.0-d710648" / "checkpoints.tar.xz", scratch)
    ends = json.loads((scratch / state / "offsets" / "0").read_text().splitlines()[-1])
    driver = Driver(spark, scratch / "tier", scratch / state)
    options = {"broker": VARIANTS_533.broker, "maxRowsPerTrigger": "1000"}
    driver.run({**options, "failOnDataLoss": "false"})  # it has a gap
    with sync.open(scratch / "tier") as tier:
        all_of_them = [
            (one.topic, one.queue_id, one.offset)
            for topic in {queue.topic for queue in tier.queues()}
            for one in tier.messages(topic)
        ]
    first = [row for row in all_of_them if row[2] < ends[f"{row[0]}/{row[1]}"]]
    assert len(first) == 20
    assert sorted(driver.sink.pop(0, [])) == sorted(first if state == "begun" else [])
    assert flat(list(driver.sink.values())) == sorted(set(all_of_them) - set(first))
