"""A real broker with the plug-in for Java brokers, the server that it reads, and its messages."""

import asyncio
import re
import struct
import subprocess
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.http import free_port, get
from tests.support.patience import LOOK_S, Patience, until, wait_until
from tests.support.remoting_client import RemotingClient
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker, built_plugin
from tests.support.tieredstore_process import Tieredstore
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode

UPDATE_BROKER_CONFIG, UPDATE_AND_CREATE_TOPIC = 25, 17
POSITION = slice(28, 36)
"""Bytes of a message that say where it is: not the same place in a tier."""


@dataclass
class Serve:
    """`tieredstore serve` at the port that the broker knows."""

    ours: Tieredstore
    directory: Path
    port: int
    pages: int = field(default_factory=free_port)
    more: Mapping[str, object] = field(default_factory=dict)
    """Further settings."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        values = {
            "tieredStoreServePort": self.port,
            "tieredStoreMetricsPort": self.pages,
            "tieredStoreServeStatePath": self.directory / "state",
            **self.more,
        }
        defines = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
        with (self.directory / "serve.log").open("ab") as log:
            command = self.ours.command("serve", *defines)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        patience = Patience("it is not ready", pids=[self.process.pid])
        wait_until(lambda: get(self.pages, "/readyz")[0] == 200, patience)

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            self.start()
            yield
        finally:
            self.kill()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def answers(self, request: str, response: str) -> float:
        """How many requests it has answered so since its start."""
        labels = f'request="{request}",response="{response}"'
        sample = rf"^tieredstore_serve_requests_total\{{[^}}]*{labels}\}} (.+)$"
        found = re.findall(sample, get(self.pages, "/metrics")[1], re.MULTILINE)
        return sum(map(float, found))


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
