"""The server over a golden tier and over one that grows, asked by a client in this process."""

import asyncio
import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from provider.clock import SystemClock
from provider.errors import Denied, Unavailable
from tests.support.golden import ROCKETMQ_533, expected
from tests.support.patience import Patience, until
from tests.support.remoting_client import RemotingClient
from tests.support.served_tier import Grown, asked, grown, served
from tieredstore.config.sources import ConfigError
from tieredstore.serve import groups, server
from tieredstore.serve.metrics import ServeMetrics, ServeMoment
from tieredstore.serve.options import NewGroups
from tieredstore.serve.wire.frame import (
    JSON,
    ROCKETMQ,
    Command,
    RequestCode,
    ResponseCode,
)
from tieredstore.session import consumer_offsets
from tieredstore.session.consumer_offsets import ConsumerOffsets

__all__ = ["grown"]

CODES = {"FOUND": 0, "NO_NEW_MSG": 19, "NO_MATCHED_MSG": 20, "OFFSET_ILLEGAL": 21}
"""Code of a pull by the status that the official client makes of it."""


def decoded(body: bytes) -> list[StoredMessage]:
    found, at = list[StoredMessage](), 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(StoredMessage.decode(body[at : at + size], path="", position=0))
        at += size
    return found


def named(row: dict[str, Any]) -> tuple[str, int, int, int, int]:
    return (
        row["topic"],
        row["queue_id"],
        row["queue_offset"],
        row["store_timestamp"],
        row["store_size"],
    )


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
async def test_every_message_is_pulled_once(golden_tier: Path, tmp_path: Path, kind: int) -> None:
    wanted = [named(row) for row in expected(ROCKETMQ_533, "messages")]
    found: list[tuple[str, int, int, int, int]] = []
    async with asked(golden_tier, tmp_path, kind) as client:
        for topic, queue_id in sorted({one[:2] for one in wanted}):
            place = {"topic": topic, "queueId": queue_id}
            end = int((await client.ask(RequestCode.GET_MAX_OFFSET, **place)).fields["offset"])
            at = int((await client.ask(RequestCode.GET_MIN_OFFSET, **place)).fields["offset"])
            while at < end:
                answer = await client.pull(topic, queue_id, at)
                assert answer.code == ResponseCode.SUCCESS, answer
                found += [
                    (topic, queue_id, one.queue_offset, one.store_timestamp, one.size)
                    for one in decoded(answer.body)
                ]
                at = int(answer.fields["nextBeginOffset"])
    assert found == sorted(wanted)


async def test_pulls_with_tags_are_answered_as_by_a_broker(
    golden_tier: Path, tmp_path: Path
) -> None:
    compared = 0
    async with asked(golden_tier, tmp_path) as client:
        for row in expected(ROCKETMQ_533, "pulls")[::5]:
            answer = await client.pull(
                row["topic"],
                row["queue_id"],
                row["offset"],
                subscription=row["subscription"],
                maxMsgNums=row["max"],
            )
            if answer.code == ResponseCode.INVALID_PARAMETER:
                continue  # the tier knows queues by their messages, and this one has none
            numbers = [int(answer.fields[one]) for one in ("minOffset", "maxOffset")]
            wanted = [CODES[row["status"]], row["next"], row["min_offset"], row["max_offset"]]
            assert [answer.code, int(answer.fields["nextBeginOffset"]), *numbers] == wanted, row
            tags = {one.strip() for one in row["subscription"].split("||")}
            offsets = [one.queue_offset for one in decoded(answer.body) if one.tags in tags]
            assert offsets == row["offsets"]
            compared += 1
    assert compared > 250


