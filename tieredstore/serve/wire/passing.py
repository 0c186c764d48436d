"""Connection of a client whose requests pass to the servers behind a proxy, byte for byte."""

import asyncio
from collections.abc import Awaitable
from enum import Enum
from functools import partial
from typing import Protocol

from tieredstore.serve.wire.connection import Connection, Service
from tieredstore.serve.wire.frame import (
    PASSED_BYTES_MAX,
    BadFrame,
    Command,
    RequestCode,
    ResponseCode,
    decode,
    frame_bytes,
)
from tieredstore.serve.wire.request import Outcome, Refused, Request

UNPASSED_BYTES_MAX = 1 << 20
"""Bytes that one side has not read, above which the other side is not read."""
AWAITED_MAX = 8_192
"""Requests of a client without an answer, above which its requests are not read."""
AWAITED_BYTES_MAX = 256 << 20
"""Bytes of requests without an answer, over all, above which no more pass."""
HEADER_BYTES = 512
"""Bytes of a request without an answer beside its frame's header."""
HEARTBEAT_BYTES_MAX = 16 << 10
"""Largest heartbeat that a new connection to the broker begins with."""
BEHIND_BYTES_MAX = 256 << 10
"""Bytes that a client may leave unread while all clients together leave too many."""


class Part(Enum):
    """Server behind a proxy."""

    BROKER = "the broker"
    NAMES = "the name server"


class Relay(Protocol):
    """Proxy, as a connection sees it."""

    awaited_bytes: int
    """Bytes of requests without an answer, of all clients."""

    @property
    def is_behind(self) -> bool:
        """Whether all clients together leave too many bytes unread."""
        ...

    def connect(self, upstream: "Upstream") -> Awaitable[bool]:
        """Connect to the server of `upstream.part`. Return whether that is done."""
        ...

    def mend(
        self, request: Request, answer: Command, frame: bytes, client: "PassingConnection"
    ) -> Outcome:
        """Answer a request whose answer came from behind. Raises as a processor."""
        ...


