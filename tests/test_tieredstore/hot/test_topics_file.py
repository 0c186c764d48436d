"""`config/topics.json` has RocketMQ's form, which has no checksum: what its damage may cost."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from container.names.queue_id import QueueId
from provider.errors import Corrupt
from tests.support.hot_store import appender_at, contents, new_message, put
from tieredstore.hot.log.topics import TopicsFile, kept_settings, row_of

QUEUES = [QueueId("Orders", 0), QueueId("Orders", 6), QueueId("Refunds", 0)]


@pytest.mark.usefixtures("without_syncs")
def test_a_file_that_rotted_is_refused_or_has_each_queue_again(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    TopicsFile(path).enter(QUEUES, 4, 1)
    whole, rng = path.read_bytes(), Random(0)
    refused: list[str] = []
    for bit in rng.sample(range(8 * len(whole)), 300):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        try:
            topics = TopicsFile(path)
        except Corrupt as error:
            refused.append(error.reason)
            continue
        topics.enter(QUEUES, 4, 2)
        assert topics.has({"Orders"})
        assert topics.write_queues("Orders") >= 7
        assert topics.write_queues("Refunds") >= 1
    assert 50 < len(refused) < 250
    assert all(reason.endswith("topics.json.bak") for reason in refused)


@pytest.mark.usefixtures("without_syncs")
def test_a_file_that_lost_a_topic_costs_no_message(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(number) for number in range(30)])
        store.close()
    path = tmp_path / "config" / "topics.json"
    path.write_bytes(path.read_bytes().replace(b"Orders", b"Orderz"))
    with appender_at(tmp_path) as store:
        assert len(contents(store)[QUEUES[0]]) == 30
        (one,) = put(store, [new_message(30)])
        assert one.queue_offset == 30
    assert b'"Orders"' in path.read_bytes()


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power failure here."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)


ROW = {"readQueueNums": 8, "writeQueueNums": 4}


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (ROW, '{"readQueueNums":8,"writeQueueNums":4}'),
        ({**ROW, "perm": 6, "order": False, "attributes": {}, "topicName": "T", "x": 1}, None),
        ({**ROW, "attributes": None, "order": 1, "perm": True, "topicSysFlag": "0"}, None),
        ({**ROW, "attributes": {"a": 1}}, None),
        (
            {**ROW, "perm": 2, "attributes": {"a": "b"}},
            '{"attributes":{"a":"b"},"perm":2,"readQueueNums":8,"writeQueueNums":4}',
        ),
        ({**ROW, "attributes": {"a": "b" * 5000}}, ""),
        ({**ROW, "readQueueNums": 1 << 31}, ""),
        ({**ROW, "readQueueNums": -1}, ""),
        ({"writeQueueNums": 4}, ""),
        ({}, ""),
    ],
)
def test_settings_that_the_tier_keeps(row: dict[str, Any], kept: str | None) -> None:
    if kept is None:
        kept = kept_settings(ROW)
    assert kept_settings(row) == kept
    back = row_of("T", kept)
    assert (back is None) == (not kept)
    if back is not None:
        assert kept_settings(back) == kept
        assert back["topicName"] == "T"


@pytest.mark.parametrize("settings", ["", "{", "[]", "7", "[" * 9999, '{"perm":6}'])
def test_settings_that_no_broker_had_are_unknown(settings: str) -> None:
    assert row_of("T", settings) is None
