"""A real broker starts on a directory that we wrote and closed, and its client reads all of it.

Then the broker is killed, and we go on with the directory as it left it.
"""

import hashlib
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from tests.support.hot_store import appender_at, contents, put
from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.test_interop.client_view import by_queue, json_lines, read_all
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.options import HotWriteOptions

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

OPTIONS = HotWriteOptions(commit_log_bytes=1 << 20, consume_queue_bytes=20_000)
"""As `RunningBroker` configures its files."""
TOPICS = ["Ours_Orders", "Ours_Refunds"]
MESSAGES = 2600
NOW_MS = 1_795_000_000_000


def message(number: int) -> NewMessage:
    body = f"{number}:".encode().ljust(700 + number % 300, b".")
    properties = {"TAGS": f"Tag{number % 3}", "KEYS": f"key-{number}", "UNIQ_KEY": f"u{number:031}"}
    return NewMessage(TOPICS[number % 2], number % 3, body, properties)


def test_a_broker_reads_what_we_wrote_and_we_go_on_after_it(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with appender_at(store, OPTIONS) as ours:
        for first in range(0, MESSAGES, 20):
            put(ours, [message(n) for n in range(first, first + 20)], NOW_MS + first)
        written = contents(ours)
        ours.close()
    assert len(ours.log.bases) >= 3
    with RunningBroker(rocketmq, tmp_path, store, {"fileReservedTime": "1000000"}) as broker:
        client = read_all(broker, tmp_path / "client", TOPICS)
        broker.run("Produce", "1", "Theirs_", "1")
        broker.broker.kill()
    assert (store / "abort").exists()
    found = by_queue(json_lines(client / "messages.jsonl"))
    assert {QueueId(*queue): len(rows) for queue, rows in found.items()} == {
        queue: len(messages) for queue, messages in written.items()
    }
    for queue, rows in found.items():
        for row, mine in zip(rows, written[QueueId(*queue)], strict=True):
            assert row["queue_offset"] == mine.queue_offset
            assert row["store_timestamp"] == mine.store_timestamp
            assert row["store_size"] == mine.size
            assert row["body_sha256"] == hashlib.sha256(mine.body).hexdigest()
            assert mine.property_map.items() <= row["properties"].items()
    with appender_at(store, OPTIONS) as ours:  # and we go on with what the broker wrote
        after = contents(ours)
        assert {queue: after[queue] for queue in written} == written
        assert (
            sum(len(ms) for queue, ms in after.items() if queue.topic.startswith("Theirs_")) > 500
        )
        queue = QueueId(TOPICS[0], 0)
        assert put(ours, [message(0)])[0].queue_offset == len(written[queue])
