"""The proxy in front of a broker: what passes, what the tier answers, and a broker that is down."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.patience import Patience, until
from tests.support.remote_broker import RemoteBroker, record
from tests.support.remoting_client import RemotingClient, pull_fields
from tests.support.served_tier import Grown, grown, served
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.serve import consuming, server
from tieredstore.serve.broker import mending, proxying
from tieredstore.serve.broker.mending import Pulled, Source, source_of
from tieredstore.serve.metrics import ServeMetrics, ServeMoment
from tieredstore.serve.options import ServeOptions
from tieredstore.serve.server import Server
from tieredstore.serve.wire import passing
from tieredstore.serve.wire.frame import (
    JSON,
    PASSED_BYTES_MAX,
    RESPONSE,
    ROCKETMQ,
    Command,
    RequestCode,
    ResponseCode,
    decode,
    encode,
)
from tieredstore.serve.wire.link import Address
from tieredstore.serve.wire.security import Accounts

__all__ = ["grown"]

FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21
PLACE: dict[str, Any] = {"topic": "A", "queueId": 0}
GROUP = {"groupName": "G", "subscriptionDataSet": [{"topic": "A", "subString": "*"}]}
SUSPENDED: dict[str, Any] = {"sysFlag": 6, "suspendTimeoutMillis": 60_000}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "LOOK_S", 0.02)
    monkeypatch.setattr(consuming, "STAND_IN_S_MAX", 0.02)


@asynccontextmanager
async def proxied(
    grown: Grown, tmp_path: Path, broker: RemoteBroker, *names: RemoteBroker, **more: Any
) -> AsyncGenerator[Server]:
    """A proxy in front of a broker whose tier has the five messages 0 to 4 of A/0."""
    await grown.put(*(b"more %d" % number for number in range(4)))
    addresses = tuple(Address.parse(one.address) for one in names)
    behind = {"broker": Address.parse(broker.address), "name_servers": addresses}
    async with served(grown.tier, tmp_path / "state", **behind, **more) as one:
        yield one


@asynccontextmanager
async def client_of(
    grown: Grown, tmp_path: Path, broker: RemoteBroker, *names: RemoteBroker, kind: int = JSON
) -> AsyncGenerator[RemotingClient]:
    async with (
        proxied(grown, tmp_path, broker, *names) as one,
        await RemotingClient.connect(one.address, kind) as client,
    ):
        yield client


def pulled(code: int, following: int, **more: Any) -> Pulled:
    given: dict[str, Any] = {
        "remark": "",
        "first": None,
        "low": 100,
        "high": 200,
        "is_filtered": False,
    }
    return Pulled(code=code, following=following, **(given | more))


@pytest.mark.parametrize(
    ("asked", "answer", "tier", "source"),
    [
        (10, pulled(MOVED, 100), (0, 150), Source.TIER),
        (10, pulled(MOVED, 100, is_filtered=True), (0, 150), Source.TIER),
        (10, pulled(MOVED, 100), (0, 201), Source.LATER),
        (60, pulled(MOVED, 100), (0, 50), Source.LATER),
        (10, pulled(MOVED, 100), (20, 150), Source.FIRST),
        (10, pulled(MOVED, 100), (120, 150), Source.FIRST),
        (10, pulled(MOVED, 100), None, Source.LATER),
        (10, pulled(MOVED, 200, low=200), None, Source.BROKER),
        (250, pulled(MOVED, 200), (0, 150), Source.BROKER),
        (10, pulled(MOVED, 100, remark="OFFSET_RESET"), (0, 150), Source.BROKER),
        (-1, pulled(MOVED, 100), (0, 150), Source.BROKER),
        (110, pulled(FOUND, 112, first=110), (0, 150), Source.BROKER),
        (110, pulled(FOUND, 132, first=130), (0, 150), Source.TIER),
        (110, pulled(FOUND, 132, first=130), (0, 105), Source.LATER),
        (110, pulled(FOUND, 132, first=130, is_filtered=True), (0, 150), Source.TIER_IF_READ),
        (110, pulled(FOUND, 132, first=130, is_filtered=True), (0, 105), Source.BROKER),
        (110, pulled(RETRY, 132, is_filtered=True), (0, 150), Source.TIER_IF_READ),
        (
            110 + mending.REMOVED_MAX,
            pulled(RETRY, 132 + mending.REMOVED_MAX, is_filtered=True, high=2**40),
            (0, 2**30),
            Source.BROKER,
        ),
        (110, pulled(RETRY, 130, remark="MESSAGE_WAS_REMOVING"), (0, 150), Source.TIER),
        (110, pulled(NOT_FOUND, 130, remark="OFFSET_FOUND_NULL"), (0, 150), Source.TIER),
        (200, pulled(NOT_FOUND, 200), (0, 150), Source.BROKER),
    ],
)
def test_the_tier_answers_pulls_that_pass_deleted_messages(
    asked: int, answer: Pulled, tier: tuple[int, int] | None, source: Source
) -> None:
    assert source_of(asked, answer, tier) is source


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
async def test_requests_and_answers_pass_byte_for_byte(
    grown: Grown, tmp_path: Path, kind: int
) -> None:
    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker, kind=kind) as client:
        broker.gives(RequestCode.SEND_MESSAGE_V2, 2, "busy", b"\x00\xff", queueOffset=7)
        signed = {"AccessKey": "reader", "Signature": "c2lnbmVk", "odd": "\u00e9 \x01"}
        command = Command(310, {"b": "A", **signed}, b"body", 77, 0, kind, version=500)
        frame = encode(command, 4) + b"body"
        client.writer.write(frame)
        answer = await client.answer(77)
        assert broker.frames[-1] == frame
        assert (answer.code, answer.remark, answer.body) == (2, "busy", b"\x00\xff")
        assert answer.fields == {"queueOffset": "7"}

        await broker.send(encode(Command(307, {"consumerGroup": "G"}, opaque=5, kind=kind)))
        asked = await client.read()
        assert (asked.code, asked.opaque, asked.is_response) == (307, 5, False)
        said = encode(Command(0, {}, opaque=5, flag=RESPONSE, kind=kind))
        client.writer.write(said)
        await until(lambda: broker.frames[-1] == said, Patience("the answer does not pass"))


async def test_deleted_messages_are_pulled_from_the_tier(grown: Grown, tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"minOffset": 3, "maxOffset": 9, "suggestWhichBrokerId": 1}
    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker) as client:
        broker.gives(11, MOVED, "OFFSET_TOO_SMALL", nextBeginOffset=3, **bounds)
        broker.gives(361, RETRY, "MESSAGE_WAS_REMOVING", nextBeginOffset=3, **bounds)
        for code in (11, 361):
            fields: dict[str, Any] = pull_fields("A", 0, 1)
            answer = await client.ask(code, **fields)
            assert (b"first" in answer.body, b"more 0" in answer.body) == (False, True)
            assert (answer.code, answer.fields["suggestWhichBrokerId"]) == (FOUND, "0")
            expected = {"minOffset": "0", "maxOffset": "9", "nextBeginOffset": "5"}
            assert expected.items() <= answer.fields.items()

        broker.gives(11, FOUND, "FOUND", record(0, 7), nextBeginOffset=8, **bounds)
        answer = await client.pull("A", 0, 7)
        assert (answer.body, answer.fields["minOffset"]) == (record(0, 7), "0")
        assert answer.fields["suggestWhichBrokerId"] == "1"

        broker.gives(11, MOVED, "OFFSET_TOO_SMALL", nextBeginOffset=8, minOffset=8, maxOffset=9)
        answer = await client.pull("A", 0, 6)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "from offset 6 of A/0 on, and they are not in the tier yet" in (answer.remark or "")
        answer = await client.pull("Untiered", 0, 6)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (MOVED, "8")

        broker.gives(11, 24, "the consumer's subscription not exist")
        assert (await client.pull("A", 0, 0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        broker.gives(11, FOUND, nextBeginOffset="many", minOffset=0, maxOffset=1)
        assert (await client.pull("A", 0, 0)).fields["nextBeginOffset"] == "many"


async def test_a_pull_is_compared_with_the_tags_that_its_group_subscribed_to(
    grown: Grown, tmp_path: Path
) -> None:
    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker) as client:
        beat: dict[str, Any] = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
        broker.gives(RequestCode.HEART_BEAT, **beat)
        moved: dict[str, Any] = {"nextBeginOffset": 3, "minOffset": 3, "maxOffset": 9}
        broker.gives(11, MOVED, "OFFSET_TOO_SMALL", **moved)
        answer = await client.pull("A", 0, 0, sysFlag=0)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

        async def beating(expression: str, kind: str) -> Command:
            row = {"topic": "A", "subString": expression, "expressionType": kind}
            group = {"groupName": "G", "subscriptionDataSet": [row]}
            return await client.ask(34, {"clientID": "c", "consumerDataSet": [group]})

        assert (await beating("*", "TAG")).fields["IS_SUB_CHANGE"] == "true"
        assert b"first" in (await client.pull("A", 0, 0, sysFlag=0)).body
        await beating("Other", "TAG")
        answer = await client.pull("A", 0, 0, sysFlag=0)
        assert (answer.code, answer.body, answer.fields["nextBeginOffset"]) == (RETRY, b"", "5")
        await beating("a > 1", "SQL92")
        answer = await client.pull("A", 0, 0, sysFlag=0)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (MOVED, "3")
        assert not client.told, "the broker itself notifies its clients"


async def test_offsets_times_and_keys_are_completed_from_the_tier(
    grown: Grown, tmp_path: Path
) -> None:
    key: dict[str, Any] = {"topic": "A", "key": "k", "maxNum": 3}
    key |= {"beginTimestamp": 0, "endTimestamp": 2**62}
    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker) as client:
        broker.gives(RequestCode.GET_MIN_OFFSET, offset=3)
        assert (await client.ask(31, **PLACE)).fields["offset"] == "0"
        broker.gives(RequestCode.GET_MIN_OFFSET, offset=0)
        assert (await client.ask(31, **PLACE)).fields["offset"] == "0"
        assert (await client.ask(31, topic="B", queueId=0)).fields["offset"] == "0"

        broker.gives(RequestCode.GET_EARLIEST_MSG_STORETIME, timestamp=2**42)
        earliest_ms = int((await client.ask(32, **PLACE)).fields["timestamp"])
        assert 0 < earliest_ms < 2**42
        broker.gives(RequestCode.GET_EARLIEST_MSG_STORETIME, timestamp=1)
        assert (await client.ask(32, **PLACE)).fields["timestamp"] == "1"

        broker.gives(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offset=3)
        assert (await client.ask(29, **PLACE, timestamp=earliest_ms)).fields["offset"] == "0"
        assert (await client.ask(29, **PLACE, timestamp=2**42)).fields["offset"] == "3"
        last: dict[str, Any] = {"boundaryType": "UPPER"}
        first = await client.ask(29, **PLACE, timestamp=earliest_ms - 1, **last)
        assert first.fields["offset"] == "0"

        broker.gives(RequestCode.QUERY_MESSAGE, body=record(0, 7) + record(0, 8) + record(1, 1))
        assert (await client.ask(12, **key)).body == record(0, 7) + record(0, 8) + record(1, 1)
        broker.gives(RequestCode.QUERY_MESSAGE, 22, "can not find message")
        assert (await client.ask(12, **key)).code == ResponseCode.QUERY_NOT_FOUND


async def test_keys_of_broker_and_tier_are_joined(grown: Grown, tmp_path: Path) -> None:
    grown.broker.put("A", 0, b"keyed", keys="k")
    key: dict[str, Any] = {"topic": "A", "key": "k", "maxNum": 3}
    key |= {"beginTimestamp": 0, "endTimestamp": 2**62}
    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker) as client:
        broker.gives(RequestCode.QUERY_MESSAGE, body=record(0, 7))
        body = (await client.ask(12, **key)).body
        assert list(mending.records_of(body)) == [(0, 7), (0, 1)]
        assert b"keyed" in body
        broker.gives(RequestCode.QUERY_MESSAGE, body=record(0, 1))
        assert (await client.ask(12, **key)).body == record(0, 1)
        broker.gives(RequestCode.QUERY_MESSAGE, 22, "can not find message")
        assert b"keyed" in (await client.ask(12, **key)).body


def route(*brokers: str) -> bytes:
    rows = [
        {"brokerAddrs": {"0": f"{one}:1", "1": f"{one}:2"}, "brokerName": one, "cluster": "C"}
        for one in brokers
    ]
    queues = [{"brokerName": one, "perm": 6, "readQueueNums": 8} for one in brokers]
    raw = orjson.dumps({"brokerDatas": rows, "queueDatas": queues})
    return raw.replace(b'"0":', b"0:")  # as name servers write it without acceptStandardJsonOnly


async def test_the_route_names_the_proxy_in_place_of_the_broker(
    grown: Grown, tmp_path: Path
) -> None:
    async with (
        RemoteBroker() as broker,
        RemoteBroker() as names,
        RemoteBroker() as gone,
    ):
        await gone.stop()
        async with (
            proxied(grown, tmp_path, broker, gone, names) as one,
            await RemotingClient.connect(one.address) as client,
        ):
            names.gives(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=route("b", "other"))
            found = orjson.loads((await client.ask(105, topic="A")).body)
            addresses = {row["brokerName"]: row["brokerAddrs"] for row in found["brokerDatas"]}
            assert addresses == {
                "b": {"0": one.address},
                "other": {"0": "other:1", "1": "other:2"},
            }
            assert found["queueDatas"][0]["readQueueNums"] == 8
            names.gives(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=route("other"))
            assert (await client.ask(105, topic="A")).body == route("other")
            names.gives(RequestCode.GET_ROUTEINFO_BY_TOPIC, 17, "no route")
            assert (await client.ask(105, topic="A")).code == ResponseCode.TOPIC_NOT_EXIST

            table = {"b": orjson.loads(route("b").replace(b"{0:", b'{"0":'))["brokerDatas"][0]}
            body = orjson.dumps({"brokerAddrTable": table, "clusterAddrTable": {"C": ["b"]}})
            names.gives(RequestCode.GET_BROKER_CLUSTER_INFO, body=body)
            found = orjson.loads((await client.ask(106)).body)
            assert found["brokerAddrTable"]["b"]["brokerAddrs"] == {"0": one.address}
            assert found["clusterAddrTable"] == {"C": ["b"]}
            for body in (b"no", b"[]", b'{"brokerDatas":7}', b'{"brokerDatas":[7]}'):
                names.gives(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=body)
                answer = await client.ask(105, topic="A")
                assert answer.code == ResponseCode.INVALID_PARAMETER
            names.gives(RequestCode.GET_TOPICS_BY_CLUSTER, body=b"{}")
            assert (await client.ask(224, cluster="C")).body == b"{}"


async def pull_beyond(client: RemotingClient) -> None:
    """Pull from offsets that the broker may have, which move no consumer."""
    for offset in (5, 9):
        answer = await client.pull("A", 0, offset, **SUSPENDED)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (NOT_FOUND, str(offset))


async def test_history_is_read_while_the_broker_is_down(
    grown: Grown, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with RemoteBroker() as broker, RemoteBroker() as names:
        names.gives(RequestCode.GET_ROUTEINFO_BY_TOPIC, 17, "no route")
        copied = b'{"offsetTable":{"A@G":{0:3}}}'
        broker.gives(RequestCode.HEART_BEAT)
        broker.gives(RequestCode.GET_ALL_CONSUMER_OFFSET, body=copied)
        broker.gives(11, NOT_FOUND, nextBeginOffset=5, minOffset=0, maxOffset=5)
        async with proxied(grown, tmp_path, broker, names) as one:
            proxy = one.proxy
            assert proxy is not None
            assert not proxy.is_alone
            async with await RemotingClient.connect(one.address) as client:
                assert (await client.pull("A", 0, 5)).code == NOT_FOUND
                beat = await client.ask(34, {"clientID": "c", "consumerDataSet": [GROUP]})
                assert beat.code == FOUND
                broker.answers[11] = forever
                held = client.send_pull("A", 0, 5)
                await until(lambda: len(broker.asked(11)) == 2, Patience("it does not pass"))
                await broker.stop()
                assert (await client.answer(held)).code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert (await client.ask(14, **PLACE, consumerGroup="G")).fields["offset"] == "3"
                assert (await client.ask(38, consumerGroup="G")).code == FOUND
                assert b"first" in (await client.pull("A", 0, 0, sysFlag=0)).body
                await pull_beyond(client)
                answer = await client.ask(310, b"body", b="A")
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "is not reachable from this proxy; try again" in (answer.remark or "")
                found = orjson.loads((await client.ask(105, topic="A")).body)
                assert found["brokerDatas"][0]["brokerAddrs"] == {"0": one.address}
                assert found["queueDatas"][0]["perm"] == 6, "producers keep the route"
                names.gives(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=route("other"))
                found = orjson.loads((await client.ask(105, topic="A")).body)
                assert [row["brokerName"] for row in found["brokerDatas"]] == ["other", "b"]
                await names.stop()
                found = orjson.loads((await client.ask(105, topic="A")).body)
                assert [row["brokerName"] for row in found["brokerDatas"]] == ["b"]
                await broker.start()
                await until(lambda: not proxy.is_alone, Patience("it is not seen"))
                del broker.frames[:]
                broker.gives(310, queueOffset=5)
                assert (await client.ask(310, b"body", b="A")).fields["queueOffset"] == "5"
                codes = [decode(frame).code for frame in broker.frames]
                assert codes[-2:] == [34, 310], "the broker knows the client again"
                answer = await client.ask(105, topic="A")
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "not of the tier alone"
            registry = CollectorRegistry()
            registry.register(ServeMetrics(lambda: ServeMoment.of(one)))
            page = generate_latest(registry).decode()
            assert "tieredstore_serve_broker_up 1.0" in page
            assert "tieredstore_serve_requests_passed_total 6.0" in page
    assert caplog.text.count(f"the broker {broker.address} is not asked") == 1


async def test_a_broker_of_another_name_gets_no_request(grown: Grown, tmp_path: Path) -> None:
    async with RemoteBroker("other") as broker, client_of(grown, tmp_path, broker) as client:
        assert b"first" in (await client.pull("A", 0, 0)).body
        assert (await client.ask(310)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not broker.asked(11)
        broker.gives(RequestCode.GET_BROKER_CONFIG, 16, "not signed")
        broker.gives(310, 2)
        patience = Patience("it is not asked")
        while (await client.ask(310)).code != ResponseCode.SYSTEM_BUSY:
            patience.look()
            await asyncio.sleep(0.01)


async def test_accounts_are_verified_before_anything_passes(grown: Grown, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts"
    await asyncio.to_thread(accounts.write_text, "reader secret\n")
    async with (
        RemoteBroker() as broker,
        proxied(grown, tmp_path, broker, accounts_path=accounts) as one,
        await RemotingClient.connect(one.address, account=("reader", "secret")) as client,
        await RemotingClient.connect(one.address) as other,
    ):
        broker.gives(310)
        assert (await client.ask(310, b="A")).code == FOUND
        assert (await other.ask(310, b="A")).code == ResponseCode.NO_PERMISSION
        (passed,) = broker.asked(310)
        Accounts({"reader": "secret"}).verify(passed)


async def forever(_: Command) -> Command:
    await asyncio.Event().wait()
    raise AssertionError


async def answers(client: RemotingClient, opaques: list[int]) -> None:
    for opaque in opaques:
        assert (await client.answer(opaque)).code == FOUND


async def test_a_client_that_reads_nothing_stops_the_broker(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing.PassingConnection, "unsent_bytes_max", 1 << 16)
    body, most = bytes(1 << 20), 12
    async with (
        RemoteBroker() as broker,
        proxied(grown, tmp_path, broker) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        broker.gives(310, body=body)
        monkeypatch.setattr(client.reader, "_limit", 1)
        sent = [client.send(310) for _ in range(100)]
        seen = [0]

        def is_still() -> bool:
            seen.append(one.unsent)
            return len(seen) > 20 and len(set(seen[-10:])) == 1 and one.unsent > 0

        await until(is_still, Patience("it goes on", marks=lambda: one.unsent))
        assert one.unsent < most * len(body)
        monkeypatch.setattr(server, "UNSENT_BYTES_MAX", -1)
        await answers(client, sent[:3])
        with pytest.raises((EOFError, ConnectionError)):
            await answers(client, sent[3:])


async def test_a_broker_that_reads_nothing_stops_its_client(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "UNPASSED_BYTES_MAX", 1 << 16)
    may_go = asyncio.Event()

    async def later(_: Command) -> Command:
        await may_go.wait()
        return Command(0, {})

    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker) as client:
        broker.answers[310] = later
        sent = [client.send(310, bytes(1 << 20)) for _ in range(30)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.2)
        may_go.set()
        await answers(client, sent)


async def test_awaited_answers_are_bounded(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "AWAITED_MAX", 4)
    may_go = asyncio.Event()

    async def later(_: Command) -> Command:
        await may_go.wait()
        return Command(0, {"offset": "0"})

    async with RemoteBroker() as broker, client_of(grown, tmp_path, broker) as client:
        broker.answers[31] = later
        broker.gives(310)
        sent = [client.send(31, **PLACE) for _ in range(40)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.ask(310), 0.1)
        may_go.set()
        await answers(client, sent)


async def test_bytes_that_are_no_frame_end_both_connections(grown: Grown, tmp_path: Path) -> None:
    async with RemoteBroker() as broker, proxied(grown, tmp_path, broker) as one:
        broker.gives(310)
        async with await RemotingClient.connect(one.address) as client:
            before = broker.connections
            assert (await client.ask(310)).code == FOUND
            assert broker.connections == before + 1
            client.writer.write((PASSED_BYTES_MAX + 1).to_bytes(4, "big"))
            assert await client.reader.read() == b""
            patience = Patience("the broker still knows the client")
            await until(lambda: broker.connections == before, patience)
        async with await RemotingClient.connect(one.address) as client:
            assert (await client.ask(310)).code == FOUND
            await broker.send((PASSED_BYTES_MAX + 1).to_bytes(4, "big"))
            await until(lambda: broker.connections == before, Patience("it goes on"))
            assert (await client.ask(310)).code == FOUND


async def test_a_broker_that_ends_each_connection_leaves_no_request_without_an_answer(
    grown: Grown, tmp_path: Path
) -> None:
    async with RemoteBroker() as broker, proxied(grown, tmp_path, broker) as one:
        await broker.stop()
        ending = await asyncio.start_server(
            lambda _, writer: writer.transport.abort(), "127.0.0.1", broker.port
        )
        async with ending, await RemotingClient.connect(one.address) as client:
            for _ in range(5):
                assert one.proxy is not None
                one.proxy.broker.succeeded()
                assert (await client.ask(310)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await broker.start()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tieredStoreServeInFrontOf": "nowhere"}, "'nowhere' is no HOST:PORT"),
        ({"tieredStoreServeInFrontOf": "a:1;b:1"}, "names one broker"),
        (
            {
                "tieredStoreServeInFrontOf": "a:1",
                "tieredStoreServeSlaveId": 1,
                "namesrvAddr": "n:1",
            },
            "not both",
        ),
        ({"tieredStoreServeSlaveId": 1}, "set namesrvAddr"),
        ({"tieredStoreServeSlaveId": 1, "namesrvAddr": "n:70000"}, "no HOST:PORT"),
    ],
)
def test_a_proxy_or_slave_that_is_configured_in_part_is_refused(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    state = {"tieredStoreServeStatePath": tmp_path}
    config = Config.named(tmp_path, "C", "b", None, {**given, **state})
    with pytest.raises(ConfigError, match=sentence):
        ServeOptions.of(config)


def test_addresses_are_parsed() -> None:
    assert Address.parse("[::1]:9876") == ("::1", 9876)
    assert str(Address.parse("[::1]:9876")) == "[::1]:9876"
