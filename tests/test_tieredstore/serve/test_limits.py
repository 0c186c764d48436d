"""Limits of the server: clients that are slow, silent, hostile, or too many."""

import asyncio
import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fetcher.fetcher import TRANSFER_BYTES_MAX
from provider.testing.manual_clock import settle
from tests.support.golden import ROCKETMQ_533, expected
from tests.support.patience import Patience, until
from tests.support.remoting_client import RemotingClient
from tests.support.served_tier import Grown, asked, grown, served
from tieredstore.serve import groups, server
from tieredstore.serve.wire import connection
from tieredstore.serve.wire.frame import (
    FRAME_BYTES_MAX,
    Command,
    ResponseCode,
)
from tieredstore.serve.wire.request import Answer, Request

__all__ = ["grown"]


async def test_bytes_that_are_no_frame_end_their_connection_alone(
    golden_tier: Path, tmp_path: Path
) -> None:
    async with (
        served(golden_tier, tmp_path) as one,
        await RemotingClient.connect(one.address) as other,
    ):
        for raw in (b"GET / HTTP/1.1\r\n\r\n", (FRAME_BYTES_MAX + 1).to_bytes(4, "big")):
            async with await RemotingClient.connect(one.address) as client:
                client.writer.write(raw)
                assert await client.reader.read() == b""
        assert (await other.ask(105, topic="G_Keys")).code == ResponseCode.SUCCESS


async def dropped(client: RemotingClient) -> None:
    """Until the server ended the connection."""
    try:
        while await client.reader.read(1 << 16):
            pass
    except ConnectionError:
        return


async def test_a_client_that_leaves_before_its_read_begins_leaves_no_coroutine(
    golden_tier: Path, tmp_path: Path
) -> None:
    async def reading() -> Answer:
        return Answer()

    async with served(golden_tier, tmp_path) as one:
        gone, read = connection.Connection(one), reading()
        gone.connection_made(Mock(spec=asyncio.Transport))
        gone.deliver(Request(Command(11, {})), lambda: read)
        gone.connection_lost(None)
        await settle()
        assert inspect.getcoroutinestate(read) == inspect.CORO_CLOSED


