"""HTTP page of a follower: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes."""

import asyncio
import io
import logging
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from itertools import chain
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, TypeVar, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import (
    CollectorRegistry,
    Metric,
    ProcessCollector,
    make_wsgi_app,  # pyright: ignore[reportUnknownVariableType] - its result has no type
)
from prometheus_client.registry import Collector

from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.families import LabelledMetrics, Moment, TieringMetrics
from tieredstore.version import VERSION

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


LOGGER = logging.getLogger("tieredstore.metrics.page")
METRICS = "/metrics"
ANSWER_S_MAX = 5.0
POLL_S = 0.1
"""Seconds between two checks of the server whether it is to end."""
REQUEST_S_MAX = 30
"""Seconds that a client may take for its request."""
OK, NOT_FOUND, WRONG_METHOD, UNAVAILABLE = (
    "200 OK",
    "404 Not Found",
    "405 Method Not Allowed",
    "503 Service Unavailable",
)

ResultT = TypeVar("ResultT")


class LoopStuck(Exception):
    """The event loop of the process does not answer; the text has the duration."""


class LoopCalls:
    """Calls functions on an event loop, from any thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, answer_s_max: float = ANSWER_S_MAX
    ) -> None:
        self._loop = loop
        self._answer_s_max = answer_s_max

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call `function` between two steps of the loop's tasks; return or raise its result.

        Raises:
            LoopStuck: the loop did not run it in `answer_s_max` seconds, or has ended.
        """
        if _running_loop() is self._loop:
            return function()
        answer: Future[ResultT] = Future()

        def give() -> None:
            try:
                answer.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised again in the other thread
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(give)
        except RuntimeError as error:
            raise LoopStuck("the event loop has ended") from error
        try:
            return answer.result(self._answer_s_max)
        except TimeoutError as error:
            raise LoopStuck(f"the event loop did not run for {self._answer_s_max:g} s") from error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Pages:
    """The WSGI application: answers by path. Called by many threads."""

    def __init__(
        self, metrics: CollectorRegistry, loop: LoopCalls, unready_reason: Callable[[], str]
    ) -> None:
        """`unready_reason` is called on the loop; "" means ready."""
        self._metrics = cast("WSGIApplication", make_wsgi_app(metrics))
        self._loop = loop
        self._unready_reason = unready_reason

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer a request; a failure is a 503 with its reason as a line."""
        checks = {"/healthz": str, "/readyz": self._unready_reason}
        path = environ["PATH_INFO"]
        if path != METRICS and path not in checks:
            known = " and ".join((METRICS, *checks))
            return _line(start_response, NOT_FOUND, f"there are {known}")
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _line(start_response, WRONG_METHOD, "only GET")
        try:
            if path == METRICS:
                return self._metrics(environ, start_response)
            reason = self._loop.call(checks[path])
        except Exception as error:  # noqa: BLE001 - whatever it is, the process is not well
            reason = str(error) or type(error).__name__
        return _line(start_response, UNAVAILABLE if reason else OK, reason or "ok")


def _line(start_response: "StartResponse", status: str, text: str) -> list[bytes]:
    body = " ".join(text.split()).encode() + b"\n"
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request; none of them keeps the process alive."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Listen, without asking a name server for our name."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base's
        """Log a fault of ours. A client that aborted, or sent no request in time, is none."""
        error = sys.exception()
        if not isinstance(error, OSError):
            LOGGER.error("a request of the metrics page failed: %s", error)


class _Handler(WSGIRequestHandler):
    """Logs no requests, and drops a client that sends none."""

    timeout = REQUEST_S_MAX

    def get_stderr(self) -> io.StringIO:
        """Return a stream for what wsgiref prints: a client that stopped to read. Not kept."""
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing."""


def _listening(host: str, port: int, pages: "WSGIApplication") -> WSGIServer:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    server = type("Server", (_Server,), {"address_family": family})
    return make_server(str(address[0]), port, pages, server, _Handler)


