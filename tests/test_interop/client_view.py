"""What the official client read through a real broker, in a form to compare with."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.rocketmq_broker import RunningBroker

COMPRESSED = 0x1
"""The client clears this bit of the sysFlag when it decompresses a body."""

COMPARED = (
    "topic",
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "born_timestamp",
    "born_host",
    "store_host",
    "flag",
    "sys_flag",
    "store_size",
    "body_crc",
    "body_sha256",
    "body_length",
    "properties",
)

Queue = tuple[str, int]


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_all(
    broker: RunningBroker, directory: Path, topics: Iterable[str], *, all_calls: bool = False
) -> Path:
    """Has the official client read every queue; a directory with what it got (see Expect.java)."""
    directory.mkdir(exist_ok=True)
    broker.run("Expect", str(directory), "all" if all_calls else "messages", *topics)
    return directory


def by_queue(messages: Iterable[dict[str, Any]]) -> dict[Queue, list[dict[str, Any]]]:
    queues: dict[Queue, list[dict[str, Any]]] = {}
    for message in messages:
        queues.setdefault((message["topic"], message["queue_id"]), []).append(message)
    return queues


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that do not depend on who served it, from which log."""
    fields = {name: message[name] for name in COMPARED}
    fields["sys_flag"] &= ~COMPRESSED
    for name in ("born_host", "store_host"):
        fields[name] = fields[name].removeprefix("/")
    return fields
