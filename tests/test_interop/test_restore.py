"""A broker whose disk is lost starts again on the directory that `restore` writes from its tier."""

import shutil
from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.test_interop.client_view import read_all
from tests.test_interop.test_follow_real_broker import (
    MESSAGES_A_RUN,
    PREFIX,
    SMALL_SEGMENTS,
    TOPICS,
    assert_tier_equals_client,
)
from tests.test_interop.tieredstore_process import Tieredstore

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]


def test_a_broker_goes_on_from_its_tier_after_the_loss_of_its_disk(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        broker.run("Produce", "1", PREFIX, "1")
        broker.broker.stop()
        ours.run("tier", str(store))
        shutil.rmtree(store)
        ours.run("restore", str(store))
        broker.broker.start()
        broker.run("Produce", "2", PREFIX, "1")
        client = read_all(broker, tmp_path / "client", TOPICS)
        broker.broker.kill()
        broker.broker.start()  # which dispatches the whole CommitLog again
        again = read_all(broker, tmp_path / "again", TOPICS)
    assert (client / "messages.jsonl").read_text() == (again / "messages.jsonl").read_text()
    ours.run("tier", str(store))
    assert_tier_equals_client(ours, client, 2 * MESSAGES_A_RUN)
    assert ours.rows("check") == []