async def test_too_many_connections_and_bytes_are_refused(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(server, "UNREAD_BYTES_MAX", 1000)
    async with (
        served(golden_tier, tmp_path) as one,
        await RemotingClient.connect(one.address) as first,
    ):
        assert (await first.ask(105, topic="G_Keys")).code == ResponseCode.SUCCESS
        async with await RemotingClient.connect(one.address) as second:
            second.writer.write((2000).to_bytes(4, "big") + bytes(900))
            await until(lambda: one.connections == 2, Patience("it is not there"))
            async with await RemotingClient.connect(one.address) as third:
                await dropped(third)
            second.writer.write(bytes(200))
            await dropped(second)
        assert (await first.ask(105, topic="G_Keys")).code == ResponseCode.SUCCESS
        assert one.refused_connections == 1


async def test_a_client_that_reads_no_answers_costs_bounded_memory_and_is_dropped(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.Connection, "unsent_bytes_max", 1 << 20)
    monkeypatch.setattr(connection, "UNREAD_S_MAX", 0.2)
    monkeypatch.setattr(server, "UPKEEP_S", 0.05)
    monkeypatch.setattr(connection, "READS_MAX", 4)
    record = 256 << 10
    most = (1 << 20) + connection.TURN_BYTES_MAX + 4 * (TRANSFER_BYTES_MAX + record)
    async with served(golden_tier, tmp_path) as one:
        async with await RemotingClient.connect(one.address) as client:
            for _ in range(500):
                client.send_pull("G_Big", 0, 0)
            seen = 0

            def is_dropped() -> bool:
                nonlocal seen
                seen = max(seen, one.unsent)
                return not one.connections

            await until(lambda: one.connections == 1, Patience("it is not there"))
            await until(is_dropped, Patience("it is not dropped", marks=lambda: seen))
            assert 0 < seen <= most
        assert one.unsent == 0


async def test_answers_are_refused_while_too_many_are_unread(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNSENT_BYTES_MAX", -1)
    one = expected(ROCKETMQ_533, "messages")[7]
    key: dict[str, Any] = {"topic": one["topic"], "key": one["properties"]["UNIQ_KEY"]}
    key |= {"maxNum": 1, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    async with asked(golden_tier, tmp_path) as client:
        answer = await client.ask(12, **key, _UNIQUE_KEY_QUERY="true")
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_BUSY, b"")
        await client.beat("c", "G", "G_Keys")
        assert (await client.pull("G_Keys", 0, 0)).code == ResponseCode.SYSTEM_BUSY


async def test_pulls_of_one_client_are_refused_while_its_answers_are_unread(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWERS_BYTES_MAX", 20_000)
    async with (
        served(grown.tier, tmp_path / "state") as one,
        await RemotingClient.connect(one.address) as client,
        await RemotingClient.connect(one.address) as other,
    ):
        wait: dict[str, Any] = {"sysFlag": 6, "suspendTimeoutMillis": 60_000}
        held = [client.send_pull("A", 0, 1, **wait) for _ in range(60)]
        await until(lambda: len(one.consuming.held) == 60, Patience("not all are held"))
        same = other.send_pull("A", 0, 1, **wait)
        await until(lambda: len(one.consuming.held) == 61, Patience("it is not held"))
        await grown.put(bytes(3000))
        assert (await other.answer(same)).code == ResponseCode.SUCCESS
        codes = [(await client.answer(opaque)).code for opaque in held]
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert (await client.pull("A", 0, 1)).code == ResponseCode.SUCCESS


async def test_a_client_that_reads_nothing_is_sent_no_notification(
    golden_tier: Path, tmp_path: Path
) -> None:
    async with served(golden_tier, tmp_path) as one:
        client, told = connection.Connection(one), Command(40, {"consumerGroup": "G"})
        client.send(told)
        unsent = one.unsent
        client.pause_writing()
        client.send(told)
        assert one.unsent == unsent > 0
        client.connection_lost(None)
        assert one.unsent == 0


async def test_subscriptions_are_kept_of_a_bounded_number(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "SUBSCRIPTIONS_MAX", 3)
    monkeypatch.setattr(groups, "TOPICS_OF_MEMBER_MAX", 2)

    async def beat(client: RemotingClient, group: str, *topics: str) -> int:
        rows = [{"topic": one} for one in topics]
        data = {"groupName": group, "subscriptionDataSet": rows}
        return (await client.ask(34, {"clientID": "c", "consumerDataSet": [data]})).code

    async with asked(golden_tier, tmp_path) as client:
        assert await beat(client, "G", "A", "B", "C") == ResponseCode.SYSTEM_ERROR
        for _ in range(3):
            assert await beat(client, "G", "A", "B") == ResponseCode.SUCCESS
        assert await beat(client, "H", "A", "B") == ResponseCode.SYSTEM_ERROR
        assert (await client.ask(38, consumerGroup="H")).code == ResponseCode.SYSTEM_ERROR
        await client.ask(35, clientID="c", consumerGroup="G")
        assert await beat(client, "H", "A", "B") == ResponseCode.SUCCESS


async def test_a_client_that_asks_for_too_much_at_once_is_read_later(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELD_MAX", 4)
    async with (
        served(grown.tier, tmp_path / "state") as one,
        await RemotingClient.connect(one.address) as client,
    ):
        sent = [client.send_pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=300) for _ in range(9)]
        for opaque in sent:
            answer = await client.answer(opaque)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert len(one.consuming.held) <= 4


async def test_silent_clients_are_dropped_and_leave_their_groups(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENT_S_MAX", 0.1)
    monkeypatch.setattr(server, "UPKEEP_S", 0.02)
    async with served(golden_tier, tmp_path) as one:
        async with await RemotingClient.connect(one.address) as client:
            await client.beat("a", "G", "G_Keys")
            assert len(one.groups) == 1
            await dropped(client)
        assert not len(one.groups)
