"""Requests of administrators' tools that change the offsets of groups, or list them."""

from collections.abc import Mapping

import orjson

from container.names.queue_id import QueueId
from container.queue.time_index import Boundary
from tieredstore.serve.grouping import Grouping
from tieredstore.serve.groups import Groups
from tieredstore.serve.history import History
from tieredstore.serve.naming import Naming
from tieredstore.serve.wire.frame import ONE_WAY, Command, RequestCode, ResponseCode
from tieredstore.serve.wire.request import OK, Answer, Peer, Processor, Refused, Request, by_queue
from tieredstore.session.consumer_offsets import ConsumerOffsets, QueueKey

TO_THE_END = -1
"""Time of a reset to the end of each queue."""


class Adjusting:
    """Offsets of groups, set and read by an administrator."""

    def __init__(
        self,
        naming: Naming,
        grouping: Grouping,
        history: History,
        groups: Groups,
        offsets: ConsumerOffsets,
        *,
        broker: str,
    ) -> None:
        self._naming = naming
        self._grouping = grouping
        self._history = history
        self._groups = groups
        self._offsets = offsets
        self._broker = broker

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._times,
        }

    async def _reset(self, request: Request, peer: Peer) -> Answer:
        """Have each member of a group continue at a time or an offset, which it commits.

        `queueId` names one queue; without it all are meant. A group without members is refused,
        and the tool then sets the offsets by itself.
        """
        del peer
        topic, group = request.text("topic"), request.text("group")
        time_ms, is_forced = request.number("timestamp"), request.is_set("isForce")
        members = self._groups.members_of(group)
        if not members:
            code = ResponseCode.CONSUMER_NOT_ONLINE
            raise Refused(code, f"Consumer not online, so can not reset offset. Group: {group}")
        offset, is_of_one = request.number("offset", -1), request.number("queueId", -1) >= 0
        rows: list[tuple[QueueId, int]] = []
        for queue in [self._naming.queue(request)] if is_of_one else self._naming.queues_of(topic):
            wanted, now = offset, self._offsets.get(QueueKey(group, *queue))
            if offset < 0:
                wanted = await self._offset_at(queue, time_ms)
                wanted = wanted if is_forced or now is None else min(wanted, now)
            rows.append((queue, wanted))
        body = b'{"offsetTable":%b}' % by_queue(self._broker, rows)
        fields = {"topic": topic, "group": group, "timestamp": str(time_ms), "isForce": "true"}
        for member in members:
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            member.peer.send(Command(code, fields, body, flag=ONE_WAY))
        return Answer(body=body)

    async def _offset_at(self, queue: QueueId, time_ms: int) -> int:
        if time_ms == TO_THE_END:
            return self._history.bounds(queue)[1]
        found = await self._history.fetcher.offset_by_time(queue, time_ms, Boundary.LOWER)
        return found or 0

    def _clone(self, request: Request, peer: Peer) -> Answer:
        """Give a group the offsets of another one, of the topics that the tier has."""
        del peer
        source, target = request.text("srcGroup"), request.text("destGroup")
        topic = request.optional("topic")
        topics = {topic} if topic else self._offsets.topics(source) & self._naming.topics()
        for name in sorted(topics):
            for queue in self._naming.queues_of(name):
                found = self._offsets.get(QueueKey(source, *queue))
                if found is not None:
                    self._grouping.commit(target, queue, found)
        return OK

    def _all(self, request: Request, peer: Peer) -> Answer:
        del request, peer
        return Answer(body=self._offsets.content())

    async def _times(self, request: Request, peer: Peer) -> Answer:
        """Return the times of the first and last messages, and of the group's last one."""
        del peer
        topic, group = request.text("topic"), request.text("group")
        rows: list[dict[str, object]] = []
        for queue in self._naming.queues_of(topic):
            low, high = self._history.bounds(queue)
            found = self._offsets.get(QueueKey(group, *queue))
            at = low if found is None else found
            newest = await self._history.time_before(queue, high)
            oldest = await self._history.time_before(queue, low + 1)
            consumed = await self._history.time_before(queue, at)
            named = {"brokerName": self._broker, "queueId": queue.queue_id, "topic": topic}
            rows.append(
                {
                    "messageQueue": named,
                    "minTimeStamp": oldest,
                    "maxTimeStamp": newest,
                    "consumeTimeStamp": consumed,
                    "delayTime": max(0, newest - (consumed or oldest)) if at < high else 0,
                }
            )
        return Answer(body=orjson.dumps({"consumeTimeSpanSet": rows}))
