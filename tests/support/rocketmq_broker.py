"""A real RocketMQ broker for tests: fetched once, run on free loopback ports, stopped cleanly.

Maven fetches the jars into a cache directory outside the checkout, where they survive between runs:
`$XDG_CACHE_HOME/tieredstore-tests/rocketmq-<version>`, or `~/.cache` in its place.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Self

from tests.support.patience import Background, Patience, completed, ended, wait_until

SOURCES = Path(__file__).parents[1] / "rocketmq"
PLUGIN = Path(__file__).parents[2] / "rocketmq-plugin"
PLUGIN_JAR = "tieredstore-rocketmq-plugin.jar"
HARNESS_JAR = "tieredstore-harness.jar"
CLIENT_POM, CLIENT_PROGRAMS = "client.xml", ("Headers.java", "Member.java")
"""What is needed of a RocketMQ of which the client alone is used, and the programs for it."""
VERSION = re.compile(r"(?<=<rocketmq.version>)(.+)(?=</rocketmq.version>)")
PORTS = range(20_000, 32_000, 8)  # below the range that Linux gives to outgoing connections
JAVA_OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
SHORT_LIVED = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
    "-Dtls.server.mode=disabled",
)
"""For processes of a minute: the optimising compiler and its threads cost more than they save.

Servers would make a key for TLS before they start, and no client of a broker here uses TLS.
"""


class JavaMissing(Exception):
    """This machine cannot run RocketMQ; the text is one sentence that says what it lacks."""


class BrokerFailed(Exception):
    """RocketMQ did not start, or a program failed against it; the text ends with its log."""


@dataclass(frozen=True)
class BrokerInstall:
    """A directory of jars: RocketMQ's, and one with the programs of `tests/rocketmq/src`."""

    library: Path

    @classmethod
    def fetched(cls, cache: Path | None = None) -> Self:
        """Fetches and compiles what is not there yet; runs that meet wait for one another.

        Cost: about 15 s and 95 MB the first time, nothing later.
        Raises: JavaMissing where `java`, `javac` or `mvn` is missing, or the jars are out of reach.
        """
        return cls._made(SOURCES / "pom.xml", rocketmq_version(), cache)

    @classmethod
    def fetched_client(cls, version: str) -> Self:
        """As `fetched`: the client of another version, and the programs that need no more."""
        return cls._made(SOURCES / CLIENT_POM, version, None)

    @classmethod
    def _made(cls, pom: Path, version: str, cache: Path | None) -> Self:
        missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
        if missing:
            raise JavaMissing(f"A real broker needs {' and '.join(missing)} on the PATH.")
        root = (cache or cache_directory()) / f"rocketmq-{version}"
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / "lock"):
            library = root / f"lib-{digest(pom)[:8]}"
            if not library.is_dir():
                fetch(library, pom, version)
            compile_programs(library, is_client=pom.name == CLIENT_POM)
        return cls(library)

    def java(
        self,
        program: str,
        *arguments: str,
        home: Path,
        heap_mib: int,
        properties: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> list[str]:
        """The command line of a Java program; its logs and kept settings go below `home`.

        `options` are further ones of the virtual machine.
        """
        settings = {"user.home": home, "rocketmq.home.dir": home, **(properties or {})}
        return [
            *("java", f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", *options, *JAVA_OPENS),
            *(f"-D{key}={value}" for key, value in settings.items()),
            *("-cp", f"{self.library}/*", program, *arguments),
        ]


def cache_directory() -> Path:
    """Where fetched things survive between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tieredstore-tests"


def rocketmq_version() -> str:
    """The version that `ROCKETMQ_VERSION` names, or else `pom.xml`."""
    found = VERSION.search((SOURCES / "pom.xml").read_text())
    assert found
    return os.environ.get("ROCKETMQ_VERSION") or found[1]


def digest(*paths: Path) -> str:
    """SHA-256 of the files' contents, one after the other."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock over processes."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fetch(library: Path, source: Path, version: str) -> None:
    """Fills `library` with RocketMQ's jars, wholly or not at all."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(VERSION.sub(version, source.read_text()))
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={scratch}/lib")
        done = completed(command)
        if done.returncode:
            raise JavaMissing(f"Maven could not fetch RocketMQ: {done.stdout[-600:].strip()}")
        (Path(scratch) / "lib").rename(library)


def compile_programs(library: Path, *, is_client: bool) -> None:
    """Puts the programs of `src` beside RocketMQ's jars, unless just these are there."""
    sources = sorted((SOURCES / "src").glob("*.java"))
    if is_client:
        sources = [SOURCES / "src" / name for name in CLIENT_PROGRAMS]
    elif not any(library.glob("rocketmq-tiered-store-5.[2-9]*.jar")):  # 5.1 has another one
        sources.remove(SOURCES / "src" / "Bench.java")
    logging = SOURCES / "src" / "rmq.logback-test.xml"
    wanted = digest(*sources, logging)
    stamp = library / f"{HARNESS_JAR}.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        classes, jar = f"{scratch}/classes", f"{scratch}/{HARNESS_JAR}"
        compiling = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{library}/*", "-d", classes]
        packing = ["jar", "cf", jar, "-C", classes, ".", "-C", str(logging.parent), logging.name]
        for command in ([*compiling, *map(str, sources)], packing):
            done = completed(command)
            assert done.returncode == 0, done.stderr
        stamp.unlink(missing_ok=True)
        Path(jar).replace(library / HARNESS_JAR)
        stamp.write_text(wanted)


def built_plugin(cache: Path | None = None) -> Path:
    """The plug-in for Java brokers as `make plugin-jar` builds it, in the cache.

    Cost: about 10 s the first time, nothing later.
    Raises: JavaMissing where Maven cannot fetch what it builds with.
    """
    sources = sorted([PLUGIN / "pom.xml", *PLUGIN.glob("src/**/*.java")])
    root = (cache or cache_directory()) / f"plugin-{digest(*sources)[:8]}"
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / "lock"), tempfile.TemporaryDirectory(dir=root) as scratch:
        if not (root / PLUGIN_JAR).exists():
            command = ["mvn", "-q", "-B", "-f", str(PLUGIN / "pom.xml"), "package"]
            done = completed([*command, f"-DbuildDirectory={scratch}"])
            assert "COMPILATION ERROR" not in done.stdout, done.stdout[-3000:]
            if done.returncode:
                raise JavaMissing(f"Maven could not build the plug-in: {done.stdout[-600:]}")
            (Path(scratch) / PLUGIN_JAR).rename(root / PLUGIN_JAR)
    return root / PLUGIN_JAR


def free_ports() -> int:
    """The first of eight neighbouring loopback ports that nobody listens on."""
    for first in SystemRandom().sample(PORTS, 100):
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + PORTS.step):
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise BrokerFailed("no free ports on the loopback address")


