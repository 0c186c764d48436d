"""A real broker with the plug-in for Java brokers, the server that it reads, and its messages."""

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.patience import LOOK_S, Patience, until
from tests.support.remoting_client import RemotingClient
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker, built_plugin
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode

UPDATE_BROKER_CONFIG, UPDATE_AND_CREATE_TOPIC = 25, 17
POSITION = slice(28, 36)
"""Bytes of a message that say where it is: not the same place in a tier."""


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncGenerator[RemotingClient]:
    port = int(broker.name_server.rsplit(":", 1)[1]) + 3
    async with await RemotingClient.connect(f"127.0.0.1:{port}") as client:
        yield client


async def set_value(client: RemotingClient, key: str, value: object) -> None:
    answer = await client.ask(UPDATE_BROKER_CONFIG, f"{key}={value}".encode())
    assert answer.code == ResponseCode.SUCCESS, answer


async def make_topic(client: RemotingClient, topic: str, queues: int) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    answer = await client.ask(UPDATE_AND_CREATE_TOPIC, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer


async def send(client: RemotingClient, topic: str, queue: int, body: bytes, **more: str) -> int:
    """Sends a message, again while the broker is busy; its offset."""
    properties = "".join(f"{name}\x01{value}\x02" for name, value in more.items())
    patience = Patience("the broker is busy")
    fields = dict(zip("abcdefghijkm", ("P", topic, "TBW102", 4, queue, 0, 0, 0, properties, 0,
                                       False, False), strict=True))  # fmt: skip
    while (
        answer := await client.ask(RequestCode.SEND_MESSAGE_V2, body, **fields)
    ).code == ResponseCode.SYSTEM_BUSY:
        patience.look()
    assert answer.code == ResponseCode.SUCCESS, answer
    return int(answer.fields["queueOffset"])


async def send_all(
    client: RemotingClient, topic: str, life: str, count: int, padding: int = 0
) -> None:
    """Sends messages, and returns once all can be read."""

    async def end() -> int:
        answer = await client.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0)
        return int(answer.fields["offset"])

    first = await end()
    for offset in range(first, first + count):
        body = f"{life} {offset}".encode() + bytes(padding)
        assert await send(client, topic, 0, body) == offset
    patience = Patience("not all can be read")
    while await end() != first + count:
        patience.look()
        await asyncio.sleep(LOOK_S)


def records_of(answer: Command) -> dict[int, bytes]:
    """Messages of a pull by their offsets, without their positions."""
    found, at = dict[int, bytes](), 0
    while at < len(answer.body):
        (size,) = struct.unpack_from(">i", answer.body, at)
        record = bytearray(answer.body[at : at + size])
        record[POSITION] = bytes(8)
        found[struct.unpack_from(">q", record, 20)[0]] = bytes(record)
        at += size
    return found


def files_of(store: Path) -> int:
    return sum(1 for _ in (store / "commitlog").iterdir())


async def expire(broker: RunningBroker, store: Path) -> None:
    """Has the broker delete its CommitLog but for two files."""
    assert files_of(store) >= 6
    async with connected(broker) as client:
        await set_value(client, "fileReservedTime", 0)
        patience = Patience("files stay", marks=lambda: files_of(store))
        await until(lambda: files_of(store) <= 2, patience)
        await set_value(client, "fileReservedTime", 72)


def with_plugin(rocketmq: BrokerInstall, library: Path) -> BrokerInstall:
    """RocketMQ's jars and ours, linked in a new directory."""
    library.mkdir()
    for jar in (*rocketmq.library.glob("*.jar"), built_plugin()):
        (library / jar.name).symlink_to(jar)
    return BrokerInstall(library)


def plugged_in(port: int) -> dict[str, str]:
    """Settings of a broker that has the plug-in and its server at a port."""
    return {
        "messageStorePlugIn": "io.tieredstore.rocketmq.TieredStorePlugin",
        "tieredStoreServeAddress": f"127.0.0.1:{port}",
    }
