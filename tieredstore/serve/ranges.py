"""Requests of the plug-in for Java brokers: offsets of each queue that the tier can answer."""

import asyncio
import secrets
import struct
from collections.abc import Mapping
from itertools import takewhile

from container.names.queue_id import QueueId
from provider.clock import give_way
from tieredstore.serve.history import History, readable_range
from tieredstore.serve.naming import Identity
from tieredstore.serve.wire.frame import RequestCode, ResponseCode
from tieredstore.serve.wire.request import (
    DIGITS_MAX,
    Answer,
    Peer,
    Processor,
    Refused,
    Request,
)

COMPARED_TOGETHER = 2_000
"""Queues that are compared before other tasks run."""
VERSION = 1
"""Version of the request; a plug-in of another one is refused."""
ROW_END = struct.Struct(">iqq")
"""Queue id, first offset, and the offset after the last; the topic is before them."""


class TierRanges:
    """Ranges of readable offsets, and the publication that changed each of them."""

    def __init__(self, identity: Identity, history: History) -> None:
        self._identity = identity
        self._history = history
        self._life = secrets.token_hex(8)
        self._number = 0
        self._updating = asyncio.Lock()
        self._seen: tuple[int, int] | None = None
        self._rows: dict[QueueId, tuple[int, int, int]] = {}
        """Number of the publication that changed it, and the range; the newest change last."""

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {RequestCode.TIER_RANGES: self._ranges}

    async def _ranges(self, request: Request, peer: Peer) -> Answer:
        """Return the ranges that changed after `since`, a token of an earlier answer."""
        del peer
        if request.number("version") != VERSION:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the plug-in speaks version {request.number('version')} of this request and the "
                f"server {VERSION}: install the jar of `tieredstore java-plugin` again",
            )
        asked = request.text("cluster"), request.text("broker")
        if asked != (self._identity.cluster, self._identity.broker):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the tier is that of broker {self._identity.broker} of cluster "
                f"{self._identity.cluster}, not of {asked[1]} of {asked[0]}",
            )
        async with self._updating:
            await self._update()
        life, _, number = (request.optional("since") or "").partition("-")
        is_ours = life == self._life and number.isdecimal() and len(number) <= DIGITS_MAX
        since = int(number) if is_ours else 0
        rows = [
            _row(queue, first, end)
            for queue, (_, first, end) in takewhile(
                lambda row: row[1][0] > since, reversed(self._rows.items())
            )
        ]
        fields = {
            "sequence": f"{self._life}-{self._number}",
            "all": str(not since).lower(),
            "fresh": str(self._history.failure is None).lower(),
        }
        return Answer(fields=fields, body=b"".join(rows))

    async def _update(self) -> None:
        """Compare with the newest metadata. O(queues) if it is new, about 1 us each."""
        state = self._history.tier.reader.state
        now = id(state), state.sequence
        if now == self._seen:
            return
        self._number += 1
        queues = state.queues.copy()
        for count, one in enumerate(queues.bounds(), 1):
            record = queues.peek(one.id) if one.gaps else None
            found = readable_range(record) if record else (one.min_offset, one.next_offset)
            self._note(one.id, *found)
            if not count % COMPARED_TOGETHER:
                await give_way()
        if len(self._rows) > len(queues):
            for queue in self._rows.keys() - queues.keys():
                self._note(queue, 0, 0)
        self._seen = now

    def _note(self, queue: QueueId, first: int, end: int) -> None:
        if self._rows.get(queue, (0, 0, 0))[1:] != (first, end):
            self._rows.pop(queue, None)
            self._rows[queue] = self._number, first, end


def _row(queue: QueueId, first: int, end: int) -> bytes:
    topic = queue.topic.encode()
    return len(topic).to_bytes(2, "big") + topic + ROW_END.pack(queue.queue_id, first, end)
