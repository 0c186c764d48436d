"""The command `serve`: its place, its refusals, and an orderly end."""

import asyncio
import signal
import subprocess
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tests.support.cli import COMMAND, run, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.http import free_port, get
from tests.support.patience import Patience, communicated, ended, wait_until
from tests.support.remoting_client import RemotingClient
from tieredstore import open as open_tier
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.reads import ReadMeter
from tieredstore.serve.naming import Naming
from tieredstore.serve.options import ServeOptions
from tieredstore.serve.server import Server, serving
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode
from tieredstore.session.reader import existing_tiers


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of the golden store; read only."""
    tree = unpacked(ROCKETMQ_533)
    place = tmp_path_factory.mktemp("serve-command") / "tier"
    run(*settings(tree, place), "tier", tree.store)
    return place


def test_a_server_for_everybody_is_refused_unless_that_is_said(tier: Path, tmp_path: Path) -> None:
    done = run("serve", tier, "-D", "tieredStoreServeHost=0.0.0.0", status=2)
    assert "tieredStoreServeInsecure=true" in done.err
    assert done.out == ""


def test_an_address_that_no_client_can_connect_to_is_refused(tier: Path) -> None:
    words = ("tieredStoreServeHost=0.0.0.0", "tieredStoreServeInsecure=true")
    done = run("serve", tier, *(part for one in words for part in ("-D", one)), status=2)
    assert "set tieredStoreServeAddress" in done.err


def test_a_place_without_a_tier_is_named(tmp_path: Path) -> None:
    done = run("serve", tmp_path / "none", status=1)
    assert "there is no tier" in done.err


async def page_while_connected(port: int, pages: int) -> str:
    """Commit an offset and pull; what the metrics say then."""
    async with await RemotingClient.connect(f"127.0.0.1:{port}") as client:
        place = {"consumerGroup": "G", "topic": "G_Keys", "queueId": 0}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=3)
        assert (await client.pull("G_Keys", 0, 3)).code == ResponseCode.SUCCESS
        return (await asyncio.to_thread(get, pages, "/metrics"))[1]


@pytest.mark.slow
@pytest.mark.process
def test_a_signal_saves_the_offsets_and_ends_with_0(tier: Path, tmp_path: Path) -> None:
    port, pages = free_port(), free_port()
    values = {
        "tieredStoreServePort": port,
        "tieredStoreMetricsPort": pages,
        "tieredStoreServeStatePath": tmp_path / "state",
    }
    defines = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
    with subprocess.Popen(
        [*COMMAND, "serve", str(tier), *defines],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            patience = Patience("it is not ready", pids=[process.pid])
            wait_until(lambda: get(pages, "/readyz")[0] == 200, patience)
            page = asyncio.run(page_while_connected(port, pages))
            process.send_signal(signal.SIGTERM)
            out, err = communicated(process)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, ""), err
    assert f"golden-a of cluster GoldenCluster is served at 127.0.0.1:{port}: 6 topics" in err
    assert 'tieredstore_serve_connections{cluster="GoldenCluster",node_id="golden-a"} 1.0' in page
    assert "rocketmq_tiered_store_messages_out_total{" in page
    offsets = (tmp_path / "state/consumerOffset.json").read_text()
    assert '"offsetTable":{"G_Keys@G":{"0":3}}' in offsets


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of two brokers; `A` is a topic of both, `B` of the second one."""
    directory = tmp_path_factory.mktemp("cluster")
    for broker, topics in (("broker-a", "A"), ("broker-b", "AB")):
        store = FakeBroker(directory / broker)
        for topic in topics:
            store.put_many(topic, 0, [f"{topic} of {broker}".encode()])
        names = ("-D", "brokerClusterName=C", "-D", f"brokerName={broker}")
        run(*names, "--tier", directory / "tier", "tier", store.directory)
    return directory / "tier"


