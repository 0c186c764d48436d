"""Requests of administrators' tools to a client, which its connection passes on."""

import asyncio
import re
from collections.abc import Mapping

import orjson

from provider.clock import Clock, within
from tieredstore.serve.groups import Groups, Member
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Peer, Processor, Refused, Request

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
