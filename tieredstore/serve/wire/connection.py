"""Connection of a client: frames in, answers out, and the limits of a slow or hostile client."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Protocol

from provider.clock import Clock
from provider.object_store import Buffer
from tieredstore.serve.wire.frame import (
    FRAME_BYTES_MAX,
    RESPONSE,
    BadFrame,
    Command,
    ResponseCode,
    decode,
    encode,
    frame_bytes,
)
from tieredstore.serve.wire.request import Answer, Outcome, Request

LOGGER = logging.getLogger("tieredstore.serve")
UNSENT_BYTES_MAX = 8 << 20
"""Bytes of answers that a client has not read, above which its requests are not read."""
ANSWERS_BYTES_MAX = 32 << 20
"""Bytes of answers that a client has not read, above which its waiting requests are refused."""
TOO_SLOW = "clients read their answers too slowly"
TURN_BYTES_MAX = 1 << 20
"""Bytes of answers of one turn of the loop, after which the client's next requests wait."""
READS_MAX = 64
"""Requests of one client that wait for the storage, above which its requests are not read."""
HELD_MAX = 1024
"""Pulls of one client that wait for a message, above which its requests are not read."""
SILENT_S_MAX = 120.0
"""Seconds after which a client is dropped that says nothing and waits for nothing."""
UNREAD_S_MAX = 60.0
"""Seconds after which a client is dropped that reads none of its answers."""
REFUSED_MAX = 10
"""Requests without a valid signature after which a client is dropped."""


