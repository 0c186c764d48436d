"""`tieredstore.offline.dataset` pushes columns and filters down, and has the rows of no push."""

# pyright: reportAttributeAccessIssue=false
# pyarrow makes its functions at run time.
import asyncio
import pickle
import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.sequential import ByteSource, ObjectRange
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.level import by_level
from tests.support.random_tier import sizes_for, write_random_tier
from tests.test_tieredstore.offline.test_export import with_odd_times
from tieredstore import offline, sync
from tieredstore.config.effective import Config
from tieredstore.offline.scan import scanner, sources, tier_dataset
from tieredstore.offline.scan.split import Split, TierPlace

pytestmark = pytest.mark.data

MESSAGES = 4_000
KNOWN = ("broker", "topic", "queue_id", "queue_offset", "store_timestamp")
ODD_OFFSETS = [0, 1, 2, 0, 1]
"""Of the five messages in two queues that `with_odd_times` makes."""
OTHERS = ("tags", "flag", "body", "reconsume_times")


@dataclass
class Seen:
    """What scans have read."""

    columns: set[str] = field(default_factory=set[str])
    queues: Counter[QueueId] = field(default_factory=Counter[QueueId])
    objects: set[str] = field(default_factory=set[str])
    bytes: int = 0

    def clear(self) -> None:
        self.__init__()


class CountedSource:
    """A source that counts the bytes that it gives."""

    def __init__(self, inner: ByteSource, place: TierPlace, seen: Seen) -> None:
        self._inner, self._place, self._seen = inner, place, seen

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        count = self._inner.read_into(name, start, into)
        self._seen.bytes += count
        self._seen.objects.add(f"{self._place.location}/{name}")
        return count

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        self._inner.expect(ranges)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    real, real_source = scanner.scan, sources.source_of

    def scan(read: ByteSource, split: Split, columns: Sequence[str], **named: Any) -> Any:
        found.columns.update(columns)
        found.queues[split.queue] += 1
        return real(read, split, columns, **named)

    monkeypatch.setattr(scanner, "scan", scan)
    monkeypatch.setattr(
        sources, "source_of", lambda place: CountedSource(real_source(place), place, found)
    )
    return found


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker with many queues and short extents, and one with times of no year."""
    root = tmp_path_factory.mktemp("two brokers")
    named = {"brokerClusterName": "C", "brokerName": "b", "tieredStoreFilePath": root / "tier"}
    config = Config.load(settings={**named, **sizes_for(MESSAGES)})
    asyncio.run(write_random_tier(config, MESSAGES, 7))
    odd = with_odd_times(root / "odd", "Odd")
    with sync.follow(odd.broker.directory, root / "tier", cluster="C", broker="odd") as follower:
        follower.drain()
    return root / "tier"


@pytest.fixture(scope="module")
def rows(tier: Path) -> pa.Table:
    """All rows, without a filter."""
    return offline.dataset(tier, broker="*").read_all()


@pytest.fixture(scope="module")
def longest(rows: pa.Table) -> QueueId:
    """The queue with the most messages."""
    pairs = zip(rows["topic"].to_pylist(), rows["queue_id"].to_pylist(), strict=True)
    return QueueId(*Counter(pairs).most_common(1)[0][0])


@pytest.fixture(autouse=True)
def fine_grain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents of the tests are short."""
    monkeypatch.setattr(tier_dataset, "GRAIN_BYTES", 1)


def queried(messages: object, query: str) -> list[Any]:
    """What DuckDB answers."""
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        return connection.execute(query).fetchall()


