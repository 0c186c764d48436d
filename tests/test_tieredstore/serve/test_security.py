"""Accounts that sign requests, and TLS: of clients in this process."""

import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tests.support.certificates import made_certificates
from tests.support.fake_broker import FakeBroker
from tests.support.patience import Patience, until
from tests.support.remoting_client import RemotingClient
from tieredstore import follow
from tieredstore import open as open_tier
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.reads import ReadMeter
from tieredstore.serve import server
from tieredstore.serve.options import ServeOptions
from tieredstore.serve.server import Server, serving
from tieredstore.serve.wire import connection
from tieredstore.serve.wire.connection import REFUSED_MAX, Connection
from tieredstore.serve.wire.frame import JSON, ROCKETMQ, Command, RequestCode, ResponseCode
from tieredstore.serve.wire.security import Accounts, Tls, signature

ACCOUNT = ("reader", "s3cret-of-reader")
OTHER = ("other", "s3cret-of-other")


@pytest.fixture
async def tier(tmp_path: Path) -> Path:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"body")
    async with follow(broker.directory, tmp_path / "tier", cluster="C", broker="b") as follower:
        await follower.drain()
    return tmp_path / "tier"


def settings(tmp_path: Path, **more: Any) -> Config:
    given = {"tieredStoreServeStatePath": tmp_path / "state", **more}
    return Config.named(tmp_path / "tier", "C", "b", None, given)


@asynccontextmanager
async def served(tmp_path: Path, **more: Any) -> AsyncGenerator[Server]:
    options = replace(ServeOptions.of(settings(tmp_path, **more)), port=0)
    meter = ReadMeter(CollectorRegistry(), SystemClock())
    async with (
        open_tier(tmp_path / "tier") as tier,
        serving(options, tier, meter, SystemClock()) as one,
    ):
        yield one


def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.conf"
    path.write_text("# who reads\n\nreader s3cret-of-reader\nother\ts3cret-of-other\n")
    return path


def test_a_signature_is_that_of_the_official_client() -> None:
    """The vector is what AclClientRPCHook of 5.5.0 gave."""
    fields = {"topic": "A", "consumerGroup": "G", "AccessKey": "reader", "Signature": "none"}
    found = signature(b"s3cret-of-reader", Command(11, fields, b"body"))
    assert found == b64decode("7oDbHXo1q8DvnKgne0tZsXRQeJk=")


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
async def test_requests_that_an_account_signed_are_served(
    tier: Path, tmp_path: Path, kind: int
) -> None:
    async with served(tmp_path, tieredStoreServeAccountsPath=accounts(tmp_path)) as one:
        for account in (ACCOUNT, OTHER):
            async with await RemotingClient.connect(one.address, kind, account=account) as client:
                assert (await client.pull("A", 0, 0)).code == ResponseCode.SUCCESS
                await client.beat("c", "G", "A")
        wrong = ("reader", "guessed"), ("unknown", "s3cret-of-reader"), ("", ""), None
        for account in wrong:
            async with await RemotingClient.connect(one.address, kind, account=account) as client:
                answer = await client.pull("A", 0, 0)
                assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
                for code in (105, 34, 30501, 9999):
                    assert (await client.ask(code, topic="A")).code == ResponseCode.NO_PERMISSION


