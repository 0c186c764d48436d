"""Real RocketMQ brokers in controller mode: replicas of one broker, whose master is elected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.rocketmq_broker import (
    SHORT_LIVED,
    BrokerInstall,
    Server,
    free_ports,
)


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
