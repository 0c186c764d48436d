"""The server inside a process that tiers: it serves, and its failures stop no tiering."""

import asyncio
import logging
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from provider.clock import SystemClock
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port, get
from tests.support.patience import Patience, communicated, until, wait_until
from tests.support.remoting_client import RemotingClient
from tieredstore import follow
from tieredstore.config.effective import Config
from tieredstore.follower import Follower
from tieredstore.lifetime import running
from tieredstore.metrics.reads import ReadMeter
from tieredstore.serve import beside
from tieredstore.serve.beside import ServerBeside
from tieredstore.serve.wire.frame import RequestCode, ResponseCode

SUSPENDED = {"sysFlag": 6, "suspendTimeoutMillis": 60_000}


@asynccontextmanager
async def following(tmp_path: Path, port: int) -> AsyncGenerator[tuple[Follower, ServerBeside]]:
    """A follower of `tmp_path/store` and the server beside it."""
    given = {"tieredStoreServePort": port, "tieredStoreServeStatePath": tmp_path / "state"}
    config = Config.named(tmp_path / "tier", "C", "b", None, given)
    server, clock = ServerBeside.of(config, SystemClock()), SystemClock()
    assert server is not None
    async with follow(tmp_path / "store", tmp_path / "tier", cluster="C", broker="b") as follower:
        meter = ReadMeter(CollectorRegistry(), clock)
        async with running([follower.run, partial(server.run, meter)]):
            yield follower, server


async def ready(server: ServerBeside) -> None:
    patience = Patience(server.unready_reason)
    await until(lambda: not server.unready_reason(), patience)


async def test_a_pull_is_answered_once_the_message_is_tiered(tmp_path: Path) -> None:
    broker, port = FakeBroker(tmp_path / "store"), free_port()
    broker.put("A", 0, b"first")
    async with following(tmp_path, port) as (follower, server):
        await follower.drain()
        await ready(server)
        async with await RemotingClient.connect(f"127.0.0.1:{port}") as client:
            patience = Patience("the topic is not seen")
            place = {"topic": "A", "queueId": 0}
            while (await client.ask(RequestCode.GET_MAX_OFFSET, **place)).code:
                patience.look()
                await asyncio.sleep(0.01)
            held = client.send_pull("A", 0, 1, **SUSPENDED)
            broker.put("A", 0, b"second")
            answer = await client.answer(held)
            assert answer.code == ResponseCode.SUCCESS
            assert b"second" in answer.body
            registry = CollectorRegistry()
            registry.register(server)
            page = await asyncio.to_thread(generate_latest, registry)
            assert b"tieredstore_serve_connections 1.0" in page


async def test_a_port_that_is_taken_stops_no_tiering_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "RETRY_S", 0.05)
    broker, port = FakeBroker(tmp_path / "store"), free_port()
    broker.put("A", 0, b"first")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        async with following(tmp_path, port) as (follower, server):
            await until(lambda: str(port) in server.unready_reason(), Patience("it is not refused"))
            assert (await follower.drain()).messages == 1
            assert "already in use" in server.unready_reason()
            other.close()
            await ready(server)
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    (error,) = errors
    assert "tiering continues" in error


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("command", ["tier", "run"])
def test_one_process_tiers_and_serves_until_a_signal(tmp_path: Path, command: str) -> None:
    store, tier, state = tmp_path / "store", tmp_path / "tier", tmp_path / "state"
    port, pages = free_port(), free_port()
    words = ["tier", str(store), "--follow"] if command == "tier" else ["run"]
    values = {
        "storePathRootDir": store,
        "tieredStoreFilePath": tier,
        "brokerName": "b",
        "tieredStoreServePort": port,
        "tieredStoreMetricsPort": pages,
        "tieredStoreServeStatePath": state,
        "tieredStoreGroupCommitTimeout": 20,
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    }
    defines = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
    if command == "tier":
        FakeBroker(store).put_many("A", 0, [b"one", b"two"])
    else:
        run(*defines, "put", "A", "one", "two")
    with subprocess.Popen(
        [*COMMAND, *defines, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            patience = Patience("it is not ready", pids=[process.pid])
            wait_until(lambda: get(pages, "/readyz")[0] == 200, patience)
            page = asyncio.run(page_while_read(port, pages))
            process.send_signal(signal.SIGTERM)
            _, err = communicated(process)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert 'tieredstore_serve_connections{cluster="DefaultCluster",node_id="b"} 1.0' in page
    assert "rocketmq_tiered_store_messages_out_total{" in page
    assert '"A@G":{"0":2}' in (state / "consumerOffset.json").read_text()


async def page_while_read(port: int, pages: int) -> str:
    """Read all, and commit; what the metrics say then."""
    async with await RemotingClient.connect(f"127.0.0.1:{port}") as client:
        place, patience = {"topic": "A", "queueId": 0}, Patience("nothing is tiered")
        while (await client.ask(RequestCode.GET_MAX_OFFSET, **place)).fields.get("offset") != "2":
            patience.look()
            await asyncio.sleep(0.05)
        assert (await client.pull("A", 0, 0)).code == ResponseCode.SUCCESS
        commit = {**place, "consumerGroup": "G", "commitOffset": 2}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
        return (await asyncio.to_thread(get, pages, "/metrics"))[1]
