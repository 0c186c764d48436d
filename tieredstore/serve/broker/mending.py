"""Answers of a broker behind the proxy, completed from the tier."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import Enum
from struct import Struct
from typing import NamedTuple

from container.names.queue_id import QueueId
from container.queue.positions import Boundary
from dispatcher.topic_filter import own_topics, untiered_reason
from fetcher.result import FetchStatus
from provider.errors import StoreError
from tieredstore.serve.consuming import Consuming, Pull, pull_code
from tieredstore.serve.history import History
from tieredstore.serve.naming import Identity
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode
from tieredstore.serve.wire.request import Answer, Outcome, Peer, Refused, Request

LOGGER = logging.getLogger("tieredstore.serve")
REMOVED_MAX = 1 << 20
"""Messages of a queue that a broker deletes before it moves the queue's first offset."""
RECORD = Struct(">iiiiiq")
"""Begin of a message: size, magic, checksum, queue id, flag, queue offset."""
PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
GIVEN = frozenset(
    {FetchStatus.FOUND, FetchStatus.NO_MATCHED_MESSAGE, FetchStatus.OFFSET_FOUND_NULL}
)
"""Outcomes of a read after which a consumer continues at the next offset."""


Mender = Callable[[Request, Command, Peer], Outcome]
Reader = Callable[[Request, Command, Peer], Awaitable[Answer | None]]


class Source(Enum):
    """Answer that a pull gets."""

    BROKER = "the broker's own"
    TIER = "messages of the tier"
    TIER_IF_READ = "messages of the tier, or the broker's own if the tier is not read"
    FIRST = "the first offset of the tier"
    LATER = "an error, after which the client pulls again"


class Pulled(NamedTuple):
    """Answer of a broker to a pull."""

    code: int
    remark: str
    first: int | None
    """Offset of its first message; None without messages."""
    following: int
    """Offset at which the consumer would continue."""
    low: int
    high: int
    is_filtered: bool
    """Whether messages can be left out because of their tags."""

    def deleted(self, asked: int) -> bool | None:
        """Return whether the broker passes `asked` because it has deleted it; None: perhaps."""
        is_passed = self.following > asked and (self.first is None or self.first > asked)
        if not is_passed or not 0 <= asked < self.high or self.remark == "OFFSET_RESET":
            return False
        moves = self.code == ResponseCode.PULL_OFFSET_MOVED
        if moves or self.remark in {"MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL"}:
            return True
        if not self.is_filtered:
            return True
        return None if asked < self.low + REMOVED_MAX else False


def source_of(asked: int, answer: Pulled, tier: tuple[int, int] | None) -> Source:
    """Return the source of a pull's answer. Pure.

    `tier` is the range of the queue's offsets in the tier; None if the tier does not have it, and
    then a broker that has messages of the queue has them tiered first.
    """
    deleted = answer.deleted(asked)
    if deleted is False:
        return Source.BROKER
    first, end = tier or (0, 0)
    # A tier with more messages than the broker is of an earlier queue of the name, or the broker
    # has lost its newest ones.
    is_there = first <= asked < end <= answer.high
    if deleted is None:
        return Source.TIER_IF_READ if is_there else Source.BROKER
    if is_there:
        return Source.TIER
    if tier is None:
        return Source.LATER if answer.low < answer.high else Source.BROKER
    if asked < first:
        return Source.FIRST if asked < min(first, answer.following) else Source.BROKER
    return Source.LATER


