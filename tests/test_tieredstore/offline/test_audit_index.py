"""An index file is compared with the keys of its messages, whatever their times and numbers."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from container.index.layout import KEY_ITEM_DTYPE, KeyItems
from container.index.sealed import fitting_slots, seal_index
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.checksum import crc32c
from provider.ranges import QueueOffset
from tests.support.scanned_log import MemorySource
from tieredstore.offline.jobs import audit_job
from tieredstore.offline.jobs.audit_job import FINDINGS_MAX, AuditReducer, audit_index_file
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.jobs.rebuild_job import KEY_COLUMNS, pack
from tieredstore.offline.scan.split import TierPlace

BEGIN_MS = 1_700_000_000_000
RECORD_BYTES = 150


def items_of(count: int) -> KeyItems:
    """A key of each of some messages of one size."""
    items = np.zeros(count, KEY_ITEM_DTYPE)
    items["key_hash"] = np.arange(count) * 7_919 % 1_000_003
    items["topic_id"] = 1
    items["position"] = np.arange(count) * RECORD_BYTES
    items["store_timestamp"] = BEGIN_MS + np.arange(count)
    items["size"] = RECORD_BYTES
    return items


def looked_at(items: KeyItems) -> KeyItems:
    """The keys, and marks that all of these messages were looked at."""
    marks = np.zeros(2, KEY_ITEM_DTYPE)
    marks["key_hash"], marks["topic_id"] = -1, 1
    marks["position"] = 0, int(items["position"].max())
    return np.concatenate([items, marks])


def stored_as(items: KeyItems) -> tuple[IndexFile, bytes]:
    """A file of these items."""
    raw = bytes(seal_index(items, slots=fitting_slots(len(items)), begin_timestamp=BEGIN_MS))
    covered = ((QueueId("T", 0), QueueOffset(0), QueueOffset(len(items))),)
    return IndexFile("x", 1, len(raw), BEGIN_MS, 0, 1, len(items), covered, crc32c(raw)), raw


def found(stored: KeyItems, expected: KeyItems) -> list[tuple[str, int]]:
    """What is wrong with a file of these items, and at which positions."""
    file, raw = stored_as(stored)
    findings = audit_index_file(MemorySource({"x": raw}), file, looked_at(expected))
    return [(one.finding, one.position) for one in findings]


@pytest.mark.parametrize("far_ms", [1 << 44, -(1 << 44), -1, -1_999, -(1 << 62)])
def test_a_time_that_is_far_off_or_before_all_others_is_no_fault(far_ms: int) -> None:
    items = items_of(20)
    items["store_timestamp"][7] = BEGIN_MS + far_ms
    assert found(items, items) == []


@pytest.mark.parametrize("kind", ["one key", "half one key", "one message", "even places"])
def test_few_are_compared_at_once_whichever_key_or_message_most_have(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = items_of(20_000)
    if kind == "one message":
        items["position"], items["key_hash"] = 300, np.arange(len(items))
    elif kind == "even places":
        items["position"], items["key_hash"] = np.arange(len(items)) << 20, 4
    else:
        items["key_hash"][:: 1 + (kind == "half one key")] = 12_345
    sorted_rows, most = audit_job._sorted, 0

    def watched(some: KeyItems, begin: int) -> NDArray[np.int64]:
        nonlocal most
        most = max(most, len(some))
        return sorted_rows(some, begin)

    monkeypatch.setattr(audit_job, "_sorted", watched)
    monkeypatch.setattr(audit_job, "COMPARED_AT_ONCE", 1_000)
    assert found(items, items) == []
    assert most < 1_000
    fewer, more = np.delete(items, [9, 5_000]), items.copy()
    more["size"][[9, 5_000]] += 1
    places = [int(items["position"][at]) for at in (9, 5_000)]
    assert sorted(found(fewer, items)) == [("index-key-missing", at) for at in places]
    both = [(kind, at) for kind in ("index-item", "index-key-missing") for at in places]
    assert sorted(found(more, items)) == both
    assert sorted(found(np.concatenate([items, items[:1]]), items)) == []


def test_of_very_many_findings_of_a_file_most_are_counted(tmp_path: Path) -> None:
    items, wrong = items_of(2 * FINDINGS_MAX), items_of(2 * FINDINGS_MAX)
    wrong["size"] += 1
    file, raw = stored_as(wrong)
    (tmp_path / "x").write_bytes(raw)
    reducer = AuditReducer(TierPlace(str(tmp_path)), {}, {"x": file})
    rows = looked_at(items)
    columns = [rows[name].astype(np.int64) for name in KEY_COLUMNS]
    (piece,) = reducer("index/x", [Piece("index/x", 0, pack(columns))])
    said = orjson.loads(piece.payload)
    assert len(said["findings"]) == FINDINGS_MAX
    assert said["findings_more"] == 3 * FINDINGS_MAX
