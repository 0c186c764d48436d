"""A real broker with the plug-in and most of its CommitLog expired: its clients read everything."""

import asyncio
import re
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.http import free_port, get, value_of
from tests.support.patience import HANGS_AFTER_S, LOOK_S, Patience, communicated, until, wait_until
from tests.support.plugged_broker import (
    connected,
    expire,
    make_topic,
    plugged_in,
    records_of,
    send,
    send_all,
    set_value,
    with_plugin,
)
from tests.support.remoting_client import RemotingClient
from tests.support.rocketmq_broker import (
    SHORT_LIVED,
    BrokerInstall,
    RunningBroker,
)
from tests.support.tieredstore_process import Serve, Tieredstore
from tieredstore.serve.wire.frame import RequestCode, ResponseCode

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

DELETE_TOPIC_IN_BROKER = 215
POP_MESSAGE = 200_050
TOPIC, QUEUES, MESSAGES, BODY_BYTES = "Cold", 2, 600, 5_000
AGAIN, HOT, LATE = "Again", "Hot", "Late"
ENDS = {(TOPIC, queue): MESSAGES for queue in range(QUEUES)}
EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))


@dataclass(frozen=True)
class Cold:
    """A broker that deleted most of what it gave before, its follower, and its server."""

    broker: RunningBroker
    serve: Serve
    follower: subprocess.Popen[bytes]
    before: dict[tuple[int, int], bytes]
    """Messages by queue and offset, without their positions."""


async def pulled(client: RemotingClient, **more: Any) -> dict[tuple[int, int], bytes]:
    """Everything that pulls from offset 0 on give, by queue and offset."""
    found = dict[tuple[int, int], bytes]()
    for queue in range(QUEUES):
        at = 0
        while at < MESSAGES:
            answer = await client.pull(TOPIC, queue, at, **more)
            known = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
            assert answer.code in known, (queue, at, answer)
            found |= {(queue, offset): one for offset, one in records_of(answer).items()}
            at = int(answer.fields["nextBeginOffset"])
    return found


async def found_again(client: RemotingClient) -> None:
    """Returns once the broker reads the tier."""
    patience = Patience("the tier is not read")
    while (await client.pull(TOPIC, 0, 0)).code != ResponseCode.SUCCESS:
        patience.look()
        await asyncio.sleep(LOOK_S)


async def produce(broker: RunningBroker) -> dict[tuple[int, int], bytes]:
    async with connected(broker) as client:
        await make_topic(client, TOPIC, QUEUES)
        for number in range(QUEUES * MESSAGES):
            body = number.to_bytes(4, "big") * (BODY_BYTES // 4)
            more = {"TAGS": "ABC"[number % 3], "KEYS": f"k{number}"}
            await send(client, TOPIC, number % QUEUES, body, **more)
        found = await pulled(client)
        assert len(found) == QUEUES * MESSAGES
        return found


@pytest.fixture(scope="module")
def cold(rocketmq: BrokerInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cold]:
    work = tmp_path_factory.mktemp("cold")
    store, port = work / "store", free_port()
    conf = {
        **plugged_in(port),
        "deleteWhen": EVERY_HOUR,
        "cleanResourceInterval": "1000",
        "timerWheelEnable": "true",  # without it, 5.5.0 fails to delete a topic
    }
    with RunningBroker(with_plugin(rocketmq, work / "lib"), work, store, conf) as broker:
        ours = Tieredstore(broker.conf_path, work / "tier")
        serve = Serve(ours, work, port)
        before = asyncio.run(produce(broker))
        with ours.following(store, work / "follow.log") as follower:
            ours.wait_for(ENDS, follower)
            assert (work / "store-pins").is_dir()
            asyncio.run(expire(broker, store))
            yield Cold(broker, serve, follower, before)
        broker.broker.kill()  # nobody opens its store any more


async def test_deleted_messages_are_read_from_the_tier_while_it_is_served(cold: Cold) -> None:
    async with connected(cold.broker) as client:
        lost = await client.pull(TOPIC, 0, 0)
        assert lost.code == ResponseCode.SYSTEM_ERROR
        await make_topic(client, HOT, 1)
        await send_all(client, HOT, "hot", 1)
        hot = records_of(await client.pull(HOT, 0, 0))
        assert b"hot 0" in hot[0]
        with cold.serve.running():
            await read_as_before(client, cold)
        assert (await client.pull(TOPIC, 0, 0)).code == ResponseCode.SYSTEM_ERROR
        assert records_of(await client.pull(HOT, 0, 0)) == hot


async def read_as_before(client: RemotingClient, cold: Cold) -> None:
    """Compares messages, tags, bounds, times and keys with what the broker gave from its own."""
    await found_again(client)
    assert await pulled(client) == cold.before
    tagged = {place: one for place, one in cold.before.items() if b"TAGS\x01A\x02" in one}
    assert await pulled(client, subscription="A") == tagged
    place = {"topic": TOPIC, "queueId": 1}
    assert (await client.ask(RequestCode.GET_MIN_OFFSET, **place)).fields["offset"] == "0"
    (first_ms,) = struct.unpack_from(">q", cold.before[1, 7], 56)
    answer = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **place, timestamp=first_ms)
    (found_ms,) = struct.unpack_from(">q", cold.before[1, int(answer.fields["offset"])], 56)
    assert found_ms == first_ms
    answer = await client.ask(
        RequestCode.QUERY_MESSAGE,
        topic=TOPIC, key="k3", maxNum=32, beginTimestamp=0, endTimestamp=2**62,
    )  # fmt: skip
    assert list(records_of(answer).values()) == [cold.before[1, 1]]


