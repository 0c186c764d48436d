"""An Iceberg table has each message once, in whole snapshots, whoever dies or meets on the way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from container.errors import InUse
from container.names.queue_id import QueueId
from provider.errors import Corrupt, Unavailable
from tests.support.cli import run
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker
from tests.support.lacking import lacks
from tests.test_tieredstore.cli.test_brokers_option import MESSAGES, tier_of_three
from tests.test_tieredstore.offline.test_export import Growing, expire, invoke, with_odd_times
from tests.test_tieredstore.offline.test_export_follow import killed_at
from tieredstore import offline, sync
from tieredstore.cli.signals import EndRequest
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export import lease
from tieredstore.offline.export.options import ExportOptions, Gone, Skips
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.session.reader import AS_OPTIONS

try:
    import pyiceberg.catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.utils.config import Config as IcebergConfig

    from tieredstore.offline.export import iceberg_job, iceberg_table
    from tieredstore.offline.export.iceberg_table import COVERS, ExportTable, TableName
except ModuleNotFoundError:
    lacks("Exports into Iceberg need pyiceberg, which is in the group `data`.")

pytestmark = pytest.mark.data

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from tieredstore.offline.export.job import ExportReport


NAME = "lake.mq.messages"


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog on sqlite, configured as pyiceberg does; also for processes."""
    settings = {
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/lake.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}/lake",
        "PYICEBERG_HOME": str(tmp_path),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", IcebergConfig())


def planned(tier: Path, name: str = NAME, snapshot_bytes: int = 1 << 30, **options: Any) -> Any:
    config = Config.load(settings={"tieredStoreFilePath": str(tier)}, environment={})
    more = {name: options.pop(name) for name in ("skips",) if name in options}
    return iceberg_job.planned_table_export(
        config, TableName.parse(name), ExportOptions(**options), split_bytes=1 << 16,
        snapshot_bytes=snapshot_bytes, naming=AS_OPTIONS, **more,
    )  # fmt: skip


def exported(tier: Path, **options: Any) -> "ExportReport":
    return planned(tier, **options).run(OneProcess())


def table() -> "Table":
    found = ExportTable(TableName.parse(NAME)).loaded()
    assert found is not None
    return found


def rows() -> list[dict[str, Any]]:
    found = table().scan().to_arrow()
    places = ("topic", "queue_id", "queue_offset")
    return found.sort_by([(name, "ascending") for name in places]).to_pylist()


def bodies() -> list[bytes]:
    return sorted((row["body"] for row in rows()), key=int)


def snapshots() -> int:
    return len(table().snapshots())


def test_rows_are_the_messages_that_are_read_in_partitions_of_topic_and_day(
    golden_tier: Path,
) -> None:
    topics = ["G_Keys", "G_Orders", "G_Tx"]
    report = exported(golden_tier, topics=tuple(topics))
    with sync.open(golden_tier) as tier:
        wanted = [one for topic in topics for one in tier.messages(topic)]
    found = rows()
    assert [(one["topic"], one["queue_id"], one["queue_offset"], one["body"]) for one in found] == [
        (one.topic, one.queue_id, one.offset, one.body) for one in wanted
    ]
    assert [(one["keys"], dict(one["properties"]), one["tags"]) for one in found] == [
        (one.keys, one.properties, one.tags or None) for one in wanted
    ]
    assert [one["store_timestamp"].timestamp() * 1000 for one in found] == [
        pytest.approx(one.store_timestamp) for one in wanted
    ]
    assert sum(topic.messages for topic in report.topics) == len(wanted)
    partitions = table().inspect.partitions().to_pylist()
    assert sorted(one["partition"]["topic"] for one in partitions) == topics
    assert {str(one["partition"]["day"]) for one in partitions} == {"2026-11-21"}
    assert planned(golden_tier).waiting == []


def test_a_rerun_adds_what_came_since_once_and_snapshots_say_what_they_cover(
    tmp_path: Path,
) -> None:
    growing = Growing(tmp_path)
    for count in (5, 8, 0, 3):
        growing.grow(count)
        report = exported(growing.tier)
        assert sum(topic.messages for topic in report.topics) == count
    assert bodies() == growing.bodies
    assert snapshots() == 3
    summaries = [one.summary for one in table().snapshots() if one.summary]
    assert [json.loads(one.additional_properties[COVERS]) for one in summaries] == [
        {"T/0": [0, 3], "T/1": [0, 2]},
        {"T/0": [3, 7], "T/1": [2, 6]},
        {"T/0": [7, 9], "T/1": [6, 7]},
    ]


