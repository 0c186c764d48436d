"""A real broker deletes topics and makes them again, while a follower tiers them."""

from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.support.tieredstore_process import Tieredstore, stop

pytestmark = [pytest.mark.rocketmq, pytest.mark.nightly, pytest.mark.timeout(HANGS_AFTER_S)]

TOPICS, QUEUES = 30, 3
OLD, NEW = 3, 6


def test_topics_that_a_broker_deletes_and_makes_again_go_on_above_a_gap(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    pins = {"tieredStorePinPath": str(tmp_path / "pins")}
    conf = {**pins, "timerWheelEnable": "true"}  # without it, 5.5.0 fails to delete a topic
    size = (str(TOPICS), str(QUEUES))
    queues = [(f"D{number}", queue) for number in range(TOPICS) for queue in range(QUEUES)]
    with RunningBroker(rocketmq, tmp_path, store, conf) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        sending = ("send", "D", *size, str(OLD), "old")
        broker.run("Topics", "make", "D", *size, "then", *sending)
        with ours.following(store, tmp_path / "follow.log") as follower:
            ours.wait_for(dict.fromkeys(queues, OLD), follower)
            deleting = ("delete", "D", size[0])
            sending = ("send", "D", *size, str(NEW), "new")
            broker.run("Topics", *deleting, "then", "make", "D", *size, "then", *sending)
            ours.wait_for(dict.fromkeys(queues, NEW), follower)
            assert stop(follower) == 1, "each gap is a loss, and ends it with 1"
    said = (tmp_path / "follow.log").read_text()
    assert "deleted on the broker" in said
    assert "made it again" in said
    assert ours.rows("check") == []
    for row in ours.rows("topics"):
        if row["topic"].startswith("D"):
            assert [(gap["start"], gap["end"]) for gap in row["gaps"]] == [(OLD, OLD + 1)]
    for queue in (queues[0], queues[-1]):
        rows = ours.rows("read", queue[0], str(queue[1]))
        bodies = [f"old {offset}" for offset in range(OLD)]
        bodies += [f"new {offset}" for offset in range(OLD + 1, NEW)]
        assert [row["body"] for row in rows] == bodies
