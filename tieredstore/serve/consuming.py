"""Requests that read: pulls, bounds, offsets by time, messages by key."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from container.names.queue_id import QueueId
from container.queue.positions import Boundary
from fetcher.fetcher import TRANSFER_BYTES_MAX
from fetcher.result import FetchResult, FetchStatus
from fetcher.tag_filter import parse_subscription
from provider.clock import Clock
from provider.errors import NotFound
from provider.ranges import QueueOffset
from tieredstore.metrics.reads import Caller, ReadMeter
from tieredstore.serve.grouping import Grouping, refuse_kind
from tieredstore.serve.groups import TAGS, Groups
from tieredstore.serve.history import History
from tieredstore.serve.naming import Naming
from tieredstore.serve.wire.frame import RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Outcome, Peer, Processor, Refused, Request

KeyT = TypeVar("KeyT")
TICK_S = 0.1
"""Precision of the end of a wait."""
HELD_MAX = 100_000
"""Pulls that wait at once, over all clients. Each holds about 1 KiB and its request."""


@dataclass(eq=False, slots=True)
class HeldPull:
    """Pull that waits for the message at `offset`."""

    queue: QueueId
    offset: int
    due_s: float
    request: Request
    peer: Peer
    resume: Callable[[], Outcome]
    """Continuation of the pull, after a message or at its due time."""


class HeldPulls:
    """All pulls that wait. Each operation is O(1) for a pull."""

    def __init__(self) -> None:
        self._of_queue: dict[QueueId, dict[HeldPull, None]] = {}
        self._of_tick: dict[int, dict[HeldPull, None]] = {}
        self._of_peer: dict[Peer, dict[HeldPull, None]] = {}
        self._count = 0
        self._tick = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pull: HeldPull) -> None:
        """Let a pull wait."""
        tick = max(self._tick + 1, int(pull.due_s / TICK_S) + 1)
        pull.due_s = tick * TICK_S
        self._of_queue.setdefault(pull.queue, {})[pull] = None
        self._of_tick.setdefault(tick, {})[pull] = None
        self._of_peer.setdefault(pull.peer, {})[pull] = None
        self._count += 1

    def count_of(self, peer: Peer) -> int:
        """Return the number of pulls of a client that wait."""
        return len(self._of_peer.get(peer, ()))

    def queues(self) -> list[QueueId]:
        """Return the queues for which pulls wait."""
        return list(self._of_queue)

    def grown(self, queue: QueueId, end: int) -> list[HeldPull]:
        """Remove and return the pulls of a queue that wait for a message below `end`."""
        return self._taken(pull for pull in self._of_queue.get(queue, ()) if pull.offset < end)

    def due(self, now_s: float) -> list[HeldPull]:
        """Remove and return the pulls whose wait is over. O(ticks since the last call)."""
        last = int(now_s / TICK_S)
        ticks = [tick for tick in self._of_tick if tick <= last]
        self._tick = max(self._tick, last)
        return self._taken(pull for tick in ticks for pull in self._of_tick[tick])

    def drop(self, peer: Peer) -> None:
        """Remove the pulls of a client whose connection ended."""
        self._taken(iter(self._of_peer.get(peer, ())))

    def all(self) -> list[HeldPull]:
        """Remove and return every pull."""
        return self._taken(pull for pulls in self._of_queue.values() for pull in pulls)

    def _taken(self, pulls: Iterator[HeldPull]) -> list[HeldPull]:
        taken = list(pulls)
        for pull in taken:
            _discard(self._of_queue, pull.queue, pull)
            _discard(self._of_tick, round(pull.due_s / TICK_S), pull)
            _discard(self._of_peer, pull.peer, pull)
        self._count -= len(taken)
        return taken


def _discard(table: dict[KeyT, dict[HeldPull, None]], key: KeyT, pull: HeldPull) -> None:
    rows = table[key]
    del rows[pull]
    if not rows:
        del table[key]


LOGGER = logging.getLogger("tieredstore.serve")
COMMITS, SUSPENDS, HAS_SUBSCRIPTION = 1, 2, 4
"""Bits of a pull's `sysFlag`."""
SUSPEND_S_MAX = 60.0
STAND_IN_S_MAX = 1.0
"""Longest wait beside a broker, which may have the message already."""
QUERIED_MAX = 64
"""Messages of one query by key, as in RocketMQ (`maxMsgsNumBatch`)."""
UNIQUE_KEY_MAX = 32
QUERIES_MAX = 2
"""Queries by key at once: one may read 256 MiB of messages that no index has."""
INT32_MAX = 2**31 - 1
AHEAD_MAX = 100_000
"""Waits of groups for a tier behind their broker, of which the begin is known."""
AHEAD_MARGIN_MS = 60_000
"""Most difference between the clocks of a broker and of this server."""
CODES: Mapping[FetchStatus, ResponseCode] = {
    FetchStatus.FOUND: ResponseCode.SUCCESS,
    FetchStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    FetchStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    # A broker answers PULL_NOT_FOUND, and its consumer waits before the gap for each pull.
    FetchStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_RETRY_IMMEDIATELY,
    FetchStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    FetchStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    FetchStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


def pull_code(status: FetchStatus, offset: int) -> ResponseCode:
    """Return the code of a pull from `offset` by its status. Pure."""
    if status in {FetchStatus.NO_MATCHED_LOGIC_QUEUE, FetchStatus.NO_MESSAGE_IN_QUEUE}:
        return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
    return CODES[status]


@dataclass(slots=True)
class Pull:
    """Arguments of a pull."""

    request: Request
    peer: Peer
    group: str
    queue: QueueId
    offset: int
    messages_max: int
    bytes_max: int
    subscription: str | None
    """Tags; None: every message."""
    due_s: float = 0.0
    """End of the wait for a message; 0: no wait."""


class Consuming:
    """Reads of the tier."""

    def __init__(
        self,
        naming: Naming,
        grouping: Grouping,
        history: History,
        groups: Groups,
        *,
        meter: ReadMeter,
        clock: Clock,
        stands_in_as: int | None = None,
    ) -> None:
        """`stands_in_as`: broker id beside a broker, which may have more messages than the tier.

        A pull outside the tier's range then moves no consumer. None: there is no such broker.
        """
        self._stands_in_as = stands_in_as
        self._naming = naming
        self._grouping = grouping
        self._history = history
        self._groups = groups
        self._meter = meter
        self._clock = clock
        self._queries = asyncio.Semaphore(QUERIES_MAX)
        self._is_stopped = False
        self._ahead: dict[tuple[str, QueueId], tuple[int, int, int]] = {}
        """Offset of each wait past the end of a queue, its begin in Unix ms, the end seen last."""
        self.held = HeldPulls()
        self.moved = 0
        """Pulls from offsets that the tier does not have, which continue at another one."""

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Processors by request code."""
        return {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._offset_by_time,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest_time,
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
        }

    def stop(self) -> None:
        """Hold no pull any more."""
        self._is_stopped = True

    def _pull(self, request: Request, peer: Peer) -> Outcome:
        pull, flags = self.pull_of(request, peer), request.number("sysFlag")
        if flags & COMMITS and (commit := request.number("commitOffset")) >= 0:
            self._grouping.commit(pull.group, pull.queue, commit)
        if flags & SUSPENDS:
            wait_s = request.number("suspendTimeoutMillis") / 1000
            wait_s_max = SUSPEND_S_MAX if self._stands_in_as is None else STAND_IN_S_MAX
            pull.due_s = self._clock.monotonic_s() + min(wait_s, wait_s_max)
        return self._read(pull)

    def pull_of(self, request: Request, peer: Peer) -> Pull:
        """Return the arguments of a pull, without a wait.

        Raises:
            Refused: an argument is wrong, the topic has no read permission, or the subscription is
                not known or not by tags.
        """
        queue = self._naming.queue(request)
        group, flags = request.text("consumerGroup"), request.number("sysFlag")
        offset, most = request.number("queueOffset"), request.number("maxMsgNums")
        if offset < 0 or most < 1:
            raise Refused(ResponseCode.INVALID_PARAMETER, "queueOffset or maxMsgNums is negative")
        if not self._history.permission(queue.topic):
            text = f"the topic[{queue.topic}] pulling message is forbidden"
            raise Refused(ResponseCode.NO_PERMISSION, text)
        subscription = self._subscription(request, group, queue.topic, flags)
        bytes_max = request.number("maxMsgBytes", TRANSFER_BYTES_MAX)
        return Pull(
            request,
            peer,
            group,
            queue,
            offset,
            min(most, INT32_MAX),
            min(max(bytes_max, 0), TRANSFER_BYTES_MAX),
            subscription,
        )

    def is_filtered(self, request: Request) -> bool:
        """Whether a pull leaves messages out, or its subscription is not known."""
        found = self._expression(request)
        if found is None or found[1] not in TAGS:
            return True
        with suppress(ValueError):
            return parse_subscription(found[0]) is not None
        return True

    def is_by_tags(self, request: Request) -> bool:
        """Whether the subscription of a pull is by tags, or not known."""
        found = self._expression(request)
        return found is None or found[1] in TAGS

    def _expression(self, request: Request) -> tuple[str | None, str | None] | None:
        """Return expression and type of a pull's subscription; None if it is not known."""
        if request.number("sysFlag") & HAS_SUBSCRIPTION:
            return request.optional("subscription"), request.optional("expressionType")
        known = self._groups.subscription(request.text("consumerGroup"), request.text("topic"))
        return None if known is None else (known.expression, known.kind)

    def _subscription(self, request: Request, group: str, topic: str, flags: int) -> str | None:
        """Return the tags of a pull, which it has itself or which its group subscribed to.

        Raises:
            Refused: the group has no such subscription or an older one, or it is not by tags.
        """
        if flags & HAS_SUBSCRIPTION:
            expression, kind = request.optional("subscription"), request.optional("expressionType")
        else:
            known = self._groups.subscription(group, topic)
            if known is None:
                code = ResponseCode.SUBSCRIPTION_NOT_EXIST
                raise Refused(code, f"the consumer's group {group} does not subscribe to {topic}")
            if known.version < request.number("subVersion", 0):
                code = ResponseCode.SUBSCRIPTION_NOT_LATEST
                raise Refused(code, "the consumer's subscription not latest")
            expression, kind = known.expression, known.kind
        refuse_kind(kind)
        try:
            return None if parse_subscription(expression) is None else expression
        except ValueError as error:
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _read(self, pull: Pull) -> Outcome:
        """Answer from memory what is there; else read, or wait for a message."""
        low, high = self._bounds(pull.queue)
        if self._stands_in_as is not None and not low <= pull.offset < high:
            return self._wait(pull, FetchStatus.OFFSET_OVERFLOW_ONE, low, high)
        # The offsets of a group can be the broker's own, which is ahead of its tier.
        if high < pull.offset <= self._grouping.stored(pull.group, pull.queue):
            return self._wait_ahead(pull, low, high)
        if self._ahead:
            self._ahead.pop((pull.group, pull.queue), None)
        if pull.offset == high:
            return self._wait(pull, FetchStatus.OFFSET_OVERFLOW_ONE, low, high)
        if pull.subscription is None:
            found = self._history.fetcher.cached_messages(
                pull.group, pull.queue, pull.offset, pull.messages_max, pull.bytes_max
            )
            if found is not None:
                return self._answered(pull, found)
        return self._read_tier(pull)

    def _bounds(self, queue: QueueId) -> tuple[int, int]:
        if self._stands_in_as is None:
            return self._history.bounds(queue)
        return self._history.readable(queue) or (0, 0)

    def _wait_ahead(self, pull: Pull, low: int, high: int) -> Outcome:
        """Hold a pull of a group that is ahead of the tier; look again if the queue has grown."""
        key = pull.group, pull.queue
        offset, since_ms, end = self._ahead.get(key, (-1, 0, high))
        if offset == pull.offset and high != end:
            return self._reset_ahead(pull, since_ms, low, high)
        if offset != pull.offset:
            if len(self._ahead) >= AHEAD_MAX:
                self._ahead.clear()
            self._ahead[key] = pull.offset, self._clock.now_ms(), high
        return self._wait(pull, FetchStatus.OFFSET_OVERFLOW_ONE, low, high)

    async def _reset_ahead(self, pull: Pull, since_ms: int, low: int, high: int) -> Answer | None:
        """Move a group to the messages that were stored since its wait began, if there are any.

        They are below its offset, so its offset is none of this incarnation of the queue. A broker
        moves such a group to the end of the queue.
        """
        newest_ms = await self._history.time_before(pull.queue, high)
        if newest_ms <= since_ms + AHEAD_MARGIN_MS:
            self._ahead[pull.group, pull.queue] = pull.offset, since_ms, high
            return self._wait(pull, FetchStatus.OFFSET_OVERFLOW_ONE, low, high)
        offset = await self._history.fetcher.offset_by_time(pull.queue, since_ms, Boundary.LOWER)
        LOGGER.warning(
            "the group %s continues in %s at %d: its offset %d is above those of newer messages",
            pull.group, pull.queue, offset or low, pull.offset,
        )  # fmt: skip
        status = FetchStatus.OFFSET_RESET
        bounds = QueueOffset(low), QueueOffset(high)
        return self._answered(pull, FetchResult(status, QueueOffset(offset or low), *bounds))

    async def fetch(self, pull: Pull) -> FetchResult:
        """Read the tier for a pull."""
        caller = Caller("get_message", pull.queue.topic, pull.group)
        reading = self._history.fetcher.get_message(
            pull.group,
            *pull.queue,
            pull.offset,
            messages_max=pull.messages_max,
            subscription=pull.subscription,
            bytes_max=pull.bytes_max,
        )
        return await self._meter.timed(caller, reading)

    async def _read_tier(self, pull: Pull) -> Answer | None:
        result = await self.fetch(pull)
        code = pull_code(result.status, pull.offset)
        low, high = self._bounds(pull.queue)
        if code is ResponseCode.PULL_OFFSET_MOVED and self._stands_in_as is not None:
            return self._wait(pull, FetchStatus.OFFSET_OVERFLOW_ONE, low, high)
        if code is not ResponseCode.PULL_NOT_FOUND:
            return self._answered(pull, result)
        if pull.offset == high:
            return self._wait(pull, result.status, low, high)
        return self._pull_answer(result.status, pull, result)

    def _answered(self, pull: Pull, result: FetchResult) -> Answer:
        self.count(pull, result)
        return self._pull_answer(result.status, pull, result)

    def count(self, pull: Pull, result: FetchResult) -> None:
        """Count the messages, the passed gaps or the moved offset of a pull."""
        if pull_code(result.status, pull.offset) is ResponseCode.PULL_OFFSET_MOVED:
            self.moved += 1
        else:
            self._history.passed(pull.group, pull.queue, pull.offset, result)
        if len(result.messages):
            caller = Caller("get_message", pull.queue.topic, pull.group)
            self._meter.gave(caller, len(result.messages))

    def _wait(self, pull: Pull, status: FetchStatus, low: int, high: int) -> Answer | None:
        """Hold a pull at or past the queue's end, or say that there is no message."""
        is_over = pull.due_s <= self._clock.monotonic_s()
        if is_over or self._is_stopped or pull.peer.is_closed:
            offset = QueueOffset(pull.offset)
            result = FetchResult(status, offset, QueueOffset(low), QueueOffset(high))
            return self._pull_answer(status, pull, result)
        if len(self.held) >= HELD_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{HELD_MAX} pulls wait already")
        self.held.add(
            HeldPull(
                pull.queue,
                pull.offset,
                pull.due_s,
                pull.request,
                pull.peer,
                lambda: self._read(pull),
            )
        )
        return None

    def _pull_answer(self, status: FetchStatus, pull: Pull, result: FetchResult) -> Answer:
        code = pull_code(status, pull.offset)
        # A consumer stays with a slave as long as that suggests itself.
        is_read = code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}
        has_more = is_read and result.next_offset < result.max_offset
        fields = {
            "suggestWhichBrokerId": str(self._stands_in_as or 0) if has_more else "0",
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        return Answer(code, status.value, fields, result.messages.joined())

    def _max_offset(self, request: Request, peer: Peer) -> Answer:
        del peer
        return _number("offset", self._bounds(self._naming.queue(request))[1])

    def _min_offset(self, request: Request, peer: Peer) -> Answer:
        del peer
        return _number("offset", self._bounds(self._naming.queue(request))[0])

    async def _offset_by_time(self, request: Request, peer: Peer) -> Answer:
        del peer
        queue, moment_ms = self._naming.queue(request), request.number("timestamp")
        is_upper = (request.optional("boundaryType") or "").lower() == "upper"
        boundary = Boundary.UPPER if is_upper else Boundary.LOWER
        caller = Caller("get_offset_in_queue_by_time", queue.topic)
        searching = self._history.fetcher.offset_by_time(queue, moment_ms, boundary)
        return _number("offset", await self._meter.timed(caller, searching) or 0)

    async def _earliest_time(self, request: Request, peer: Peer) -> Answer:
        del peer
        queue = self._naming.queue(request)
        caller = Caller("get_earliest_message_time", queue.topic)
        asking = self._history.fetcher.earliest_message_time(queue)
        found = await self._meter.timed(caller, asking)
        return _number("timestamp", -1 if found is None else found)

    async def query(self, request: Request, peer: Peer) -> Answer:
        """Return the tier's messages with a key.

        Raises:
            Refused: a field is wrong.
            StoreError: the storage fails.
        """
        del peer
        topic, key = request.text("topic"), request.text("key")
        is_unique = request.is_set("_UNIQUE_KEY_QUERY")
        most = UNIQUE_KEY_MAX
        if not is_unique:
            most = min(max(1, request.number("maxNum")), QUERIED_MAX)
        since, until = max(0, request.number("beginTimestamp")), request.number("endTimestamp")
        bodies = await self._with_key(topic, key, since, until, most)
        if is_unique and since and not bodies:
            # Tools that show a message by its id ask for the last days, which a broker keeps.
            bodies = await self._with_key(topic, key, 0, since, most)
        if not bodies:
            remark = "can not find message, maybe time range not correct"
            return Answer(ResponseCode.QUERY_NOT_FOUND, remark)
        fields = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        return Answer(fields=fields, body=b"".join(bodies))

    async def _with_key(
        self, topic: str, key: str, since: int, until: int, most: int
    ) -> list[bytes]:
        """Return messages with a key that were stored in `[since, until)`, Unix ms."""
        async with self._queries:
            try:
                asking = self._history.tier.query_message(
                    topic, key, messages_max=most, since=since, until=until
                )
                found = await self._meter.timed(Caller("query_message", topic), asking)
            except NotFound:
                return []
            return [message.encode() for message in found.messages]

    def _view(self, request: Request, peer: Peer) -> Answer:
        """Refuse: the position in a message id is one of its broker's own CommitLog."""
        del peer
        position = request.number("offset")
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {position}: a tier has no positions of the "
            f"broker's CommitLog; ask for the unique key",
        )


def _number(name: str, value: int) -> Answer:
    return Answer(fields={name: str(value)})
