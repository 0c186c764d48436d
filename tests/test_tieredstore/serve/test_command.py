"""The command `serve`: its place, its refusals, and an orderly end."""

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, run, settings
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.http import free_port, get
from tests.support.patience import Patience, communicated, wait_until
from tests.support.remoting_client import RemotingClient
from tieredstore.serve.wire.frame import RequestCode, ResponseCode


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
