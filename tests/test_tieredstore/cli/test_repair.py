"""What `tieredstore repair` takes away, and that tiering goes on behind it."""

import json
import shutil
from pathlib import Path

from click.testing import CliRunner, Result

from container.record.checksum import body_crc_of
from container.record.message import StoredMessage
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli


def invoke(broker: FakeBroker, *arguments: str, status: int = 0) -> Result:
    tier = broker.directory.parent / "tier"
    settings = {"brokerName": "b", "brokerClusterName": "C", "tieredStoreFilePath": str(tier)}
    options = [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
    result = CliRunner().invoke(cli, [*options, *arguments])
    assert result.exit_code == status, result.output
    return result


def tiered(broker: FakeBroker, *, status: int = 0) -> dict[str, object]:
    said = invoke(broker, "tier", str(broker.directory), "--json", status=status).stdout
    (row,) = said.splitlines()
    return json.loads(row)


def repaired(broker: FakeBroker) -> dict[str, object]:
    words = ("repair", "A", "0", "--cut-to-hot", "--yes", "--json")
    return json.loads(invoke(broker, *words, "--store", str(broker.directory)).stdout)


def put_another(broker: FakeBroker, offset: int) -> None:
    """Let the store have another message of the same size at an offset."""
    unit = broker.unit("A", 0, offset)
    place = unit.position % broker.commit_log_bytes
    raw = broker.log_path(unit.position).read_bytes()[place : place + unit.size]
    message = StoredMessage.decode(raw, path="", position=0)
    body = bytes(len(message.body))
    other = message._replace(body=body, body_crc=body_crc_of(body))
    broker.damage(unit.position, other.encode())


def test_repair_finds_a_difference_far_below_newest_messages_that_are_the_same(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    broker.put_many("A", 0, [b"body"] * 100)
    tiered(broker)
    for offset in range(40, 70):
        put_another(broker, offset)
    said = json.dumps(tiered(broker, status=1)["over"])
    assert "different messages at offset 68, and the same below offset 40" in said
    assert repaired(broker) == {
        "topic": "A", "queue_id": 0, "cut_to": 40, "next_offset": 100, "messages": 60,
    }  # fmt: skip
    assert tiered(broker)["messages_new"] == 60
    assert (
        "nothing is to be cut"
        in invoke(
            broker, "repair", "A", "0", "--cut-to-hot", "--store", str(broker.directory)
        ).stdout
    )
    assert invoke(broker, "check", "--json").stdout == ""


def test_repair_cuts_to_where_a_gap_begins_if_the_hot_log_ends_within_it(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)
    broker.put_many("A", 0, [b"body"] * 20)
    tiered(broker)
    broker.put_many("A", 0, [b"body"] * 10)
    shutil.copytree(broker.directory, tmp_path / "backup")
    broker.put_many("A", 0, [b"body"] * 170)
    lost = broker.unit("A", 0, 50).position
    while lost >= broker.min_position:
        broker.delete_oldest_file()
    assert int(str(tiered(broker)["lost"])) > 10
    shutil.rmtree(broker.directory)
    (tmp_path / "backup").rename(broker.directory)
    said = json.dumps(tiered(broker, status=1)["over"])
    assert "the tier ends at offset 200 but the hot log at 30" in said
    assert repaired(broker)["cut_to"] == 20
    row = tiered(broker)
    assert (row["messages"], row["messages_new"], row["lost"]) == (30, 10, 0)
    assert invoke(broker, "check", "--json").stdout == ""
