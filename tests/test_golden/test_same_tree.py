"""Tiering what real brokers wrote gives the files of RocketMQ's own tiered store."""

from dataclasses import replace
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory
from container.record.checksum import record_crc_is_valid
from container.record.header import PHYSICAL_OFFSET_AT
from tests.support.cli import run, settings
from tests.support.golden import GOLDEN_TREES, GoldenSet, GoldenTree, tree_name, unpacked
from tests.support.without_queues import seen_without_queues

FLAT_FILES = ("COMMIT_LOG", "CONSUME_QUEUE")
RECORD_CRC_BYTES = 20


def files_of(directory: Path) -> dict[str, Path]:
    """CommitLog and ConsumeQueue files below a broker's directory, by relative path."""
    found = (path for kind in FLAT_FILES for path in directory.glob(f"*/*/{kind}/*"))
    return {str(path.relative_to(directory)): path for path in found}


def flat_bytes(directory: Path, queue: QueueId, kind: str) -> bytes:
    """The bytes of one flat file."""
    files = sorted((directory / str(queue) / kind).iterdir(), key=lambda path: path.name[-20:])
    return b"".join(path.read_bytes() for path in files)


def tiered(tree: GoldenTree, tier: Path) -> Path:
    """Tier the tree's store; returns the broker's directory in the tier."""
    run(*settings(tree, tier), "tier", tree.store)
    assert run(*settings(tree, tier), "check", "--json").rows == []
    return tier / broker_directory(tree.golden.cluster, tree.golden.broker)


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_the_tree_is_javas_byte_for_byte(golden: GoldenSet, kind: str, tmp_path: Path) -> None:
    tree = unpacked(golden, kind)
    ours = tiered(tree, tmp_path / "tier")
    if golden.has_codas:
        same_records_but_for_codas(tree, ours)
    elif golden.has_record_crc:
        same_bytes_but_for_valid_checksums(tree, ours)
    else:
        java, mine = files_of(tree.broker_directory), files_of(ours)
        assert mine.keys() == java.keys()
        for name, path in java.items():
            assert mine[name].read_bytes() == path.read_bytes(), name


SAME_BYTES = [
    (golden, kind)
    for golden, kind in GOLDEN_TREES
    if kind == "closed" and not golden.has_codas and not golden.has_record_crc
]


@pytest.mark.parametrize(("golden", "kind"), SAME_BYTES, ids=tree_name)
def test_the_tree_is_the_same_where_the_queues_lie_in_rocksdb(
    golden: GoldenSet, kind: str, tmp_path: Path
) -> None:
    tree = unpacked(golden, kind)
    seen_without_queues(tree.store, tmp_path / "store")
    made = files_of(tiered(replace(tree, root=tmp_path), tmp_path / "tier"))
    java = files_of(tree.broker_directory)
    assert made.keys() == java.keys()
    for name, path in java.items():
        assert made[name].read_bytes() == path.read_bytes(), name


def units_of(raw: bytes) -> list[tuple[int, int, bytes]]:
    """Position, size and tags code of every unit."""
    units = [raw[at : at + 20] for at in range(0, len(raw), 20)]
    return [(int.from_bytes(u[:8], "big"), int.from_bytes(u[8:12], "big"), u[12:]) for u in units]


def same_records_but_for_codas(tree: GoldenTree, ours: Path) -> None:
    """5.2.0 put 16 bytes behind each sealed segment: positions differ, records do not."""
    for queue in tree.queues():
        java_log = tree.flat_bytes(queue, "COMMIT_LOG")
        our_log = flat_bytes(ours, queue, "COMMIT_LOG")
        java_units = units_of(tree.flat_bytes(queue, "CONSUME_QUEUE"))
        our_units = units_of(flat_bytes(ours, queue, "CONSUME_QUEUE"))
        assert [unit[1:] for unit in our_units] == [unit[1:] for unit in java_units]
        for (at, size, _), (java_at, _, _) in zip(our_units, java_units, strict=True):
            record, javas = our_log[at : at + size], java_log[java_at : java_at + size]
            assert int.from_bytes(record[PHYSICAL_OFFSET_AT:][:8], "big") == at
            assert record[:28] + record[36:] == javas[:28] + javas[36:]


def same_bytes_but_for_valid_checksums(tree: GoldenTree, ours: Path) -> None:
    """The Java tier's whole-record checksums cover the local offset and so are wrong there."""
    java, mine = files_of(tree.broker_directory), files_of(ours)
    assert mine.keys() == java.keys()
    checked = 0
    for queue in tree.queues():
        java_log = tree.flat_bytes(queue, "COMMIT_LOG")
        log = flat_bytes(ours, queue, "COMMIT_LOG")
        units = flat_bytes(ours, queue, "CONSUME_QUEUE")
        assert units == tree.flat_bytes(queue, "CONSUME_QUEUE")
        for at, size, _ in units_of(units):
            record = log[at : at + size]
            assert record_crc_is_valid(record)
            assert record[:-RECORD_CRC_BYTES] == java_log[at : at + size][:-RECORD_CRC_BYTES]
            checked += 1
    assert checked > 100
