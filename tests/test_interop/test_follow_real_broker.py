"""A real broker writes, we follow its store directory, and the tier says what its client reads."""

from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.support.tieredstore_process import Tieredstore, stop
from tests.test_interop.client_view import by_queue, comparable, json_lines, read_all

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

IN_ROCKSDB = {"storeType": "defaultRocksDB"}


def produce(broker: RunningBroker, seed: int) -> None:
    broker.run("Produce", str(seed), PREFIX, "1")


def assert_tier_equals_client(tier: Tieredstore, client: Path, messages: int) -> None:
    queues = by_queue(json_lines(client / "messages.jsonl"))
    # A broker that crashed may deliver a delayed message twice, under the same id. The messages of
    # a client's batch share one up to 5.3.3.
    ids = {
        (topic, m["properties"]["UNIQ_KEY"], m["body_sha256"])
        for (topic, _), q in queues.items()
        for m in q
    }
    assert len(ids) == messages
    for topic in TOPICS:
        found = tier.messages(topic)
        assert found.keys() == {queue_id for name, queue_id in queues if name == topic}
        for queue_id, rows in found.items():
            wanted = queues[topic, queue_id]
            assert [comparable(row) for row in rows] == [comparable(row) for row in wanted]
            ends = [0]  # in the queue's own CommitLog the records lie back to back
            for row in rows:
                assert row["tier_physical_offset"] == ends[-1]
                ends.append(ends[-1] + row["store_size"])


def ends_of(client: Path) -> dict[tuple[str, int], int]:
    """The end of every queue that the client read."""
    queues = by_queue(json_lines(client / "messages.jsonl"))
    return {queue: rows[-1]["queue_offset"] + 1 for queue, rows in queues.items()}


def test_a_tier_followed_over_a_restart_and_a_crash_reads_as_its_client_reads_the_broker(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        with ours.following(store, tmp_path / "follow.log") as follower:
            produce(broker, 1)
            broker.restart()
            produce(broker, 2)
            broker.restart(kill=True)
            produce(broker, 3)
            client = read_all(broker, tmp_path / "client", TOPICS)
            ours.wait_for(ends_of(client), follower)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
    # the broker has ended, and takes no time of the processors
    assert_tier_equals_client(ours, client, 3 * MESSAGES_A_RUN)
    assert ours.rows("check") == []


@pytest.mark.nightly
def test_a_broker_with_its_queues_in_rocksdb_is_followed_over_crashes_of_both(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with RunningBroker(rocketmq, tmp_path, store, {**SMALL_SEGMENTS, **IN_ROCKSDB}) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        with ours.following(store, tmp_path / "first.log"):
            produce(broker, 1)  # the block kills the follower, wherever it is
        broker.restart(kill=True)
        assert not list((store / "consumequeue").glob("*/*/0*")), "this broker keeps files"
        with ours.following(store, tmp_path / "second.log") as follower:
            produce(broker, 2)
            client = read_all(broker, tmp_path / "client", TOPICS)
            ours.wait_for(ends_of(client), follower)
            assert stop(follower) == 0, (tmp_path / "second.log").read_text()
    assert ours.rows("check") == []
    (remembered,) = (tmp_path / "tier").glob("*/*/@followed/*")
    newest = max(int(path.name) for path in (store / "commitlog").iterdir())  # may be empty
    assert int(remembered.name[-20:]) >= newest - (1 << 20), "much of the log is read again"
    ours.run("tier", str(store))
    assert_tier_equals_client(ours, client, 2 * MESSAGES_A_RUN)