class Mending:
    """Answers to requests about queues that the tier has, too."""

    def __init__(
        self,
        identity: Identity,
        history: History,
        consuming: Consuming,
        warn: Callable[[str, str], None],
    ) -> None:
        self._identity = identity
        self._history = history
        self._consuming = consuming
        self._warn = warn
        self._own_topics = own_topics(identity.cluster, identity.broker)

    @property
    def menders(self) -> Mapping[int, Mender]:
        """Functions by request code. None as an outcome leaves the broker's answer."""
        return {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.HEART_BEAT: _beat,
        }

    @property
    def readers(self) -> Mapping[int, Reader]:
        """Functions by request code that read the tier. None leaves the broker's answer."""
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._offset_by_time,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest_time,
            RequestCode.QUERY_MESSAGE: self._query,
        }

    def _tier(self, request: Request) -> tuple[QueueId, tuple[int, int] | None]:
        """Return the queue of a request, and its range in the tier if that has messages of it."""
        queue = QueueId(request.text("topic"), request.number("queueId"))
        broker = request.optional("bname")
        found = self._history.readable(queue) if broker in {None, self._identity.broker} else None
        return queue, found if found is not None and found[0] < found[1] else None

    def _pull(self, request: Request, answer: Command, peer: Peer) -> Outcome:
        if answer.code not in PULL_CODES:
            return None
        try:
            given = Request(answer)
            low, high = given.number("minOffset"), given.number("maxOffset")
            following = given.number("nextBeginOffset")
        except Refused:  # an error of the broker, with the code of an empty answer
            return None
        queue, tier = self._tier(request)
        pulled = Pulled(
            answer.code,
            answer.remark or "",
            _first_offset(answer.body),
            following,
            low,
            high,
            self._consuming.is_filtered(request),
        )
        source = source_of(request.number("queueOffset"), pulled, tier)
        if source is Source.LATER and self._is_never_tiered(queue):
            source = Source.BROKER
        if source is not Source.BROKER and not self._consuming.is_by_tags(request):
            sentence = (
                f"a subscription to {queue.topic} that is not by tags passes deleted messages"
            )
            self._warn("kind", sentence)
            source = Source.BROKER
        if tier is not None and tier[0] < low and tier[1] <= high:
            answer.fields["minOffset"] = str(tier[0])
        elif source is Source.BROKER:
            return None
        return self._given(request, answer, peer, source)

    def _given(self, request: Request, answer: Command, peer: Peer, source: Source) -> Outcome:
        if source is Source.BROKER:
            return answer_of(answer)
        if source in {Source.TIER, Source.TIER_IF_READ}:
            return self._from_tier(request, answer, peer, source)
        queue = QueueId(request.text("topic"), request.number("queueId"))
        if source is Source.LATER:
            raise self._later(queue, request.number("queueOffset"))
        first, _ = self._history.readable(queue) or (0, 0)
        return _moved(answer, min(first, int(answer.fields["nextBeginOffset"])))

    def _later(self, queue: QueueId, offset: int) -> Refused:
        sentence = (
            f"the broker has deleted messages from offset {offset} of {queue} on, and they are not "
            f"in the tier yet"
        )
        self._warn("later", sentence)
        return Refused(ResponseCode.SYSTEM_ERROR, sentence)

    async def _from_tier(
        self, request: Request, answer: Command, peer: Peer, source: Source
    ) -> Answer:
        pull: Pull | None = None
        try:
            pull = self._consuming.pull_of(request, peer)
            result = await self._consuming.fetch(pull)
        except (StoreError, Refused):
            if source is Source.TIER_IF_READ:
                return answer_of(answer)
            raise
        if result.status is FetchStatus.OFFSET_TOO_SMALL:
            self._consuming.count(pull, result)
            return _moved(answer, int(result.next_offset))
        if result.status not in GIVEN:
            raise self._later(pull.queue, pull.offset)
        self._consuming.count(pull, result)
        fields = {
            **answer.fields,
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_offset),
        }
        code = pull_code(result.status, pull.offset)
        return Answer(code, result.status.value, fields, result.messages.joined())

    def _is_never_tiered(self, queue: QueueId) -> bool:
        """Whether a topic is RocketMQ's own, or one of which the tier has no message at all."""
        is_own = bool(untiered_reason(queue.topic, self._own_topics))
        return is_own or queue.topic not in self._history.topics()

    def _min_offset(self, request: Request, answer: Command, peer: Peer) -> Outcome:
        del peer
        _, tier = self._tier(request)
        if answer.code or tier is None or Request(answer).number("offset") <= tier[0]:
            return None
        return Answer(fields={**answer.fields, "offset": str(tier[0])})

    async def _offset_by_time(self, request: Request, answer: Command, peer: Peer) -> Answer | None:
        """Answer from the tier if that has the message, and a broker with it would answer so."""
        del peer
        queue, tier = self._tier(request)
        if answer.code or tier is None or Request(answer).number("offset") < tier[0]:
            return None
        moment_ms = request.number("timestamp")
        is_upper = (request.optional("boundaryType") or "").lower() == "upper"
        newest_ms = await self._history.time_before(queue, tier[1])
        if moment_ms > newest_ms or (is_upper and moment_ms == newest_ms):
            return None
        boundary = Boundary.UPPER if is_upper else Boundary.LOWER
        found = await self._history.fetcher.offset_by_time(queue, moment_ms, boundary)
        if found is None:
            return None
        return Answer(fields={**answer.fields, "offset": str(max(found, tier[0]))})

    async def _earliest_time(self, request: Request, answer: Command, peer: Peer) -> Answer | None:
        del peer
        queue, tier = self._tier(request)
        if answer.code or tier is None:
            return None
        known_ms = Request(answer).number("timestamp")
        earliest_ms = await self._history.fetcher.message_timestamp(queue, tier[0])
        if earliest_ms is None or 0 <= known_ms <= earliest_ms:
            return None
        return Answer(fields={**answer.fields, "timestamp": str(earliest_ms)})

    async def _query(self, request: Request, answer: Command, peer: Peer) -> Answer | None:
        """Add the tier's messages with a key to those of the broker, up to the asked number."""
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}:
            return None
        known = records_of(answer.body)
        most = 1 if request.is_set("_UNIQUE_KEY_QUERY") else request.number("maxNum")
        if len(known) >= most or request.text("topic") not in self._history.topics():
            return None
        with suppress(Refused):
            found = await self._consuming.query(request, peer)
            more = {
                place: record
                for place, record in records_of(bytes(found.body)).items()
                if place not in known
            }
            if more:
                fields = {**(found.fields or {}), **answer.fields}
                body = b"".join([*known.values(), *more.values()][:most])
                return Answer(fields=fields, body=body)
        return None


