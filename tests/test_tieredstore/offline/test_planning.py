"""Splits of whole tiers: ours, in an object store, and those that RocketMQ wrote."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import tieredstore
from container.metadata.records import Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.record.header import Coda
from provider.errors import NotFound
from provider.ranges import QueueOffset
from tests.support.fake_broker import FakeBroker
from tests.support.golden import (
    GOLDEN_TREES,
    ROCKETMQ_533,
    VARIANTS_520,
    GoldenSet,
    tree_name,
    unpacked,
)
from tests.support.shown_blocks import blocks_of, environment_of, ran
from tieredstore import offline, sync
from tieredstore.config.effective import Config
from tieredstore.config.location import OFFLOAD_PATH
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.job import planned_export
from tieredstore.offline.export.options import ExportOptions
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.scan.planning import TierAddress, extents_of, splits
from tieredstore.offline.scan.scanner import scan
from tieredstore.offline.scan.sources import place_of, source_of
from tieredstore.offline.scan.split import ScanReport, Split, where_not_met
from tieredstore.session.reader import AS_OPTIONS

SPLIT_BYTES = (64 << 10, 1 << 20, 1 << 40)


def all_of(planned: Sequence[Split], *, verify_bodies: bool = True) -> pa.Table:
    """What workers find that know nothing but their split; proves that the splits meet."""
    batches: list[pa.RecordBatch] = []
    reports: list[ScanReport] = []
    for sent in map(pickle.dumps, planned):
        split: Split = pickle.loads(sent)
        reports.append(ScanReport(split))
        source = source_of(split.place)
        batches += scan(source, split, verify_bodies=verify_bodies, report=reports[-1])
        source.close()
    assert where_not_met(reports) == []
    return pa.Table.from_batches(batches)


def all_by_reader(reader: sync.SyncTier) -> pa.Table:
    return pa.concat_tables([reader.to_arrow(topic).read_all() for topic in reader.topics()])


@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
def test_splits_of_our_tier_hold_what_a_reader_sees(golden_tier: Path, split_bytes: int) -> None:
    planned = splits(golden_tier, split_bytes)
    with sync.open(golden_tier) as reader:
        assert all_of(planned) == all_by_reader(reader)
    assert all(split.anchor is not None for split in planned), "extents tell where records begin"


@pytest.mark.parametrize("split_bytes", [5_000, 1 << 40])
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_splits_of_a_java_tier_hold_what_a_reader_sees(
    golden: GoldenSet, kind: str, split_bytes: int
) -> None:
    tree = unpacked(golden, kind)
    planned = splits(tree.tier, split_bytes, java_metadata=tree.java_metadata)
    with sync.open(tree.tier, java_metadata=tree.java_metadata) as reader:
        assert all_of(planned) == all_by_reader(reader)


def test_codas_of_old_segments_are_inside_splits() -> None:
    tree = unpacked(VARIANTS_520)
    planned = splits(tree.tier, java_metadata=tree.java_metadata, topics=["V_Seg"])
    path = tree.broker_directory / planned[0].pieces[0].object_name
    Coda.decode(path.read_bytes()[-Coda.SIZE :], path=str(path), position=0)


def test_borders_that_extents_do_not_tell_are_found_in_the_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tieredstore.offline.scan.planning.LEAD_BYTES_MAX", 1_000)
    monkeypatch.setattr("tieredstore.offline.scan.planning.LEAD_BYTES_MAX", 1_000)
    tree = unpacked(ROCKETMQ_533)
    planned = splits(tree.tier, 20_000, java_metadata=tree.java_metadata)
    assert all(split.anchor == split.start for split in planned)
    with sync.open(tree.tier, java_metadata=tree.java_metadata) as reader:
        assert all_of(planned) == all_by_reader(reader)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield f"memory://bucket/{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
def test_splits_of_an_object_stores_parts_hold_what_a_reader_sees(
    url: str, split_bytes: int
) -> None:
    tree = unpacked(ROCKETMQ_533)
    named: dict[str, Any] = {"cluster": ROCKETMQ_533.cluster, "broker": ROCKETMQ_533.broker}
    sizes = {"tieredStoreCommitLogMaxSize": 1 << 18, "tieredStoreGroupCommitCount": 64}
    with sync.follow(tree.store, url, settings=sizes, **named) as follower:
        follower.drain()
    planned = splits(url, split_bytes)
    assert max(len(split.pieces) for split in planned) > 1
    with sync.open(url) as reader:
        assert all_of(planned) == all_by_reader(reader)


def test_topics_queues_offsets_and_times_leave_out_what_nobody_wants(golden_tier: Path) -> None:
    with sync.open(golden_tier) as reader:
        rows = reader.to_arrow("G_Orders", 2).read_all()
    times = rows["store_timestamp"].to_pylist()
    since, until = times[100], times[500]
    planned = splits(
        golden_tier, topics=["G_Orders"], queues=[2], offsets=(50, 450), since=since, until=until
    )
    assert {split.queue for split in planned} == {QueueId("G_Orders", 2)}
    found = all_of(planned)
    wanted = [n for n, time in enumerate(times) if 50 <= n < 450 and since <= time < until]
    assert found["queue_offset"].to_pylist() == wanted
    assert splits(golden_tier, topics=["G_Orders"], offsets=(600, 700)) == []


@pytest.mark.parametrize("cluster", [None, "D"])
def test_workers_list_the_brokers_that_the_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str | None
) -> None:
    """The place of a broker with a second store names that broker and its cluster."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    url = f"memory://brokers/{tmp_path.name}"
    for name in ("C", "D"):
        broker = FakeBroker(tmp_path / name)
        broker.put("T", 0)
        with sync.follow(broker.directory, url, cluster=name, broker=f"of-{name}") as follower:
            follower.drain()
    second = {OFFLOAD_PATH: f"memory://second/{tmp_path.name}"}
    address = TierAddress(where=url, cluster=cluster, broker="*", settings=second)
    found = address.of_brokers(["*"])
    assert [one.cluster for one in found] == ([cluster] if cluster else ["C", "D"])
    listed = address.for_workers(place_of(found[0].load())).of_brokers(["*"])
    assert [(one.cluster, one.broker) for one in listed] == [
        (one.cluster, one.broker) for one in found
    ]


