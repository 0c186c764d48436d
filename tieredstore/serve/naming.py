"""Requests to a name server: routes of topics."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from container.names.queue_id import QueueId
from tieredstore.serve.groups import Groups
from tieredstore.serve.history import History
from tieredstore.serve.wire.frame import RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Peer, Processor, Refused, Request
from tieredstore.session.consumer_offsets import ConsumerOffsets

READABLE = 4
"""Permission to read: producers then find no route."""
PROBED = "TBW102"
"""Topic by which clients find out whether a name server knows any broker."""
PROBED_QUEUES = 4
RETRY = "%RETRY%"
"""Prefix of a group's own topic, which each member of it reads."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Names and address of the broker in routes."""

    cluster: str
    broker: str
    address: str


class Naming:
    """Routes: this server is the only broker, and has every topic of the tier."""

    def __init__(
        self, identity: Identity, history: History, groups: Groups, offsets: ConsumerOffsets
    ) -> None:
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

    def queue(self, request: Request) -> QueueId:
        """Return the queue that a request names.

        Raises:
            Refused: there is no such queue.
        """
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
        topic, identity = request.text("topic"), self._identity
        count = PROBED_QUEUES if topic == PROBED else self.queues(topic)
        if not count:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        queues = {
            "brokerName": identity.broker,
            "perm": READABLE,
            "readQueueNums": count,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        route: dict[str, object] = {
            "brokerDatas": [self._broker()],
            "filterServerTable": {},
            "queueDatas": [queues],
        }
        return Answer(body=orjson.dumps(route))

    def _broker(self) -> dict[str, object]:
        return {
            "brokerAddrs": {"0": self._identity.address},
            "brokerName": self._identity.broker,
            "cluster": self._identity.cluster,
            "enableActingMaster": False,
        }

    def _cluster(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        cluster, broker = self._identity.cluster, self._identity.broker
        tables = {
            "brokerAddrTable": {broker: self._broker()},
            "clusterAddrTable": {cluster: [broker]},
        }
        return Answer(body=orjson.dumps(tables))

    def _topics(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        groups = self._offsets.groups().union(self._groups.names())
        found = {*self._history.topics(), *(f"{RETRY}{group}" for group in groups)}
        return Answer(body=orjson.dumps({"topicList": sorted(found)}))


def _no_value(request: Request, peer: Peer) -> Answer:
    del request, peer
    return Answer(ResponseCode.QUERY_NOT_FOUND, "there are no such values")
