"""Brokers in controller mode: alone, a pair whose slave stops, and elections of another master."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from tests.support.patience import HANGS_AFTER_S, Patience, wait_until
from tests.support.rocketmq_broker import (
    SHORT_LIVED,
    BrokerInstall,
    Server,
    free_ports,
)
from tests.support.tieredstore_process import Tieredstore, stop


@dataclass
class Replica:
    """One broker process, its store directory and its configuration."""

    store: Path
    conf: Path
    server: Server


@dataclass
class ControlledBrokers:
    """A name server with a controller, and replicas of one broker. As a context: stops them all."""

    install: BrokerInstall
    work: Path
    conf: Mapping[str, str] = field(default_factory=dict)
    """Of every replica, over the settings below."""
    replicas: list[Replica] = field(default_factory=list)
    elects_unclean: bool = False
    """Whether a replica that lacks acknowledged messages may become the master."""

    def __post_init__(self) -> None:
        port = free_ports()
        self.home = self.work / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.name_server = f"127.0.0.1:{port}"
        self._controller = f"127.0.0.1:{port + 5}"
        settings = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.home / "kv.json"),
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group",
            "controllerDLegerPeers": f"n0-{self._controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.work / "controller"),
            "scanNotActiveBrokerInterval": "1000",
            "enableElectUncleanMaster": str(self.elects_unclean).lower(),
        }
        conf = self.work / "namesrv.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._names = self._server("org.apache.rocketmq.namesrv.NamesrvStartup", conf, 256)

    def __enter__(self) -> Self:
        self._names.start()
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.server.stop()
        self._names.stop()

    def add(self, name: str) -> Replica:
        """Start a new replica and wait until it is up."""
        port = free_ports()
        store = self.work / name
        settings = {
            "brokerClusterName": "TestCluster",
            "brokerName": "test-a",
            "autoCreateTopicEnable": "true",
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlot": "500",
            "maxIndexNum": "2000",
            "osPageCacheBusyTimeOutMills": "5000",
            "timerWheelEnable": "false",
            "enableControllerMode": "true",
            "fetchControllerAddrByDomainName": "false",
            "controllerAddr": self._controller,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": self.name_server,
            "listenPort": str(port + 3),
            "haListenPort": str(port + 4),
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "storePathEpochFile": str(store / "epochFileCheckpoint"),
            "storePathBrokerIdentity": str(store / "brokerIdentity"),
            **self.conf,
        }
        conf = self.work / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        server = self._server("LoopbackBroker", conf, 384)
        replica = Replica(store, conf, server)
        self.replicas.append(replica)
        server.start()
        return replica

    def sending(
        self, topic: str, messages: int, pause_ms: int, out: Path, prefix: str
    ) -> list[str]:
        """The command line that sends messages; see Send.java."""
        return self.install.java(
            "Send",
            *(topic, str(messages), str(pause_ms), str(out), prefix),
            home=self.home,
            heap_mib=128,
            properties={"rocketmq.namesrv.addr": self.name_server},
            options=SHORT_LIVED,
        )

    def _server(self, program: str, conf: Path, heap_mib: int) -> Server:
        command = self.install.java(
            program, "-c", str(conf), home=self.home, heap_mib=heap_mib, options=SHORT_LIVED
        )
        return Server(command, self.work / f"{conf.stem}.log")


pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(2 * HANGS_AFTER_S)]

QUICK_DROP = {"haMaxTimeSlaveNotCatchup": "3000", "checkSyncStateSetPeriod": "1000"}
"""A silent replica is dropped after three seconds."""


@contextmanager
def sending(brokers: ControlledBrokers, messages: int, out: Path) -> Iterator[None]:
    """Send messages in the background; the block ends the sender."""
    command = brokers.sending("T", messages, 10, out, "m")
    with (brokers.work / "send.log").open("wb") as log:
        sender = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        sender.kill()
        sender.wait()


def acknowledged(out: Path) -> int:
    """How many messages were sent."""
    return len(out.read_text().splitlines()) if out.exists() else 0


def tiered(tier: Tieredstore) -> int:
    """How many messages of all queues are tiered."""
    return sum(tier.committed().values())


def wait_for(reached, text: str, *marks) -> None:
    """Wait while one of the numbers moves."""
    wait_until(reached, Patience(text, marks=lambda: [mark() for mark in marks]), 0.5)


def wait_for_tiered(ours: Tieredstore, messages: int) -> None:
    """Wait until so many messages are tiered."""
    wait_for(lambda: tiered(ours) >= messages, "not tiered", lambda: tiered(ours))


def sent_all(brokers: ControlledBrokers, messages: int, out: Path) -> None:
    """Send messages until all are acknowledged."""
    with sending(brokers, messages, out):
        wait_for(lambda: acknowledged(out) == messages, "not sent", lambda: acknowledged(out))


def bodies_in(store: Path) -> bytes:
    """The CommitLog of a replica."""
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))


@pytest.mark.nightly
def test_a_broker_that_is_alone_in_controller_mode_is_tiered(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    """Its checkpoint never gets a confirm offset, for no replica acknowledges anything."""
    out = tmp_path / "out"
    with ControlledBrokers(rocketmq, tmp_path, QUICK_DROP) as brokers:
        alone = brokers.add("a")
        ours = Tieredstore(alone.conf, tmp_path / "tier")
        with ours.following(alone.store, tmp_path / "follow.log") as follower:
            sent_all(brokers, 200, out)
            wait_for_tiered(ours, 200)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
        sent_all(brokers, 20, tmp_path / "more")
        alone.server.stop()
        ours.run("tier", str(alone.store))
        assert tiered(ours) >= 220
    assert ours.rows("check") == []


@pytest.mark.nightly
def test_a_pair_is_tiered_while_its_slave_is_stopped(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    with ControlledBrokers(rocketmq, tmp_path, QUICK_DROP) as brokers:
        master, slave = brokers.add("a"), brokers.add("b")
        ours = Tieredstore(master.conf, tmp_path / "tier")
        with ours.following(master.store, tmp_path / "follow.log") as follower:
            sent_all(brokers, 100, tmp_path / "both")
            slave.server.stop()
            sent_all(brokers, 200, tmp_path / "alone")
            wait_for_tiered(ours, 300)
            slave.server.start()
            sent_all(brokers, 100, tmp_path / "again")
            wait_for_tiered(ours, 400)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
        master.server.stop()
        ours.run("tier", str(master.store))
    assert ours.rows("check") == []


def stopped_in(said: str) -> int:
    """How many queues of T a follower reports as stopped: one a sentence, or several in one."""
    together = re.findall(r"(\d+) queues are stopped, such as T/", said)
    return sum(map(int, together)) + len(re.findall(r"T/\d+ is stopped", said))


@pytest.mark.nightly
def test_queues_that_an_unclean_election_took_back_stop_and_are_reported(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    """The new master lacks messages that were tiered, and has others at their offsets."""
    with ControlledBrokers(rocketmq, tmp_path, QUICK_DROP, elects_unclean=True) as brokers:
        master, slave = brokers.add("a"), brokers.add("b")
        ours = Tieredstore(master.conf, tmp_path / "tier")
        with ours.following(master.store, tmp_path / "follow.log") as follower:
            sent_all(brokers, 100, tmp_path / "both")
            slave.server.stop()
            sent_all(brokers, 200, tmp_path / "alone")
            wait_for_tiered(ours, 300)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
        before = ours.messages("T")
        master.server.kill()
        slave.server.start()
        sent_all(brokers, 300, tmp_path / "others")
        master.server.start()  # as the slave of the promoted one, whose messages it gets

        def follows_the_new_master() -> bool:
            mine, theirs = bodies_in(master.store), bodies_in(slave.store)
            return mine.rstrip(bytes(1)) == theirs.rstrip(bytes(1))

        wait_for(
            follows_the_new_master,
            "the old master does not get the new one's messages",
            lambda: len(bodies_in(master.store).rstrip(bytes(1))),
        )
        done = ours.attempt("tier", str(master.store))
        assert done.returncode == 1, done.stderr
        theirs, after = bodies_in(slave.store), ours.messages("T")
        lacking = {
            queue
            for queue, rows in before.items()
            if any(row["properties"]["UNIQ_KEY"].encode() not in theirs for row in rows)
        }
        assert lacking, "the election took nothing back"
        assert stopped_in(done.stderr) == len(lacking), done.stderr
        for queue, rows in before.items():
            assert after[queue][: len(rows)] == rows
            assert queue not in lacking or after[queue] == rows, "a stopped queue goes on"
    assert ours.rows("check") == []


@pytest.mark.nightly
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_nothing_is_tiered_that_a_promoted_slave_lacks(
    rocketmq: BrokerInstall, tmp_path: Path, end: str
) -> None:
    out = tmp_path / "out"
    with ControlledBrokers(rocketmq, tmp_path) as brokers:
        master = brokers.add("a")
        slave = brokers.add("b")
        ours = Tieredstore(master.conf, tmp_path / "tier")
        with ours.following(master.store, tmp_path / "follow.log") as follower:
            with sending(brokers, 100_000, out):
                wait_for_tiered(ours, 300)
                getattr(master.server, end)()
                sent = acknowledged(out)
                wait_for(
                    lambda: acknowledged(out) > sent + 300,
                    "the slave is not promoted",
                    lambda: acknowledged(out),
                )
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
        theirs = bodies_in(slave.store)
        rows = [row for rows in ours.messages("T").values() for row in rows]
        assert len(rows) >= 300
        keys = [row["properties"]["UNIQ_KEY"].encode() for row in rows]
        assert [key for key in keys if key not in theirs] == []
        master.server.start()  # as the slave of the promoted one, whose messages it gets
        with ours.following(master.store, tmp_path / "second.log") as follower:
            wait_for_tiered(ours, len(rows) + 300)
            assert stop(follower) == 0, (tmp_path / "second.log").read_text()
        theirs = bodies_in(slave.store)
        keys = [
            row["properties"]["UNIQ_KEY"] for rows in ours.messages("T").values() for row in rows
        ]
        assert [key for key in keys if key.encode() not in theirs] == []
    assert ours.rows("check") == []
