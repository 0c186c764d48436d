"""A running broker with the proxy in front of it, and with the server as its slave."""

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.http import get, value_of
from tests.support.patience import HANGS_AFTER_S, Patience, communicated, wait_until
from tests.support.remoting_client import RemotingClient
from tests.support.rocketmq_broker import SHORT_LIVED, BrokerInstall, RunningBroker
from tests.support.tieredstore_process import Serve, Tieredstore
from tests.test_interop.test_java_plugin import (
    ENDS,
    EVERY_HOUR,
    MESSAGES,
    QUEUES,
    TOPIC,
    expire,
    produce,
    pulled,
    send,
)
from tieredstore.serve.wire.frame import RequestCode

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

PLACES = {(queue, offset) for queue in range(QUEUES) for offset in range(MESSAGES)}
LATE = 20
"""Messages that are sent after the broker has come back."""


@dataclass(frozen=True)
class Beside:
    """A broker, its follower, and the server of its tier."""

    broker: RunningBroker
    process: subprocess.Popen[bytes]
    port: int
    pages: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def sample(self, name: str) -> float:
        return value_of(get(self.pages, "/metrics")[1], name)

    def given(self) -> float:
        """Messages that the tier gave."""
        return self.sample("rocketmq_tiered_store_messages_out_total")

    @contextmanager
    def consuming(
        self, group: str, names: str, messages: int, log: Path
    ) -> Iterator[subprocess.Popen[str]]:
        """An unmodified push consumer from the first offset on, which has `names` as its own."""
        properties = {
            "rocketmq.namesrv.addr": names,
            "consume.first": "true",
            "consume.pull.interval.ms": "200",
        }
        command = self.broker.install.java(
            "Consume", group, TOPIC, "*", "concurrently", "1", str(messages),
            home=self.broker.home, heap_mib=256, options=SHORT_LIVED, properties=properties,
        )  # fmt: skip
        with (
            log.open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as one,
        ):
            try:
                yield one
            finally:
                one.kill()


def counted(said: str) -> dict[tuple[int, int], int]:
    rows = re.findall(r"^(\d+) (\d+) (\d+)$", said, re.MULTILINE)
    return {(int(queue), int(offset)): int(times) for queue, offset, times in rows}


@contextmanager
def beside(
    rocketmq: BrokerInstall, work: Path, conf: dict[str, str], option: str, *, is_cold: bool
) -> Iterator[Beside]:
    """A broker whose messages are tiered, and the server with an option.

    If `is_cold`, the broker has deleted most of its CommitLog.
    """
    store = work / "store"
    with RunningBroker(rocketmq, work, store, conf) as broker:
        ours = Tieredstore(broker.conf_path, work / "tier")
        asyncio.run(produce(broker))
        with ours.following(store, work / "follow.log") as follower:
            ours.wait_for(ENDS, follower)
            if is_cold:
                asyncio.run(expire(broker, store))
            serve = Serve(ours, work, words=[option.format(broker=broker.address)])
            with serve.running():
                assert serve.process is not None
                yield Beside(broker, serve.process, serve.port, serve.pages)
                assert serve.stop() == 0


async def send_late(address: str) -> None:
    """Sends messages through the proxy, again while the broker is down."""
    async with await RemotingClient.connect(address) as client:
        for number in range(LATE):
            await send(client, TOPIC, number % QUEUES, b"late")


def test_a_push_consumer_reads_history_through_the_proxy_over_a_kill_of_the_broker(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    conf = {"deleteWhen": EVERY_HOUR, "cleanResourceInterval": "1000"}
    late = {(number % QUEUES, MESSAGES + number // QUEUES) for number in range(LATE)}
    with beside(rocketmq, tmp_path, conf, "--in-front-of={broker}", is_cold=True) as one:
        log = tmp_path / "consume.log"
        with one.consuming("CG_proxy", one.address, len(PLACES | late), log) as consumer:
            patience = Patience("nothing is read", marks=one.given, pids=[consumer.pid])
            wait_until(lambda: one.given() > 0, patience)
            one.broker.broker.kill()
            read = one.given()
            wait_until(lambda: not one.sample("tieredstore_serve_broker_up"), Patience("it is up"))
            assert read < len(PLACES), "it was killed too late"
            wait_until(lambda: one.given() > read, patience)  # while the broker is down
            assert consumer.poll() is None
            one.broker.broker.start()
            wait_until(lambda: one.sample("tieredstore_serve_broker_up") == 1, Patience("is down"))
            asyncio.run(send_late(one.address))
            said, _ = communicated(consumer, servers=[one.process.pid])
            assert consumer.returncode == 0, log.read_text()[-2000:]
        assert counted(said) == dict.fromkeys(PLACES | late, 1)
        asyncio.run(compare(one))


async def compare(one: Beside) -> None:
    """Compares what the proxy says of the topic with what the broker said before."""
    async with await RemotingClient.connect(one.address) as client:
        assert (await pulled(client)).keys() >= PLACES
        place = {"topic": TOPIC, "queueId": 1}
        assert (await client.ask(RequestCode.GET_MIN_OFFSET, **place)).fields["offset"] == "0"
        answer = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **place, timestamp=1)
        assert answer.fields["offset"] == "0"


@pytest.mark.nightly
def test_a_push_consumer_reads_on_from_the_slave_when_the_master_is_killed(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    conf = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}
    with beside(rocketmq, tmp_path, conf, "--slave-id=1", is_cold=False) as one:
        log, names = tmp_path / "consume.log", one.broker.name_server
        with one.consuming("CG_slave", names, len(PLACES), log) as consumer:
            patience = Patience("the slave is not read", marks=one.given, pids=[consumer.pid])
            wait_until(lambda: one.given() > 0, patience)
            one.broker.broker.kill()
            read = one.given()
            assert read < len(PLACES), "it was killed too late"
            wait_until(lambda: one.given() > read, patience)
            one.broker.broker.start()
            said, _ = communicated(consumer, servers=[one.process.pid])
            assert consumer.returncode == 0, log.read_text()[-2000:]
        assert counted(said) == dict.fromkeys(PLACES, 1)
        assert one.given() > len(PLACES) / 2
