"""A real broker writes, we follow its store directory, and the tier says what its client reads."""

from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.test_interop.client_view import by_queue, comparable, json_lines, read_all
from tests.test_interop.tieredstore_process import Tieredstore, stop

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

PREFIX = "Live_"
TOPICS = [f"{PREFIX}{name}" for name in ("Orders", "Big", "Batch", "Keys", "Delay", "Tx")]
MESSAGES_A_RUN = 570
"""400 + 24 + 70 + 60 + 6 + 10: what Produce makes readable at scale 1."""
SMALL_SEGMENTS = {
    "tieredStoreCommitLogMaxSize": "262144",
    "tieredStoreConsumeQueueMaxSize": "2000",
    "tieredStoreIndexFileMaxHashSlotNum": "500",
    "tieredStoreIndexFileMaxIndexNum": "2000",
}


def produce(broker: RunningBroker, seed: int) -> None:
    broker.run("Produce", str(seed), PREFIX, "1")


def assert_tier_equals_client(tier: Tieredstore, client: Path, messages: int) -> None:
    queues = by_queue(json_lines(client / "messages.jsonl"))
    # a broker that crashed may deliver a delayed message twice, under the same id
    ids = {(topic, m["properties"]["UNIQ_KEY"]) for (topic, _), q in queues.items() for m in q}
    assert len(ids) == messages
    for (topic, queue_id), wanted in queues.items():
        found = tier.messages(topic, queue_id)
        assert [comparable(row) for row in found] == [comparable(row) for row in wanted]
        ends = [0]  # in the queue's own CommitLog the records lie back to back
        for row in found:
            assert row["tier_physical_offset"] == ends[-1]
            ends.append(ends[-1] + row["store_size"])


def follow_and_compare(rocketmq: BrokerInstall, work: Path, *, kill: bool | None = None) -> None:
    """`kill` says how the broker ends between two runs of producing; None: it stays, one run."""
    store = work / "store"
    with RunningBroker(rocketmq, work, store, SMALL_SEGMENTS) as broker:
        ours = Tieredstore(broker.conf_path, work / "tier")
        with ours.following(store, work / "follow.log") as follower:
            produce(broker, 1)
            if kill is not None:
                broker.restart(kill=kill)
                produce(broker, 2)
            client = read_all(broker, work / "client", TOPICS)
            ends = {
                queue: rows[-1]["queue_offset"] + 1
                for queue, rows in by_queue(json_lines(client / "messages.jsonl")).items()
            }
            ours.wait_for(ends, follower)
            runs = 1 if kill is None else 2
            assert_tier_equals_client(ours, client, runs * MESSAGES_A_RUN)
            assert stop(follower) == 0, (work / "follow.log").read_text()
    assert ours.rows("check") == []


def test_the_tier_of_a_followed_broker_reads_as_its_client_reads_the_broker(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    follow_and_compare(rocketmq, tmp_path)


def test_following_goes_on_over_a_clean_restart_of_the_broker(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    follow_and_compare(rocketmq, tmp_path, kill=False)


def test_following_goes_on_over_a_crash_of_the_broker(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    follow_and_compare(rocketmq, tmp_path, kill=True)
