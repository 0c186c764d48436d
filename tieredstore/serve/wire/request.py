"""Request as a processor sees it, and its answer."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import orjson

from container.names.queue_id import QueueId
from provider.object_store import Buffer
from tieredstore.serve.wire.frame import Command, ResponseCode

DIGITS_MAX = 20
"""Most characters of a 64-bit number."""
INT64_END = 2**63


class Refused(Exception):
    """The request is answered with a code other than SUCCESS; the text is the remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class Answer(NamedTuple):
    """Response to a request."""

    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    fields: Mapping[str, str] | None = None
    body: Buffer = b""


OK = Answer()


class Request:
    """Typed access to the fields and the body of a command."""

    __slots__ = ("command", "frame")

    def __init__(self, command: Command, frame: bytes = b"") -> None:
        self.command = command
        self.frame = frame
        """The request as it came, where it can be passed on."""

    def __repr__(self) -> str:
        return f"<Request {self.command.code}: {self.command.fields}>"

    def text(self, name: str) -> str:
        """Return a field.

        Raises:
            Refused: the request lacks it.
        """
        value = self.command.fields.get(name)
        if value is None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the request lacks the field {name}")
        return value

    def optional(self, name: str) -> str | None:
        """Return a field; None if the request lacks it, or it is empty."""
        return self.command.fields.get(name) or None

    def number(self, name: str, default: int | None = None) -> int:
        """Return a field that is a 64-bit number; `default` if the request lacks it.

        Raises:
            Refused: it is no such number, or is lacking without a default.
        """
        if default is not None and not self.command.fields.get(name):
            return default
        text = self.text(name)
        try:
            value = int(text) if len(text) <= DIGITS_MAX else INT64_END
        except ValueError:
            value = INT64_END
        if not -INT64_END <= value < INT64_END:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is no 64-bit number")
        return value

    def is_set(self, name: str, *, default: bool = False) -> bool:
        """Return a field that is true or false, in any case; `default` if the request lacks it."""
        value = self.optional(name)
        return default if value is None else value.lower() == "true"

    def document(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            Refused: it is none.
        """
        try:
            found: object = orjson.loads(self.command.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body is no JSON object")
        return cast("dict[str, Any]", found)


def text_of(document: Mapping[str, Any], name: str) -> str:
    """Return a text of a JSON object.

    Raises:
        Refused: the object lacks it, or it is no text.
    """
    value = document.get(name)
    if not isinstance(value, str):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body lacks the text {name}")
    return value


def objects_of(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of objects of a JSON object; empty if it is lacking or null.

    Raises:
        Refused: it is no such list.
    """
    value: object = document.get(name) or []
    if not isinstance(value, list):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{name} of the body is no list")
    rows = cast("list[object]", value)
    if not all(isinstance(one, dict) for one in rows):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{name} of the body has no objects")
    return cast("list[dict[str, Any]]", rows)


Outcome = Answer | Coroutine[object, object, Answer | None] | None
"""Answer, now or later; None: the request is held, and `Peer.deliver` is called for it."""


class Peer(Protocol):
    """Connection of a client."""

    @property
    def address(self) -> str:
        """Address and port of the client."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        ...

    def deliver(self, request: Request, call: Callable[[], Outcome]) -> None:
        """Answer a request that was held with the outcome of `call`, or with its failure."""
        ...

    def send(self, command: Command) -> None:
        """Send a request to the client, which is one way."""
        ...

    def ask(self, command: Command) -> "asyncio.Future[Command]":
        """Send a request to the client; its answer later. Cancelled if the client goes.

        Cancel it to wait no longer.
        """
        ...


Processor = Callable[[Request, Peer], Outcome]
"""Function that answers a request.

Raises `Refused`, and `StoreError` if the storage fails.
"""


def by_queue(broker: str, rows: Iterable[tuple[QueueId, object]]) -> bytes:
    """Return a map by queue, as RocketMQ's JSON library writes and reads it."""
    pairs = (
        orjson.dumps({"brokerName": broker, "queueId": queue.queue_id, "topic": queue.topic})
        + b":"
        + orjson.dumps(row)
        for queue, row in rows
    )
    return b"{%b}" % b",".join(pairs)
