"""The HTTP server beside an event loop, with pages of its own."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry, Counter

from tests.support.http import free_port, get, value_of
from tieredstore.config.sources import ConfigError
from tieredstore.metrics import page
from tieredstore.metrics.page import LoopCalls, LoopStuck, Pages, served

HOST = "127.0.0.1"


class World:
    """Pages whose verdict a test sets."""

    def __init__(self, answer_s_max: float = 60.0) -> None:
        self.reason = ""
        self.registry = CollectorRegistry()
        Counter("things", "Things.", registry=self.registry).inc(3)
        loop = LoopCalls(asyncio.get_running_loop(), answer_s_max=answer_s_max)
        self.pages = Pages(self.registry, loop, lambda: self.reason)
        self.port = free_port()

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        return await asyncio.to_thread(get, self.port, path, method=method)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with served(HOST, world.port, world.pages):
        yield world


async def test_metrics_are_served_under_their_path_alone(world: World) -> None:
    status, page = await world.get("/metrics")
    assert (status, value_of(page, "things_total")) == (200, 3)
    for path in ("/", "/metricsx", "/metrics/x", "/healthz/", "/favicon.ico"):
        status, line = await world.get(path)
        assert (status, line.count("\n")) == (404, 1), path
    assert (await world.get("/healthz", "POST"))[0] == 405


async def test_readiness_is_the_reason_and_health_is_the_loop(world: World) -> None:
    assert await world.get("/readyz") == (200, "ok\n")
    assert await world.get("/readyz", "HEAD") == (200, "")
    world.reason = "the storage\nis away"
    assert await world.get("/readyz") == (503, "the storage is away\n")
    assert await world.get("/healthz") == (200, "ok\n")


async def test_a_verdict_that_fails_is_no_readiness(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> NoReturn:
        raise RuntimeError("no moment to look at")

    monkeypatch.setattr(world.pages, "_unready_reason", fails)
    assert await world.get("/readyz") == (503, "no moment to look at\n")


async def test_while_the_loop_stands_still_no_page_says_that_all_is_well() -> None:
    world = World(answer_s_max=0.05)
    async with served(HOST, world.port, world.pages):
        with ThreadPoolExecutor() as threads:
            for path in ("/healthz", "/readyz"):
                answer = threads.submit(get, world.port, path).result()  # blocks the loop
                assert answer == (503, "the event loop did not run for 0.05 s\n")


async def test_a_loop_that_has_ended_is_stuck() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(LoopStuck, match="ended"):
        LoopCalls(loop).call(str)


async def test_the_address_is_the_one_that_was_asked_for() -> None:
    world = World()
    async with served("127.0.0.2", world.port, world.pages):
        assert (await world.get("/healthz"))[0] == 0
        found = await asyncio.to_thread(get, world.port, "/healthz", host="127.0.0.2")
        assert found == (200, "ok\n")
    assert (await asyncio.to_thread(get, world.port, "/healthz", host="127.0.0.2"))[0] == 0


@pytest.mark.parametrize("host", [HOST, "192.0.2.1", "nowhere.invalid"])
async def test_an_address_that_cannot_be_had_is_a_sentence_with_both_keys(
    world: World, host: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with served(host, world.port, world.pages):
            raise AssertionError("it is taken, foreign, or unknown")
    for word in (host, str(world.port), "tieredStoreMetricsHost", "tieredStoreMetricsPort"):
        assert word in str(caught.value)


async def test_port_0_serves_nothing(world: World) -> None:
    async with served(HOST, 0, world.pages):
        pass


async def test_the_loop_itself_need_not_wait_for_itself() -> None:
    assert LoopCalls(asyncio.get_running_loop()).call(lambda: 7) == 7


def _reset(port: int, sent: bytes = b"") -> None:
    """Connect, send, and abort the connection."""
    with socket.create_connection((HOST, port)) as client:
        client.sendall(sent)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _idle(port: int) -> bytes:
    """Send half a request until the server closes the connection."""
    with socket.create_connection((HOST, port), timeout=30) as client:
        client.sendall(b"GET /metr")
        return client.recv(1)


async def test_clients_that_abort_or_send_nothing_leave_no_line_on_standard_error(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard error has JSON lines of the log alone."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(page._Handler, "timeout", 0.05)
    closed = page._Server.shutdown_request
    left = 3

    def shut(server: page._Server, request: socket.socket) -> None:
        nonlocal left
        closed(server, request)
        left -= 1
        if not left:
            loop.call_soon_threadsafe(ended.set)

    monkeypatch.setattr(page._Server, "shutdown_request", shut)
    await asyncio.to_thread(_reset, world.port)
    await asyncio.to_thread(_reset, world.port, b"GET /metrics HTTP/1.0\r\n")
    assert await asyncio.to_thread(_idle, world.port) == b""
    await asyncio.wait_for(ended.wait(), 30)
    assert capfd.readouterr() == ("", "")
    monkeypatch.undo()
    assert (await world.get("/metrics"))[0] == 200


async def test_a_fault_of_the_server_is_one_line_of_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> NoReturn:
        raise RuntimeError("no handler")

    monkeypatch.setattr(page._Handler, "handle", fails)
    assert (await world.get("/metrics"))[0] == 0
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("ERROR", "a request of the metrics page failed: no handler")
    ]