class Dying(OneProcess):
    """An engine that ends the process after some portions."""

    def __init__(self, portions: int) -> None:
        self._left = portions

    def map_group(self, *items: Any, **named: Any) -> Any:
        made = super().map_group(*items, **named)
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return made


def test_a_table_by_hour_has_one_for_its_partitions(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    for _ in range(2):
        exported(growing.tier, partition="hour")
        growing.grow(3)
    assert bodies() == growing.bodies[:7]
    assert [str(one.transform) for one in table().spec().fields] == ["identity", "hour"]
    assert len(table().inspect.partitions()) == 2
    with pytest.raises(ConfigError, match="was begun with partition hour, not day"):
        planned(growing.tier, partition="day")


def test_a_run_that_ends_before_a_commit_leaves_whole_snapshots(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(10)
    growing.grow(10)
    with pytest.raises(KeyboardInterrupt):
        planned(growing.tier).run(Dying(0))
    assert (bodies(), snapshots()) == ([], 0)
    with pytest.raises(KeyboardInterrupt):
        planned(growing.tier, snapshot_bytes=1).run(Dying(1))
    assert snapshots() == 1
    assert len(bodies()) == 10
    growing.grow(4)
    assert sum(topic.messages for topic in exported(growing.tier).topics) == 14
    assert bodies() == growing.bodies


KILLED = """
import os, signal, sys
from pathlib import Path
from pyiceberg.catalog.sql import SqlCatalog
from tests.test_tieredstore.offline.test_iceberg import exported

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

SqlCatalog.commit_table = killed
exported(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_killed_at_its_commit_nothing_is_there_and_the_next_run_has_everything(
    tmp_path: Path,
) -> None:
    growing = Growing(tmp_path)
    growing.grow(9)
    root = str(Path(__file__).parents[3])
    words = [sys.executable, "-c", KILLED, str(growing.tier)]
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(words, env=environment, cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "lake").rglob("*.parquet")), "files were written and are in no table"
    assert (bodies(), snapshots()) == ([], 0)
    exported(growing.tier)
    assert (bodies(), snapshots()) == (growing.bodies, 1)


def test_of_two_rivals_one_says_so(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    one, two, three = (planned(growing.tier) for _ in range(3))
    one.run(OneProcess())
    with pytest.raises(InUse, match="another process has written this export meanwhile"):
        two.run(OneProcess())  # both would make the table
    growing.grow(4)
    one, two = (planned(growing.tier) for _ in range(2))
    one.run(OneProcess())
    with pytest.raises(InUse, match="another process has written this export meanwhile"):
        two.run(OneProcess())
    with pytest.raises(InUse):
        three.run(OneProcess())
    assert bodies() == growing.bodies


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has something done between an export's look at the table and its commit, once."""
    waiting: list[Callable[[], object]] = []
    look = iceberg_table.state_of

    def looked(*given: Any) -> Any:
        found = look(*given)
        if waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(iceberg_table, "state_of", looked)
    yield waiting.append
    assert not waiting


class MetAtTheCommit(OneProcess):
    """An engine behind which something happens at the next look, which is the commit's."""

    def __init__(self, arm: Callable[[], None]) -> None:
        self._arm = arm

    def map_group(self, *items: Any, **named: Any) -> Any:
        made = super().map_group(*items, **named)
        self._arm()
        return made


def test_a_rival_between_look_and_commit_is_met(tmp_path: Path, meanwhile: Any) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    exported(growing.tier)
    growing.grow(4)
    export = planned(growing.tier)
    with pytest.raises(InUse, match="another process has written this export meanwhile"):
        export.run(MetAtTheCommit(lambda: meanwhile(lambda: exported(growing.tier))))
    assert bodies() == growing.bodies


def test_a_commit_that_exports_nothing_is_let_through(tmp_path: Path, meanwhile: Any) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    exported(growing.tier)
    growing.grow(4)

    def other_snapshot() -> None:
        with table().transaction() as change, change.update_snapshot().fast_append():
            pass

    planned(growing.tier).run(MetAtTheCommit(lambda: meanwhile(other_snapshot)))
    assert snapshots() == 3
    assert bodies() == growing.bodies
    growing.grow(1)
    exported(growing.tier)
    assert bodies() == growing.bodies


def test_what_cannot_be_gone_on_with_is_refused(golden_tier: Path, tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    exported(growing.tier, columns=("body",))
    with pytest.raises(ConfigError, match=r"the export in lake\.mq\.messages was begun with"):
        planned(growing.tier, topics=("T",))
    with pytest.raises(ConfigError, match=r"the export in lake\.mq\.messages is of b of cluster"):
        planned(golden_tier)
    first = table().current_snapshot()
    assert first is not None
    growing.grow(4)
    exported(growing.tier)
    assert table().schema().column_names == ["topic", "store_timestamp", "body"]
    with table().manage_snapshots() as change:
        change.rollback_to_snapshot(first.snapshot_id)
    with pytest.raises(ConfigError, match="is at commit 1 of its export, which has made 2"):
        planned(growing.tier)
    other = TableName.parse("lake.mq.other")
    with iceberg_table._opened(other) as catalog:
        catalog.create_table(other.identifier, table().schema())
    with pytest.raises(ConfigError, match="was not made by an export: name another table"):
        planned(growing.tier, name=str(other))


def test_a_catalog_that_is_not_configured_or_not_there_is_one_sentence(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"catalog sea: .*PYICEBERG_CATALOG__SEA__URI"):
        planned(golden_tier, name="sea.mq.messages")
    with pytest.raises(ConfigError, match=r"'messages' names no table: write CATALOG\.NAME"):
        planned(golden_tier, name="messages")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/none/lake.db")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", IcebergConfig())
    with pytest.raises(Unavailable, match="the catalog does not answer"):
        planned(golden_tier)


@pytest.mark.leaves_findings(
    "record", "checksum", "record-header", why="a record is damaged on purpose"
)
def test_damage_ends_an_export_or_is_counted_on_a_word(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(20)
    (log,) = growing.tier.glob("*/b/T/0/COMMIT_LOG/*")
    raw = bytearray(log.read_bytes())
    raw[raw.find(b"\xda\xa3\x20\xa7", 300)] ^= 1
    log.write_bytes(raw)
    with pytest.raises(Corrupt):
        exported(growing.tier)
    assert bodies() == []
    report = exported(growing.tier, skips=Skips(damage=True))
    assert [(topic.messages, topic.damaged) for topic in report.topics] == [(19, 1)]
    assert len(bodies()) == 19


def test_what_expired_meanwhile_is_said_and_the_rest_is_added(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    exported(growing.tier)
    growing.grow(6)
    growing.grow(2)
    asyncio.run(expire(growing.tier, QueueId("T", 1), 4))
    export = planned(growing.tier)
    assert export.gone == [Gone(QueueId("T", 1), 2, 4)]
    assert export.queues == {QueueId("T", 0): (2, 6), QueueId("T", 1): (4, 6)}
    export.run(OneProcess())
    left = [body for number, body in enumerate(growing.bodies) if number not in {5, 7}]
    assert bodies() == left


@pytest.mark.slow
def test_the_command_takes_a_table_or_a_directory(golden_tier: Path, tmp_path: Path) -> None:
    words = ["--tier", golden_tier, "export", "--iceberg", NAME, "--topic", "G_Tx"]
    assert "4 tasks, 22.5 KiB to read" in invoke(*words, "--dry-run").stdout
    assert ExportTable(TableName.parse(NAME)).loaded() is None
    cells = [line.split() for line in invoke(*words, "--processes", "2").stdout.splitlines()]
    assert ["G_Tx", "60", "4"] in [row[:3] for row in cells]
    assert "there is nothing new to export" in invoke(*words).stdout
    assert len(rows()) == 60
    both = invoke(*words, tmp_path / "out", status=2).stderr
    assert "give a directory or --iceberg, not both" in both
    assert "give a directory or --iceberg" in invoke(*words[:3], status=2).stderr


def test_without_pyiceberg_there_is_one_sentence(
    golden_tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.startswith("tieredstore.offline.export.ice")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)  # type: ignore[arg-type]
    for name in [one for one in sys.modules if one.startswith("pyiceberg.")]:
        monkeypatch.delitem(sys.modules, name)
    said = invoke("--tier", golden_tier, "export", "--iceberg", NAME, status=2).stderr
    assert "export --iceberg needs pyiceberg: pip install 'tieredstore[iceberg]'" in said


def test_times_of_no_year_are_null_and_counted(tmp_path: Path) -> None:
    report = exported(with_odd_times(tmp_path).tier)
    assert [(one.messages, one.null_times) for one in report.topics] == [(5, 4)]
    for name in ("store_timestamp", "born_timestamp"):
        assert sum(row[name] is None for row in rows()) == 2


def test_portions_have_each_offset_once(golden_tier: Path) -> None:
    def extent(position: int, first: int, behind: int) -> Any:
        piece = SimpleNamespace(length=10, position=position)
        return SimpleNamespace(piece=piece, first_offset=first, next_offset=behind)

    one, two = QueueId("A", 0), QueueId("B", 0)
    extents = {one: [extent(10 * n, 5 * n, 5 * n + 5) for n in range(4)], two: [extent(0, 0, 9)]}
    made = iceberg_job.portions_of(extents, {one: (3, 18), two: (0, 9)}, 20)
    assert made == [{one: (3, 10)}, {one: (10, 18)}, {two: (0, 9)}]
    of_java = {one: [extent(10 * n, 0, 20) for n in range(4)]}
    assert iceberg_job.portions_of(of_java, {one: (3, 18)}, 20) == [{one: (3, 18)}]
    assert iceberg_job.portions_of(extents, {}, 20) == []


def of_three(tier: Path, *words: str, status: int = 0) -> str:
    """`export` of all brokers into the table."""
    done = run("--tier", tier, "export", "--iceberg", NAME, "--broker", "*", *words, status=status)
    return done.out + done.err


def test_a_table_of_several_brokers_is_the_sum_of_each(tmp_path: Path) -> None:
    tier = tier_of_three(tmp_path)
    of_three(tier, "--processes", "1", "--body", "text")
    expected = offline.dataset(
        tier, broker="*", columns=["broker", "topic", "queue_offset", "body"]
    )
    places = ("broker", "topic", "queue_offset")
    order = [(name, "ascending") for name in places]
    columns = (*places, "body")
    found = table().scan(selected_fields=columns).to_arrow().select(columns).sort_by(order)
    assert [row | {"body": row["body"].encode()} for row in found.to_pylist()] == (
        expected.read_all().sort_by(order).to_pylist()
    )
    assert set(table().scan().to_arrow()["cluster"].to_pylist()) == {"C"}
    assert table().schema().column_names[:4] == ["topic", "store_timestamp", "cluster", "broker"]
    assert snapshots() == len(MESSAGES)
    assert of_three(tier, "--processes", "1").count("there is nothing new") == len(MESSAGES)
    assert snapshots() == len(MESSAGES)
    count = found.num_rows
    broker = FakeBroker(tmp_path / "east-1b", now_ms=FIRST_STORE_TIMESTAMP)
    broker.put("New", 0, b"of a fourth")
    follow_words = ("--tier", str(tier), "-D", "brokerClusterName=C", "-D", "brokerName=north-1")
    run(*follow_words, "tier", broker.directory)
    of_three(tier, "--processes", "1")
    assert table().scan().to_arrow().num_rows == count + 1
    assert table().scan("broker == 'north-1'").to_arrow()["body"].to_pylist() == ["of a fourth"]
    alone = run(*follow_words, "export", "--iceberg", NAME, status=2)
    assert "holds an export of several brokers: name them by --broker" in alone.err
    run(*follow_words, "export", "--iceberg", "lake.mq.one", "--processes", "1")
    joined = run("--tier", tier, "export", "--iceberg", "lake.mq.one", "--broker", "*", status=2)
    assert "holds an export of one broker: name another table for several" in joined.err
    assert "was begun with columns" in of_three(tier, "--columns", "body", status=2)


def test_a_rerun_finds_its_topic_where_no_message_is_new(tmp_path: Path) -> None:
    tier = tier_of_three(tmp_path)
    for _ in range(2):
        of_three(tier, "--processes", "1", "--topic", "Alone")
    assert table().scan().to_arrow().num_rows == 1


def test_each_broker_of_a_table_goes_on_after_its_own_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = partial(planned_of, tier_of_three(tmp_path))
    other = of("east-2", columns=("body",))
    of("east-1").run(OneProcess())
    with pytest.raises(InUse):  # with other options
        other.run(OneProcess())
    dying = of("east-2")
    with monkeypatch.context() as patched:
        patched.setattr(ExportTable, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dying.run(OneProcess())
    assert snapshots() == 1
    rival = of("west-1")
    for name in MESSAGES:
        of(name).run(OneProcess())
    with pytest.raises(InUse):
        rival.run(OneProcess())
    assert [of(name).queues for name in MESSAGES] == [{}, {}, {}]
    counts = Counter(table().scan().to_arrow()["broker"].to_pylist())
    assert counts == {"east-1": 4, "east-2": 6, "west-1": 4}


def planned_of(tier: Path, broker: str, **options: Any) -> Any:
    """The export of one of several brokers."""
    named = {"brokerClusterName": "C", "brokerName": broker, "tieredStoreFilePath": str(tier)}
    return iceberg_job.planned_table_export(
        Config.load(settings=named), TableName.parse(NAME), ExportOptions(**options),
        naming=AS_OPTIONS, is_alone=False,
    )  # fmt: skip


def test_a_broker_joins_a_table_that_others_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = tier_of_three(tmp_path)
    planned_of(tier, "east-1").run(OneProcess())
    commit, met = SqlCatalog.commit_table, [CommitFailedException("changed meanwhile")] * 2

    def changed_meanwhile(*given: Any) -> Any:
        if met:
            raise met.pop()
        return commit(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", changed_meanwhile)
    planned_of(tier, "east-2").run(OneProcess())
    assert not met
    assert Counter(table().scan().to_arrow()["broker"].to_pylist()) == {"east-1": 4, "east-2": 6}


def test_a_follower_ends_where_another_one_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path)
    growing.grow(4)
    words = ("--tier", growing.tier, "export", "--iceberg", NAME, "--processes", "1", "--follow")

    def rival() -> None:
        """As one that created its lease in the same moment."""
        growing.grow(2)
        with patch.object(ExportTable, "is_leased", lambda _: False):
            exported(growing.tier)

    between: list[Callable[[], object]] = [lambda: growing.grow(3), lambda: None, rival]
    monkeypatch.setattr(EndRequest, "wait", lambda *_: between.pop(0)())
    ended = run(*words, status=4)
    assert "another process has exported meanwhile: let only one follow the tier" in ended.err
    assert bodies() == growing.bodies
    assert snapshots() == 3


def test_a_second_follower_of_a_table_is_refused_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    growing = Growing(tmp_path)
    growing.grow(4)
    words = ("--tier", growing.tier, "export", "--iceberg", NAME, "--processes", "1")

    def rivals() -> None:
        growing.grow(2)
        for more in (["--follow"], []):
            refused = run(*words, *more, status=4)
            assert "writes this export: wait until it has ended (lake.mq.messages)" in refused.err

    between: list[Callable[[], object]] = [lambda: None, rivals, lambda: None, lambda: True]
    monkeypatch.setattr(EndRequest, "wait", lambda *_: between.pop(0)())
    run(*words, "--follow")
    assert (bodies(), snapshots()) == (growing.bodies, 2)
    assert not list((tmp_path / "lake").rglob("lock")), "the lease is given back"


def test_a_follower_that_died_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    growing = Growing(tmp_path)
    growing.grow(4)
    exported(growing.tier)
    (
        held := next(tmp_path.glob("lake/**/metadata")).parent / "_tieredstore" / "lock"
    ).parent.mkdir()
    held.write_bytes(b'{"writer":"dead","host":"h","process":1,"beats":7}')
    growing.grow(2)
    monkeypatch.setattr(EndRequest, "wait", lambda *_: True)
    run("--tier", growing.tier, "export", "--iceberg", NAME, "--processes", "1", "--follow")
    assert bodies() == growing.bodies


@pytest.mark.nightly
def test_killed_at_every_step_a_follower_goes_on(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    steps = 1
    growing.grow(4)
    while killed_at(steps, "--tier", growing.tier, "export", "--iceberg", NAME, "--follow"):
        found = [] if ExportTable(TableName.parse(NAME)).loaded() is None else bodies()
        assert found == growing.bodies[: len(found)], f"after a kill at step {steps}"
        steps += 1
        if found == growing.bodies:
            growing.grow(3)
    assert steps > 6
    assert bodies() == growing.bodies


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