@asynccontextmanager
async def served(host: str, port: int, pages: "WSGIApplication") -> AsyncGenerator[None]:
    """Serve the pages while the block runs; port 0: serve none.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    if not port:
        yield
        return
    try:
        server = await asyncio.to_thread(_listening, host, port, pages)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"the metrics page cannot be served at {host} port {port} (tieredStoreMetricsHost, "
            f"tieredStoreMetricsPort): {reason}"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=(POLL_S,), name="metrics", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)


def unready_reason(moment: Moment) -> str:
    """Why messages do not reach the tier as they should, in one line; "" while they do.

    A queue that is stopped or damaged does not count: it never stops the others.
    """
    if moment.ends or not moment.is_owner:
        what = "it ends" if moment.ends else "the tier is no longer ours"
        return f"{what}: {moment.journal.last_error}"
    if moment.dispatch.outage:
        return f"nothing reaches the tier: {moment.dispatch.last_error}"
    if moment.dispatch.hot_error:
        return f"the store cannot be read: {moment.dispatch.hot_error}"
    if not moment.dispatch.started:
        return "it starts: not every queue of the store is compared with the tier yet"
    for one in moment.dispatch.waiting:
        if one.waits_long:
            return f"{one.waiting} messages of {one.queue} wait: {one.waits_for}"
    return f"upkeep fails: {moment.upkeep.last_error}" if moment.upkeep.last_error else ""


def metrics_of(
    config: Config, sample: Callable[[], Moment], counted: CollectorRegistry
) -> CollectorRegistry:
    """All metrics of a follower. To be called on its event loop, as `sample` is.

    `counted` are the metrics that count by themselves.
    """
    loop = LoopCalls(asyncio.get_running_loop())
    return labelled_metrics(config, TieringMetrics(lambda: loop.call(sample), VERSION), counted)


def labelled_metrics(config: Config, *parts: Collector | CollectorRegistry) -> CollectorRegistry:
    """The metrics of `parts` and of the process, with the labels of the configured broker."""
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    labels = {"cluster": config.cluster, "node_id": config.broker}
    metrics = CollectorRegistry()
    metrics.register(LabelledMetrics((*parts, process), labels, medium=medium_of(config)))
    return metrics


def merged(pages: Sequence[CollectorRegistry]) -> CollectorRegistry:
    """Return a registry of the metrics of several, each family once."""
    metrics = CollectorRegistry()
    metrics.register(_Merged(pages))
    return metrics


class _Merged(Collector):
    def __init__(self, pages: Sequence[CollectorRegistry]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        families: dict[str, Metric] = {}
        for family in chain.from_iterable(one.collect() for one in self._pages):
            known = families.setdefault(family.name, family)
            if known is not family:
                known.samples.extend(family.samples)
        yield from families.values()


def medium_of(config: Config) -> str:
    """Return the storage medium of a tier in the words of RocketMQ's metrics. Pure."""
    return "blob" if config.in_object_store else "posix"


@asynccontextmanager
async def served_metrics(
    config: Config,
    sample: Callable[[], Moment],
    metrics: CollectorRegistry,
    *,
    further: Callable[[], str] = str,
) -> AsyncGenerator[None]:
    """Serve a follower's pages while the block runs, if `tieredStoreMetricsPort` is set.

    `further`: why another part of the process is not ready; "" means ready.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    async with served_pages(config, lambda: unready_reason(sample()) or further(), metrics):
        yield


@asynccontextmanager
async def served_pages(
    config: Config, unready: Callable[[], str], metrics: CollectorRegistry
) -> AsyncGenerator[None]:
    """Serve the pages of any process; `unready` as for `Pages`. Raises as `served_metrics`."""
    pages = Pages(metrics, LoopCalls(asyncio.get_running_loop()), unready)
    async with served(config.metrics_host, config.metrics_port, pages):
        yield
