"""An index file is compared with the keys of its messages, whatever their times and numbers."""

import numpy as np
import pytest

from container.index.items import KEY_ITEM_DTYPE, KeyItems
from container.index.sealed import fitting_slots, seal_index
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.crc32c import crc32c
from provider.ranges import QueueOffset
from tests.support.scanned_log import MemorySource
from tieredstore.offline.audit_index import audit_index_file

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


def found(stored: KeyItems, expected: KeyItems) -> list[tuple[str, int]]:
    """What is wrong with a file of these items, and at which positions."""
    raw = bytes(seal_index(stored, slots=fitting_slots(len(stored)), begin_timestamp=BEGIN_MS))
    covered = ((QueueId("T", 0), QueueOffset(0), QueueOffset(len(stored))),)
    file = IndexFile("x", 1, len(raw), BEGIN_MS, 0, 1, len(stored), covered, crc32c(raw))
    findings = audit_index_file(MemorySource({"x": raw}), file, looked_at(expected))
    return [(one.finding, one.position) for one in findings]


@pytest.mark.parametrize("far_ms", [1 << 44, -(1 << 44), -1, -1_999, -(1 << 62)])
def test_a_time_that_is_far_off_or_before_all_others_is_no_fault(far_ms: int) -> None:
    items = items_of(20)
    items["store_timestamp"][7] = BEGIN_MS + far_ms
    assert found(items, items) == []
