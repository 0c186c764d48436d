"""Connection to a broker or a name server, for requests of the server's own."""

import asyncio
import errno
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from provider.clock import Clock, within
from tieredstore.serve.wire.frame import (
    LENGTH_BYTES,
    PASSED_BYTES_MAX,
    BadFrame,
    Command,
    decode,
    encode,
    frame_bytes,
)

ANSWER_S_MAX = 5.0
PORT_MAX = 65_535


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse HOST:PORT; an IPv6 address is in brackets.

        Raises:
            ValueError: it is no such address.
        """
        host, _, port = text.strip().rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        is_port = port.isascii() and port.isdecimal() and len(port) <= len(str(PORT_MAX))
        if not host or not is_port or not 0 < int(port) <= PORT_MAX:
            raise ValueError(f"{text!r} is no HOST:PORT")
        return cls(host, int(port))


class Unreachable(Exception):
    """The server gave no answer; the text has the reason."""


def reason_of(error: Exception) -> str:
    """Return the reason of a failure of a connection, in lowercase. Pure."""
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return (str(error) or type(error).__name__).lower()


class Link:
    """Connection that is made at the first request, and again after a failure. For one task."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._opaque = 0

    def __repr__(self) -> str:
        return f"<Link to {self.address}>"

    @property
    def is_open(self) -> bool:
        """Whether the last request was answered over the present connection."""
        return self._streams is not None

    async def ask(
        self, code: int, body: bytes = b"", fields: Mapping[str, str] = MappingProxyType({})
    ) -> Command:
        """Send a request, and return its response within `ANSWER_S_MAX`.

        Raises:
            Unreachable: there is none. The connection is closed.
        """
        self._opaque += 1
        request = Command(code, dict(fields), body, self._opaque)
        is_answered = False
        try:
            found = await within(self._clock, ANSWER_S_MAX, self._answer(request))
            is_answered = True
        except (OSError, EOFError, UnicodeError, BadFrame) as error:
            raise Unreachable(f"{self.address}: {reason_of(error)}") from error
        finally:
            if not is_answered:
                self.close()
        return found

    async def _answer(self, request: Command) -> Command:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self.address)
        reader, writer = self._streams
        writer.write(encode(request, len(request.body)) + request.body)
        await writer.drain()
        while True:
            head = await reader.readexactly(LENGTH_BYTES)
            size = frame_bytes(head, 0, PASSED_BYTES_MAX)
            assert size is not None
            found = decode(head + await reader.readexactly(size - LENGTH_BYTES))
            if found.is_response and found.opaque == request.opaque:
                return found

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
