"""The server as a slave of the broker: its registration, and what it answers beside a master."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.patience import Patience, until
from tests.support.remote_broker import RemoteBroker
from tests.support.remoting_client import RemotingClient
from tests.support.served_tier import Grown, grown, served
from tieredstore.serve import consuming
from tieredstore.serve.broker import slave
from tieredstore.serve.server import Server
from tieredstore.serve.wire.frame import RequestCode, ResponseCode
from tieredstore.serve.wire.link import Address

__all__ = ["grown"]

PLACE: dict[str, Any] = {"topic": "A", "queueId": 0}
SUSPENDED: dict[str, Any] = {"sysFlag": 6, "suspendTimeoutMillis": 60_000}


def clusters(addresses: dict[str, str]) -> bytes:
    """The answer of a name server, as Java writes it."""
    row = orjson.dumps({"brokerName": "b", "cluster": "C", "brokerAddrs": addresses})
    for number in addresses:
        row = row.replace(f'"{number}":'.encode(), f"{number}:".encode())
    return b'{"brokerAddrTable":{"b":%b}}' % row


@asynccontextmanager
async def enslaved(grown: Grown, tmp_path: Path, *names: RemoteBroker) -> AsyncGenerator[Server]:
    addresses = tuple(Address.parse(one.address) for one in names)
    state = tmp_path / "state"
    async with served(grown.tier, state, slave_id=1, name_servers=addresses) as one:
        yield one


async def test_it_is_registered_with_each_name_server_until_it_ends(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave, "REGISTER_S", 0.02)
    async with RemoteBroker() as first, RemoteBroker() as second, RemoteBroker() as master:
        for names in (first, second):
            names.gives(106, body=clusters({"0": master.address}))
            names.gives(103, masterAddr=master.address)
            names.gives(104)
        copied = b'{"offsetTable":{"A@G":{0:1}}}'
        master.gives(RequestCode.GET_ALL_CONSUMER_OFFSET, body=copied)
        async with enslaved(grown, tmp_path, first, second) as one:
            assert one.slave is not None
            both = one.slave
            await until(lambda: both.registered == 2, Patience(one.unready_reason))
            await until(lambda: len(one.offsets) == 1, Patience("no offsets are copied"))
            async with await RemotingClient.connect(one.address) as client:
                assert (await client.ask(14, **PLACE, consumerGroup="G")).fields["offset"] == "1"
            await second.stop()
            await until(lambda: both.registered == 1, Patience("it is still there"))
            assert one.unready_reason() == ""
            await second.start()
            await until(lambda: both.registered == 2, Patience(one.unready_reason))
        said = first.asked(103)[0]
        expected = {"brokerName": "b", "clusterName": "C", "brokerId": "1", "compressed": "false"}
        assert expected.items() <= said.fields.items()
        assert said.fields["brokerAddr"] == said.fields["haServerAddr"] == one.address
        assert orjson.loads(said.body)["topicConfigSerializeWrapper"]["topicConfigTable"] == {}
        for names in (first, second):
            assert names.asked(104)[0].fields["brokerAddr"] == one.address


async def test_a_broker_id_of_another_slave_is_left_alone(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave, "REGISTER_S", 0.02)
    async with RemoteBroker() as names:
        names.gives(106, body=clusters({"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}))
        names.gives(103, 1, "no")
        async with enslaved(grown, tmp_path, names) as one:
            refused = "10.0.0.2:10911 is slave 1 of b already"
            await until(lambda: refused in one.unready_reason(), Patience(one.unready_reason))
            assert not names.asked(103)
            names.gives(106, body=b"{")
            await until(lambda: ": no" in one.unready_reason(), Patience(one.unready_reason))


async def test_a_consumer_stays_until_the_end_and_is_moved_nowhere(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "STAND_IN_S_MAX", 0.02)
    await grown.put(b"second")
    async with (
        RemoteBroker() as names,
        enslaved(grown, tmp_path, names) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        answer = await client.pull("A", 0, 0, maxMsgNums=1)
        assert (answer.code, answer.fields["suggestWhichBrokerId"]) == (0, "1")
        answer = await client.pull("A", 0, 1)
        assert (answer.code, answer.fields["suggestWhichBrokerId"]) == (0, "0")
        answer = await client.pull("A", 0, 0, maxMsgNums=1, subscription="Other")
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        for offset in (2, 7):
            answer = await client.pull("A", 0, offset, **SUSPENDED)
            found = answer.code, answer.fields["nextBeginOffset"]
            assert found == (ResponseCode.PULL_NOT_FOUND, str(offset))
            assert answer.fields["suggestWhichBrokerId"] == "0"


async def test_a_message_that_is_tiered_ends_the_wait(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "STAND_IN_S_MAX", 60.0)
    async with (
        RemoteBroker() as names,
        enslaved(grown, tmp_path, names) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        held = client.send_pull("A", 0, 1, **SUSPENDED)
        await until(lambda: len(one.consuming.held) == 1, Patience("it is not held"))
        await grown.put(b"second")
        assert b"second" in (await client.answer(held)).body