class Upstream(asyncio.Protocol):
    """Connection to a server behind the proxy, on behalf of one client."""

    def __init__(self, client: "PassingConnection", part: Part) -> None:
        self.part = part
        self._client = client
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bound what the server has not read."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNPASSED_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the client awaits from the server."""
        del exc
        self._transport = None
        self._client.lost(self)

    def pause_writing(self) -> None:
        """Read no requests of the client while the server reads none."""
        self._client.pause(self.part)

    def resume_writing(self) -> None:
        """Read its requests again."""
        self._client.resume(self.part)

    def data_received(self, data: bytes) -> None:
        """Pass the whole frames of the server."""
        self._buffer += data
        at = 0
        try:
            while size := frame_bytes(self._buffer, at, PASSED_BYTES_MAX):
                if at + size > len(self._buffer):
                    break
                self._client.came(self, bytes(memoryview(self._buffer)[at : at + size]))
                at += size
        except BadFrame:
            self.abort()
        del self._buffer[:at]

    def write(self, frame: bytes) -> None:
        """Send a frame to the server."""
        if self._transport is not None:
            self._transport.write(frame)

    @property
    def is_open(self) -> bool:
        """Whether the connection is made and not lost."""
        return self._transport is not None

    @property
    def unwritten(self) -> int:
        """Bytes that the server has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def read(self, *, is_on: bool) -> None:
        """Read the server, or stop to."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if is_on else self._transport.pause_reading)()

    def close(self) -> None:
        """Close the connection after what is written to it."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def _refuse(part: Part) -> Outcome:
    sentence = f"{part.value} ended its connection to this proxy; try again"
    raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, sentence)


class PassingConnection(Connection):
    """Protocol of one client of a proxy.

    A server behind knows its clients by their connections, so each client has its own there. It
    is made again after its end, and then begins with the client's last heartbeat.
    """

    frame_bytes_max = PASSED_BYTES_MAX
    unsent_bytes_max = UNPASSED_BYTES_MAX

    def __init__(self, service: Service, relay: Relay) -> None:
        super().__init__(service)
        self._relay = relay
        self._upstreams: dict[Part, Upstream] = {}
        self._awaited: dict[int, tuple[Part, Request | None, int]] = {}
        """Requests without an answer, and their bytes; None for a heartbeat of the proxy's."""
        self._heartbeat = b""

    def _take(self, frame: bytes) -> None:
        command = decode(frame)
        if not command.is_response:
            if command.code == RequestCode.HEART_BEAT and len(frame) <= HEARTBEAT_BYTES_MAX:
                self._heartbeat = frame
            elif command.code in {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}:
                self._heartbeat = b""
            self._serve(Request(command, frame))
        elif (upstream := self._upstreams.get(Part.BROKER)) is not None:
            upstream.write(frame)

    def pass_on(self, request: Request, part: Part) -> Outcome:
        """Send a request to a server behind. Its answer goes to `Relay.mend`."""
        upstream = self._upstreams.get(part)
        if upstream is None:
            self._pause("connecting")
            return self._connected(request, part)
        command = request.command
        size = HEADER_BYTES + len(request.frame) - len(command.body)
        if self._relay.awaited_bytes + size > AWAITED_BYTES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, "too many requests wait for answers")
        upstream.write(request.frame)
        if not command.is_one_way:
            request.frame = command.body = b""
            self._await(command.opaque, part, request, size)
        return None

    def _await(self, opaque: int, part: Part, request: Request | None, size: int) -> None:
        self._answered(opaque)
        self._awaited[opaque] = part, request, size
        self._relay.awaited_bytes += size

    def _answered(self, opaque: int) -> None:
        """Forget a request that has an answer."""
        _, _, size = self._awaited.pop(opaque, (None, None, 0))
        self._relay.awaited_bytes -= size

    async def _connected(self, request: Request, part: Part) -> None:
        upstream = Upstream(self, part)
        try:
            is_connected = await self._relay.connect(upstream)
            if upstream.is_open:
                self._upstreams[part] = upstream
                self._begin(upstream, request)
        finally:
            self._resume("connecting")
        if self.is_closed:
            upstream.abort()
            return
        if is_connected and not upstream.is_open:
            self.deliver(request, partial(_refuse, part))
            return
        # Without the server, the request is not for it any more.
        self.deliver(request, lambda: self._service.call(request, self))

    def _begin(self, upstream: Upstream, request: Request) -> None:
        """Make the client known to the broker, unless its first request does."""
        is_known = request.command.code == RequestCode.HEART_BEAT
        if upstream.part is Part.BROKER and self._heartbeat and not is_known:
            upstream.write(self._heartbeat)
            self._await(decode(self._heartbeat).opaque, upstream.part, None, HEADER_BYTES)

    def came(self, upstream: Upstream, frame: bytes) -> None:
        """Take a frame of a server behind."""
        if self.is_closed:
            return
        if self._unsent > BEHIND_BYTES_MAX and self._relay.is_behind:
            sentence = "is disconnected: clients read their answers too slowly"
            self._service.warn("answers", f"{self.address} {sentence}")
            self.abort()
            return
        try:
            answer = decode(frame)
        except BadFrame:  # a client may know more than this server
            self._write(frame)
            return
        part, request, _ = self._awaited.get(answer.opaque, (None, None, 0))
        if not answer.is_response or part is not upstream.part:
            self._write(frame)
            return
        self._answered(answer.opaque)
        if request is not None:
            self.deliver(request, lambda: self._relay.mend(request, answer, frame, self))
        self._resume_if_few()

    def forward(self, frame: bytes) -> None:
        """Send a frame to the client as it came from behind."""
        if not self.is_closed:
            self._write(frame)

    def lost(self, upstream: Upstream) -> None:
        """Refuse what a server behind will not answer any more."""
        if self._upstreams.get(upstream.part) is not upstream:
            return
        del self._upstreams[upstream.part]
        for opaque, (part, request, _) in list(self._awaited.items()):
            if part is upstream.part:
                self._answered(opaque)
                if request is not None:
                    self.deliver(request, partial(_refuse, part))
        self.resume(upstream.part)

    def pause(self, part: Part) -> None:
        """Read no requests while a server behind reads none."""
        self._pause(part.name)

    def resume(self, part: Part) -> None:
        """Read requests again."""
        self._resume(part.name)

    def pause_writing(self) -> None:
        """Read neither requests nor answers of a client that does not read its answers."""
        super().pause_writing()
        for upstream in self._upstreams.values():
            upstream.read(is_on=False)

    def resume_writing(self) -> None:
        """Read both again."""
        super().resume_writing()
        for upstream in self._upstreams.values():
            upstream.read(is_on=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the client waits for, and its connections behind."""
        super().connection_lost(exc)
        self._close_upstreams()

    def close(self) -> None:
        """Close the connections after what is written to them. Idempotent."""
        super().close()
        self._close_upstreams()

    def _close_upstreams(self) -> None:
        for opaque in list(self._awaited):
            self._answered(opaque)
        upstreams, self._upstreams = self._upstreams, {}
        for upstream in upstreams.values():
            upstream.close()

    def _waits(self, share: int) -> bool:
        return super()._waits(share) or len(self._awaited) >= AWAITED_MAX // share

    def _unread(self) -> int:
        return super()._unread() + sum(one.unwritten for one in self._upstreams.values())

    def _is_waiting(self) -> bool:
        return super()._is_waiting() or bool(self._awaited)
