"""Requests about consumer groups: heartbeats, members, locks, offsets."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from container.names.queue_id import QueueId
from container.queue.positions import Boundary
from tieredstore.serve.groups import TAGS, Groups, refuse_group
from tieredstore.serve.history import History
from tieredstore.serve.naming import Naming
from tieredstore.serve.options import NewGroups
from tieredstore.serve.wire.frame import ONE_WAY, Command, RequestCode, ResponseCode
from tieredstore.serve.wire.request import (
    OK,
    Answer,
    Peer,
    Processor,
    Refused,
    Request,
    by_queue,
    objects_of,
    text_of,
)
from tieredstore.session.consumer_offsets import ConsumerOffsets, OffsetRefused, QueueKey

TO_THE_END = -1
"""Time of a reset to the end of each queue."""


def refuse_kind(kind: object) -> None:
    """Refuse a subscription that is not by tags, in the words of a broker with its defaults.

    Raises:
        Refused: it is by SQL92 or by a class.
    """
    if kind not in TAGS:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}",
        )


class Grouping:
    """Members, locks and offsets of consumer groups."""

    def __init__(
        self,
        naming: Naming,
        history: History,
        groups: Groups,
        offsets: ConsumerOffsets,
        *,
        new_groups: NewGroups,
        broker: str,
    ) -> None:
        self._naming = naming
        self._history = history
        self._groups = groups
        self._offsets = offsets
        self._new_groups = new_groups
        self._broker = broker

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {
            RequestCode.HEART_BEAT: self._beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_client,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.QUERY_CONSUMER_OFFSET: self._offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._set_offset,
        }

    def _beat(self, request: Request, peer: Peer) -> Answer:
        command = request.command
        self._groups.beat(peer, request.document(), command.language, command.version)
        # A client that hears of no change of subscriptions stops sending them, and a server that
        # was restarted has none.
        return Answer(fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})

    def _unregister(self, request: Request, peer: Peer) -> Answer:
        group = request.optional("consumerGroup")
        if group is not None:
            self._groups.leave(peer, group)
        return OK

    def _check_client(self, request: Request, peer: Peer) -> Answer:
        del peer
        document = request.document()
        if isinstance(document.get("subscriptionData"), dict):
            refuse_kind(document["subscriptionData"].get("expressionType"))
        return OK

    def _members(self, request: Request, peer: Peer) -> Answer:
        del peer
        group = request.text("consumerGroup")
        found = self._groups.client_ids(group)
        if not found:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return Answer(body=orjson.dumps({"consumerIdList": found}))

    def _lock(self, request: Request, peer: Peer) -> Answer:
        del peer
        document = request.document()
        held = self._groups.lock(text_of(document, "clientId"), self._keys(document))
        rows = [
            {"brokerName": self._broker, "queueId": key.queue_id, "topic": key.topic}
            for key in held
        ]
        return Answer(body=orjson.dumps({"lockOKMQSet": rows}))

    def _unlock(self, request: Request, peer: Peer) -> Answer:
        del peer
        document = request.document()
        self._groups.unlock(text_of(document, "clientId"), self._keys(document))
        return OK

    def _keys(self, document: Mapping[str, Any]) -> Iterable[QueueKey]:
        """Return the queues of a request for locks that exist."""
        group = text_of(document, "consumerGroup")
        refuse_group(group)
        for row in objects_of(document, "mqSet"):
            topic, queue_id = text_of(row, "topic"), row.get("queueId")
            if isinstance(queue_id, int) and 0 <= queue_id < self._naming.queues(topic):
                yield QueueKey(group, topic, queue_id)

    def _offset(self, request: Request, peer: Peer) -> Answer:
        del peer
        queue = self._naming.queue(request)
        found = self._offsets.get(QueueKey(request.text("consumerGroup"), *queue))
        if found is None and request.is_set("setZeroIfNotFound", default=True):
            found = self._first_of(queue)
        if found is None:
            return Answer(ResponseCode.QUERY_NOT_FOUND, "the group has no offset of this queue")
        return Answer(fields={"offset": str(found)})

    def _first_of(self, queue: QueueId) -> int | None:
        if self._new_groups is NewGroups.FIRST:
            return self._history.bounds(queue)[0]
        return None

    def _set_offset(self, request: Request, peer: Peer) -> Answer:
        del peer
        offset = request.number("commitOffset")
        self.commit(request.text("consumerGroup"), self._naming.queue(request), offset)
        return OK

    def stored(self, group: str, queue: QueueId) -> int:
        """Return the offset at which a group continues; -1 if it has none."""
        found = self._offsets.get(QueueKey(group, *queue))
        return -1 if found is None else found

    def commit(self, group: str, queue: QueueId, offset: int) -> None:
        """Set the offset at which a group continues.

        Raises:
            Refused: it is negative, or there are too many groups.
        """
        if offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the offset {offset} is negative")
        try:
            self._offsets.put(QueueKey(group, *queue), offset)
        except OffsetRefused as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error


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
