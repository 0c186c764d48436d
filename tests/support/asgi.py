"""Asks an ASGI application in this process, without a socket."""

from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp


class Answer(NamedTuple):
    """Answer of an application."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


async def ask(app: ASGIApp, target: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request; `_` in the name of a header is a `-`."""
    path, _, query = target.partition("?")
    given = {"host": "127.0.0.1:8077"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(path).decode(),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8077),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    heads = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return Answer(sent[0]["status"], heads, body)