def test_a_push_consumer_gets_each_message_once_over_kills_of_the_server(
    cold: Cold, tmp_path: Path
) -> None:
    properties = {
        "rocketmq.namesrv.addr": cold.broker.name_server,
        "consume.first": "true",
        "consume.pull.interval.ms": "200",
    }
    command = cold.broker.install.java(
        "Consume", "CG_cold", TOPIC, "*", "concurrently", "1", str(len(cold.before)),
        home=cold.broker.home, heap_mib=256, options=SHORT_LIVED, properties=properties,
    )  # fmt: skip
    serve, log = cold.serve, tmp_path / "consume.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as consumer,
    ):
        try:
            for _ in range(2):
                serve.start()
                patience = Patience("nothing is pulled", pids=[consumer.pid])
                wait_until(lambda: serve.answers("PULL_MESSAGE", "SUCCESS") > 0, patience)
                serve.kill()
            assert consumer.poll() is None
            serve.start()
            said, _ = communicated(consumer, servers=[cold.follower.pid])
            assert serve.answers("PULL_MESSAGE", "SUCCESS") > 0, "it was killed too late"
            assert consumer.returncode == 0, log.read_text()[-2000:]
        finally:
            consumer.kill()
            serve.kill()
    times = re.findall(r"^(\d+) (\d+) (\d+)$", said, re.MULTILINE)
    found = {(int(queue), int(offset)): int(often) for queue, offset, often in times}
    assert found == dict.fromkeys(cold.before, 1)


async def test_a_pop_consumer_gets_each_message_once_over_a_kill_of_the_server(cold: Cold) -> None:
    found = Counter[tuple[int, int]]()
    async with connected(cold.broker) as client:
        for share in (2, 1):
            with cold.serve.running():
                await found_again(client)
                patience = Patience("not all messages are popped", marks=found.total)
                while found.total() * share < len(cold.before):
                    patience.look()
                    for queue in range(QUEUES):
                        found.update(await popped(client, queue))
            for queue in range(QUEUES):  # what the broker has itself
                found.update(await popped(client, queue))
    assert found == dict.fromkeys(cold.before, 1)


async def popped(client: RemotingClient, queue: int) -> set[tuple[int, int]]:
    """Queues and offsets of the messages that a pop consumer gets, invisible for ten minutes."""
    fields = {
        "consumerGroup": "CG_pop",
        "topic": TOPIC,
        "queueId": queue,
        "maxMsgNums": 32,
        "invisibleTime": 600_000,
        "pollTime": 0,
        "bornTime": int(time.time() * 1000),
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": False,
    }
    answer = await client.ask(POP_MESSAGE, **fields)
    return {(queue, offset) for offset in records_of(answer)}


