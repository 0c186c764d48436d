"""Requests to a name server: routes of topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from container.names.queue_id import QueueId
from tieredstore.serve.groups import Groups
from tieredstore.serve.history import History
from tieredstore.serve.wire.frame import RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Peer, Processor, Refused, Request
from tieredstore.session.consumer_offsets import ConsumerOffsets

PROBED = "TBW102"
"""Topic by which clients find out whether a name server knows any broker."""
PROBED_QUEUES = 4
WRITABLE = 2
"""Permission to write."""
RETRY = "%RETRY%"
"""Prefix of a group's own topic, which each member of it reads."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Names and address of the broker in routes."""

    cluster: str
    broker: str
    address: str


class Naming:
    """Routes: a topic is at each broker whose tier has it."""

    def __init__(
        self,
        identity: Identity,
        history: History,
        groups: Groups,
        offsets: ConsumerOffsets,
        together: "Sequence[Naming] | None" = None,
        *,
        writes: bool = False,
    ) -> None:
        """`together`: all brokers that are served as one cluster; None: this one.

        `writes`: routes of topics that can be read permit to write, too.
        """
        self._writes = writes
        self._together: Sequence[Naming] = (self,) if together is None else together
        self._identity = identity
        self._history = history
        self._groups = groups
        self._offsets = offsets

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics,
            RequestCode.GET_KV_CONFIG: _no_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: _no_value,
        }

    def queues(self, topic: str) -> int:
        """Return the number of queues of a topic; 0 if there is no such topic."""
        found = self._history.topics().get(topic, 0)
        if not found and topic.startswith(RETRY):
            # A broker makes it at the first heartbeat of the group, and keeps it.
            group = topic.removeprefix(RETRY)
            return int(group in self._groups or self._offsets.has_group(group))
        return found

    def topics(self) -> set[str]:
        """Return the topics of the tier, and those of groups."""
        groups = self._offsets.groups().union(self._groups.names())
        return {*self._history.topics(), *(f"{RETRY}{group}" for group in groups)}

    @property
    def address(self) -> str:
        """Address that routes name."""
        return self._identity.address

    def queues_of(self, topic: str) -> list[QueueId]:
        """Return the queues of a topic.

        Raises:
            Refused: there is no such topic.
        """
        count = self.queues(topic)
        if not count:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return [QueueId(topic, number) for number in range(count)]

    def queue(self, request: Request) -> QueueId:
        """Return the queue that a request names.

        Raises:
            Refused: there is no such queue, or the request is for another broker.
        """
        # Clients of 5.x name the broker; its address may be ours from before a restart.
        if (meant := request.optional("bname")) and meant != self._identity.broker:
            code = ResponseCode.SYSTEM_ERROR
            raise Refused(code, f"the request is for {meant}, and this is {self._identity.broker}")
        topic, queue_id = request.text("topic"), request.number("queueId")
        count = self.queues(topic)
        if not count:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        if not 0 <= queue_id < count:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] has {count} queues",
            )
        return QueueId(topic, queue_id)

    def _route(self, request: Request, peer: Peer) -> Answer:
        del peer
        topic = request.text("topic")
        found = [(one, data) for one in self._together if (data := one.queue_data(topic))]
        if not found:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        route: dict[str, object] = {
            "brokerDatas": [one.broker_data() for one, _ in found],
            "filterServerTable": {},
            "queueDatas": [data for _, data in found],
        }
        return Answer(body=orjson.dumps(route))

    def queue_data(self, topic: str) -> dict[str, Any] | None:
        """Return this broker's queues of a topic as routes have them; None if it has none."""
        count = PROBED_QUEUES if topic == PROBED else self.queues(topic)
        if not count:
            return None
        return {
            "brokerName": self._identity.broker,
            "perm": self._permission(topic),
            "readQueueNums": count,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }

    def _permission(self, topic: str) -> int:
        found = self._history.permission(topic)
        return found | WRITABLE if found and self._writes else found

    def broker_data(self) -> dict[str, Any]:
        """Return this broker as routes have it."""
        return {
            "brokerAddrs": {"0": self._identity.address},
            "brokerName": self._identity.broker,
            "cluster": self._identity.cluster,
            "enableActingMaster": False,
        }

    def _cluster(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        brokers = [one.broker_data() for one in self._together]
        tables: dict[str, dict[str, Any]] = {
            "brokerAddrTable": {one["brokerName"]: one for one in brokers},
            "clusterAddrTable": {},
        }
        for one in brokers:
            tables["clusterAddrTable"].setdefault(one["cluster"], []).append(one["brokerName"])
        return Answer(body=orjson.dumps(tables))

    def _topics(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        found = {topic for one in self._together for topic in one.topics()}
        return Answer(body=orjson.dumps({"topicList": sorted(found)}))


def _no_value(request: Request, peer: Peer) -> Answer:
    del request, peer
    return Answer(ResponseCode.QUERY_NOT_FOUND, "there are no such values")
