"""A damaged frame of an encrypted tier costs its messages, said as a gap with their offsets."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import fsspec
import pytest

from container.names.queue_id import QueueId
from provider.encryption.frames import CONTENT_BYTES, FRAME_BYTES
from provider.errors import Corrupt
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker
from tests.test_tieredstore.test_encrypted_tier import KEYS, master
from tieredstore import offline
from tieredstore.config.effective import Config
from tieredstore.offline.export.job import ExportReport, planned_export
from tieredstore.offline.export.options import ExportOptions, Skips
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.scan.log_scan import LogScan
from tieredstore.offline.scan.planning import splits
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import LogGap
from tieredstore.session.reader import AS_OPTIONS

pytestmark = pytest.mark.leaves_findings(
    "checksum", "record", "unreadable", "log-outruns-units", why="the test damages the tier"
)

COUNT = 400
QUEUE = QueueId("Orders", 0)
NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")
PLACES = (2, 9, 2_000, FRAME_BYTES - 3)
"""A byte of the key's id, of the nonce, of the ciphertext and of the tag."""


class Place(NamedTuple):
    """Where a record lies in an object."""

    offset: int
    object_name: str
    start: int
    end: int


class Tier(NamedTuple):
    """An encrypted tier, and where its records lie."""

    url: str
    records: list[Place]

    @property
    def config(self) -> Config:
        named = {"brokerClusterName": "C", "brokerName": "broker-a"}
        return Config.load(settings={"tieredStoreFilePath": self.url, **named})

    def lost_with(self, object_name: str, frame: int) -> list[int]:
        """Queue offsets of the records that have a byte in a frame."""
        start = frame * CONTENT_BYTES
        return [
            one.offset
            for one in self.records
            if one.object_name == object_name
            and one.start < start + CONTENT_BYTES
            and one.end > start
        ]

    def damage(self, object_name: str, frame: int, place: int) -> None:
        memory = fsspec.filesystem("memory")
        (name,) = [one for one in memory.store if one.endswith(object_name)]
        raw = bytearray(memory.cat_file(name))
        raw[frame * FRAME_BYTES + place] ^= 1
        memory.pipe_file(name, bytes(raw))


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tier]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(KEYS, master("a", 1))
    memory, rng = fsspec.filesystem("memory"), Random(5)
    memory.store.clear()
    broker = FakeBroker(tmp_path / "store")
    for number in range(COUNT):
        broker.put("Orders", 0, rng.randbytes(rng.randint(0, 600)), keys=f"key-{number}")
    url = f"memory://bucket/{tmp_path.name}"
    invoke(url, *NAMED, "tier", broker.directory)
    records: list[Place] = []
    for split in splits(url):
        with closing(source_of(split.place)) as source:
            for found in LogScan(source, split):
                offsets = found.columns.headers["queue_offset"].tolist()
                for offset, at, size in zip(
                    offsets, found.positions.tolist(), found.sizes.tolist(), strict=True
                ):
                    name, start = split.place_of(at)
                    records.append(Place(offset, name, start, start + size))
    yield Tier(url, records)
    memory.store.clear()