def test_duckdb_decodes_the_columns_of_its_query(tier: Path, rows: pa.Table, seen: Seen) -> None:
    messages = offline.dataset(tier, broker="*")
    assert queried(messages, "SELECT count(*) FROM messages") == [(len(rows),)]
    assert len(seen.columns) == 1
    assert "body" not in seen.columns
    whole = seen.bytes
    seen.clear()
    found = queried(messages, "SELECT topic, queue_offset FROM messages WHERE topic = 'Odd'")
    assert found == [("Odd", offset) for offset in ODD_OFFSETS]
    assert seen.columns == {"topic", "queue_offset"}
    assert set(seen.queues) == {QueueId("Odd", 0), QueueId("Odd", 1)}
    assert seen.bytes < whole / 100
    seen.clear()
    query = "SELECT count(DISTINCT a.body) FROM messages a JOIN messages b USING (broker, msg_id)"
    assert queried(messages, query + " WHERE a.broker = 'odd'") == [(5,)]
    assert seen.columns == {"msg_id", "body"}


def test_duckdb_reads_the_extents_that_a_filter_leaves(
    tier: Path, rows: pa.Table, longest: QueueId, seen: Seen
) -> None:
    topic, number = longest.topic, longest.queue_id
    mine = rows.filter((pc.field("topic") == topic) & (pc.field("queue_id") == number))
    messages = offline.dataset(tier, broker="b")
    of_queue = f"FROM messages WHERE topic = '{topic}' AND queue_id = {number}"
    assert len(queried(messages, f"SELECT queue_offset {of_queue}")) == len(mine)
    assert set(seen.queues) == {longest}
    whole = seen.bytes
    low, high = (mine["queue_offset"][at].as_py() for at in (len(mine) // 2, len(mine) // 2 + 9))
    seen.clear()
    found = queried(
        messages, f"SELECT queue_offset {of_queue} AND queue_offset BETWEEN {low} AND {high}"
    )
    assert [one for (one,) in found] == [
        one for one in mine["queue_offset"].to_pylist() if low <= one <= high
    ]
    assert 0 < seen.bytes < whole / 3
    seen.clear()
    since = mine["store_timestamp"].to_pylist()[-len(mine) // 20]
    found = queried(
        messages,
        f"SELECT queue_offset {of_queue} AND store_timestamp >= TIMESTAMPTZ '{since.isoformat()}'",
    )
    assert len(found) == sum(one >= since for one in mine["store_timestamp"].to_pylist())
    assert 0 < seen.bytes < whole / 2
    assert seen.columns == {"queue_offset", "store_timestamp", "topic", "queue_id"}


def test_polars_pushes_its_columns_and_filters(tier: Path, rows: pa.Table, seen: Seen) -> None:
    columns = ["broker", "topic", "queue_offset", "store_timestamp", "body"]
    frame = polars.scan_pyarrow_dataset(offline.dataset(tier, broker="*", columns=columns))
    assert frame.select(polars.len()).collect().item() == len(rows)
    assert len(seen.columns) == 1
    assert "body" not in seen.columns
    whole = seen.bytes
    seen.clear()
    one = frame.filter(polars.col("topic") == "Odd").select("queue_offset").collect()
    assert one["queue_offset"].to_list() == ODD_OFFSETS
    assert seen.columns == {"topic", "queue_offset"}
    assert seen.bytes < whole / 100
    seen.clear()
    moments = rows["store_timestamp"].drop_null().to_pylist()
    until = sorted(moments)[20]
    found = frame.filter(polars.col("store_timestamp") < until).select("body").collect()
    assert found.height == sum(one < until for one in moments)
    assert 0 < seen.bytes < whole / 2
    assert seen.columns == {"body", "store_timestamp"}


def test_a_broker_that_the_filter_excludes_is_not_read(tier: Path, seen: Seen) -> None:
    messages = offline.dataset(tier, broker="*", columns=["body:text", "broker", "region:string"])
    assert queried(messages, "SELECT count(body) FROM messages WHERE broker = 'odd'") == [(5,)]
    assert seen.columns == {"body:text"}
    assert all("/odd/" in name for name in seen.objects)
    assert messages.count_rows(filter=pc.field("broker") == "none") == 0


VALUES = {
    "broker": st.sampled_from(["b", "odd", "none"]),
    "queue_id": st.integers(-1, 4),
    "flag": st.integers(-1, 1),
    "reconsume_times": st.sampled_from([0, 16, None]),
    "tags": st.sampled_from(["TagA", "", None]),
    "body": st.sampled_from([b"", b"\x00"]),
}


@st.composite
def filters(draw: st.DrawFn, rows: pa.Table) -> pc.Expression:
    """A filter over the columns that prune, and some that do not."""
    name = draw(st.sampled_from([*KNOWN, *KNOWN, *OTHERS]))
    column, kind = pc.field(name), rows.schema.field(name).type
    row = st.integers(0, len(rows) - 1)
    there = row.map(lambda number: rows[name][number].as_py())
    values = st.one_of(there, VALUES[name]) if name in VALUES else there
    value = draw(values)
    how = draw(st.sampled_from(["compare", "null", "valid", "isin", "and", "or", "not", "made"]))
    if how in {"and", "or"}:
        one, two = draw(filters(rows)), draw(filters(rows))
        return one & two if how == "and" else one | two
    if how == "not":
        return ~draw(filters(rows))
    if how in {"null", "valid"}:
        return column.is_null() if how == "null" else column.is_valid()
    if how == "isin":
        return column.isin(pa.array([value, draw(values)], kind))
    if how == "made":
        texts = pa.types.is_string(kind)
        return (
            pc.starts_with(column, (value or "")[:2])
            if texts
            else pc.if_else(
                column.is_valid(), column == pa.scalar(value, kind), pa.scalar(None, pa.bool_())
            )
        )
    if isinstance(value, datetime):
        value += timedelta(milliseconds=draw(st.integers(-3, 3)))
        kind = draw(st.sampled_from([kind, pa.timestamp("us", tz="UTC")]))
    elif isinstance(value, int):
        value, kind = value + draw(st.integers(-2, 2)), pa.int64()
    compare = draw(st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]))
    return getattr(column, compare)(pa.scalar(value, kind))


@pytest.mark.slow
@settings(
    max_examples=by_level(quick=20, full=20, nightly=1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_pushed_filter_has_the_rows_of_one_that_is_not(
    tier: Path, rows: pa.Table, data: st.DataObject
) -> None:
    wanted = data.draw(filters(rows))
    columns = data.draw(
        st.one_of(st.none(), st.lists(st.sampled_from(rows.schema.names), unique=True))
    )
    messages = offline.dataset(tier, broker="*")
    expected = rows.filter(wanted)
    found = messages.to_table(columns=columns, filter=wanted)
    assert found.num_rows == expected.num_rows
    assert found.equals(expected if columns is None else expected.select(columns))
    assert messages.count_rows(filter=wanted) == expected.num_rows


def test_a_filter_may_be_written_in_any_way_of_arrow(tier: Path, rows: pa.Table) -> None:
    messages = offline.dataset(tier, broker="*")
    by_number = (pc.field(3) == 0) & (pc.field("queue_offset") < 30)  # columns have numbers
    assert messages.to_table(["queue_offset"], by_number).equals(
        rows.filter((pc.field("queue_id") == 0) & (pc.field("queue_offset") < 30)).select(
            ["queue_offset"]
        )
    )
    made = {"next": pc.field("queue_offset") + 1, "topic": pc.field("topic")}
    of_odd = messages.filter(pc.field("topic") == "Odd")
    assert of_odd.to_table(columns=made).to_pylist() == [
        {"next": offset + 1, "topic": "Odd"} for offset in ODD_OFFSETS
    ]
    assert of_odd.filter(pc.field("queue_offset") > 1).count_rows() == 1
    assert of_odd.filter(pc.field("store_timestamp").is_null()).count_rows() == 2
    assert messages.to_table([], pc.field("topic") == "Odd").num_rows == 5
    assert of_odd.take([4, 0])["queue_offset"].to_pylist() == [1, 0]
    assert of_odd.head(3, columns=["broker"]).to_pylist() == [{"broker": "odd"}] * 3
    assert next(len(one) for one in of_odd.to_batches(batch_size=2)) == 2
    again = pickle.loads(pickle.dumps(of_odd))
    assert again.read_all().equals(of_odd.read_all())
    assert sum(map(len, messages)) == len(rows)
    with pytest.raises(pa.ArrowInvalid, match="bodi"):
        messages.scanner(columns=["bodi"])
    with pytest.raises(pa.ArrowInvalid, match="bodi"):
        messages.scanner(filter=pc.field("bodi") == 1)
    with pytest.raises(FileNotFoundError, match="which to_table"):
        messages.sort_by("topic")
    with pytest.raises(FileNotFoundError, match="which to_table"):
        ds.dataset([messages, messages]).to_table()


def test_scans_run_at_once_and_hold_one_batch(tier: Path, rows: pa.Table, seen: Seen) -> None:
    messages = offline.dataset(tier, broker="*")
    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(lambda _: messages.to_table(columns=["msg_id"]), range(6))]
    assert all(one.equals(rows.select(["msg_id"])) for one in found)
    seen.clear()
    reader = messages.scanner(filter=pc.field("queue_offset") >= 0).to_reader()
    reader.read_next_batch()
    assert len(seen.queues) == 1, "nothing is read ahead of the consumer"
    messages.head(1)
    assert max(seen.queues.values()) == 2


def test_a_dataset_has_the_messages_of_its_call(tmp_path: Path) -> None:
    growing = with_odd_times(tmp_path)
    with sync.open(growing.tier):
        before = offline.dataset(growing.tier, "T")
    growing.grow(4)
    assert before.count_rows() == before.count_rows() == 5
    assert offline.dataset(growing.tier, "T").count_rows() == 9


@pytest.mark.leaves_findings(
    "checksum",
    "record",
    "index-key-missing",
    "body-crc",
    "tag-hash",
    why="bytes of a log are overwritten",
)
def test_damage_is_an_error_or_passed_over_where_it_is_read(
    tier: Path, rows: pa.Table, longest: QueueId, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    (log,) = copy.glob(f"*/b/{longest.topic}/{longest.queue_id}/COMMIT_LOG/cfcd2084*")
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 5000] = bytes(5000)
    log.write_bytes(raw)
    gaps: list[object] = []
    sound = offline.dataset(copy, broker="b", on_gap=gaps.append)
    of_longest = (pc.field("topic") == longest.topic) & (pc.field("queue_id") == longest.queue_id)
    mine = rows.filter(of_longest & (pc.field("broker") == "b")).drop(["cluster", "broker"])
    found = sound.to_table(filter=of_longest)
    assert gaps
    assert 0 < len(found) < len(mine)
    assert found.equals(sound.read_all().filter(of_longest))
    strict = offline.dataset(copy, broker="b")
    with pytest.raises(Corrupt):
        strict.to_table(filter=of_longest)
    with pytest.raises(Corrupt):
        strict.count_rows()
    others = ~of_longest
    assert strict.count_rows(filter=others) == len(
        rows.filter(others & (pc.field("broker") == "b"))
    )


def test_a_tier_of_rocketmqs_own_store_is_pruned_by_its_queues(seen: Seen) -> None:
    """Its segments have neither offsets nor times that can be trusted."""
    tree = unpacked(ROCKETMQ_533)
    messages = offline.dataset(tree.tier, java_metadata=tree.java_metadata)
    rows = messages.read_all()
    seen.clear()
    moment = rows["store_timestamp"][len(rows) // 2]
    for wanted in (pc.field("store_timestamp") > moment, pc.field("queue_offset") == 3):
        assert messages.to_table(filter=wanted).equals(rows.filter(wanted))
    seen.clear()
    of_orders = pc.field("topic") == "G_Orders"
    assert messages.count_rows(filter=of_orders) == len(rows.filter(of_orders))
    assert {queue.topic for queue in seen.queues} == {"G_Orders"}
