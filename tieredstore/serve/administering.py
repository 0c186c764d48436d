"""Requests of administrators' tools: topics, groups and how far they are, figures of the server."""

import asyncio
import re
from collections.abc import Iterable, Mapping

import orjson

from container.names.queue_id import QueueId
from provider.clock import Clock, within
from tieredstore.serve.groups import Groups, Member
from tieredstore.serve.history import READABLE, History
from tieredstore.serve.naming import Naming
from tieredstore.serve.wire.frame import VERSION, Command, RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Peer, Processor, Refused, Request, by_queue
from tieredstore.session.consumer_offsets import ConsumerOffsets, QueueKey

NO_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
"""Version of tables that are not kept."""
NO_RATE = "0.0 0.0 0.0"
RATES = ("putTps", "getTransferedTps", "getTransferredTps", "getFoundTps", "getTotalTps")
ZEROS = (
    "msgPutTotalTodayMorning",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayNow",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
)
"""Figures that the tools parse as numbers, and that a reader of a tier does not have."""

UNITS_MAX = 1_000
"""Units of a ConsumeQueue in an answer."""


class Administering:
    """State of the server for `mqadmin`."""

    def __init__(
        self,
        naming: Naming,
        history: History,
        groups: Groups,
        offsets: ConsumerOffsets,
        *,
        broker: str,
        clock: Clock,
    ) -> None:
        self._naming = naming
        self._history = history
        self._groups = groups
        self._offsets = offsets
        self._broker = broker
        self._began_ms = clock.now_ms()

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
            RequestCode.GET_BROKER_CONFIG: self._broker_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.VIEW_BROKER_STATS_DATA: self._unknown_statistics,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.GET_NAMESRV_CONFIG: self._name_server_config,
            RequestCode.GET_BROKER_CONSUME_STATS: self._all_stats,
            RequestCode.QUERY_CONSUME_QUEUE: self._units,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
            RequestCode.GET_CONSUME_STATS: self._consume_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
        }

    def _runtime(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        table = {
            "brokerVersionDesc": "V5_3_3",
            "brokerVersion": str(VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(self._began_ms),
            "earliestMessageTimeStamp": str(self._began_ms),
            "commitLogDiskRatio": "0.0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            **dict.fromkeys(RATES, NO_RATE),
            **dict.fromkeys(ZEROS, "0"),
        }
        return Answer(body=orjson.dumps({"table": table}))

    async def _topic_stats(self, request: Request, peer: Peer) -> Answer:
        del peer
        rows: list[tuple[QueueId, dict[str, int]]] = []
        for queue in self._naming.queues_of(request.text("topic")):
            low, high = self._history.bounds(queue)
            newest = await self._history.time_before(queue, high)
            row = {"lastUpdateTimestamp": newest, "maxOffset": high, "minOffset": low}
            rows.append((queue, row))
        return Answer(body=b'{"offsetTable":%b,"topicPutTps":0.0}' % by_queue(self._broker, rows))

    def _topic_config(self, request: Request, peer: Peer) -> Answer:
        del peer
        topic = request.text("topic")
        count = len(self._naming.queues_of(topic))
        return Answer(
            body=orjson.dumps(_topic_config(topic, count, self._history.permission(topic)))
        )

    def _all_topics(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        table = {
            topic: _topic_config(topic, self._naming.queues(topic), self._history.permission(topic))
            for topic in sorted(self._naming.topics())
        }
        body = {"dataVersion": NO_VERSION, "topicConfigTable": table}
        return Answer(fields={"totalTopicNum": str(len(table))}, body=orjson.dumps(body))

    def _known_groups(self) -> list[str]:
        return sorted(self._offsets.groups().union(self._groups.names()))

    def _group_config(self, request: Request, peer: Peer) -> Answer:
        del peer
        group = request.text("group")
        if group not in self._known_groups():
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            raise Refused(code, f"No group in this broker. group: {group}")
        return Answer(body=orjson.dumps(_group_config(group)))

    def _all_groups(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        table = {group: _group_config(group) for group in self._known_groups()}
        body = {"dataVersion": NO_VERSION, "subscriptionGroupTable": table}
        return Answer(fields={"totalGroupNum": str(len(table))}, body=orjson.dumps(body))

    def _broker_config(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        values = {"brokerName": self._broker, "brokerPermission": READABLE, "brokerId": 0}
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        return Answer(fields={"version": orjson.dumps(NO_VERSION).decode()}, body=text.encode())

    def _system_topics(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        return Answer(body=orjson.dumps({"topicList": []}))

    def _unknown_statistics(self, request: Request, peer: Peer) -> Answer:
        del peer
        name, key = request.text("statsName"), request.text("statsKey")
        raise Refused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")

    def _producers(self, request: Request, peer: Peer) -> Answer:
        del peer
        group = request.text("producerGroup")
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")

    def _all_producers(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        return Answer(body=b'{"data":{}}')

    def _name_server_config(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        port = self._naming.address.rpartition(":")[2]
        return Answer(body=f"listenPort={port}\n".encode())

    async def _units(self, request: Request, peer: Peer) -> Answer:
        """Return units of a ConsumeQueue. Positions are those of the tier's CommitLog."""
        del peer
        queue, group = self._naming.queue(request), request.optional("consumerGroup")
        low, high = self._history.bounds(queue)
        start, count = request.number("index"), min(request.number("count"), UNITS_MAX)
        if start < low:
            remark = f"Index {start} of {queue.queue_id}@{queue.topic} is not exist!"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        end = min(start + count, high)
        body: dict[str, object] = {
            "maxQueueIndex": high,
            "minQueueIndex": low,
            "queueData": await self._history.units(queue, start, end),
        }
        if group is not None:
            found = _subscriptions(self._groups.members_of(group)).get(queue.topic)
            body["subscriptionData"] = found
            absent = f"{group}@{queue.topic} is not online!"
            body["filterData"] = absent if found is None else "null"
        return Answer(body=orjson.dumps(body))

    async def _consume_stats(self, request: Request, peer: Peer) -> Answer:
        del peer
        group, topic = request.text("consumerGroup"), request.optional("topic")
        topics = {topic} if topic else self._topics_of(group)
        return Answer(body=await self._stats_of(group, topics))

    def _topics_of(self, group: str) -> set[str]:
        """Return the topics that a group subscribes to, or has offsets of."""
        return self._subscribed(group) | self._offsets.topics(group)

    def _subscribed(self, group: str) -> set[str]:
        return {name for member in self._groups.members_of(group) for name in member.topics}

    async def _stats_of(self, group: str, topics: Iterable[str]) -> bytes:
        rows: list[tuple[QueueId, dict[str, int]]] = []
        for name in sorted(topics):
            for number in range(self._naming.queues(name)):
                queue = QueueId(name, number)
                low, high = self._history.bounds(queue)
                found = self._offsets.get(QueueKey(group, *queue))
                at = low if found is None else found
                row = {"brokerOffset": high, "consumerOffset": at, "pullOffset": at}
                row["lastTimestamp"] = await self._history.time_before(queue, at)
                rows.append((queue, row))
        return b'{"consumeTps":0.0,"offsetTable":%b}' % by_queue(self._broker, rows)

    async def _all_stats(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        found: list[bytes] = []
        kept = self._offsets.topics_by_group()
        for group in self._known_groups():
            topics = self._subscribed(group) | kept.get(group, set())
            stats = await self._stats_of(group, topics)
            found.append(b"{%b:[%b]}" % (orjson.dumps(group), stats))
        return Answer(
            body=b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":0,"totalInflightDiff":0}'
            % (orjson.dumps(self._naming.address), b",".join(found))
        )

    def _topics_of_group(self, request: Request, peer: Peer) -> Answer:
        del peer
        found = self._topics_of(request.text("group"))
        return Answer(body=orjson.dumps({"topicList": sorted(found)}))

    def _subscription(self, request: Request, peer: Peer) -> Answer:
        del peer
        group, topic = request.text("group"), request.text("topic")
        found = _subscriptions(self._groups.members_of(group)).get(topic)
        body = {"group": group, "subscriptionData": found, "topic": topic}
        return Answer(body=orjson.dumps(body))

    def _connections(self, request: Request, peer: Peer) -> Answer:
        del peer
        group = request.text("consumerGroup")
        members = self._groups.members_of(group)
        if not members:
            code = ResponseCode.CONSUMER_NOT_ONLINE
            raise Refused(code, f"the consumer group[{group}] not online")
        body = {
            "connectionSet": [
                {
                    "clientAddr": one.peer.address,
                    "clientId": one.client_id,
                    "language": one.language,
                    "version": one.version,
                }
                for one in members
            ],
            "consumeFromWhere": members[0].from_where,
            "consumeType": members[0].consume_type,
            "messageModel": members[0].model,
            "subscriptionTable": _subscriptions(members),
        }
        return Answer(body=orjson.dumps(body))

    def _groups_of_topic(self, request: Request, peer: Peer) -> Answer:
        del peer
        topic = request.text("topic")
        subscribed = (
            group for group in self._groups.names() if self._groups.subscription(group, topic)
        )
        found = self._offsets.groups(topic).union(subscribed)
        return Answer(body=orjson.dumps({"groupList": sorted(found)}))


def _topic_config(topic: str, queues: int, permission: int) -> dict[str, object]:
    return {
        "attributes": {},
        "order": False,
        "perm": permission,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def _group_config(group: str) -> dict[str, object]:
    """Return the configuration of a group, which is that of RocketMQ's defaults."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": group,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _subscriptions(members: Iterable[Member]) -> dict[str, object]:
    return {
        topic: {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": one.kind or "TAG",
            "subString": one.expression,
            "subVersion": one.version,
            "tagsSet": [],
            "topic": topic,
        }
        for member in members
        for topic, one in member.topics.items()
    }


ANSWER_S_MAX = 10.0
"""Seconds within which a client answers, as in RocketMQ."""
OFFSET_OF_QUEUE = re.compile(rb"\{[^{}]*\}:-?\d{1,19}")
"""Pair of a map by queue, as RocketMQ's JSON library writes it."""


class Relaying:
    """Questions to members of groups."""

    def __init__(self, groups: Groups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: _refuse_position,
        }

    async def _running(self, request: Request, peer: Peer) -> Answer:
        """Pass the request on to the member that it names, and its answer back."""
        del peer
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        members = self._groups.members_of(group)
        member = next((one for one in members if one.client_id == client_id), None)
        if member is None:
            code = ResponseCode.SYSTEM_ERROR
            raise Refused(code, f"The Consumer <{group}> <{client_id}> not online")
        command = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, request.command.fields)
        found = await self._answer_of(member, command)
        if found is None:
            code = ResponseCode.CONSUME_MSG_TIMEOUT
            raise Refused(code, f"consumer <{group}> <{client_id}> gives no answer")
        if found.code != ResponseCode.SUCCESS:
            remark = found.remark or f"consumer <{group}> <{client_id}> answers with {found.code}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return Answer(body=found.body)

    async def _status(self, request: Request, peer: Peer) -> Answer:
        """Ask members for their offsets: one, if `clientAddr` names its id, else all."""
        del peer
        topic, group = request.text("topic"), request.text("group")
        members = self._groups.members_of(group)
        if not members:
            remark = f"No Any Consumer online in the consumer group: [{group}]"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        wanted = request.optional("clientAddr")
        fields = {"topic": topic, "group": group}
        command = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
        async with asyncio.TaskGroup() as tasks:
            asked = {
                one.client_id: tasks.create_task(self._answer_of(one, command))
                for one in members
                if wanted is None or one.client_id == wanted
            }
        rows = [
            b"%b:%b" % (orjson.dumps(client_id), status_of(found.body))
            for client_id, task in asked.items()
            if (found := task.result()) is not None and found.code == ResponseCode.SUCCESS
        ]
        return Answer(body=b'{"consumerTable":{%b}}' % b",".join(rows))

    async def _answer_of(self, member: Member, command: Command) -> Command | None:
        """Ask a member. Return None if it gives no answer in time, or goes meanwhile."""

        async def ask() -> Command:
            return await member.peer.ask(command)

        try:
            return await within(self._clock, ANSWER_S_MAX, ask())
        except TimeoutError:
            return None


def status_of(body: bytes) -> bytes:
    """Return the map of offsets by queue in a client's answer. Pure.

    It is no JSON: RocketMQ writes objects as keys.
    """
    return b"{%b}" % b",".join(pair[0] for pair in OFFSET_OF_QUEUE.finditer(body))


def _refuse_position(request: Request, peer: Peer) -> Answer:
    del request, peer
    raise Refused(
        ResponseCode.SYSTEM_ERROR,
        "the message cannot be found: its id is a position of the broker's CommitLog, which a tier "
        "does not have",
    )