def test_dataset_is_what_to_arrow_reads(golden_tier: Path) -> None:
    columns = ["topic", "queue_offset", "body"]
    with sync.open(golden_tier) as reader:
        wanted = reader.to_arrow("G_Batch", columns=columns).read_all()
    assert offline.dataset(golden_tier, "G_Batch", columns=columns).read_all() == wanted
    one = offline.dataset(golden_tier, ["G_Batch"], columns=["queue_id"], queues=2).read_all()
    assert one["queue_id"].unique().to_pylist() == [2]


def test_wrong_use_is_one_sentence(golden_tier: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no tier in this directory"):
        splits(tmp_path)
    with pytest.raises(NotFound, match="did you mean G_Orders"):
        splits(golden_tier, topics=["G_Order"])
    with pytest.raises(ValueError, match="did you mean body"):
        offline.dataset(golden_tier, columns=["bodi"])
    with pytest.raises(ValueError, match="'body' is named twice"):
        offline.dataset(golden_tier, columns=["body", "tags", "body"])
    with pytest.raises(ValueError, match=r"columns are a list of names: write \['body'\]"):
        offline.dataset(golden_tier, columns="body")
    with pytest.raises(NotFound, match="no topic that is wanted has a queue 9; there are 0, 1, 2"):
        offline.dataset(golden_tier, "G_Batch", queues=[1, 9])
    with pytest.raises(ValueError, match="'2026-11-21' is no time: give a datetime or Unix ms"):
        splits(golden_tier, since="2026-11-21")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"until \(1\) is not later than since \(1\)"):
        splits(golden_tier, since=1, until=1)
    with pytest.raises(ValueError, match="a split has bytes"):
        splits(golden_tier, 0)
    with pytest.raises(ConfigError, match="not to other"):
        splits(golden_tier, broker="other")


@pytest.mark.slow
@pytest.mark.checkout
def test_the_blocks_of_the_guide_print_what_they_show(golden_tier: Path, tmp_path: Path) -> None:
    (tmp_path / "tier").symlink_to(golden_tier)
    guide = Path(str(tieredstore.__file__)).parents[1] / "docs/offline.md"
    blocks = blocks_of(guide.read_text())
    assert len(blocks) == 4
    config = Config.load(settings={"tieredStoreFilePath": str(golden_tier)}, environment={})
    options = ExportOptions(topics=("G_Keys", "G_Orders"))
    planned_export(config, tmp_path / "orders", options, naming=AS_OPTIONS).run(OneProcess())
    for block in blocks:
        ran(block, tmp_path, environment_of(), joined=False)


def test_a_queue_whose_messages_have_all_expired_has_no_split() -> None:
    name = QueueId("T", 0)
    left = Segment(SegmentType.COMMIT_LOG, 70, 0, 1)
    assert extents_of(Queue(name, QueueOffset(9), QueueOffset(9), (left,)), [left]) == []