async def test_offsets_by_time_are_those_of_a_broker(golden_tier: Path, tmp_path: Path) -> None:
    async with asked(golden_tier, tmp_path) as client:
        for row in expected(ROCKETMQ_533, "offset_by_time")[::3]:
            place = {"topic": row["topic"], "queueId": row["queue_id"]}
            answer = await client.ask(29, **place, timestamp=row["timestamp"])
            assert int(answer.fields["offset"]) == row["offset"], row
        answer = await client.ask(29, topic="G_Keys", queueId=0, timestamp=0, boundaryType="UPPER")
        assert answer.fields["offset"] == "0"
        first = expected(ROCKETMQ_533, "messages")[0]
        place = {"topic": first["topic"], "queueId": first["queue_id"]}
        answer = await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **place)
        assert int(answer.fields["timestamp"]) == first["store_timestamp"]


async def test_messages_are_found_by_key_and_by_unique_key(
    golden_tier: Path, tmp_path: Path
) -> None:
    time: dict[str, Any] = {"beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    async with asked(golden_tier, tmp_path) as client:
        for row in expected(ROCKETMQ_533, "queries")[:20]:
            key = {"topic": row["topic"], "key": row["key"], "maxNum": 64}
            answer = await client.ask(RequestCode.QUERY_MESSAGE, **key, **time)
            found = sorted([one.queue_id, one.queue_offset] for one in decoded(answer.body))
            assert found == sorted(row["found"]), row
        one = expected(ROCKETMQ_533, "messages")[7]
        key = {"topic": one["topic"], "key": one["properties"]["UNIQ_KEY"], "maxNum": 1}
        answer = await client.ask(12, **key, **time, _UNIQUE_KEY_QUERY="true")
        assert [m.queue_offset for m in decoded(answer.body)] == [one["queue_offset"]]
        late = {"beginTimestamp": one["store_timestamp"] + 1, "endTimestamp": 2**63 - 1}
        answer = await client.ask(12, **key, **late)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        answer = await client.ask(12, **key, **late, _UNIQUE_KEY_QUERY="true")
        assert [m.queue_offset for m in decoded(answer.body)] == [one["queue_offset"]]
        answer = await client.ask(12, topic="G_Keys", key="none", maxNum=1, **time)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        answer = await client.ask(12, topic="None", key="none", maxNum=1, **time)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_route_names_the_server_for_readers_only(golden_tier: Path, tmp_path: Path) -> None:
    async with (
        served(golden_tier, tmp_path) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        answer = await client.ask(105, topic="G_Keys")
        route = orjson.loads(answer.body)
        (queues,) = route["queueDatas"]
        assert (queues["readQueueNums"], queues["perm"]) == (2, 4)
        (broker,) = route["brokerDatas"]
        assert broker["brokerAddrs"] == {"0": one.address}
        assert broker["brokerName"] == queues["brokerName"] == "golden-a"
        assert (await client.ask(105, topic="TBW102")).code == ResponseCode.SUCCESS
        for topic in ("None", "%RETRY%G"):
            assert (await client.ask(105, topic=topic)).code == ResponseCode.TOPIC_NOT_EXIST
        await client.beat("c", "G", "G_Keys")
        assert (await client.ask(105, topic="%RETRY%G")).code == ResponseCode.SUCCESS
        held = await client.pull("%RETRY%G", 0, 0)
        assert held.code == ResponseCode.PULL_NOT_FOUND


async def test_a_topic_that_nobody_may_read_is_refused_until_they_may(
    grown: Grown, tmp_path: Path
) -> None:
    async with asked(grown.tier, tmp_path / "state") as client:

        async def shown() -> set[int]:
            route = orjson.loads((await client.ask(105, topic="A")).body)
            table = orjson.loads((await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
            return {route["queueDatas"][0]["perm"], table["topicConfigTable"]["A"]["perm"]}

        assert await shown() == {4}  # its settings are unknown
        for permission, code in ((2, 16), (6, 0)):
            grown.broker.create_topic("A", perm=permission)
            await grown.put(b"more")
            patience = Patience("the permission is not seen")
            while await shown() != {permission & 4}:
                patience.look()
            assert (await client.pull("A", 0, 0)).code == code


async def test_members_of_a_group_are_told_of_each_other(golden_tier: Path, tmp_path: Path) -> None:
    async with (
        served(golden_tier, tmp_path) as one,
        await RemotingClient.connect(one.address) as first,
    ):
        await first.beat("b", "G", "G_Keys")
        await first.beat("b", "G", "G_Keys")
        async with await RemotingClient.connect(one.address) as second:
            await second.beat("a", "G", "G_Keys")
            answer = await first.ask(38, consumerGroup="G")
            assert orjson.loads(answer.body) == {"consumerIdList": ["a", "b"]}
            assert [told.code for told in first.told] == [40, 40]
            assert first.told[0].fields == {"consumerGroup": "G"}
            assert first.told[0].is_one_way
        assert (await first.read()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        await first.ask(35, clientID="b", consumerGroup="G")
        answer = await first.ask(38, consumerGroup="G")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not len(one.groups)


async def test_a_queue_is_locked_by_one_client(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [{"topic": "G_Keys", "brokerName": "golden-a", "queueId": number} for number in (0, 1)]
    async with asked(golden_tier, tmp_path) as client:

        async def locked(code: int, name: str, wanted: list[dict[str, Any]]) -> Any:
            body = {"consumerGroup": "G", "clientId": name, "mqSet": wanted}
            answer = await client.ask(code, body)
            return orjson.loads(answer.body)["lockOKMQSet"] if answer.body else []

        assert len(await locked(41, "a", queues[:1])) == 1
        assert await locked(41, "b", queues) == [queues[1] | {"brokerName": "golden-a"}]
        await locked(42, "b", queues)
        monkeypatch.setattr(groups, "LOCKS_MAX", 1)
        assert await locked(41, "a", queues) == [queues[0] | {"brokerName": "golden-a"}]
        monkeypatch.setattr(groups, "LOCKS_MAX", 2)
        body = {"consumerGroup": "a group", "clientId": "a", "mqSet": []}
        assert (await client.ask(41, body)).code == ResponseCode.INVALID_PARAMETER
        assert len(await locked(41, "a", [*queues, {"topic": "None", "queueId": 0}])) == 2


async def test_offsets_of_groups_survive_a_restart_in_rocketmqs_form(
    golden_tier: Path, tmp_path: Path
) -> None:
    place = {"consumerGroup": "G", "topic": "G_Keys", "queueId": 1}
    async with asked(golden_tier, tmp_path) as client:
        assert (await client.ask(14, **place)).fields == {"offset": "0"}
        answer = await client.ask(14, **place, setZeroIfNotFound="false")
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        client.send(15, one_way=True, **place, commitOffset=7)
        assert (await client.ask(14, **place)).fields == {"offset": "7"}
        await client.pull("G_Keys", 0, 5, sysFlag=5, commitOffset=5)
    written = json.loads((tmp_path / "consumerOffset.json").read_text())
    assert written["offsetTable"] == {"G_Keys@G": {"1": 7, "0": 5}}
    async with asked(golden_tier, tmp_path) as client:
        assert (await client.ask(14, **place)).fields == {"offset": "7"}
        assert (await client.ask(105, topic="%RETRY%G")).code == ResponseCode.SUCCESS


async def test_a_group_goes_on_where_its_broker_was(golden_tier: Path, tmp_path: Path) -> None:
    seed = tmp_path / "seed.json"
    seed.write_text('{"dataVersion":{"counter":3},"offsetTable":{"G_Keys@G":{0:9,1:11}}}')
    place = {"consumerGroup": "G", "topic": "G_Keys", "queueId": 1}
    async with (
        served(golden_tier, tmp_path / "state", seed_path=seed) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        assert (await client.ask(14, **place)).fields == {"offset": "11"}
        await client.ask(15, **place, commitOffset=12)
        await one.offsets.keep()
        await client.ask(15, **place, commitOffset=13)
    path = tmp_path / "state/consumerOffset.json"
    path.write_text("{")
    async with (
        served(golden_tier, tmp_path / "state", seed_path=seed) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        assert (await client.ask(14, **place)).fields == {"offset": "12"}
        await client.ask(15, **place, commitOffset=14)
    path.write_text("[]")
    path.with_name("consumerOffset.json.bak").unlink()
    with pytest.raises(ConfigError, match=r"consumerOffset\.json.*bring the file back"):
        async with served(golden_tier, tmp_path / "state", seed_path=seed):
            pass


@pytest.mark.parametrize("name", ["a{1:2}", 'a"b', "a@b", "a b", "g" * 256, ""])
async def test_a_group_has_a_name_as_a_broker_allows_it(
    golden_tier: Path, tmp_path: Path, name: str
) -> None:
    place: dict[str, Any] = {"consumerGroup": name, "topic": "G_Keys", "queueId": 0}
    async with asked(golden_tier, tmp_path) as client:
        answer = await client.ask(15, **place, commitOffset=1)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        data = {"groupName": name, "subscriptionDataSet": []}
        answer = await client.ask(34, {"clientID": "a", "consumerDataSet": [data]})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        place["consumerGroup"] = "%|a-Z_9"
        await client.ask(15, **place, commitOffset=1)
    async with served(golden_tier, tmp_path) as one:
        assert one.offsets.groups() == {"%|a-Z_9"}


async def test_offsets_are_kept_of_a_bounded_number_of_groups(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "GROUPS_MAX", 1)
    place: dict[str, Any] = {"topic": "G_Keys", "commitOffset": 1}
    async with asked(golden_tier, tmp_path) as client:
        for queue in (0, 1):
            assert not (await client.ask(15, **place, queueId=queue, consumerGroup="G")).code
        answer = await client.ask(15, **place, queueId=0, consumerGroup="H")
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == "1 groups have offsets"


async def test_offsets_are_saved_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, met = threading.Barrier(2), list[bool]()

    def replace(*_: object, **__: object) -> None:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.1)
            met.append(True)

    monkeypatch.setattr(consumer_offsets, "replace_file", replace)
    one = ConsumerOffsets({}, tmp_path / "consumerOffset.json")
    await asyncio.gather(*(asyncio.to_thread(one.save, b"{}") for _ in range(2)))
    assert not met


async def test_one_server_at_a_time_has_a_directory_of_offsets(
    golden_tier: Path, tmp_path: Path
) -> None:
    async with served(golden_tier, tmp_path):
        with pytest.raises(ConfigError, match=r"another server .*tieredStoreServeStatePath"):
            async with served(golden_tier, tmp_path):
                pass
    async with served(golden_tier, tmp_path):
        pass


async def test_a_new_group_begins_as_its_client_wants_where_that_is_configured(
    golden_tier: Path, tmp_path: Path
) -> None:
    async with (
        served(golden_tier, tmp_path, new_groups=NewGroups.CLIENT) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        answer = await client.ask(14, consumerGroup="G", topic="G_Keys", queueId=0)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_pull_waits_for_what_the_owner_of_the_tier_publishes(
    grown: Grown, tmp_path: Path
) -> None:
    async with (
        served(grown.tier, tmp_path / "state") as one,
        await RemotingClient.connect(one.address) as client,
    ):
        held = client.send_pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
        tagged = client.send_pull(
            "A", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000, subscription="T"
        )
        await until(lambda: len(one.consuming.held) == 2, Patience("no pull is held"))
        await grown.put(b"second")
        assert [m.body for m in decoded((await client.answer(held)).body)] == [b"second"]
        answer = await client.answer(tagged)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "2")
        assert not len(one.consuming.held)


async def test_a_group_whose_broker_is_ahead_of_the_tier_waits_for_it(
    grown: Grown, tmp_path: Path
) -> None:
    seed = tmp_path / "seed.json"
    seed.write_text('{"offsetTable":{"A@G":{0:3}}}')
    async with (
        served(grown.tier, tmp_path / "state", seed_path=seed) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        for offset in (2, 3):
            answer = await client.pull("A", 0, offset)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.fields["nextBeginOffset"] == str(offset)
        for beyond in (client.pull("A", 0, 4), client.pull("A", 0, 3, consumerGroup="H")):
            answer = await beyond
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.fields["nextBeginOffset"] == "1"
        held = client.send_pull("A", 0, 3, sysFlag=6, suspendTimeoutMillis=60_000)
        await until(lambda: len(one.consuming.held) == 1, Patience("no pull is held"))
        await grown.put(b"second", b"third", b"fourth")
        assert [m.body for m in decoded((await client.answer(held)).body)] == [b"fourth"]


async def test_a_group_is_moved_once_newer_messages_are_below_its_offset(
    grown: Grown, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed = tmp_path / "seed.json"
    seed.write_text('{"offsetTable":{"A@G":{0:30}}}')
    caplog.set_level(logging.WARNING, "tieredstore.serve")
    async with (
        served(grown.tier, tmp_path / "state", seed_path=seed) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        assert (await client.pull("A", 0, 30)).code == ResponseCode.PULL_NOT_FOUND
        began_ms = SystemClock().now_ms()

        async def pulled(*bodies: bytes, stored_ms: int) -> Command:
            """A pull once the messages are known."""
            grown.broker.now_ms = stored_ms
            await grown.put(*bodies)
            queue = QueueId("A", 0)
            end = grown.broker.next_offsets[queue]
            grown_to = Patience("the messages are not there")
            await until(lambda: one.history.bounds(queue)[1] == end, grown_to)
            return await client.pull("A", 0, 30)

        answer = await pulled(b"older", stored_ms=began_ms - 1000)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        answer = await pulled(b"newer", b"newest", stored_ms=began_ms + 120_000)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.fields["nextBeginOffset"] == "2"
    said = "the group G continues in A/0 at 2: its offset 30 is above those of newer messages"
    assert said in caplog.messages


async def test_a_pull_waits_no_longer_than_it_says(grown: Grown, tmp_path: Path) -> None:
    async with (
        served(grown.tier, tmp_path / "state") as one,
        await RemotingClient.connect(one.address) as client,
    ):
        answer = await client.pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=50)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.remark == "OFFSET_OVERFLOW_ONE"
        held = client.send_pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
        await until(lambda: len(one.consuming.held) == 1, Patience("no pull is held"))
        one.end()
        assert (await client.answer(held)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_client_that_leaves_is_not_waited_for(grown: Grown, tmp_path: Path) -> None:
    async with served(grown.tier, tmp_path / "state") as one:
        async with await RemotingClient.connect(one.address) as client:
            await client.beat("a", "G", "A")
            client.send_pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
            await until(lambda: len(one.consuming.held) == 1, Patience("no pull is held"))
        await until(lambda: not one.connections, Patience("it is still there"))
        assert (len(one.consuming.held), len(one.groups)) == (0, 0)


async def test_a_gap_is_passed_at_once_and_said(
    grown: Grown, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grown.broker.put_many("A", 0, [b"lost" * 100] * 30)
    for _ in range(2):
        grown.broker.delete_oldest_file()
    await grown.put(b"last")
    caplog.set_level(logging.WARNING, "tieredstore.serve")
    async with served(grown.tier, tmp_path / "state") as one:
        async with await RemotingClient.connect(one.address) as client:
            gap = await client.pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
            assert (gap.code, gap.remark) == (20, "OFFSET_FOUND_NULL")
            after = int(gap.fields["nextBeginOffset"])
            found = await client.pull("A", 0, after)
            assert decoded(found.body)[0].queue_offset == after > 1
            tagged = await client.pull("A", 0, 0, subscription="T", consumerGroup="H")
            assert int(tagged.fields["nextBeginOffset"]) >= after
            await client.pull("A", 0, 1)
        assert one.history.lost == 2 * (after - 1)
    said = [one for one in caplog.messages if " passes " in one]
    assert said[0].startswith(f"the group G passes {after - 1} messages of A/0")
    assert len(said) == 2


def wrong_values(name: str) -> list[dict[str, Any]]:
    return [{}, {name: ""}, {name: "x" * 99}, {name: -1}, {name: 2**63}]


@pytest.mark.parametrize("code", sorted(set(RequestCode) - {40}))
async def test_every_field_that_is_missing_or_wrong_is_an_answer(
    golden_tier: Path, tmp_path: Path, code: int
) -> None:
    fields: dict[str, Any] = {
        **dict.fromkeys(("topic", "consumerGroup", "key", "clientID"), "G_Keys"),
        **dict.fromkeys(("queueId", "queueOffset", "sysFlag", "commitOffset", "offset"), 0),
        **dict.fromkeys(("maxMsgNums", "maxNum", "timestamp", "endTimestamp"), 1),
        **dict.fromkeys(("suspendTimeoutMillis", "beginTimestamp", "subVersion"), 0),
    }
    bodies = (b"", b"{", b"[]", b"{}", b'{"clientID":1}', b'{"consumerDataSet":[1],"clientID":"a"}')
    async with asked(golden_tier, tmp_path) as client:
        for name in fields:
            for wrong in wrong_values(name):
                given = {one: fields[one] for one in fields if one != name} | wrong
                assert (await client.ask(code, **given)).is_response
        for body in bodies:
            assert (await client.ask(code, body, **fields)).is_response
        assert (await client.ask(105, topic="G_Keys")).code == ResponseCode.SUCCESS


async def test_what_is_not_supported_is_refused_with_codes_that_are_not_retried(
    golden_tier: Path, tmp_path: Path
) -> None:
    async with asked(golden_tier, tmp_path) as client:
        answer = await client.ask(200050)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        for code in (10, 310, 320, 36):
            assert (await client.ask(code)).code == ResponseCode.NO_PERMISSION
        answer = await client.pull("G_Keys", 0, 0, expressionType="SQL92", subscription="a > 1")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "The broker does not support consumer to filter message by SQL92"
        for kind in ("SQL92", []):
            answer = await client.ask(46, {"subscriptionData": {"expressionType": kind}})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (
                answer.remark == f"The broker does not support consumer to filter message by {kind}"
            )
        answer = await client.pull("G_Keys", 0, 0, subscription="||")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        answer = await client.pull("G_Keys", 0, 0, sysFlag=0)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.beat("a", "G", "G_Keys")
        assert (await client.pull("G_Keys", 0, 0, sysFlag=0)).code == ResponseCode.SUCCESS
        answer = await client.pull("G_Keys", 0, 0, sysFlag=0, subVersion=2)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        answer = await client.ask(33, offset=0)
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_an_outage_of_the_tier_is_said_and_ends(
    grown: Grown, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        served(grown.tier, tmp_path / "state") as one,
        await RemotingClient.connect(one.address) as client,
    ):
        refresh = one.history.tier.refresh

        async def fail() -> bool:
            raise Unavailable("the storage is away", "place")

        one.history.tier.refresh = fail  # pyright: ignore[reportAttributeAccessIssue]
        await until(lambda: bool(one.unready_reason()), Patience("it is ready"))
        assert "the storage is away" in one.unready_reason()
        assert (await client.pull("A", 0, 0)).code == ResponseCode.SUCCESS
        one.history.tier.refresh = refresh  # pyright: ignore[reportAttributeAccessIssue]
        await until(lambda: not one.unready_reason(), Patience("it is not ready"))
    assert len([text for text in caplog.messages if "cannot be read" in text]) == 1


async def test_a_failing_storage_is_an_error_to_clients_and_one_line_a_minute(
    golden_tier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        served(golden_tier, tmp_path) as one,
        await RemotingClient.connect(one.address) as client,
    ):

        async def fail(*_: object, **__: object) -> None:
            raise Unavailable("the storage is away", "place")

        with monkeypatch.context() as patch:
            patch.setattr(one.history.fetcher, "get_message", fail)
            for _ in range(3):
                answer = await client.pull("G_Keys", 0, 0)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert answer.remark == "Unavailable: the storage is away (place)"
        assert (await client.pull("G_Keys", 0, 0)).code == ResponseCode.SUCCESS
        said = [text for text in caplog.messages if "failed" in text]
        assert said == ["a request failed (PULL_MESSAGE): the storage is away (place)"]
        monkeypatch.setattr(server, "WARN_S", 0.0)
        one.warn("request", "again")
        assert caplog.messages[-1] == "again (2 more of this kind since the last one)"


async def test_the_metrics_count_clients_and_requests(golden_tier: Path, tmp_path: Path) -> None:
    async with (
        served(golden_tier, tmp_path) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        await client.beat("a", "G", "G_Keys")
        await client.pull("G_Keys", 0, 0)
        await client.pull("G_Keys", 0, 10**6)
        for code in range(1000, 1000 + 2 * server.CODES_MAX):
            await client.ask(code)
        registry = CollectorRegistry()
        registry.register(ServeMetrics(lambda: ServeMoment.of(one)))
        page = generate_latest(registry).decode()
    assert "tieredstore_serve_connections 1.0" in page
    assert "tieredstore_serve_consumers 1.0" in page
    assert "tieredstore_serve_offsets_moved_total 1.0" in page
    assert 'requests_total{request="PULL_MESSAGE",response="SUCCESS"} 1.0' in page
    assert f'request="other",response="REQUEST_CODE_NOT_SUPPORTED"}} {server.CODES_MAX}.0' in page


async def test_tools_see_topics_groups_and_how_far_they_are(
    golden_tier: Path, tmp_path: Path
) -> None:
    async with asked(golden_tier, tmp_path) as client:
        await client.beat("a", "G", "G_Keys")
        place = {"consumerGroup": "H", "topic": "G_Keys", "queueId": 1}
        await client.ask(15, **place, commitOffset=100)
        topics = orjson.loads((await client.ask(206)).body)["topicList"]
        assert topics[:3] == ["%RETRY%G", "%RETRY%H", "G_Batch"]
        found = orjson.loads((await client.ask(106)).body)
        assert found["clusterAddrTable"] == {"GoldenCluster": ["golden-a"]}
        newest = max(
            (row["queue_offset"], row["store_timestamp"])
            for row in expected(ROCKETMQ_533, "messages")
            if (row["topic"], row["queue_id"]) == ("G_Keys", 1)
        )
        queue = b'{"brokerName":"golden-a","queueId":1,"topic":"G_Keys"}'
        stats = (await client.ask(202, topic="G_Keys")).body
        row = b'{"lastUpdateTimestamp":%d,"maxOffset":%d,"minOffset":0}'
        assert queue + b":" + row % (newest[1], newest[0] + 1) in stats
        progress = (await client.ask(208, consumerGroup="H")).body
        row = b'{"brokerOffset":%d,"consumerOffset":100,"pullOffset":100,"lastTimestamp":'
        assert queue + b":" + row % (newest[0] + 1) in progress
        members = orjson.loads((await client.ask(203, consumerGroup="G")).body)
        assert [one["clientId"] for one in members["connectionSet"]] == ["a"]
        assert members["subscriptionTable"]["G_Keys"]["subString"] == "*"
        assert (await client.ask(203, consumerGroup="H")).code == ResponseCode.CONSUMER_NOT_ONLINE
        groups = orjson.loads((await client.ask(300, topic="G_Keys")).body)["groupList"]
        assert groups == ["G", "H"]
        assert orjson.loads((await client.ask(351, topic="G_Keys")).body)["readQueueNums"] == 2
        assert orjson.loads((await client.ask(28)).body)["table"]["brokerVersion"] == "479"
        for code in (202, 351):
            assert (await client.ask(code, topic="None")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_port_that_is_taken_is_named(golden_tier: Path, tmp_path: Path) -> None:
    async with served(golden_tier, tmp_path) as one:
        port = int(one.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"port {port}"):
            async with served(golden_tier, tmp_path / "other", port=port):
                pass


async def test_offsets_that_cannot_be_saved_are_an_error_at_the_end(
    golden_tier: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with pytest.raises(Denied, match="a directory stands where a file is needed"):  # noqa: PT012 - raised at the end
        async with asked(golden_tier, state) as client:
            await client.ask(15, consumerGroup="G", topic="G_Keys", queueId=0, commitOffset=1)
            (state / "consumerOffset.json.new").mkdir(parents=True)
