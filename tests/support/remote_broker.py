"""A broker or name server for the proxy, by a table of its answers; what came is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from tieredstore.serve.wire.frame import (
    RESPONSE,
    Command,
    RequestCode,
    decode,
    encode,
)

Answered = Callable[[Command], Command | Awaitable[Command]]


def record(queue_id: int, offset: int, body: bytes = b"") -> bytes:
    """The begin of a message, as the proxy looks at it, and a body."""
    head = (0, 0, queue_id, 0)
    rest = b"".join(one.to_bytes(4, "big") for one in head) + offset.to_bytes(8, "big") + body
    return (4 + len(rest)).to_bytes(4, "big") + rest


class RemoteBroker:
    """Use it as `async with RemoteBroker() as broker:`. It stops, and starts at the same port."""

    def __init__(self, name: str = "b", cluster: str = "C") -> None:
        self.port = 0
        self.frames: list[bytes] = []
        """What clients sent, as it came."""
        self.answers: dict[int, Answered] = {}
        config = f"brokerName={name}\nbrokerClusterName={cluster}\n".encode()
        self.gives(RequestCode.GET_BROKER_CONFIG, body=config)
        self.gives(RequestCode.GET_ALL_CONSUMER_OFFSET, body=b'{"offsetTable":{}}')
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._writers)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def gives(
        self,
        request: int,
        code: int = 0,
        remark: str | None = None,
        body: bytes = b"",
        **fields: Any,
    ) -> None:
        """Has each request of a code answered so."""
        texts = {name: str(value) for name, value in fields.items()}
        self.answers[request] = lambda _: Command(code, dict(texts), body, remark=remark)

    def asked(self, code: int) -> list[Command]:
        """The requests of a code that came."""
        return [one for frame in self.frames if (one := decode(frame)).code == code]

    async def send(self, frame: bytes) -> None:
        """Sends a frame to every client."""
        for writer in self._writers:
            writer.write(frame)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                self.frames.append(frame)
                await self._answer(decode(frame), writer)
        except (EOFError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, request: Command, writer: asyncio.StreamWriter) -> None:
        given = self.answers.get(request.code)
        if given is None or request.is_one_way or request.is_response:
            return
        found = given(request)
        answer = found if isinstance(found, Command) else await found
        answer.opaque, answer.flag, answer.kind = request.opaque, RESPONSE, request.kind
        writer.write(encode(answer, len(answer.body)) + answer.body)
