"""An export holds each message once, whatever happens to it on the way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner, Result

from container.errors import InUse
from container.metadata.operations import TrimQueue
from container.metadata.records import Queue
from container.names.queue_id import FLAT_FILES, QueueId
from provider.clock import SystemClock
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from tests.support.fake_broker import FakeBroker
from tieredstore import sync
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.config.location import Location
from tieredstore.config.sources import ConfigError
from tieredstore.offline import dataset
from tieredstore.offline.export.day_files import DAYS_OPEN_MAX, NO_DAY, DayFiles, partition_of
from tieredstore.offline.export.export_directory import LEDGER, LocalDirectory
from tieredstore.offline.export.job import Export, ExportReport, planned_export
from tieredstore.offline.export.ledger import Ledger
from tieredstore.offline.export.options import (
    ExportOptions,
    Gone,
    Reached,
    Skips,
    Target,
    other_history,
    other_history_text,
)
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.session.owner import open_owner
from tieredstore.session.reader import AS_OPTIONS, existing_tier

DAY = 86_400_000


def planned(tier: Path, directory: Location, split_bytes: int = 1 << 16, **options: Any) -> Export:
    config = Config.load(settings={"tieredStoreFilePath": str(tier)}, environment={})
    more = {name: options.pop(name) for name in ("skips",) if name in options}
    return planned_export(
        config, directory, ExportOptions(**options), split_bytes=split_bytes, naming=AS_OPTIONS,
        **more,
    )  # fmt: skip


def exported(tier: Path, directory: Location, **options: Any) -> ExportReport:
    return planned(tier, directory, **options).run(OneProcess())


def table_of(directory: Path) -> pa.Table:
    found = ds.dataset(directory, partitioning="hive").to_table()
    places = ("topic", "queue_id", "queue_offset")
    return found.sort_by([(name, "ascending") for name in places if name in found.column_names])


def files_of(directory: Path) -> dict[str, bytes]:
    """Everything that is no ledger, with its bytes."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in paths
        if path.relative_to(directory).parts[0] != LEDGER
    }


def test_rows_bodies_and_keys_are_those_that_the_fetcher_reads(
    golden_tier: Path, tmp_path: Path
) -> None:
    report = exported(golden_tier, tmp_path / "out")
    with sync.open(golden_tier) as tier:
        wanted = [one for topic in sorted(tier_topics(tier)) for one in tier.messages(topic)]
    found = table_of(tmp_path / "out").to_pylist()
    assert [(one["topic"], one["queue_id"], one["queue_offset"], one["body"]) for one in found] == [
        (one.topic, one.queue_id, one.offset, one.body) for one in wanted
    ]
    assert [(one["keys"], dict(one["properties"]), one["tags"]) for one in found] == [
        (one.keys, one.properties, one.tags or None) for one in wanted
    ]
    assert {str(one["day"]) for one in found} == {"2026-11-21"}
    assert sum(topic.messages for topic in report.topics) == len(wanted)
    assert sum(topic.files for topic in report.topics) == len(files_of(tmp_path / "out"))


def tier_topics(tier: sync.SyncTier) -> set[str]:
    return {queue.topic for queue in tier.queues()}