class Service(Protocol):
    """Server, as a connection sees it."""

    @property
    def clock(self) -> Clock:
        """Clock of all limits."""
        ...

    def opened(self, connection: "Connection") -> bool:
        """Count a connection. Return False if there are too many."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Forget a connection, its memberships, and its pulls that wait."""
        ...

    def call(self, request: Request, connection: "Connection") -> Outcome:
        """Call the processor of a request. Raises as that."""
        ...

    def failed(self, request: Request, error: Exception) -> Answer:
        """Return the answer for a failure of a processor."""
        ...

    def warn(self, kind: str, sentence: str) -> None:
        """Log a sentence; of one kind, once a minute."""
        ...

    def answered(self, request: Request, answer: Answer) -> Answer:
        """Count an answer. Return it; another one if it has a body and clients read too slowly."""
        ...

    def start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Run `work`, which never fails, in a task that the server owns."""
        ...

    def held_of(self, connection: "Connection") -> int:
        """Return the number of its pulls that wait."""
        ...

    def unsent_grew(self, more: int) -> None:
        """Count bytes of answers that clients have not read; negative if they did."""
        ...

    def is_full(self, connection: "Connection", unread: int) -> bool:
        """Count bytes of frames that are not complete. Return whether all are too many."""
        ...


class Connection(asyncio.Protocol):
    """Protocol of one client. All methods are called on the event loop."""

    frame_bytes_max = FRAME_BYTES_MAX
    unsent_bytes_max = UNSENT_BYTES_MAX

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._socket_transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Command]] = {}
        """Requests to the client without an answer, by their number."""
        self._asked_last = 0
        self._pauses: set[str] = set()
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._unsent = 0
        self._written = 0
        self._sent = 0
        self._refused = 0
        self._moved_s = self._heard_s = service.clock.monotonic_s()
        self.address = ""
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<Connection of {self.address}: {len(self._tasks)} requests under way>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client, or close the connection if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # That of TLS leaves out what the one below it has not sent.
        tls = getattr(transport, "_ssl_protocol", None)
        self._socket_transport = getattr(tls, "_transport", None)
        peer: object = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = f"{peer[0]}:{peer[1]}"
        transport.set_write_buffer_limits(high=self.unsent_bytes_max)
        if not self._service.opened(self):
            self.is_closed = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the client waits for."""
        del exc
        self.is_closed = True
        for task in self._tasks:
            task.cancel()
        for answer in list(self._asked.values()):
            answer.cancel()
        self._buffer.clear()
        self._out.clear()
        self._service.unsent_grew(-self._unsent)
        self._service.is_full(self, 0)
        self._service.closed(self)

    def pause_writing(self) -> None:
        """Read no requests of a client that does not read its answers."""
        self._pause("unread")

    def resume_writing(self) -> None:
        """Read its requests again."""
        self._resume("unread")

    def data_received(self, data: bytes) -> None:
        """Take requests."""
        self._heard_s = self._service.clock.monotonic_s()
        self._buffer += data
        self._take_frames()

    def _take_frames(self) -> None:
        """Serve the whole frames of the buffer, unless the client is paused."""
        at = 0
        try:
            while not (self._pauses or self.is_closed or self._out_bytes > TURN_BYTES_MAX):
                size = frame_bytes(self._buffer, at, self.frame_bytes_max)
                if size is None or at + size > len(self._buffer):
                    break
                frame = bytes(memoryview(self._buffer)[at : at + size])
                at += size
                self._take(frame)
        except BadFrame as error:
            self._service.warn("frame", f"{self.address} is disconnected: {error}")
            self.close()
            return
        if at and not self.is_closed:
            del self._buffer[:at]
        if self._service.is_full(self, self._unread()):
            sentence = "is disconnected: too many bytes of requests wait"
            self._service.warn("bytes", f"{self.address} {sentence}")
            self.close()

    def _unread(self) -> int:
        """Return the bytes of requests that wait."""
        return len(self._buffer)

    def _take(self, frame: bytes) -> None:
        """Serve a frame. Raises `BadFrame` if it is none."""
        command = decode(frame)
        if not command.is_response:
            self._serve(Request(command))
        elif (asked := self._asked.get(command.opaque)) is not None and not asked.done():
            asked.set_result(command)

    def _serve(self, request: Request) -> None:
        self.deliver(request, lambda: self._service.call(request, self))
        if self._waits(1):
            self._pause("waiting")

    def _waits(self, share: int) -> bool:
        """Whether so many requests wait that no more are read; `share` divides the limits."""
        held = self._service.held_of(self)
        return len(self._tasks) >= READS_MAX // share or held >= HELD_MAX // share

    def deliver(self, request: Request, call: Callable[[], Outcome]) -> None:
        """Answer a request with the outcome of `call`, or with its failure."""
        try:
            outcome = call()
        except Exception as error:  # noqa: BLE001 - each failure is an answer
            outcome = self._service.failed(request, error)
        if isinstance(outcome, Answer):
            self._answer(request, outcome)
        elif outcome is not None:
            task = self._service.start(self._finish(request, outcome))
            self._tasks.add(task)
            task.add_done_callback(lambda ended: self._ended(ended, outcome))

    async def _finish(
        self, request: Request, outcome: Coroutine[object, object, Answer | None]
    ) -> None:
        try:
            answer = await outcome
        except Exception as error:  # noqa: BLE001 - as in `deliver`
            answer = self._service.failed(request, error)
        if answer is not None:
            self._answer(request, answer)

    def _ended(
        self, task: "asyncio.Task[None]", outcome: Coroutine[object, object, Answer | None]
    ) -> None:
        outcome.close()  # a task that is cancelled before its first step never awaits it
        self._tasks.discard(task)
        self._resume_if_few()

    def _answer(self, request: Request, answer: Answer) -> None:
        if len(answer.body) and self._unsent > ANSWERS_BYTES_MAX:
            answer = Answer(ResponseCode.SYSTEM_BUSY, TOO_SLOW)
        answer = self._service.answered(request, answer)
        command = request.command
        if not command.is_one_way and not self.is_closed:
            fields = dict(answer.fields or {})
            response = Command(
                answer.code,
                fields,
                opaque=command.opaque,
                flag=RESPONSE,
                kind=command.kind,
                remark=answer.remark,
            )
            self._write(encode(response, len(answer.body)), answer.body)
        self._resume_if_few()

    def send(self, command: Command) -> None:
        """Send a request, which is one way; none to a client that does not read its answers."""
        if not (self.is_closed or "unread" in self._pauses):
            self._write(encode(command, len(command.body)), command.body)

    def ask(self, command: Command) -> "asyncio.Future[Command]":
        """Send a request to the client; its answer later. Cancelled if the client goes."""
        self._asked_last += 1
        number = self._asked_last
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number))
        if self.is_closed:
            answer.cancel()
        self.send(replace(command, opaque=number))
        return answer

    def _write(self, *pieces: Buffer) -> None:
        """Write at the end of this turn of the loop, together with other answers."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.extend(pieces)
        size = sum(map(len, pieces))
        self._out_bytes += size
        self._written += size
        self._grew(size)

    def _flush(self) -> None:
        if self._transport is None or self.is_closed or not self._out:
            return
        # A copy: a view would keep a run of the fetcher's cache until a slow client has read it.
        data = b"".join(self._out)
        self._out.clear()
        is_behind, self._out_bytes = self._out_bytes > TURN_BYTES_MAX, 0
        self._transport.write(data)
        self._report_unsent()
        if is_behind:
            asyncio.get_running_loop().call_soon(self._take_frames)

    def _report_unsent(self) -> None:
        unsent = self._out_bytes
        for transport in (self._transport, self._socket_transport):
            unsent += transport.get_write_buffer_size() if transport is not None else 0
        self._grew(unsent - self._unsent)

    def _grew(self, more: int) -> None:
        self._service.unsent_grew(more)
        self._unsent += more

    def upkeep(self, now_s: float) -> None:
        """Drop a client that is silent, or that reads nothing."""
        self._report_unsent()
        self._service.is_full(self, self._unread())
        sent = self._written - self._unsent
        if sent > self._sent or sent == self._written:
            self._sent, self._moved_s = sent, now_s
        elif now_s - self._moved_s > UNREAD_S_MAX:
            self._service.warn("answers", f"{self.address} is disconnected: it reads no answers")
            self.abort()
        if not self._is_waiting() and now_s - self._heard_s > SILENT_S_MAX:
            LOGGER.info("%s is disconnected: it is silent", self.address)
            self.close()

    def _is_waiting(self) -> bool:
        """Whether the client waits for an answer, or is not read."""
        return bool(self._tasks or self._service.held_of(self) or self._pauses)

    def refused(self) -> None:
        """Count a request that no account signed; drop the client after too many."""
        self._refused += 1
        if self._refused == REFUSED_MAX:
            asyncio.get_running_loop().call_soon(self.close)

    def close(self) -> None:
        """Close the connection after the answers that are written. Idempotent."""
        if self.is_closed:
            return
        self._flush()
        self.is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._transport is None:
            return
        if self._transport.is_closing():
            # A second `close` of asyncio's TLS transport leaves one that no call can use.
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def _pause(self, reason: str) -> None:
        self._pauses.add(reason)
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume_if_few(self) -> None:
        if "waiting" in self._pauses and not self._waits(2):
            self._resume("waiting")

    def _resume(self, reason: str) -> None:
        self._pauses.discard(reason)
        if not self._pauses and self._transport is not None and not self.is_closed:
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._take_frames)
