"""Answers for administrators' tools, over the golden tier."""

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import orjson
import pytest
from prometheus_client import CollectorRegistry

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE
from provider.clock import SystemClock
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock, settle
from tests.support.cli import run, settings
from tests.support.golden import ROCKETMQ_533, expected, unpacked
from tests.support.remoting_client import RemotingClient
from tests.support.served_tier import served
from tieredstore import open as open_tier
from tieredstore.metrics.reads import ReadMeter
from tieredstore.serve.administering import ANSWER_S_MAX, Relaying
from tieredstore.serve.groups import Groups
from tieredstore.serve.history import History
from tieredstore.serve.options import NewGroups, ServeOptions
from tieredstore.serve.server import serving
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode
from tieredstore.serve.wire.request import Refused, Request

PLACE: dict[str, Any] = {"topic": "G_Keys", "consumerGroup": "G"}
WRITES = (10, 310, 320, 36, 17, 25, 200, 207, 215, 216)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of the golden store; read only."""
    tree = unpacked(ROCKETMQ_533)
    tier = tmp_path_factory.mktemp("tools") / "tier"
    run(*settings(tree, tier), "tier", tree.store)
    return tier


@asynccontextmanager
async def asked(tier: Path, state: Path) -> AsyncGenerator[RemotingClient]:
    path = state / "consumerOffset.json"
    options = ServeOptions("127.0.0.1", 0, "", path, None, NewGroups.FIRST, 0.01)
    meter = ReadMeter(CollectorRegistry(), SystemClock())
    async with (
        open_tier(tier) as opened,
        serving(options, opened, meter, SystemClock()) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        yield client


def by_queue(answer: Command) -> dict[int, Any]:
    """The values of a map with queues as keys, by queue number."""
    assert answer.code == ResponseCode.SUCCESS, answer
    text = re.sub(rb'\{"brokerName":"golden-a","queueId":(\d+),"topic":"G_Keys"\}', rb'"\1"',
                  answer.body)  # fmt: skip
    return {int(queue): row for queue, row in orjson.loads(text)["offsetTable"].items()}


async def test_topics_and_groups_have_configurations(golden: Path, tmp_path: Path) -> None:
    async with asked(golden, tmp_path) as client:
        await client.beat("c", "G", "G_Keys")
        answer = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        body = orjson.loads(answer.body)
        assert answer.fields["totalTopicNum"] == str(len(body["topicConfigTable"]))
        row = body["topicConfigTable"]["G_Keys"]
        assert (row["topicName"], row["readQueueNums"], row["perm"]) == ("G_Keys", 2, 4)
        assert "%RETRY%G" in body["topicConfigTable"]
        answer = await client.ask(201)
        assert answer.fields == {"totalGroupNum": "1"}
        body = orjson.loads(answer.body)
        assert body["subscriptionGroupTable"].keys() == {"G"}
        one = orjson.loads((await client.ask(352, group="G")).body)
        assert one == body["subscriptionGroupTable"]["G"]
        assert (await client.ask(352, group="None")).code == 26
        text = (await client.ask(RequestCode.GET_BROKER_CONFIG)).body
        assert b"brokerName=golden-a\n" in text
        found = orjson.loads((await client.ask(343, group="G")).body)
        assert found == {"topicList": ["G_Keys"]}
        found = orjson.loads((await client.ask(345, group="G", topic="G_Keys")).body)
        assert found["subscriptionData"]["subString"] == "*"
        assert orjson.loads((await client.ask(304)).body) == {"topicList": []}
        answer = await client.ask(315, statsName="a", statsKey="b")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert orjson.loads((await client.ask(328)).body) == {"data": {}}
        assert (await client.ask(319)).body.startswith(b"listenPort=")
        assert (await client.ask(204, producerGroup="P")).code == ResponseCode.SYSTEM_ERROR


async def test_what_would_write_is_refused(golden: Path, tmp_path: Path) -> None:
    async with asked(golden, tmp_path) as client:
        for code in WRITES:
            assert (await client.ask(code, topic="T")).code == ResponseCode.NO_PERMISSION, code


async def test_a_reset_is_sent_to_each_member(golden: Path, tmp_path: Path) -> None:
    rows = [row for row in expected(ROCKETMQ_533, "messages") if row["topic"] == "G_Keys"]
    newest = max(row["store_timestamp"] for row in rows)
    reset: dict[str, Any] = {"topic": "G_Keys", "group": "G"}
    async with asked(golden, tmp_path) as client:
        answer = await client.ask(222, **reset, timestamp=0, isForce="true")
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        await client.beat("c", "G", "G_Keys")
        for queue in (0, 1):
            await client.ask(15, **PLACE, queueId=queue, commitOffset=3)
        ends = [
            int((await client.ask(30, topic="G_Keys", queueId=queue)).fields["offset"])
            for queue in (0, 1)
        ]
        for time_ms, forced, wanted in (
            (0, "true", [0, 0]),
            (newest, "false", [3, 3]),
            (-1, "true", ends),
        ):
            client.told.clear()
            answer = await client.ask(222, **reset, timestamp=time_ms, isForce=forced)
            assert list(by_queue(answer).values()) == wanted
            (sent,) = [one for one in client.told if one.code == 220]
            assert (sent.body, sent.fields["group"], sent.is_one_way) == (answer.body, "G", True)
        one: dict[str, Any] = {**reset, "timestamp": 0, "queueId": 1}
        every: dict[str, Any] = {**one, "queueId": -1}
        none: dict[str, Any] = {**one, "queueId": 2}
        assert by_queue(await client.ask(222, **one, offset=2, isForce="false")) == {1: 2}
        assert by_queue(await client.ask(222, **one, offset=7, isForce="false")) == {1: 7}
        assert by_queue(await client.ask(222, **one, offset=-1, isForce="true")) == {1: 0}
        assert by_queue(await client.ask(222, **every, offset=2)) == {0: 2, 1: 2}
        answer = await client.ask(222, **none)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        answer = await client.ask(222, topic="None", group="G", timestamp=0)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_are_listed_and_cloned(golden: Path, tmp_path: Path) -> None:
    async with asked(golden, tmp_path) as client:
        await client.ask(15, **PLACE, queueId=1, commitOffset=3)
        assert (await client.ask(314, srcGroup="G", destGroup="H")).code == ResponseCode.SUCCESS
        refused = await client.ask(314, srcGroup="G", destGroup="a group")
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "the name of the group is not allowed",
        )
        table = orjson.loads((await client.ask(43)).body)["offsetTable"]
        assert table == {"G_Keys@G": {"1": 3}, "G_Keys@H": {"1": 3}}
        stats = (await client.ask(317)).body
        assert stats.count(b'"consumerOffset":3') == 2
        assert all(b'{"%b":[{"consumeTps":0.0' % group in stats for group in (b"G", b"H"))
        spans = orjson.loads((await client.ask(303, topic="G_Keys", group="G")).body)
        rows = {row["messageQueue"]["queueId"]: row for row in spans["consumeTimeSpanSet"]}
        assert rows[1]["minTimeStamp"] <= rows[1]["consumeTimeStamp"] <= rows[1]["maxTimeStamp"]
        assert rows[1]["delayTime"] == rows[1]["maxTimeStamp"] - rows[1]["consumeTimeStamp"]
        assert rows[0]["consumeTimeStamp"] == 0
        assert rows[0]["delayTime"] == rows[0]["maxTimeStamp"] - rows[0]["minTimeStamp"]


async def test_offsets_of_topics_that_the_tier_lacks_are_not_cloned(
    golden: Path, tmp_path: Path
) -> None:
    kept = {"A_Gone@G": {"0": 5}, "G_Keys@G": {"1": 3}}
    (tmp_path / "consumerOffset.json").write_bytes(orjson.dumps({"offsetTable": kept}))
    async with asked(golden, tmp_path) as client:
        assert (await client.ask(314, srcGroup="G", destGroup="H")).code == ResponseCode.SUCCESS
        table = orjson.loads((await client.ask(43)).body)["offsetTable"]
        assert table == kept | {"G_Keys@H": {"1": 3}}
        answer = await client.ask(314, srcGroup="G", destGroup="H", topic="A_Gone")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_units_of_a_consume_queue_are_those_of_its_messages(
    golden: Path, tmp_path: Path
) -> None:
    rows = [
        row
        for row in expected(ROCKETMQ_533, "messages")
        if (row["topic"], row["queue_id"]) == ("G_Keys", 1)
    ]
    place = {"topic": "G_Keys", "queueId": 1}
    async with asked(golden, tmp_path) as client:
        answer = await client.ask(321, **place, index=3, count=10, consumerGroup="G")
        body = orjson.loads(answer.body)
        assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, len(rows))
        assert [one["physicSize"] for one in body["queueData"]] == [
            row["store_size"] for row in rows[3:13]
        ]
        assert body["filterData"] == "G@G_Keys is not online!"
        records = (await client.pull("G_Keys", 1, 3)).body
        assert records[28:36] == body["queueData"][0]["physicOffset"].to_bytes(8, "big")
        await client.beat("c", "G", "G_Keys")
        answer = await client.ask(321, **place, index=len(rows), count=10, consumerGroup="G")
        body = orjson.loads(answer.body)
        assert (body["queueData"], body["subscriptionData"]["subString"]) == ([], "*")
        assert (await client.ask(321, **place, index=-1, count=1)).code == ResponseCode.SYSTEM_ERROR
        assert (
            orjson.loads((await client.ask(321, **place, index=0, count=-1)).body)["queueData"]
            == []
        )


async def test_a_unit_of_a_lost_message_says_so() -> None:
    queue = QueueId("T", 0)
    gap = Gap(QueueOffset(2), QueueOffset(4), "", 0)
    units = Mock(gaps=(gap,))
    units.units = AsyncMock(
        side_effect=lambda start, end: np.array([(n, 9, 7) for n in range(start, end)], UNIT_DTYPE)
    )
    tier = Mock()
    tier.reader.container.return_value = units
    found = await History(tier, SystemClock()).units(queue, 1, 6)
    assert [one["physicOffset"] for one in found] == [1, 0, 0, 4, 5]
    assert [one["msg"] is None for one in found] == [True, False, False, True, True]


async def test_a_question_to_a_client_is_passed_on(golden: Path, tmp_path: Path) -> None:
    async with asked(golden, tmp_path) as client:
        member: dict[str, Any] = {"consumerGroup": "G", "clientId": "c"}
        assert (await client.ask(307, **member)).code == ResponseCode.SYSTEM_ERROR
        assert (await client.ask(223, topic="G_Keys", group="G")).code == ResponseCode.SYSTEM_ERROR
        await client.beat("c", "G", "G_Keys")
        for number, (code, remark) in enumerate([(0, ""), (1, "a failure")]):
            asking = client.send(307, **member, jstackEnable="true")
            question = await request_of(client, 307)
            assert question.fields == {**member, "jstackEnable": "true"}
            assert not question.is_one_way
            client.reply(question, b"{%d}" % number, code, remark)
            client.reply(question, b"again")
            answer = await client.answer(asking)
            assert (answer.code, answer.remark or "") == (code, remark)
            assert answer.body == (b"" if code else b"{0}")
        asking = client.send(223, topic="G_Keys", group="G")
        question = await request_of(client, 221)
        table = b'{{"brokerName":"golden-a","queueId":1,"topic":"G_Keys"}:7}'
        client.reply(question, b'{"consumerTable":{},"messageQueueTable":%b}' % table)
        assert (await client.answer(asking)).body == b'{"consumerTable":{"c":%b}}' % table
        answer = await client.ask(223, topic="G_Keys", group="G", clientAddr="other")
        assert answer.body == b'{"consumerTable":{}}'
        assert (await client.ask(309, **member)).code == ResponseCode.SYSTEM_ERROR


async def request_of(client: RemotingClient, code: int) -> Command:
    """The next request of the server with this code."""
    while (found := await client.read()).code != code:
        pass
    return found


async def test_a_client_that_goes_before_it_answers_is_not_waited_for(
    golden: Path, tmp_path: Path
) -> None:
    async with served(golden, tmp_path) as one, await RemotingClient.connect(one.address) as tool:
        async with await RemotingClient.connect(one.address) as client:
            await client.beat("c", "G", "G_Keys")
            asking = tool.send(307, consumerGroup="G", clientId="c")
            await request_of(client, 307)
        assert (await tool.answer(asking)).code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_client_that_does_not_answer_is_not_waited_for() -> None:
    clock, answers = ManualClock(), list[asyncio.Future[Command]]()

    def ask(command: Command) -> asyncio.Future[Command]:
        del command
        answers.append(asyncio.get_running_loop().create_future())
        return answers[0]

    peer, groups = Mock(address="", ask=ask), Groups(clock, Mock())
    groups.beat(peer, {"clientID": "c", "consumerDataSet": [{"groupName": "G"}]}, "JAVA", 0)
    asked_for = Request(Command(307, {"consumerGroup": "G", "clientId": "c"}))
    outcome = Relaying(groups, clock).processors[307](asked_for, peer)
    assert isinstance(outcome, Coroutine)
    waiting = asyncio.create_task(outcome)
    await settle()
    await clock.advance(ANSWER_S_MAX)
    with pytest.raises(Refused) as refused:
        await waiting
    assert refused.value.code is ResponseCode.CONSUME_MSG_TIMEOUT
    assert answers[0].cancelled()
