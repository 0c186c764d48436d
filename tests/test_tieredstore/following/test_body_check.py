"""Bodies that rotted on the broker's disk: said in time for a replica, and tiered as they are."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from dispatcher.ports import Wanted
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs
from tieredstore.cli.main import cli
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]  # fixtures

A0, A1 = QueueId("A", 0), QueueId("A", 1)
BODY_AT = 88
ROT = pytest.mark.leaves_findings("body-crc", why="bodies rot before they are tiered")


def rot(broker: FakeBroker, queue: QueueId, offset: int) -> int:
    """Change a byte of a body in the CommitLog; returns where its record begins."""
    position = broker.unit(*queue, offset).position
    broker.damage(position + BODY_AT, b"R")
    return position


@pytest.mark.parametrize("checks_bodies", [True, False])
async def test_the_first_of_each_queue_is_said_with_its_place_and_all_are_counted_once(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], *, checks_bodies: bool
) -> None:
    for _ in range(30):
        broker.put("A", 0, b"a body")
        broker.put("A", 1, b"a body")
    places = [rot(broker, A0, 7), rot(broker, A0, 20), rot(broker, A1, 0)]
    log = await follow(broker, clock, logs, checks_bodies=checks_bodies)
    await log.poll()
    wanted = [
        Wanted(queue, QueueOffset(0), await log.references(queue, QueueOffset(0), messages_max=30))
        for queue in (A0, A1)
    ]
    for _ in range(2):  # a round may be tried again
        batches = await log.records_of_round(wanted)
        assert [len(batch) for batch in batches if isinstance(batch, MessageBatch)] == [30, 30]
    said = log.statistics.findings
    if not checks_bodies:
        assert (log.statistics.bodies_damaged, said) == (0, [])
        return
    assert log.statistics.bodies_damaged == 3
    assert len(said) == 2
    for sentence, queue, offset, position in (
        (said[0], A0, 7, places[0]),
        (said[1], A1, 0, places[2]),
    ):
        place = f"({broker.log_path(position)} at {position % 4096})"
        assert sentence.startswith(
            f"{queue} differs from its checksum on the broker's disk at offset {offset} {place}: "
        )


def invoke(broker: FakeBroker, *words: str | Path, status: int) -> Result:
    given = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={broker.directory.parent / 'tier'}"]
    result = CliRunner().invoke(cli, [*given, *map(str, words)])
    assert result.exit_code == status, result.output
    return result


@ROT
def test_tier_says_what_rotted_and_ends_with_1_and_a_read_names_it(broker: FakeBroker) -> None:
    for _ in range(5):
        broker.put("A", 0, b"a body")
    rot(broker, A0, 3)
    switch = ["-D", "tieredStoreBodyCheckEnable=true"]
    told = invoke(broker, *switch, "tier", broker.directory, status=1).stderr
    assert told.count("A/0 differs from its checksum on the broker's disk at offset 3") == 1
    assert "differs from its checksum" in invoke(broker, "read", "A", "0", status=1).stderr
    found = json.loads(invoke(broker, "check", "--json", status=1).stdout)
    assert (found["finding"], found["path"], found["position"]) == ("body-crc", "A/0", 3)


@ROT
def test_by_default_tiering_compares_no_bodies(broker: FakeBroker) -> None:
    broker.put("A", 0, b"a body")
    rot(broker, A0, 0)
    invoke(broker, "tier", broker.directory, status=0)
    invoke(broker, "read", "A", "0", status=1)