def answer_of(answer: Command) -> Answer:
    """Return the answer of a server behind, whose fields may be changed."""
    return Answer(ResponseCode(answer.code), answer.remark, answer.fields, answer.body)


def _moved(answer: Command, offset: int) -> Answer:
    fields = {**answer.fields, "nextBeginOffset": str(offset)}
    return Answer(ResponseCode.PULL_OFFSET_MOVED, FetchStatus.OFFSET_TOO_SMALL.value, fields)


def _first_offset(body: bytes) -> int | None:
    return RECORD.unpack_from(body)[-1] if len(body) >= RECORD.size else None


def records_of(body: bytes) -> dict[tuple[int, int], bytes]:
    """Return the messages of an answer by queue id and offset. Pure."""
    found: dict[tuple[int, int], bytes] = {}
    at = 0
    while at + RECORD.size <= len(body):
        size, _, _, queue_id, _, offset = RECORD.unpack_from(body, at)
        if size < RECORD.size or at + size > len(body):
            break
        found[queue_id, offset] = body[at : at + size]
        at += size
    return found


def _beat(request: Request, answer: Command, peer: Peer) -> Outcome:
    """Have a client send its subscriptions each time: a proxy that was restarted has none."""
    del request, peer
    if answer.code or answer.fields.get("IS_SUB_CHANGE") != "false":
        return None
    return Answer(fields={**answer.fields, "IS_SUB_CHANGE": "true"})
