"""An audit finds every kind of damage, in both directions, and nothing where nothing is wrong."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from container.errors import NewerVersion
from container.index.layout import KeyItems
from container.index.sealed import decode_sealed, seal_index
from container.journal.frame import Frame, FrameKind
from container.names.queue_id import QueueId
from container.names.rocketmq import INDEX_QUEUE
from container.record.batch import decode_units
from tests.support.cli import invoke, run, settings
from tests.support.golden import (
    GOLDEN_TREES,
    ROCKETMQ_533,
    GoldenSet,
    expected,
    tree_name,
    unpacked,
)
from tests.support.scanned_log import MemorySource
from tieredstore import offline
from tieredstore.config.effective import Config
from tieredstore.offline.jobs import audit_job
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.audit_job import audit_index_file, range_marks
from tieredstore.offline.jobs.derived import keys_within, labels_of
from tieredstore.offline.jobs.engine import OneProcess, Piece
from tieredstore.offline.jobs.rebuild_job import HeldRows, key_columns, keys_in
from tieredstore.offline.jobs.report import AuditReport
from tieredstore.offline.scan.log_scan import FoundRecords, LogScan
from tieredstore.offline.scan.planning import plan
from tieredstore.offline.scan.sources import read_units, source_of
from tieredstore.offline.scan.split import ALL_OFFSETS, LogPiece, Split


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of the golden store with a sealed index file; copied by those who damage it."""
    root = tmp_path_factory.mktemp("audit") / "tier"
    tree = unpacked(ROCKETMQ_533)
    run(*settings(tree, root), "-D", "tieredStoreIndexFileMaxIndexNum=1000", "tier", tree.store)
    return root


@pytest.fixture
def tier(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "damaged"))


def audited(tier: Path, split_bytes: int = 1 << 20) -> AuditReport:
    config = Config.load(settings={"tieredStoreFilePath": tier})
    return audit(config, OneProcess(), split_bytes=split_bytes, bodies=True)


def kinds(report: AuditReport) -> set[str]:
    return {one.finding for one in report.findings}


def only(tier: Path, pattern: str) -> Path:
    return min(tier.glob(f"*/*/{pattern}"))


def flip(path: Path, place: int, bit: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= bit
    path.write_bytes(raw)


def into_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("split_bytes", [30_000, 1 << 40])
def test_a_sound_tier_has_no_findings_and_everything_is_counted(
    sound: Path, split_bytes: int
) -> None:
    report = audited(sound, split_bytes)
    assert report.findings == []
    assert report.counts["messages"] == report.counts["units"] == 3396
    assert report.counts["queues"] == 22
    assert report.counts["index_files"] >= 1
    assert report.counts["index_items"] > 1000
    assert report.counts["extents"] > 44


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_a_tier_of_rocketmqs_own_store_has_no_findings(golden: GoldenSet, kind: str) -> None:
    tree = unpacked(golden, kind)
    config = Config.load(settings={"tieredStoreFilePath": tree.tier})
    report = audit(config, OneProcess(), java_metadata=tree.java_metadata)
    assert report.findings == []
    assert report.counts["messages"] == len(expected(golden, "messages"))


KINDS = (
    "checksum", "record", "body-crc", "unreadable", "object-missing", "object-short", "tag-hash",
    "index-file", "entry-damaged", "journal", "units-do-not-join", "unit-outside-log", "orphan",
    "index-key-missing", "index-item", "log-outruns-units", "unpublished",
)  # fmt: skip
"""What `check` may find where a test has made damage."""
Damage = Callable[[Path], object]
LOG = "G_Orders/0/COMMIT_LOG/*"
UNITS = "G_Orders/0/CONSUME_QUEUE/*"
INDEX = f"{INDEX_QUEUE}/INDEX/*"
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "a byte of a header": (
        lambda t: flip(only(t, LOG), 6),
        {"log-gap", "checksum", "messages-missing"},
    ),
    "a high bit of a queue offset": (
        lambda t: flip(only(t, LOG), 20, 1 << 6),
        {"log-gap", "checksum", "messages-missing"},
    ),
    "a middle bit of a queue offset": (
        lambda t: flip(only(t, LOG), 22),
        {"checksum", "messages-missing"},
    ),
    "a byte of a body": (lambda t: flip(only(t, LOG), 120), {"body-crc", "checksum"}),
    "a unit's position": (lambda t: flip(only(t, UNITS), 47), {"unit", "checksum"}),
    "a unit's tags": (lambda t: flip(only(t, UNITS), 59), {"tag-hash", "checksum"}),
    "an index item": (lambda t: flip(only(t, INDEX), -3), {"checksum"}),
    "no index file": (lambda t: only(t, INDEX).unlink(), {"object-missing"}),
    "no units": (
        lambda t: only(t, UNITS).unlink(),
        {"object-missing", "object-short", "unit-missing"},
    ),
    "no log": (
        lambda t: only(t, LOG).unlink(),
        {"object-missing", "log-gap", "object-short", "messages-missing"},
    ),
    "a directory in place of a log": (
        lambda t: into_directory(only(t, LOG)),
        {"unreadable", "messages-missing", "object-missing"},
    ),
    "a journal entry": (lambda t: flip(only(t, "@journal/*"), 60), {"entry-damaged"}),
}  # fmt: skip


@pytest.mark.leaves_findings(*KINDS, why="the test damages the tier")
@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_whatever_the_splits(name: str, tier: Path) -> None:
    make, wanted = DAMAGES[name]
    make(tier)
    for split_bytes in (30_000, 1 << 40):
        assert kinds(audited(tier, split_bytes)) >= wanted
    if wanted:
        assert kinds(audited(tier)) <= wanted | {"journal", "record-crc", "unreadable"}


