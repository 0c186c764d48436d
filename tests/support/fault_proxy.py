"""A proxy of HTTP on loopback that fails the way networks and object stores do, by seed.

It forwards requests byte for byte, so that signatures hold, from a thread and a loop of its own.
Each fault is chosen by method and path, and strikes with a probability or at the n-th matching
request:

- `busy`: 503 SlowDown; the server saw nothing.
- `conflict`: 409 ConditionalRequestConflict; the server saw nothing, as when a rival was faster.
- `denied`: 403 AccessDenied, as of who may not do this.
- `skewed`: 403 RequestTimeTooSkewed, as of a client whose clock is wrong.
- `reset`: the connection is reset before the server sees the request.
- `torn`: the server gets half of the request's body, then both connections break.
- `dies`: some of the request reaches the server, then `on_death` is called, and the reply is lost.
- `lost_reply`: the server does what it was asked; the connection is reset before any reply.
- `silent`: the server does what it was asked; nothing is replied until `release`.
- `stalled`: nothing happens until `release`, then all goes on as usual.
- `short`: half of the reply's body arrives, then the connection ends.
- `slow`: body and reply come in pieces, `PAUSE_S` apart.
- `corrupt_request`, `corrupt_reply`: one bit of the body is another one.
- `lies`: a refused condition (412) is reported as success.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock, Thread
from typing import Any, Literal, Self
from urllib.parse import urlsplit

Kind = Literal[
    "busy",
    "conflict",
    "denied",
    "skewed",
    "reset",
    "torn",
    "dies",
    "lost_reply",
    "silent",
    "stalled",
    "short",
    "slow",
    "corrupt_request",
    "corrupt_reply",
    "lies",
]
ANSWERS = {
    "busy": (503, "SlowDown"),
    "conflict": (409, "ConditionalRequestConflict"),
    "denied": (403, "AccessDenied"),
    "skewed": (403, "RequestTimeTooSkewed"),
}
PRECONDITION_FAILED = 412
SUCCESS = b'HTTP/1.1 200 OK\r\nETag: "of-another"\r\nContent-Length: 0\r\n\r\n'
BODILESS = frozenset({204, 304})
CONTINUE = 100
PIECE_BYTES = 1 << 16
SLOW_PIECES = 8
PAUSE_S = 0.2
HEAD_BYTES_MAX = 1 << 16
BYTES_TORN_MIN = 2


@dataclass(frozen=True, slots=True)
class WireFault:
    """One way to fail, and when."""

    kind: Kind
    method: str = ""
    """Strikes this method only, such as PUT; "" is every one."""
    path: str = ""
    """Strikes targets (path and query) that this pattern is found in."""
    probability: float = 1.0
    calls: tuple[int, ...] = ()
    """Strikes exactly these of the matching requests, counted from 1; empty is any."""

    def applies_to(self, method: str, target: str) -> bool:
        return self.method in {"", method} and re.search(self.path, target) is not None


ALL_WEATHERS = (
    WireFault("busy", probability=0.06),
    WireFault("conflict", "PUT", probability=0.05),
    WireFault("reset", probability=0.05),
    WireFault("torn", "PUT", probability=0.05),
    WireFault("lost_reply", probability=0.08),
    WireFault("short", "GET", probability=0.05),
)
"""What a bad day does; what takes long, and wrong bits, have tests of their own."""


@dataclass(slots=True)
class Head:
    """The first lines of a message, as they came."""

    first: bytes
    lines: list[bytes]
    fields: dict[bytes, bytes]

    @property
    def raw(self) -> bytes:
        return b"\r\n".join([self.first, *self.lines, b"", b""])

    @property
    def is_chunked(self) -> bool:
        return self.fields.get(b"transfer-encoding", b"").lower() == b"chunked"

    @property
    def length(self) -> int:
        return int(self.fields.get(b"content-length", b"0"))


@dataclass(slots=True)
class Request:
    """What a client sent, whole."""

    method: str
    target: str
    head: Head
    body: bytes
    strike: Kind | None


class FaultProxy:
    """A context; `faults` may be changed while it runs, from any thread.

    `requests` has the method and target of each request, struck ones too, `headers` its header
    fields; `struck` counts faults.
    """

    def __init__(self, upstream: str, *, seed: int = 0, faults: Sequence[WireFault] = ()) -> None:
        """Forward to `upstream`, such as `http://127.0.0.1:8333`."""
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._rng = Random(seed)
        self._lock = Lock()
        self._faults = tuple(faults)
        self._matched: Counter[int] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="fault proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()
        self.endpoint = ""
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.struck: Counter[str] = Counter()
        self.on_death: Callable[[], object] = lambda: None
        """What `dies` calls, in a thread: it kills the server."""
        self.held = 0
        """Requests that are stalled or silent just now."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def faults(self) -> tuple[WireFault, ...]:
        """What may strike; replacing it begins counting matching requests anew."""
        return self._faults

    @faults.setter
    def faults(self, faults: Iterable[WireFault]) -> None:
        with self._lock:
            self._faults = tuple(faults)
            self._matched.clear()

    def release(self) -> None:
        """Let all go on that is stalled or silent now."""

        async def release() -> None:
            self._released.set()
            self._released = asyncio.Event()

        self._call(release())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self.endpoint = f"http://{host}:{port}"

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            replies, upstream = await asyncio.open_connection(*self._upstream, limit=HEAD_BYTES_MAX)
            while await self._exchange(reader, writer, replies, upstream):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            _reset(writer)  # the streams log a cancellation that passes through them
        finally:
            self._tasks.discard(task)
            for one in (writer, upstream):
                if one is not None:
                    one.close()

    def _strike(self, method: str, target: str) -> Kind | None:
        with self._lock:
            self.requests.append((method, target))
            for index, fault in enumerate(self._faults):
                if not fault.applies_to(method, target):
                    continue
                self._matched[index] += 1
                if fault.calls and self._matched[index] not in fault.calls:
                    continue
                if fault.probability >= 1 or self._rng.random() < fault.probability:
                    self.struck[fault.kind] += 1
                    return fault.kind
        return None

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        replies: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """One request and its reply; returns whether the connection goes on."""
        request = await self._request(reader, writer)
        strike = request.strike
        if strike in ANSWERS:
            await _send(writer, _refusal(*ANSWERS[strike], request.method))
            return True
        is_cut_early = strike == "torn" and len(request.body) < BYTES_TORN_MIN
        if strike == "reset" or is_cut_early:
            _reset(writer)
            return False
        if strike == "stalled":
            await self._hold()
        body = self._flipped(request.body) if strike == "corrupt_request" else request.body
        upstream.write(request.head.raw)
        if strike == "torn":
            await _send(upstream, body[: len(body) // 2])
            _reset(upstream)
            _reset(writer)
            return False
        if strike == "dies":
            await _send(upstream, body[: self._rng.randint(0, len(body))])
            await asyncio.to_thread(self.on_death)
            _reset(writer)
            return False
        await _send(upstream, body, slowly=strike == "slow")
        reply = await _head(replies)
        while _status(reply) == CONTINUE:
            reply = await _head(replies)
        return await self._reply(request, reply, replies, writer)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
        head = await _head(reader)
        method, target, _ = head.first.decode("latin-1").split(" ", 2)
        if head.fields.get(b"expect", b"").lower() == b"100-continue":  # which is not signed
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head.lines = [line for line in head.lines if not line.lower().startswith(b"expect:")]
        body = b"".join([piece async for piece in _body(reader, head)])
        self.headers.append(head.fields)
        return Request(method, target, head, body, self._strike(method, target))

    async def _reply(
        self,
        request: Request,
        reply: Head,
        replies: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        strike = request.strike
        has_body = request.method != "HEAD" and _status(reply) not in BODILESS
        body = b"".join([piece async for piece in _body(replies, reply)]) if has_body else b""
        if strike == "lost_reply":
            _reset(writer)
            return False
        if strike == "silent":
            await self._hold()
        if strike == "lies" and _status(reply) == PRECONDITION_FAILED:
            await _send(writer, SUCCESS)
            return True
        writer.write(reply.raw)
        if strike == "short" and body:
            await _send(writer, body[: len(body) // 2])
            writer.close()
            return False
        if strike == "corrupt_reply" and not reply.is_chunked:
            body = self._flipped(body)
        await _send(writer, body, slowly=strike == "slow")
        return reply.fields.get(b"connection", b"").lower() != b"close"

    async def _hold(self) -> None:
        self.held += 1
        try:
            await self._released.wait()
        finally:
            self.held -= 1

    def _flipped(self, body: bytes) -> bytes:
        wrong = bytearray(body)
        if wrong:
            wrong[self._rng.randrange(len(wrong))] ^= 1 << self._rng.randrange(8)
        return bytes(wrong)


async def _head(reader: asyncio.StreamReader) -> Head:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw[:-4].split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    return Head(first, lines, {name.strip().lower(): value.strip() for name, _, value in pairs})


async def _body(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """The body's bytes as they came, the framing of chunks included."""
    if not head.is_chunked:
        left = head.length
        while left:
            piece = await reader.read(min(left, PIECE_BYTES))
            if not piece:
                raise EOFError
            left -= len(piece)
            yield piece
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        yield line
        size = int(line.split(b";")[0], 16)
        if size:
            yield await reader.readexactly(size + 2)
            continue
        while line != b"\r\n":  # trailers, and the empty line behind them
            line = await reader.readuntil(b"\r\n")
            yield line
        return


async def _send(writer: asyncio.StreamWriter, data: bytes, *, slowly: bool = False) -> None:
    step = max(1, -(-len(data) // SLOW_PIECES)) if slowly else max(1, len(data))
    for at in range(0, len(data), step):
        if slowly:
            await asyncio.sleep(PAUSE_S)
        writer.write(data[at : at + step])
        await writer.drain()
    await writer.drain()


def _refusal(status: int, code: str, method: str) -> bytes:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
    head = (
        f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    )
    return (head if method == "HEAD" else head + text).encode()


def _status(head: Head) -> int:
    return int(head.first.split()[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a machine that fails does: not by the polite closing."""
    wire = writer.get_extra_info("socket")
    if wire is not None:
        with contextlib.suppress(OSError):
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
