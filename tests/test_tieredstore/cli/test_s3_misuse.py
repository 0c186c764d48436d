"""What goes wrong with a tier on S3 is one sentence, loses nothing, and tells no secret."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.names.rocketmq import broker_directory
from tests.support.cli import COMMAND, complaints
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.patience import completed
from tests.support.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs
from tieredstore.cli.main import COMMANDS, cli

NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")
WRONG_SECRET = "wrongwrongwrongwrongwrongwrong"


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def refused(result: Result, status: int) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == status, result.output
    lines = complaints(result.stderr).splitlines()
    assert len(lines) == 1, result.stderr
    assert not any(secret in result.output for secret in (SECRET_KEY, ACCESS_KEY, WRONG_SECRET))
    return lines[0]


@pytest.fixture
def proxy(seaweed: SeaweedFs) -> Iterator[FaultProxy]:
    with FaultProxy(seaweed.endpoint) as proxy:
        yield proxy
        proxy.faults = ()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    broker = FakeBroker(tmp_path / "store")
    for number in range(10):
        broker.put("Orders", 0, b"%d" % number)
    return broker.directory


@pytest.fixture
def tier(s3_url: str, store: Path) -> str:
    """A tier with ten messages."""
    done = invoke(*NAMED, "--tier", s3_url, "tier", store)
    assert done.exit_code == 0, done.output
    return s3_url


def assert_whole(url: str) -> None:
    """The ten messages are there, and nothing is wrong."""
    read = invoke("--tier", url, "read", "Orders", "0", "--json")
    assert [json.loads(line)["body"] for line in read.stdout.splitlines()] == list("0123456789")
    assert invoke("--tier", url, "check", "--json").stdout == ""


def test_a_bucket_that_is_not_there(s3_url: str, store: Path) -> None:
    wrong = "s3://no-such-bucket/tier"
    for words in (["topics"], [*NAMED, "topics"], [*NAMED, "tier", store]):
        said = refused(invoke("--tier", wrong, *words), 2)
        assert "no-such-bucket" in said
        assert "does not exist" in said, words


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"AWS_SECRET_ACCESS_KEY": WRONG_SECRET}, "the secret key is wrong"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "it knows no such access key"),
    ],
    ids=["secret", "key"],
)
def test_a_wrong_key(
    tier: str, store: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], why: str
) -> None:
    with monkeypatch.context() as environment:
        for name, value in wrong.items():
            environment.setenv(name, value)
        for words in (["topics"], [*NAMED, "tier", store], ["check"]):
            assert why in refused(invoke("--tier", tier, *words), 2), words
    assert_whole(tier)


def test_a_clock_that_is_wrong(tier: str, store: Path, proxy: FaultProxy) -> None:
    proxy.faults = [WireFault("skewed")]
    behind = ("-D", f"objectStoreEndpoint={proxy.endpoint}")
    for words in (["topics"], [*NAMED, "tier", store]):
        assert "this host's clock is wrong" in refused(invoke("--tier", tier, *behind, *words), 2)
    assert_whole(tier)


def test_no_permission_to_delete_stops_no_tiering(
    tier: str, store: Path, proxy: FaultProxy
) -> None:
    """Nothing is deleted to tier; only the probe says it, before a tier is begun."""
    proxy.faults = [WireFault("denied", "DELETE"), WireFault("denied", "POST", r"\?delete")]
    behind = ("-D", f"objectStoreEndpoint={proxy.endpoint}")
    said = refused(invoke("--tier", tier, *behind, *NAMED, "tier", store), 2)
    assert "these credentials may not do this" in said
    assert "not deleted" in said
    assert_whole(tier)


def test_no_permission_to_write(tier: str, store: Path, proxy: FaultProxy) -> None:
    proxy.faults = [WireFault("denied", "PUT")]
    behind = ("-D", f"objectStoreEndpoint={proxy.endpoint}")
    said = refused(invoke("--tier", tier, *behind, *NAMED, "tier", store), 2)
    assert "these credentials may not do this" in said
    assert_whole(tier)


def test_a_store_that_lies(s3_url: str, store: Path, proxy: FaultProxy) -> None:
    proxy.faults = [WireFault("lies", "PUT")]
    behind = ("-D", f"objectStoreEndpoint={proxy.endpoint}")
    said = refused(invoke("--tier", s3_url, *behind, *NAMED, "tier", store), 2)
    assert "the storage ignores create-if-absent" in said
    assert "there is no" in refused(invoke("--tier", s3_url, "topics"), 1)


def test_a_prefix_of_another_broker(tier: str, store: Path, seaweed: SeaweedFs) -> None:
    said = refused(invoke("--tier", tier, "-D", "brokerName=other", "topics"), 2)
    assert "belongs to broker-a of cluster C, not to other" in said
    bucket, _, prefix = tier.removeprefix("s3://").partition("/")
    listed = seaweed.client(bucket).list(prefix)
    names = [one["path"] for page in listed for one in page]
    place = f"s3://{bucket}/{names[0].split('/@')[0]}"
    assert "which is a part of one" in refused(invoke("--tier", place, "topics"), 1)
    assert_whole(tier)


def test_a_prefix_with_files_of_another_tier(s3_url: str, store: Path, seaweed: SeaweedFs) -> None:
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    client = seaweed.client(bucket)
    theirs = f"{prefix}/{broker_directory('C', 'broker-a')}/Orders/0/COMMIT_LOG/x"
    client.put(theirs, b"theirs")
    said = refused(invoke(*NAMED, "--tier", s3_url, "tier", store), 2)
    assert "holds a tier's files, such as Orders, and no journal of ours" in said
    assert [one["path"] for page in client.list(prefix) for one in page] == [theirs]


def test_an_endpoint_without_tls_on_another_host(store: Path, tmp_path: Path) -> None:
    endpoint = ("-D", "objectStoreEndpoint=http://192.0.2.1:8333")
    for words in (["topics"], [*NAMED, "tier", store], ["config"]):
        said = refused(invoke("--tier", "s3://bucket/tier", *endpoint, *words), 2)
        assert "is reached without TLS" in said


def test_an_endpoint_without_tls_in_the_environment(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://192.0.2.1:8333")
    for words in (["topics"], [*NAMED, "tier", store]):
        said = refused(invoke("--tier", "s3://bucket/tier", *words), 2)
        assert "is on another machine and without TLS" in said


@pytest.mark.process
@pytest.mark.slow
def test_credentials_are_never_said(
    tier: str,
    store: Path,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of every command, with every logger at its most talkative, when all goes well and not."""
    caplog.set_level(logging.DEBUG)
    for logger in list(logging.Logger.manager.loggerDict):
        logging.getLogger(logger).setLevel(logging.DEBUG)
    monkeypatch.setenv("TIEREDSTORE_OBJECT_STORE_ACCESS_KEY", ACCESS_KEY)
    monkeypatch.setenv("TIEREDSTORE_OBJECT_STORE_SECRET_KEY", SECRET_KEY)
    words = {
        "read": ["read", "Orders"],
        "query": ["query", "Orders", "key"],
        "offset-by-time": ["offset-by-time", "Orders", "0", "2026-01-01"],
        "metadata": ["metadata", "export", store / "exported.json"],
        "repair": ["repair", "--cut-to-hot", "--store", store, "--dry-run"],
        "tier": ["tier", store],
    }
    said = ""
    for faults in ([], [WireFault("denied")], [WireFault("skewed", "PUT")]):
        proxy.faults = faults
        for name in COMMANDS.keys() - {"bench", "run", "put"}:
            given = [*NAMED, "--tier", tier, "-D", f"objectStoreEndpoint={proxy.endpoint}"]
            for server in ("Serve", "Console"):  # the port is taken, so that these end
                port = proxy.endpoint.rpartition(":")[2]
                given += ["-D", f"tieredStore{server}Port={port}"]
            given += ["--log-level", "debug", "--debug", *map(str, words.get(name, [name]))]
            said += invoke(*given).output
    assert "config" in COMMANDS
    assert "AccessDenied" in said
    assert ACCESS_KEY not in said + caplog.text
    assert SECRET_KEY not in said + caplog.text
    done = completed([*COMMAND, "--tier", tier, "--debug", "config"])
    assert "objectStoreSecretKey = set" in done.stdout
    assert SECRET_KEY not in done.stdout + done.stderr


def test_secrets_are_in_no_object(tier: str, seaweed: SeaweedFs) -> None:
    bucket, _, prefix = tier.removeprefix("s3://").partition("/")
    client = seaweed.client(bucket)

    async def contents() -> list[bytes]:
        names = [one["path"] for page in client.list(prefix) for one in page]
        return [bytes(await (await client.get_async(name)).bytes_async()) for name in names]

    for raw in asyncio.run(contents()):
        assert SECRET_KEY.encode() not in raw
        assert ACCESS_KEY.encode() not in raw