@dataclass
class Server(Background):
    """A server process of ours and its log."""

    command: Sequence[str]
    log: Path

    def start(self) -> None:
        """Returns once the server says that it is up; raises BrokerFailed otherwise."""
        assert self.process is None
        with self.log.open("ab") as output:
            begin = output.tell()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        process = self.process

        def has_begun() -> bool:
            if process.poll() is not None:
                raise AssertionError("it ended")
            return b"boot success" in self.log.read_bytes()[begin:]

        try:
            wait_until(has_begun, Patience("it hangs", marks=self._bytes_said, pids=[process.pid]))
        except AssertionError as error:
            self.kill()
            said = self.log.read_text()[-3000:]
            raise BrokerFailed(f"{self.log.stem} did not start, {error}:\n{said}") from error

    def _bytes_said(self) -> int:
        return self.log.stat().st_size

    def stop(self) -> int | None:
        """Asks the server to stop, kills it when it hangs; its exit status, None if killed."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return ended(self.process)
        except AssertionError:
            return None
        finally:
            self.kill()


@dataclass
class RunningBroker:
    """A name server and a broker over `store`, on loopback ports of their own, with logs in `work`.

    `conf` goes over the settings below; values are as in broker.conf. As a context manager it
    starts both and stops both. Ready in about 5 s, stopped in about 5 s.
    """

    install: BrokerInstall
    work: Path
    store: Path
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = SHORT_LIVED
    """Options of the broker's virtual machine."""

    def __post_init__(self) -> None:
        port = free_ports()
        self.name_server = f"127.0.0.1:{port}"
        self.address = f"127.0.0.1:{port + 3}"
        self.conf_path = self.work / "broker.conf"
        self.home = self.work / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        settings = {
            "brokerClusterName": "TestCluster",
            "brokerName": "test-a",
            "brokerId": "0",
            "autoCreateTopicEnable": "true",
            # small files, so that a test of a few MB crosses from one to the next
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlot": "500",
            "maxIndexNum": "2000",
            "osPageCacheBusyTimeOutMills": "5000",
            "timerWheelEnable": "false",
            # requests that waited for a busy machine are answered, not refused after 200 ms
            "brokerFastFailureEnable": "false",
            # two threads of transactions spin without a pause: one for as long after each start,
            # the other one from that interval after a transaction's end on, for good
            "transactionMetricFlushInterval": "500",
            "transactionOpBatchInterval": "3600000",
            "transactionOpMsgMaxSize": "1",  # so that the end is written at once
            **self.conf,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": self.name_server,
            "listenPort": str(port + 3),  # the broker also takes the port two below
            "haListenPort": str(port + 4),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
        }
        self.conf_path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        names = self.work / "namesrv.conf"
        names.write_text(
            f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={self.home}/kv.json\n"
        )
        self._names = self._server("org.apache.rocketmq.namesrv.NamesrvStartup", names, 128)
        self.broker = self._server("LoopbackBroker", self.conf_path, 512)

    def _server(self, program: str, conf: Path, heap_mib: int) -> Server:
        command = self.install.java(
            program, "-c", str(conf), home=self.home, heap_mib=heap_mib, options=self.options
        )
        return Server(command, self.work / f"{conf.stem}.log")

    def __enter__(self) -> Self:
        try:
            self._names.start()
            self.broker.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()
        self._names.stop()

    def restart(self, *, kill: bool = False) -> None:
        """Stops the broker (or kills it, which leaves `abort` in the store) and starts it again."""
        if kill:
            self.broker.kill()
        else:
            self.broker.stop()
        self.broker.start()

    def run(self, program: str, *arguments: str, **properties: str) -> str:
        """Runs one of the Java programs against this broker and returns what it printed.

        `properties` are further ones of the virtual machine, in which _ is a dot.
        """
        command = self.install.java(
            program,
            *arguments,
            home=self.home,
            heap_mib=256,
            properties={
                "rocketmq.namesrv.addr": self.name_server,
                **{name.replace("_", "."): value for name, value in properties.items()},
            },
            options=SHORT_LIVED,
        )
        done = completed(command)
        if done.returncode:
            said = done.stdout[-1000:] + done.stderr[-3000:]
            raise BrokerFailed(f"{program} exited with {done.returncode}:\n{said}")
        return done.stdout
