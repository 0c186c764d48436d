"""A broker whose disk is lost starts again on the directory that `restore` writes from its tier."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.test_interop.client_view import by_queue, comparable, json_lines, read_all
from tests.test_interop.test_follow_real_broker import (
    MESSAGES_A_RUN,
    PREFIX,
    SMALL_SEGMENTS,
    TOPICS,
    assert_tier_equals_client,
)
from tests.test_interop.tieredstore_process import Tieredstore

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]


def seen(client: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What the client read, by queue."""
    queues = by_queue(json_lines(client / "messages.jsonl"))
    return {queue: [comparable(row) for row in rows] for queue, rows in queues.items()}


def test_a_broker_goes_on_from_its_tier_after_the_loss_of_its_disk(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    broker = RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS)
    ours = Tieredstore(broker.conf_path, tmp_path / "tier")
    with broker:
        broker.run("Produce", "1", PREFIX, "1")
        before = seen(read_all(broker, tmp_path / "before", TOPICS))
    ours.run("tier", str(store))
    shutil.rmtree(store)
    ours.run("restore", str(store))
    with broker:
        restored = seen(read_all(broker, tmp_path / "restored", TOPICS))
        broker.run("Produce", "2", PREFIX, "1")
        client = read_all(broker, tmp_path / "after", TOPICS)
    assert restored == before
    after = seen(client)
    assert {queue: after[queue][: len(rows)] for queue, rows in before.items()} == before
    ours.run("tier", str(store))
    assert_tier_equals_client(ours, client, 2 * MESSAGES_A_RUN)
    assert ours.rows("check") == []
