"""Requests of administrators' tools: topics, groups and how far they are, figures of the server."""

from collections.abc import Iterable, Mapping

import orjson

from container.names.queue_id import QueueId
from provider.clock import Clock
from tieredstore.serve.groups import Groups, Member
from tieredstore.serve.history import History
from tieredstore.serve.naming import READABLE, Naming
from tieredstore.serve.wire.frame import VERSION, RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Peer, Processor, Refused, Request
from tieredstore.session.consumer_offsets import ConsumerOffsets, QueueKey

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

    def _queues_of(self, topic: str) -> list[QueueId]:
        count = self._naming.queues(topic)
        if not count:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return [QueueId(topic, number) for number in range(count)]

    async def _topic_stats(self, request: Request, peer: Peer) -> Answer:
        del peer
        rows: list[tuple[QueueId, dict[str, int]]] = []
        for queue in self._queues_of(request.text("topic")):
            low, high = self._history.bounds(queue)
            newest = await self._time_before(queue, high)
            row = {"lastUpdateTimestamp": newest, "maxOffset": high, "minOffset": low}
            rows.append((queue, row))
        return Answer(body=b'{"offsetTable":%b,"topicPutTps":0.0}' % self._by_queue(rows))

    async def _time_before(self, queue: QueueId, offset: int) -> int:
        """Return the store time of the message before `offset`, Unix ms; 0 if there is none."""
        return await self._history.fetcher.message_timestamp(queue, offset - 1) or 0

    def _by_queue(self, rows: Iterable[tuple[QueueId, object]]) -> bytes:
        """Return a map with objects as keys, as RocketMQ's JSON library writes and reads it."""
        pairs = (
            orjson.dumps(
                {"brokerName": self._broker, "queueId": queue.queue_id, "topic": queue.topic}
            )
            + b":"
            + orjson.dumps(row)
            for queue, row in rows
        )
        return b"{%b}" % b",".join(pairs)

    def _topic_config(self, request: Request, peer: Peer) -> Answer:
        del peer
        topic = request.text("topic")
        count = len(self._queues_of(topic))
        config: dict[str, object] = {
            "attributes": {},
            "order": False,
            "perm": READABLE,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        return Answer(body=orjson.dumps(config))

    async def _consume_stats(self, request: Request, peer: Peer) -> Answer:
        del peer
        group, topic = request.text("consumerGroup"), request.optional("topic")
        subscribed = {name for member in self._groups.members_of(group) for name in member.topics}
        topics = {topic} if topic else subscribed | self._offsets.topics(group)
        rows: list[tuple[QueueId, dict[str, int]]] = []
        for name in sorted(topics):
            for number in range(self._naming.queues(name)):
                queue = QueueId(name, number)
                low, high = self._history.bounds(queue)
                found = self._offsets.get(QueueKey(group, *queue))
                at = low if found is None else found
                row = {"brokerOffset": high, "consumerOffset": at, "pullOffset": at}
                row["lastTimestamp"] = await self._time_before(queue, at)
                rows.append((queue, row))
        return Answer(body=b'{"consumeTps":0.0,"offsetTable":%b}' % self._by_queue(rows))

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
