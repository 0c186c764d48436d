"""Guard in front of the pages: methods, host, token, rate, concurrency, headers."""

import asyncio
import hmac
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from provider.clock import Clock
from provider.names import is_loopback
from tieredstore.console.options import ConsoleOptions

ACTIVE_MAX = 16
"""Requests that are answered at once; more get a 503."""
RATE_PER_S, BURST = 50.0, 200.0
"""Requests a second, and at once after a pause, of all clients together; more get a 429."""
ANSWER_S_MAX = 30.0
QUERY_BYTES_MAX = 8 << 10
COOKIE = "tieredstore_console"
TOKEN = "token"  # noqa: S105 - the name of a parameter
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "interest-cohort=()",
}


class Guard:
    """ASGI application around another one, which gets permitted requests alone."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions, clock: Clock) -> None:
        self._app = app
        self._options = options
        self._clock = clock
        self._active = 0
        self._left = BURST
        self._seen_s = clock.monotonic_s()
        self._cookie = sha256(f"console {options.token}".encode()).hexdigest()
        """Value of the cookie: it shows that the client had the token, and is not the token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        self._active += 1
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._app(scope, receive, send_guarded)
        except TimeoutError:
            if has_begun:  # a client that reads too slowly
                return
            late = _line(HTTPStatus.GATEWAY_TIMEOUT, f"no answer in {ANSWER_S_MAX:g} s")
            await late(scope, receive, send_guarded)
        finally:
            self._active -= 1

    def _refusal(self, scope: Scope) -> Response | None:
        """Answer of a request that is not permitted; None for any other."""
        headers = Headers(scope=scope)
        if not (self._options.token or _is_own_host(headers.get("host", ""), self._options.host)):
            return _line(HTTPStatus.MISDIRECTED_REQUEST, "this host name is not served")
        if scope["method"] not in {"GET", "HEAD"}:
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, "the console is read-only", Allow="GET")
        if len(scope["query_string"]) > QUERY_BYTES_MAX:
            return _line(HTTPStatus.REQUEST_URI_TOO_LONG, "the query is too long")
        if self._active >= ACTIVE_MAX:
            return _busy(HTTPStatus.SERVICE_UNAVAILABLE)
        now_s = self._clock.monotonic_s()
        self._left = min(BURST, self._left + RATE_PER_S * (now_s - self._seen_s))
        self._seen_s = now_s
        if self._left < 1:
            return _busy(HTTPStatus.TOO_MANY_REQUESTS)
        self._left -= 1
        return self._asked_for_token(scope, headers) if self._options.token else None

    def _asked_for_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Compare the token in constant time; a right one of a link becomes a cookie."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get(TOKEN, [])
        if any(self._is_token(one) for one in given):
            answer = RedirectResponse(f"/{quote(scope['path'].lstrip('/'))}", HTTPStatus.SEE_OTHER)
            answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="lax")
            return answer
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        if hmac.compare_digest(cookie.encode(), self._cookie.encode()):
            return None
        text = "a token is needed: open /?token=TOKEN once, or send Authorization: Bearer TOKEN"
        return _line(HTTPStatus.UNAUTHORIZED, text, **{"WWW-Authenticate": "Bearer"})

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._options.token.encode())


def _line(status: HTTPStatus, text: str, **headers: str) -> PlainTextResponse:
    return PlainTextResponse(f"{text}\n", status, headers)


def _busy(status: HTTPStatus) -> PlainTextResponse:
    return _line(status, "too many requests: try again", **{"Retry-After": "1"})


def _is_own_host(given: str, host: str) -> bool:
    """Whether a Host header names loopback: a page of another site may resolve its name to us."""
    name, _, port = given.rpartition(":") if not given.endswith("]") else (given, "", "")
    name = name if port.isdecimal() else given
    name = name.removeprefix("[").removesuffix("]").lower()
    return name == host.lower() or is_loopback(name)
