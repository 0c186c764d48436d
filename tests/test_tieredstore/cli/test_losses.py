"""What is said of messages that a broker deleted before they were tiered, by whom and how often."""

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.metadata.records import MADE_AGAIN_REASON, Gap, Queue
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId
from dispatcher.ports import DELETED_REASON
from provider.ranges import QueueOffset
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli
from tieredstore.metrics.summary import lost_of, new_losses

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop


def invoke(broker: FakeBroker, *arguments: str | Path, status: int = 0) -> Result:
    tier = broker.directory.parent / "tier"
    options = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tier}"]
    result = CliRunner().invoke(cli, [*options, *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def lose(broker: FakeBroker, messages: int = 100) -> None:
    """Let the broker write, and delete all but its newest files."""
    broker.put_many("A", 0, [b"body"] * messages)
    newest = broker.unit("A", 0, broker.next_offsets[QueueId("A", 0)] - 1).position
    while broker.min_position + broker.commit_log_bytes <= newest:
        broker.delete_oldest_file()


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    """A broker whose store is tiered up to offset 10, and has lost messages since."""
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)
    broker.put_many("A", 0, [b"body"] * 10)
    invoke(broker, "tier", broker.directory)
    lose(broker)
    return broker


def test_tier_says_once_what_was_lost_and_what_prevents_it_and_ends_with_1(
    broker: FakeBroker,
) -> None:
    done = invoke(broker, "tier", broker.directory, "--json", status=1)
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row["lost"] > 0
    (said,) = [line for line in done.stderr.splitlines() if " ERROR " in line]
    assert f"A/0 lost {row['lost']} messages, offsets 10 to {9 + row['lost']}: " in said
    assert "tieredStorePinPath" in said
    again = invoke(broker, "tier", broker.directory, "--json")
    assert json.loads(again.stdout)["lost"] == row["lost"]
    assert "lost" not in again.stderr


def test_check_and_topics_say_it_for_good(broker: FakeBroker) -> None:
    lost = json.loads(invoke(broker, "tier", broker.directory, "--json", status=1).stdout)["lost"]
    sentence = f"{lost} messages of 1 queue were lost before they could be tiered (1 gap)"
    for command in ("topics", "check"):
        assert sentence in invoke(broker, command).stdout
    assert invoke(broker, "check", "--json").stdout == ""


async def test_a_follower_says_it_when_it_happens_and_keeps_a_gauge_of_it(
    broker: FakeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lost_by_gauge(follower: tieredstore.Follower) -> float | None:
        labels = {"cluster": "DefaultCluster", "node_id": "b"}
        return follower.registry.get_sample_value("tieredstore_messages_lost", labels)

    quick = {"tieredStoreScanInterval": 0, "tieredStorePollInterval": 1}
    opened = tieredstore.follow(broker.directory, tmp_path / "tier", broker="b", settings=quick)
    async with opened as follower:
        assert lost_by_gauge(follower) == 0
        await follower.drain()
        (loss,) = follower.losses()
        assert loss.gap.start == 10
        assert lost_by_gauge(follower) == loss.messages
    said = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [one.getMessage() for one in said] == [str(loss)]
    async with tieredstore.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
        assert lost_by_gauge(follower) == loss.messages, "a restart keeps it"
        await follower.drain()
        assert follower.losses() == []


def gap(start: int, end: int, reason: str = DELETED_REASON) -> Gap:
    return Gap(QueueOffset(start), QueueOffset(end), reason, 0)


def test_only_gaps_that_are_new_are_losses() -> None:
    one, two = QueueId("A", 0), QueueId("A", 1)
    old = Queue(one, QueueOffset(0), QueueOffset(9), gaps=(gap(2, 4),))
    new = Queue(one, QueueOffset(0), QueueOffset(99), gaps=(gap(2, 4), gap(20, 21)))
    other = Queue(two, QueueOffset(0), QueueOffset(99), gaps=(gap(5, 8, "rotten"),))
    found = new_losses({one: old}, QueueTable([other, new]))
    assert [str(loss).partition(";")[0] for loss in found] == [
        f"A/0 lost 1 message, offsets 20 to 20: {DELETED_REASON}",
        "A/1 lost 3 messages, offsets 5 to 7: rotten",
    ]


def test_the_edge_of_a_topic_that_was_made_again_is_no_lost_message() -> None:
    """The new messages below it are counted by the follower; no message has its offset yet."""
    queue = QueueId("A", 0)
    made = Queue(queue, QueueOffset(0), QueueOffset(6), gaps=(gap(5, 6, MADE_AGAIN_REASON),))
    (loss,) = new_losses({}, QueueTable([made]))
    assert (loss.messages, lost_of(made)) == (0, 0)
    assert str(loss) == f"A/0 continues at offset 6: {MADE_AGAIN_REASON}"
    passed = Queue(queue, QueueOffset(0), QueueOffset(7), gaps=made.gaps)
    assert lost_of(passed) == 1