async def test_what_changed_after_it_was_signed_is_refused(tier: Path, tmp_path: Path) -> None:
    async with (
        served(tmp_path, tieredStoreServeAccountsPath=accounts(tmp_path)) as one,
        await RemotingClient.connect(one.address, account=ACCOUNT) as client,
    ):
        signed: dict[str, Any] = {"AccessKey": "reader", "topic": "A", "queueId": "0"}
        raw = signature(ACCOUNT[1].encode(), Command(30, dict(signed)))
        signed["Signature"] = b64encode(raw).decode()
        client.account = None
        for more, code in (
            ({}, ResponseCode.SUCCESS),
            ({"_UNIQUE_KEY_QUERY": "true"}, ResponseCode.SUCCESS),
            ({"queueId": "1"}, ResponseCode.NO_PERMISSION),
            ({"more": "1"}, ResponseCode.NO_PERMISSION),
        ):
            fields: dict[str, Any] = {**signed, **more}
            answer = await client.ask(RequestCode.GET_MAX_OFFSET, **fields)
            assert answer.code == code, fields
        answer = await client.ask(30, b"body", **signed)
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_client_that_guesses_is_disconnected(tier: Path, tmp_path: Path) -> None:
    async with (
        served(tmp_path, tieredStoreServeAccountsPath=accounts(tmp_path)) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        for _ in range(REFUSED_MAX):
            assert (await client.pull("A", 0, 0)).code == ResponseCode.NO_PERMISSION
        assert await client.reader.read() == b""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "name no access key"),
        ("reader\n", "line 1"),
        ("a b\na c\n", "line 2"),
        ("a b c\n", "line 1"),
        (None, "no such file"),
    ],
)
def test_accounts_that_are_wrong_are_refused(
    tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "accounts.conf"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        Accounts.read(path)


def test_an_open_address_needs_accounts_or_certificates(tmp_path: Path) -> None:
    everywhere = {"tieredStoreServeHost": "10.0.0.7"}
    files = {"tieredStoreServeTlsCertPath": "c", "tieredStoreServeTlsKeyPath": "k"}
    for more in ({}, files):
        with pytest.raises(ConfigError, match="set tieredStoreServeAccountsPath"):
            ServeOptions.of(settings(tmp_path, **everywhere, **more))
    for more in (
        {"tieredStoreServeAccountsPath": "a"},
        files | {"tieredStoreServeTlsTrustCertPath": "t"},
        {"tieredStoreServeInsecure": True},
    ):
        ServeOptions.of(settings(tmp_path, **everywhere, **more))
    with pytest.raises(ConfigError, match="TLS needs both"):
        ServeOptions.of(settings(tmp_path, tieredStoreServeTlsTrustCertPath="t"))


@pytest.mark.slow
async def test_a_tls_client_that_vanishes_ends_no_server(
    tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENT_S_MAX", 0.01)
    monkeypatch.setattr(server, "UPKEEP_S", 0.0)
    closed: list[Connection] = []
    upkeep = Connection.upkeep

    def counted(one: Connection, now_s: float) -> None:
        upkeep(one, now_s)
        closed.extend([one] if one.is_closed else [])

    monkeypatch.setattr(Connection, "upkeep", counted)
    authority, both = made_certificates(tmp_path)
    tls = {"tieredStoreServeTlsCertPath": both, "tieredStoreServeTlsKeyPath": both}
    context = ssl.create_default_context(cafile=authority)
    async with (
        served(tmp_path, **tls) as one,
        await RemotingClient.connect(one.address, tls=context) as vanished,
    ):
        assert (await vanished.pull("A", 0, 0)).code == ResponseCode.SUCCESS
        vanished.writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
        await until(lambda: len(closed) >= 3, Patience("it is not closed"))
        async with await RemotingClient.connect(one.address, tls=context) as client:
            assert (await client.pull("A", 0, 0)).code == ResponseCode.SUCCESS


@pytest.mark.slow
async def test_clients_are_served_by_tls_alone(tier: Path, tmp_path: Path) -> None:
    authority, both = made_certificates(tmp_path)
    tls = {"tieredStoreServeTlsCertPath": both, "tieredStoreServeTlsKeyPath": both}
    context = ssl.create_default_context(cafile=authority)
    async with served(tmp_path, **tls) as one:
        async with await RemotingClient.connect(one.address, tls=context) as client:
            assert (await client.pull("A", 0, 0)).code == ResponseCode.SUCCESS
        async with await RemotingClient.connect(one.address) as client:
            client.send_pull("A", 0, 0)
            assert await client.reader.read() == b""
    async with served(tmp_path, **tls, tieredStoreServeTlsTrustCertPath=authority) as one:
        async with await RemotingClient.connect(one.address, tls=context) as client:
            client.send_pull("A", 0, 0)
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                await client.read()
        context.load_cert_chain(both)
        async with await RemotingClient.connect(one.address, tls=context) as client:
            assert (await client.pull("A", 0, 0)).code == ResponseCode.SUCCESS
    with pytest.raises(ConfigError, match="cannot be served by TLS"):
        Tls(authority, both, None).context()