@pytest.mark.nightly
async def test_a_topic_that_is_made_again_is_not_read_from_its_earlier_life(cold: Cold) -> None:
    serve, follower = cold.serve, cold.follower
    with serve.running():
        async with connected(cold.broker) as client:
            await make_topic(client, AGAIN, 1)
            await send_all(client, AGAIN, "old", 20)
            serve.ours.wait_for({(AGAIN, 0): 20}, follower)
            await set_value(client, "tieredStorageLevel", "FORCE")
            read = serve.answers("PULL_MESSAGE", "SUCCESS")
            patience = Patience("the tier is not read")
            while serve.answers("PULL_MESSAGE", "SUCCESS") == read:
                await pull_lives(client, "old", 20)
                patience.look()
            follower.send_signal(signal.SIGSTOP)  # it does not see what becomes of the topic
            try:
                await client.ask(DELETE_TOPIC_IN_BROKER, topic=AGAIN)
                await make_topic(client, AGAIN, 1)
                await send_all(client, AGAIN, "new", 30)
                await pull_lives(client, "new", 30)
                cold.broker.restart(kill=True)
            finally:
                follower.send_signal(signal.SIGCONT)
        async with connected(cold.broker) as client:
            await found_again(client)
            await pull_lives(client, "new", 30)
            await set_value(client, "tieredStorageLevel", "NOT_IN_DISK")


async def pull_lives(client: RemotingClient, life: str, count: int) -> None:
    """Pulls a topic at several offsets, whose messages must be those of this life."""
    for at in range(0, count, 7):
        answer = await client.pull(AGAIN, 0, at)
        found = records_of(answer)
        assert at in found, answer  # nothing of it is deleted here
        assert all(f"{life} {offset}".encode() in one for offset, one in found.items())


async def test_messages_that_were_deleted_before_they_were_tiered_are_waited_for(
    cold: Cold,
) -> None:
    serve, follower, count = cold.serve, cold.follower, 1200
    async with connected(cold.broker) as client:
        with serve.running():
            await make_topic(client, LATE, 1)
            await send_all(client, LATE, "tiered", 10)
            serve.ours.wait_for({(LATE, 0): 10}, follower)
            follower.send_signal(signal.SIGSTOP)  # it pins nothing, either
            try:
                await send_all(client, LATE, "late", count, BODY_BYTES)
                await set_value(client, "fileReservedTime", 0)
                patience = Patience("nothing is deleted")
                for at in (10, 10 + count // 2):
                    while (await client.pull(LATE, 0, at)).code == ResponseCode.SUCCESS:
                        patience.look()
                        await asyncio.sleep(LOOK_S)
                    assert (await client.pull(LATE, 0, at)).code == ResponseCode.SYSTEM_ERROR
            finally:
                await set_value(client, "fileReservedTime", 72)
                follower.send_signal(signal.SIGCONT)
            found, at = set[int](), 0
            patience = Patience("it waits for ever", marks=lambda: at, pids=[follower.pid])
            while at < 10 + count:
                answer = await client.pull(LATE, 0, at)
                if answer.code == ResponseCode.SYSTEM_ERROR:
                    patience.look()
                    await asyncio.sleep(LOOK_S)
                    continue
                found |= records_of(answer).keys()
                at = int(answer.fields["nextBeginOffset"])
            page = get(serve.pages, "/metrics")[1]
    (row,) = [row for row in serve.ours.rows("topics") if row["topic"] == LATE]
    lost = {one for gap in row["gaps"] for one in range(gap["start"], gap["end"])}
    assert lost
    assert found == set(range(10 + count)) - lost
    assert value_of(page, "tieredstore_serve_messages_lost_total") >= len(lost)


async def test_the_tier_of_another_broker_is_refused(cold: Cold, tmp_path: Path) -> None:
    other = Tieredstore(ROCKETMQ_533.broker_conf, tmp_path / "tier")
    other.run("tier", str(unpacked(ROCKETMQ_533).store))
    serve = Serve(other, tmp_path, cold.serve.port)
    with serve.running():
        patience = Patience("it is not asked")
        await until(lambda: serve.answers("TIER_RANGES", "NO_PERMISSION") > 0, patience)
        async with connected(cold.broker) as client:
            assert (await client.pull(TOPIC, 0, 0)).code == ResponseCode.SYSTEM_ERROR
        assert serve.answers("PULL_MESSAGE", "SUCCESS") == 0