async def test_brokers_are_served_as_one_cluster(cluster: Path, tmp_path: Path) -> None:
    given = {"tieredStoreServePort": free_port(), "tieredStoreServeStatePath": tmp_path}
    configs = existing_tiers(Config.named(cluster, None, None, None, given), ["*"])
    options = [replace(one, port=0) for one in ServeOptions.of_brokers(configs)]
    assert [one.offsets_path.parent.name for one in options] == ["broker-a", "broker-b"]
    together: list[Naming] = []
    async with AsyncExitStack() as stack:
        servers: dict[str, Server] = {}
        for config, one in zip(configs, options, strict=True):
            tier = await stack.enter_async_context(open_tier(cluster, broker=config.broker))
            meter = ReadMeter(CollectorRegistry(), SystemClock())
            entered = serving(one, tier, meter, SystemClock(), together)
            servers[config.broker] = await stack.enter_async_context(entered)
        first = servers["broker-a"].address
        async with await RemotingClient.connect(first) as client:
            assert brokers_of(await client.ask(105, topic="A")) == {
                name: server.address for name, server in servers.items()
            }
            assert brokers_of(await client.ask(105, topic="B")).keys() == {"broker-b"}
            assert (await client.ask(105, topic="None")).code == ResponseCode.TOPIC_NOT_EXIST
            table = orjson.loads((await client.ask(106)).body)
            assert table["clusterAddrTable"] == {"C": ["broker-a", "broker-b"]}
            assert orjson.loads((await client.ask(206)).body)["topicList"] == ["A", "B"]
            wrong = await client.pull("A", 0, 0, bname="broker-b")
            assert (wrong.code, wrong.remark) == (
                ResponseCode.SYSTEM_ERROR,
                "the request is for broker-b, and this is broker-a",
            )
        for name, server in servers.items():
            async with await RemotingClient.connect(server.address) as client:
                found = await client.pull("A", 0, 0, bname=name)
                assert f"A of {name}".encode() in found.body


def brokers_of(answer: Command) -> dict[str, str]:
    route = orjson.loads(answer.body)
    found = {one["brokerName"]: one["brokerAddrs"]["0"] for one in route["brokerDatas"]}
    assert found.keys() == {one["brokerName"] for one in route["queueDatas"]}
    return found


def test_offsets_of_one_broker_are_not_taken_for_those_of_several(
    cluster: Path, tmp_path: Path
) -> None:
    given = {"tieredStoreServeStatePath": tmp_path}
    configs = existing_tiers(Config.named(cluster, None, None, None, given), ["*"])
    (tmp_path / "consumerOffset.json").write_text("{}")
    with pytest.raises(ConfigError, match="move it into the directory of its broker"):
        ServeOptions.of_brokers(configs)
    (tmp_path / "consumerOffset.json").unlink()
    for option in ServeOptions.of_brokers(configs):
        option.offsets_path.parent.mkdir()
        option.offsets_path.write_text("{}")
    nested = [one.offsets_path for one in ServeOptions.of_brokers(configs)]
    assert nested == [ServeOptions.of(one).offsets_path for one in configs]
    (tmp_path / "consumerOffset.json").write_text("{}")
    assert ServeOptions.of(configs[0]).offsets_path == tmp_path / "consumerOffset.json"
    given = {"tieredStoreServeAddress": "10.0.0.7:9876", "tieredStoreServePort": 9876}
    configs = existing_tiers(Config.named(cluster, None, None, None, given), ["*"])
    options = ServeOptions.of_brokers(configs)
    assert [(one.port, one.address) for one in options] == [
        (9876, "10.0.0.7:9876"),
        (9877, "10.0.0.7:9877"),
    ]
    for more in ({"tieredStoreServePort": 65535}, {"tieredStoreServeAddress": "10.0.0.7:65535"}):
        configs = existing_tiers(Config.named(cluster, None, None, None, given | more), ["*"])
        with pytest.raises(ConfigError, match="65535 and 1 more is beyond 65535"):
            ServeOptions.of_brokers(configs)


@pytest.mark.slow
@pytest.mark.process
def test_a_process_serves_the_brokers_that_fit(cluster: Path, tmp_path: Path) -> None:
    port, pages = free_port(), free_port()
    values = {
        "tieredStoreServePort": port,
        "tieredStoreMetricsPort": pages,
        "tieredStoreServeStatePath": tmp_path / "state",
    }
    defines = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
    with subprocess.Popen([*COMMAND, "serve", str(cluster), "--broker", "*", *defines]) as process:
        try:
            patience = Patience("it is not ready", pids=[process.pid])
            wait_until(lambda: get(pages, "/readyz")[0] == 200, patience)
            page = get(pages, "/metrics")[1]
            process.send_signal(signal.SIGTERM)
            assert ended(process) == 0
        finally:
            process.kill()
    assert page.count("# TYPE tieredstore_serve_connections gauge") == 1
    for broker in ("broker-a", "broker-b"):
        assert f'tieredstore_serve_connections{{cluster="C",node_id="{broker}"}} 0.0' in page