def other_index_file(
    tier: Path, change: Callable[[KeyItems], KeyItems], *, has_gaps: bool = False
) -> set[str]:
    """What an index file is found to lack or to have in vain if it was made of other items.

    With gaps, no positions are known between which all messages were seen.
    """
    config = Config.load(settings={"tieredStoreFilePath": tier})
    known = plan(config)
    (file,) = list(known.state.index_files.values())[:1]
    path = Path(known.place.location) / file.object_name
    index, items = decode_sealed(path.read_bytes(), path="")
    begin = index.header.begin_timestamp
    items = change(items)
    raw = seal_index(items, slots=index.slots, begin_timestamp=begin).tobytes()
    covered, rows = list(file.coverage), HeldRows()
    pieces: list[Piece] = []
    for split in known.splits:
        topic, queue_id = split.queue
        topic_id = known.state.topics[topic].topic_id
        for found in narrowed(split, covered):
            for some, keys in keys_within(found, labels_of(found), topic, ALL_OFFSETS):
                columns = key_columns(keys, some, topic_id, queue_id)
                pieces += rows.add_keys("index", columns)
                ends = [int(some.positions[at]) for at in (0, -1)] * (not has_gaps)
                pieces += rows.add_keys("index", range_marks(split.queue, topic_id, ends))
    keyed = keys_in([*pieces, *rows.rest()])
    changed = replace(file, crc32c=None, size=len(raw))
    source = MemorySource({file.object_name: raw})
    findings = [*audit_index_file(source, changed, keyed)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audit_job, "COMPARED_AT_ONCE", 50)
        few_at_once = audit_index_file(source, changed, keyed)
    assert sorted(map(str, few_at_once)) == sorted(map(str, findings))
    return {one.finding for one in findings}


def narrowed(split: Split, covered: Sequence[tuple[QueueId, int, int]]) -> Iterator[FoundRecords]:
    """The records of a split that an index file covers."""
    for queue, start, end in covered:
        if queue == split.queue:
            part = replace(split, offsets=(start, end))
            yield from LogScan(source_of(split.place), part)


def test_units_of_far_offsets_are_read_without_what_lies_between() -> None:
    raw = bytes(range(200)) * 2
    source = MemorySource({"units": raw})
    pieces = [LogPiece(100, 200, "units", 0), LogPiece(100 + 10**12 * 20, 200, "units", 200)]
    offsets = np.array([7, 10**12 + 6, 5, 10**12 + 100])
    places = [40, 220, 0]
    expected_units = decode_units(b"".join(raw[place : place + 20] for place in places))
    found = read_units(source, pieces, offsets)
    assert found[:3].tolist() == expected_units.tolist()
    assert found[3].tolist() == (0, 0, 0)
    assert len(read_units(source, pieces, offsets[:0])) == 0


def test_keys_are_compared_in_both_directions(sound: Path) -> None:
    assert other_index_file(sound, lambda items: items) == set()
    assert other_index_file(sound, lambda items: items[1:]) == {"index-key-missing"}

    def with_another(items: KeyItems) -> KeyItems:
        more = items[:1].copy()
        more["key_hash"] += 1
        return np.concatenate((items, more))

    assert other_index_file(sound, with_another) == {"index-item"}


def test_beside_a_gap_only_superfluous_items_are_not_looked_for(sound: Path) -> None:
    assert other_index_file(sound, lambda items: items, has_gaps=True) == set()
    assert other_index_file(sound, lambda items: items[1:], has_gaps=True) == {"index-key-missing"}


@pytest.mark.slow
@pytest.mark.leaves_findings(*KINDS, why="the test damages the tier")
def test_the_command_prints_findings_and_counts_and_ends_with_1(tier: Path) -> None:
    done = invoke(tier, "audit", "--processes", "1")
    assert "nothing is wrong" in done.output
    assert "messages" in done.output
    flip(only(tier, LOG), 120)
    done = invoke(tier, "audit", "--processes", "1", status=1)
    assert "body-crc" in done.output
    rows = [
        json.loads(line)
        for line in invoke(
            tier, "audit", "--json", "--processes", "1", status=1
        ).output.splitlines()
    ]
    assert {row["finding"] for row in rows[:-1]} == {"body-crc", "checksum"}
    assert rows[-1]["summary"]["messages"] == 3396
    assert rows[-1]["summary"]["findings"] == 2


@pytest.mark.leaves_findings("journal", why="an entry of a program to come is in the way")
def test_a_tier_of_a_newer_program_is_refused_in_one_sentence(tier: Path) -> None:
    newest = max(tier.glob("*/*/@journal/*"))
    frame = Frame.decode(newest.read_bytes(), FrameKind.ENTRY, path="")
    payload = b'{"operations": [{"op": "Teleport"}]}'
    entry = Frame(FrameKind.ENTRY, frame.epoch, frame.sequence + 1, bytes(16), payload)
    newest.with_name(f"{frame.sequence + 1:020}").write_bytes(entry.encode())
    for words in (["audit"], ["rebuild"]):
        said = invoke(tier, *words, "--processes", "1", status=2).output
        assert "Teleport" in said
        assert "install a newer tieredstore" in said
        assert said.count("\n") == 1
    with pytest.raises(NewerVersion):
        offline.dataset(tier)


def test_wrong_use_is_one_sentence(tmp_path: Path, sound: Path) -> None:
    assert "there is no tier" in invoke(tmp_path, "audit", status=1).output
    assert "0 is less than 1" in invoke(sound, "audit", "--processes", "0", status=2).output