@pytest.fixture
def frame(tier: Tier) -> tuple[str, int]:
    """One in the middle of the log's largest object."""
    middle = tier.records[len(tier.records) // 2]
    return middle.object_name, middle.start // CONTENT_BYTES


@pytest.mark.parametrize("place", PLACES)
def test_a_scan_loses_what_the_frame_holds(tier: Tier, frame: tuple[str, int], place: int) -> None:
    lost = tier.lost_with(*frame)
    assert 3 < len(lost) < 30
    tier.damage(*frame, place)
    gaps: list[LogGap] = []
    rows = offline.dataset(tier.url, "Orders", columns=["queue_offset"], on_gap=gaps.append)
    found = rows.read_all()["queue_offset"].to_pylist()
    assert found == [offset for offset in range(COUNT) if offset not in lost]
    (gap,) = gaps
    assert (gap.offset_before, gap.offset_behind) == (lost[0] - 1, lost[-1] + 1)
    assert "encrypted" in gap.reason
    with pytest.raises(Corrupt, match="encrypted") as raised:
        offline.dataset(tier.url, "Orders", columns=["queue_offset"]).read_all()
    assert raised.value.path == frame[0]


def test_frames_apart_are_gaps_apart_and_the_first_and_the_last_cost_no_more(tier: Tier) -> None:
    objects = {one.object_name for one in tier.records}
    lost: set[int] = set()
    for name in objects:
        last = max(one.end for one in tier.records if one.object_name == name) - 1
        for number in {0, 7, 8, last // CONTENT_BYTES}:
            lost.update(tier.lost_with(name, number))
            tier.damage(name, number, PLACES[2])
    assert 0 < len(lost) < COUNT / 2
    gaps: list[LogGap] = []
    rows = offline.dataset(tier.url, "Orders", columns=["queue_offset"], on_gap=gaps.append)
    found = rows.read_all()["queue_offset"].to_pylist()
    assert found == [offset for offset in range(COUNT) if offset not in lost]
    assert len(gaps) == 3


@pytest.mark.parametrize("split_bytes", [10_000, 1 << 40])
def test_an_audit_reads_on_behind_the_frame(
    tier: Tier, frame: tuple[str, int], split_bytes: int
) -> None:
    lost = tier.lost_with(*frame)
    tier.damage(*frame, PLACES[2])
    report = audit(tier.config, OneProcess(), split_bytes=split_bytes, bodies=True)
    assert report.counts["messages"] == COUNT - len(lost)
    found = {one.finding: one for one in report.findings}
    assert {"log-gap", "messages-missing", "unreadable"} <= found.keys()
    assert found["unreadable"].position == frame[1] * CONTENT_BYTES
    missing = f"no sound record of offsets [{lost[0]}, {lost[-1] + 1}) is in the log"
    assert found["messages-missing"].detail == missing
    assert not {"checksum", "unit-differs", "unit-outside-log"} & found.keys()


def test_an_export_counts_what_the_frame_held(
    tier: Tier, frame: tuple[str, int], tmp_path: Path
) -> None:
    lost = tier.lost_with(*frame)
    tier.damage(*frame, PLACES[2])

    def export(*, damage: bool) -> ExportReport:
        return planned_export(
            tier.config,
            tmp_path / "out",
            ExportOptions(),
            naming=AS_OPTIONS,
            skips=Skips(damage=damage),
        ).run(OneProcess())

    with pytest.raises(Corrupt, match="encrypted"):
        export(damage=False)
    report = export(damage=True)
    assert [one.messages for one in report.topics] == [COUNT - len(lost)]
    assert report.topics[0].damaged


@pytest.mark.parametrize("split_bytes", [10_000, 1 << 40])
def test_metadata_are_made_of_all_other_messages(
    tier: Tier, frame: tuple[str, int], split_bytes: int
) -> None:
    lost = tier.lost_with(*frame)
    tier.damage(*frame, PLACES[2])
    lose(lambda name: "/@parts/" not in name and "/@keys/" not in name)
    report = remake(tier.config, OneProcess(), split_bytes=split_bytes)
    assert report.messages == COUNT - len(lost)
    assert report.faults == []
    assert {one.finding for one in report.findings} == {"log-gap"}
    rows = invoke(tier.url, *NAMED, "topics", "--json").stdout
    assert f'"gaps":[{{"start":{lost[0]},"end":{lost[-1] + 1},' in rows


def test_lost_units_whose_messages_are_damaged_are_told_and_the_job_ends_well(
    tier: Tier, frame: tuple[str, int]
) -> None:
    lost = tier.lost_with(*frame)
    tier.damage(*frame, PLACES[2])
    log_end = max(one.end for one in tier.records if one.object_name == frame[0])
    tier.damage(frame[0], log_end // CONTENT_BYTES + 1, PLACES[2])
    report = restore(tier.config, OneProcess())
    assert report.messages == COUNT - len(lost)
    assert {one.finding for one in report.findings} == {"log-gap"}
    assert [one.fault for one in report.faults] == [
        f"no record of offsets [{lost[0]}, {lost[-1] + 1}) is in the log"
    ]


def lose(is_lost: Any) -> None:
    memory = fsspec.filesystem("memory")
    for name in [one for one in memory.store if is_lost(one)]:
        memory.rm_file(name)