@pytest.mark.data
def test_it_opens_in_duckdb_and_pandas(golden_tier: Path, tmp_path: Path) -> None:
    duckdb: Any = import_module("duckdb")
    pandas: Any = import_module("pandas")
    exported(golden_tier, tmp_path / "out", topics=("G_Keys", "G_Orders"))
    counted = duckdb.sql(
        f"SELECT topic, day, count(*), sum(octet_length(body)) "
        f"FROM read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning=true) "
        f"GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    with sync.open(golden_tier) as tier:
        bodies = {
            topic: [len(message.body) for message in tier.messages(topic)]
            for topic in ("G_Keys", "G_Orders")
        }
    assert [(topic, count, total) for topic, _, count, total in counted] == [
        (topic, len(sizes), sum(sizes)) for topic, sizes in bodies.items()
    ]
    frame = pandas.read_parquet(tmp_path / "out", columns=["queue_offset", "keys"])
    assert len(frame) == sum(map(len, bodies.values()))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.test_tieredstore.offline.test_export import exported
from tieredstore.offline.export import day_files, task

left = int(sys.argv[3])

def counted(work):
    def call(*args, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **more)
    return call

task.write_done = counted(task.write_done)
day_files.OpenFile.complete = counted(day_files.OpenFile.complete)
exported(Path(sys.argv[1]), Path(sys.argv[2]), topics=("G_Orders",))
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_killed_at_any_step_and_run_again_the_files_are_the_same(
    golden_tier: Path, tmp_path: Path, steps: int
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    exported(golden_tier, whole, topics=("G_Orders",))
    words = [sys.executable, "-c", KILLED, str(golden_tier), str(out), str(steps)]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": root}, cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    (out / "topic=G_Orders" / "day=2026-11-21" / ".0-0.x.tmp").write_bytes(b"half")
    again = planned(golden_tier, out)
    report = again.run(OneProcess())
    assert report.tasks_before == steps // 2
    assert files_of(out) == files_of(whole)
    assert planned(golden_tier, out).waiting == []


class Growing:
    """A broker's store that is tiered on demand, a day for each call."""

    def __init__(self, directory: Path, topic: str = "T") -> None:
        self.tier = directory / "tier"
        self.broker = FakeBroker(directory / "store")
        self._topic = topic
        self.bodies: list[bytes] = []

    def grow(self, count: int, *, new_tier: bool = False) -> None:
        for number in range(count):
            body = b"%d" % len(self.bodies)
            self.broker.put(self._topic, number % 2, body, tags=f"Tag{number % 3}")
            self.bodies.append(body)
        self.broker.now_ms += DAY
        with sync.follow(
            self.broker.directory, self.tier, broker="b", new_tier=new_tier
        ) as follower:
            follower.drain()


def test_a_complete_export_gets_what_came_since_in_files_of_their_own(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    before: dict[str, bytes] = {}
    for count in (5, 8, 0, 3):
        growing.grow(count)
        report = exported(growing.tier, out)
        assert sum(topic.messages for topic in report.topics) == count
        assert before.items() <= files_of(out).items()
        before = files_of(out)
    table = table_of(out)
    assert sorted(table["body"].to_pylist(), key=int) == growing.bodies
    assert len(set(table["day"].to_pylist())) == 3


def test_a_run_goes_on_with_its_own_plan_whatever_came_since(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(10)

    class Dying(OneProcess):
        def map_group(self, items: Any, *more: Any, **named: Any) -> Any:
            super().map_group(items[:1], *more, **named)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned(growing.tier, out).run(Dying())
    growing.grow(10)
    report = exported(growing.tier, out)
    assert (report.tasks, report.tasks_before) == (2, 1)
    assert sum(topic.messages for topic in report.topics) == 10
    exported(growing.tier, out)
    assert sorted(table_of(out)["body"].to_pylist(), key=int) == growing.bodies


def test_no_history_of_a_tier_that_was_made_again_is_added(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)
    exported(growing.tier, out)
    rmtree(growing.tier)
    growing.grow(4, new_tier=True)
    with pytest.raises(ConfigError, match=r"the tier was recreated since .*: name another dir"):
        planned(growing.tier, out)


async def expire(root: Path, name: QueueId, first: int) -> None:
    """Unpublish the oldest messages of a queue, as retention does."""
    config = Config.load(settings={"tieredStoreFilePath": str(root)}, environment={})
    owner = open_owner(existing_tier(config, AS_OPTIONS), clock=SystemClock())
    async with owner as tier, asyncio.TaskGroup() as group:
        group.create_task(tier.run())
        queue = tier.state.queues[name]
        log, units = (queue.flat_begin(kind) for kind in FLAT_FILES)
        await tier.journal.publish(
            [TrimQueue(name, queue.min_offset, QueueOffset(first), log, units)]
        )
        await tier.close()


def test_what_expired_between_two_runs_is_said(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)
    exported(growing.tier, out)
    growing.grow(6)
    growing.grow(2)
    asyncio.run(expire(growing.tier, QueueId("T", 1), 4))
    export = planned(growing.tier, out)
    assert export.gone == [Gone(QueueId("T", 1), 2, 4)]
    result = invoke("--tier", growing.tier, "export", out, "--dry-run")
    exported(growing.tier, out)
    assert "T/1: 2 queue offsets from 2 on expired before they were exported" in result.stderr
    assert sorted(table_of(out)["body"].to_pylist(), key=int) == [
        body for number, body in enumerate(growing.bodies) if number not in {5, 7}
    ]
    assert planned(growing.tier, out).gone == []


def test_a_queue_that_was_cut_or_made_again_is_no_longer_the_one_that_was_exported() -> None:
    queue = QueueId("T", 0)
    now = {queue: Queue(queue, QueueOffset(0), QueueOffset(9), generation=2)}
    for same in (Reached(7, 2), Reached(7), Reached(0, 1), Reached(9, 2)):
        assert not other_history(now, {queue: same})
    for other in (Reached(7, 1), Reached(10, 2), Reached(10)):
        assert other_history(now, {queue: other}) == {queue}
    said = other_history_text(queue, Reached(7, 1), Target("table", "lake.a.b"))
    assert "T/0 was truncated" in said
    assert said.endswith("export them into another table")


def test_tags_times_and_columns_are_chosen(golden_tier: Path, tmp_path: Path) -> None:
    with sync.open(golden_tier) as tier:
        messages = list(tier.messages("G_Orders"))
    times = sorted(one.store_timestamp for one in messages)
    since, until = times[500], times[1500]
    tags = {one.tags for one in messages if one.queue_id == 1} & {"TagA", "TagB", "订单"}
    exported(
        golden_tier,
        tmp_path / "out",
        topics=("G_Orders",),
        queues=(1, 3),
        tags=tuple(tags),
        since_ms=since,
        until_ms=until,
        columns=("topic", "tags", "queue_id", "queue_offset"),
    )
    table = table_of(tmp_path / "out")
    assert set(table["tags"].to_pylist()) == tags
    assert sorted(table.column_names) == ["day", "queue_id", "queue_offset", "tags", "topic"]
    found = [(row["queue_id"], row["queue_offset"]) for row in table.to_pylist()]
    assert found == [
        (one.queue_id, one.offset)
        for one in messages
        if one.queue_id in {1, 3} and one.tags in tags and since <= one.store_timestamp < until
    ]


def test_two_at_once_do_not_meet(golden_tier: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one, two = (planned(golden_tier, out, topics=("G_Tx",)) for _ in range(2))
    writer = Ledger(LocalDirectory(out), str(out)).locked()
    with writer, pytest.raises(InUse, match="another process writes this export"):
        one.run(OneProcess())
    one.run(OneProcess())
    with pytest.raises(InUse, match="has written this export meanwhile"):
        two.run(OneProcess())


@pytest.mark.leaves_findings(
    "record", "checksum", "record-header", why="a record is damaged on purpose"
)
def test_damage_ends_an_export_or_is_counted_on_a_word(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(20)
    (log,) = growing.tier.glob("*/b/T/0/COMMIT_LOG/*")
    raw = bytearray(log.read_bytes())
    raw[raw.find(b"\xda\xa3\x20\xa7", 300)] ^= 1
    log.write_bytes(raw)
    with pytest.raises(Corrupt):
        exported(growing.tier, out)
    report = exported(growing.tier, out, skips=Skips(damage=True))
    assert [(topic.messages, topic.damaged) for topic in report.topics] == [(19, 1)]


def invoke(*words: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, [*map(str, words)])
    assert result.exit_code == status, result.output
    return result


@pytest.mark.slow
def test_the_command_plans_writes_and_reports(golden_tier: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--tier", golden_tier, "export", out, "--topic", "G_Tx", "--processes", "1"]
    plan = invoke(*words, "--dry-run").stdout
    assert "G_Tx" in plan
    assert "4 tasks, 22.5 KiB to read" in plan
    assert not out.exists()
    cells = [line.split() for line in invoke(*words).stdout.splitlines()]
    assert ["G_Tx", "60", "4"] in [row[:3] for row in cells]
    assert "there is nothing new to export" in invoke(*words).stdout
    assert table_of(out).num_rows == 60
    said = invoke(*words[:3], tmp_path / "json", *words[4:], "--json").stdout
    rows = [json.loads(line) for line in said.splitlines()]
    assert [(row["topic"], row["messages"], row["damaged"]) for row in rows] == [("G_Tx", 60, 0)]


def test_days_are_directories_whatever_a_record_says(tmp_path: Path) -> None:
    assert partition_of("%RETRY%a/b", 0) == "topic=%25RETRY%25a%2Fb/day=1970-01-01"
    assert partition_of("日志 a^b", 0) == "topic=日志 a%5Eb/day=1970-01-01", "as Spark and Hive do"
    assert partition_of("日", 0, as_older=True) == "topic=%E6%97%A5/day=1970-01-01"
    assert partition_of("T", 10**9).endswith(f"day={NO_DAY}")
    schema = pa.schema([("n", pa.int64())])
    days = np.array([n % (DAYS_OPEN_MAX + 3) for n in range(100)])
    with DayFiles(LocalDirectory(tmp_path), "T", "0-1", schema) as files:
        for first in range(0, 100, 10):
            rows = pa.array(range(first, first + 10))
            files.write(pa.record_batch([rows], schema=schema), days[first : first + 10])
    found = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    assert sorted(row["n"] for row in found) == list(range(100))
    assert sum(one.rows for one in files.written) == 100
    with DayFiles(LocalDirectory(tmp_path / "no days"), "T", "0-1", schema) as files:
        rows = pa.array(range(4))
        no_days = np.array([10**9, -(10**9), 10**9 + 1, 0])
        files.write(pa.record_batch([rows], schema=schema), no_days)
    found = ds.dataset(tmp_path / "no days", partitioning="hive").to_table().to_pylist()
    assert {row["n"]: row["day"] is None for row in found} == {0: True, 1: True, 2: True, 3: False}
    with suppress(KeyError), DayFiles(LocalDirectory(tmp_path / "x"), "T", "0-1", schema) as files:
        files.write(pa.record_batch([pa.array([1])], schema=schema), days[:1])
        raise KeyError
    assert files_of(tmp_path / "x") == {}


def with_odd_times(directory: Path, topic: str = "T") -> Growing:
    """Three messages, and two with times in nanoseconds, as some clients send that of birth."""
    growing = Growing(directory, topic)
    growing.grow(3)
    growing.broker.now_ms *= 1_000_000
    growing.grow(2)
    return growing


def test_hours_are_directories_below_days(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.broker.now_ms += DAY - growing.broker.now_ms % DAY
    for hours in (0, 7, 16):  # 7 and 23 o'clock of the day, which `grow` goes on by
        growing.broker.now_ms += hours * DAY // 24 - (DAY if hours else 0)
        growing.grow(2)
    exported(growing.tier, out, partition="hour")
    hours = {row["body"]: row["hour"] for row in table_of(out).to_pylist()}
    assert [hours[body] for body in growing.bodies] == [0, 0, 7, 7, 23, 23]
    assert len(list(out.glob("topic=T/day=*"))) == 1
    growing.grow(1)
    exported(growing.tier, out)
    assert sorted(table_of(out)["body"].to_pylist(), key=int) == growing.bodies
    with pytest.raises(ConfigError, match="was begun with partition hour, not day"):
        planned(growing.tier, out, partition="day")
    with pytest.raises(ConfigError, match="is divided by topic and day and hour"):
        planned(growing.tier, out / "x", partition="hour", columns=("body", "hour:long"))
    assert partition_of("T", 10**9, per_day=24) == f"topic=T/day={NO_DAY}/hour={NO_DAY}"
    assert partition_of("T", -1, per_day=24) == "topic=T/day=1969-12-31/hour=23"


def test_times_of_no_year_are_null_and_counted(tmp_path: Path) -> None:
    growing, out = with_odd_times(tmp_path), tmp_path / "out"
    report = exported(growing.tier, out)
    assert [(one.messages, one.null_times) for one in report.topics] == [(5, 4)]
    assert report.is_whole
    with sync.open(growing.tier) as tier:
        read = tier.to_arrow("T").read_all()
        assert sum(one.stored_at is None for one in tier.messages("T")) == 2
    for found in (table_of(out), read, dataset(growing.tier, "T").read_all()):
        assert (found["store_timestamp"].null_count, found["born_timestamp"].null_count) == (2, 2)
        assert len(found.to_pylist()) == 5


@pytest.mark.data
def test_duckdb_reads_and_counts_times_of_no_year(tmp_path: Path) -> None:
    duckdb: Any = import_module("duckdb")
    growing, out = with_odd_times(tmp_path), tmp_path / "out"
    exported(growing.tier, out)
    with sync.open(growing.tier) as tier:
        read = duckdb.from_arrow(tier.to_arrow("T").read_all())
    files = duckdb.read_parquet(f"{out}/**/*.parquet", hive_partitioning=True)
    for found in (read, files):
        counts = found.aggregate("count(*), count(store_timestamp), count(born_timestamp)")
        assert counts.fetchall() == [(5, 3, 3)]
        assert len(found.fetchall()) == 5


def test_an_export_that_an_older_program_began_keeps_its_names(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path, topic="日志"), tmp_path / "out"
    growing.grow(2)
    exported(growing.tier, out)
    about = out / LEDGER / "export.json"
    kept = json.loads(about.read_bytes())
    del kept["about"]["partitions"]
    about.write_text(json.dumps(kept))
    (out / "topic=日志").rename(out / "topic=%E6%97%A5%E5%BF%97")
    growing.grow(2)
    exported(growing.tier, out)
    assert sorted(table_of(out)["body"].to_pylist()) == growing.bodies
    assert set(table_of(out)["topic"].to_pylist()) == {"日志"}
    assert {path.name for path in out.iterdir()} == {LEDGER, "topic=%E6%97%A5%E5%BF%97"}
