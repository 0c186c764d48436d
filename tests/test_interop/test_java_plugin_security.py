"""The plug-in reads by TLS and signs its requests; what either side refuses, a sentence says."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import made_certificates
from tests.support.http import free_port
from tests.support.patience import HANGS_AFTER_S, LOOK_S, Patience, wait_until
from tests.support.plugged_broker import (
    connected,
    make_topic,
    plugged_in,
    send_all,
    with_plugin,
)
from tests.support.rocketmq_broker import BrokerFailed, BrokerInstall, RunningBroker
from tests.support.tieredstore_process import Serve, Tieredstore
from tieredstore.serve.wire.frame import ResponseCode

pytestmark = [
    pytest.mark.rocketmq,
    pytest.mark.nightly,  # the broker is started for each case
    pytest.mark.timeout(HANGS_AFTER_S),
]
TOPIC, MESSAGES = "Signed", 20


@dataclass(frozen=True)
class Secured:
    """A broker that reads its tier by TLS, with a certificate and an account of its own."""

    broker: RunningBroker
    serve: Serve
    work: Path

    def configure(self, **values: object) -> None:
        """Change its broker.conf, for the next start."""
        text = self.broker.conf_path.read_text()
        for name, value in values.items():
            text = re.sub(rf"(?m)^{name}=.*$", f"{name}={value}", text)
        self.broker.conf_path.write_text(text)

    def warning(self) -> str:
        """What its log says of the server, after a new start."""
        log = self.work / "broker.log"
        at = log.stat().st_size
        self.broker.restart()
        said: list[str] = []

        def is_said() -> bool:
            said[:] = re.findall(r"cold messages are not served.*", log.read_text()[at:])
            return bool(said)

        wait_until(is_said, Patience("nothing is said of the server"))
        return said[0]


def files_of(work: Path) -> Mapping[str, object]:
    """Certificates of both sides, keys and accounts, in a new directory."""
    work.mkdir()
    authority, _ = made_certificates(work)
    (work / "accounts.conf").write_text("# brokers\nbroker-a s3cret\nother x\n")
    (work / "account.conf").write_text("# this broker's\nbroker-a s3cret\n")
    (work / "wrong.conf").write_text("broker-a guessed\n")
    return {
        "tieredStorePluginTlsTrustCertPath": authority,
        "tieredStorePluginTlsCertPath": work / "s.pem",
        "tieredStorePluginTlsKeyPath": work / "s.key",
        "tieredStorePluginAccountPath": work / "account.conf",
    }


@pytest.fixture(scope="module")
def secured(rocketmq: BrokerInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    work, port = tmp_path_factory.mktemp("secured"), free_port()
    conf = {name: str(value) for name, value in files_of(work / "tls").items()}
    conf |= {**plugged_in(port), "tieredStorageLevel": "FORCE"}
    store = work / "store"
    with RunningBroker(with_plugin(rocketmq, work / "lib"), work, store, conf) as broker:
        asyncio.run(produce(broker))
        ours = Tieredstore(broker.conf_path, work / "tier")
        ours.run("tier", str(store))
        given = {
            "tieredStoreServeTlsCertPath": work / "tls" / "both.pem",
            "tieredStoreServeTlsKeyPath": work / "tls" / "both.pem",
            "tieredStoreServeTlsTrustCertPath": work / "tls" / "ca.pem",
            "tieredStoreServeAccountsPath": work / "tls" / "accounts.conf",
        }
        yield Secured(broker, Serve(ours, work, port, more=given), work)
        broker.broker.kill()


async def produce(broker: RunningBroker) -> None:
    async with connected(broker) as client:
        await make_topic(client, TOPIC, 1)
        await send_all(client, TOPIC, "one", MESSAGES)


async def test_the_tier_is_read_by_tls_with_an_account(secured: Secured) -> None:
    await asyncio.to_thread(secured.broker.restart)  # the last start may have had other files
    with secured.serve.running():
        async with connected(secured.broker) as client:
            patience = Patience("the tier is not read")
            while not secured.serve.answers("PULL_MESSAGE", "SUCCESS"):
                answer = await client.pull(TOPIC, 0, 0)
                assert answer.code == ResponseCode.SUCCESS, answer
                patience.look()
                await asyncio.sleep(LOOK_S)
        assert not secured.serve.answers("TIER_RANGES", "NO_PERMISSION")


def test_a_server_of_another_authority_is_not_believed(secured: Secured) -> None:
    files = files_of(secured.work / "other")
    before = secured.work / "tls" / "ca.pem"
    secured.configure(tieredStorePluginTlsTrustCertPath=files["tieredStorePluginTlsTrustCertPath"])
    with secured.serve.running():
        assert "SSLHandshakeException: PKIX path" in secured.warning()
    secured.configure(tieredStorePluginTlsTrustCertPath=before)


def test_a_server_with_a_certificate_of_another_host_is_not_believed(secured: Secured) -> None:
    secured.configure(tieredStoreServeAddress=f"localhost:{secured.serve.port}")
    with secured.serve.running():
        assert "localhost" in secured.warning().partition("): ")[2]
    secured.configure(tieredStoreServeAddress=f"127.0.0.1:{secured.serve.port}")


def test_the_wrong_secret_is_refused(secured: Secured) -> None:
    good = secured.work / "tls" / "account.conf"
    secured.configure(tieredStorePluginAccountPath=good.with_name("wrong.conf"))
    with secured.serve.running():
        assert "not signed by an account" in secured.warning()
    secured.configure(tieredStorePluginAccountPath=good)


@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        ("tieredStorePluginAccountPath", "lacking", "lacking. cannot be used: .*NoSuchFile"),
        ("tieredStorePluginAccountPath", "accounts.conf", "does not have one line"),
        ("tieredStorePluginTlsTrustCertPath", "account.conf", "cannot be used: .*certificates"),
        ("tieredStorePluginTlsKeyPath", "ca.pem", "cannot be used: .*key"),
        ("tieredStorePluginTlsKeyPath", "", "are set together or not at all"),
    ],
)
def test_a_broker_does_not_start_with_files_that_cannot_be_used(
    secured: Secured, key: str, name: str, sentence: str
) -> None:
    given = re.search(rf"(?m)^{key}=(.*)$", secured.broker.conf_path.read_text())
    assert given is not None
    secured.configure(**{key: secured.work / "tls" / name if name else ""})
    try:
        with pytest.raises(BrokerFailed, match=f"the broker does not start: .*{sentence}"):
            secured.broker.restart()
    finally:
        secured.configure(**{key: given[1]})
        secured.broker.restart()
