"""What operators are given: the guide whose every command runs, units, image recipe and alerts.

The guide's blocks run in order. A runbook begins in a directory of its own, where the test has
put what the runbook cures; `systemctl` and `journalctl` are a script's.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from subprocess import PIPE
from typing import Any

import promql_parser
import pytest
import yaml

from container.options import JournalOptions, UpkeepOptions
from container.record.checksum import body_crc_of
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from dispatcher.ports import QueueState
from tests.support.cli import COMMAND
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, unpack
from tests.support.http import families_of, free_port, get
from tests.support.lacking import lacks
from tests.support.patience import HANGS_AFTER_S, Patience, completed, wait_until
from tests.support.shown_blocks import blocks_of, environment_of, ran
from tieredstore.cli.main import COMMANDS
from tieredstore.config.keys import KEYS

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/operating.md"
CONF = ROOT / "conf"
SHOWN_PORT = "5571"
SERVICES = Path(__file__).parents[1] / "support/services.sh"
UNIT = CONF / "tieredstore@.service"
OK = HTTPStatus.OK
PROGRAM = "/opt/tieredstore/bin/tieredstore"
"""What the units start."""


class Host:
    """A directory with a store, a tier and a configuration, and at most one follower."""

    def __init__(self, directory: Path, bin_directory: Path) -> None:
        self.directory = directory
        self.environment = environment_of(bin_directory)
        self.port = free_port()
        self.environment["METRICS_PORT"] = str(self.port)

    @property
    def tier(self) -> Path:
        return self.directory / "tier"

    def write_conf(self, text: str) -> None:
        lines = (
            text,
            "storePathRootDir=store",
            "tieredStoreFilePath=tier",
            f"tieredStoreMetricsPort={self.port}",
        )
        (self.directory / "tieredstore.conf").write_text("\n".join(lines) + "\n")

    def run(self, *words: str) -> None:
        done = completed(words, cwd=self.directory, env=self.environment)
        assert done.returncode == 0, (words, done.stdout, done.stderr)

    def start(self) -> None:
        self.run("systemctl", "start", "tieredstore")

    def wait_for_words(self, words: str) -> None:
        """Until the follower has said them."""
        log = self.directory / "follower.log"
        patience = Patience(log.read_text, marks=lambda: log.stat().st_size)
        wait_until(lambda: words in log.read_text(), patience)

    def wait_until_unready(self, reason: str) -> None:
        """Until the readiness page says this; upkeep may meet the same trouble first."""
        seen: list[tuple[int, str]] = [(0, "")]

        def answers() -> bool:
            status, page = seen[0] = get(self.port, "/readyz")
            return status == HTTPStatus.SERVICE_UNAVAILABLE and page.startswith(reason)

        wait_until(answers, Patience(lambda: str(seen), marks=lambda: seen[0]))

    def end(self) -> None:
        """End a follower that is left."""
        known = self.directory / "follower.pid"
        if known.exists():
            os.kill(int(known.read_text()), signal.SIGKILL)
            known.unlink()


class Hosts:
    """Makes a directory for each runbook, in the state that its heading says."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name in ("systemctl", "journalctl"):
            shutil.copy(SERVICES, self._bin / name)
        self.made: list[Host] = []
        self.first = self._tiered_once()

    def _host(self) -> Host:
        directory = self._directory / f"host-{len(self.made)}"
        directory.mkdir()
        self.made.append(Host(directory, self._bin))
        return self.made[-1]

    def _tiered_once(self) -> Host:
        host = self._host()
        unpack(ROCKETMQ_533, "closed", host.directory)
        shutil.rmtree(host.tier)
        host.write_conf(golden_conf())
        host.run("tieredstore", "--conf", "tieredstore.conf", "tier", "store")
        shutil.copytree(host.directory, self._directory / "golden")
        return host

    def golden(self) -> Host:
        """A broker's store, and its tier."""
        host = self._host()
        shutil.copytree(self._directory / "golden", host.directory, dirs_exist_ok=True)
        host.write_conf(golden_conf())
        return host

    def followed(self) -> Host:
        host = self.golden()
        host.start()
        return host

    def unmounted(self) -> Host:
        host = self.golden()
        host.run("tieredstore", "--conf", "tieredstore.conf", "tier", "store")
        host.tier.rename(host.directory / "tier-elsewhere")
        return host

    def diverged(self) -> Host:
        host = self.golden()
        rewrite_newest(host.directory / "store", "G_Tx", 10, 16)
        host.start()
        host.wait_for_words("is stopped")
        return host

    def lost(self) -> Host:
        host, broker = self._small()
        broker.put_many("A", 0, [b"body"] * 100)
        for _ in range(3):
            broker.delete_oldest_file()
        host.start()
        host.wait_for_words("lost")
        return host

    def rotten(self) -> Host:
        host = self.golden()
        shutil.copytree(host.tier, host.directory / "backup")
        (path,) = host.tier.glob("*/*/G_Orders/0/COMMIT_LOG/b23f4471*")
        with path.open("r+b") as file:
            file.seek(5000)
            (byte,) = file.read(1)
            file.seek(5000)
            file.write(bytes([byte ^ 1]))
        return host

    def without_journal(self) -> Host:
        host = self.golden()
        shutil.copy(self.first.directory / "metadata-backup.json", host.directory)
        (journal,) = host.tier.glob("*/*/@journal")
        shutil.rmtree(journal)
        return host

    def away(self) -> Host:
        host, broker = self._small()
        host.start()
        host.tier.rename(host.directory / "tier-away")
        broker.put("A", 0, b"late")
        host.wait_until_unready("nothing reaches the tier")
        return host

    def _small(self) -> tuple[Host, FakeBroker]:
        host = self._host()
        host.write_conf("brokerClusterName=C\nbrokerName=b")
        broker = FakeBroker(
            host.directory / "store", commit_log_bytes=4096, consume_queue_bytes=400
        )
        broker.put_many("A", 0, [b"body"] * 10)
        host.run("tieredstore", "--conf", "tieredstore.conf", "tier", "store")
        return host, broker

    def scene_of(self, heading: str) -> Callable[[], Host] | None:
        """What makes the state in which a section begins; None: it goes on where the last was."""
        scenes = {
            "It does not run": self.golden,
            "It falls behind": self.followed,
            "Another process owns the tier": self.followed,
            "There is no tier, and the store has one": self.unmounted,
            "A queue is stopped": self.diverged,
            "Messages were lost": self.lost,
            "The tier is damaged": self.rotten,
            "The journal is lost": self.without_journal,
            "The disk is full or away": self.away,
        }
        return scenes.get(heading)


def golden_conf() -> str:
    """What the golden broker was configured with, without its places."""
    lines = ROCKETMQ_533.broker_conf.read_text().splitlines()
    return "\n".join(line for line in lines if "Path" not in line)


def rewrite_newest(store: Path, topic: str, first: int, end: int) -> None:
    """Let the broker have other messages of the same sizes at the offsets `[first, end)`."""
    (units,) = (store / "consumequeue" / topic / "0").iterdir()
    for offset in range(first, end):
        raw = units.read_bytes()[offset * UNIT_BYTES : (offset + 1) * UNIT_BYTES]
        unit = ConsumeQueueUnit.decode(raw, path="", position=0)
        file_bytes = ROCKETMQ_533.commit_log_file_bytes
        log = store / "commitlog" / f"{unit.position // file_bytes * file_bytes:020}"
        with log.open("r+b") as file:
            file.seek(unit.position % file_bytes)
            message = StoredMessage.decode(file.read(unit.size), path="", position=0)
            body = bytes(len(message.body))
            other = message._replace(body=body, body_crc=body_crc_of(body))
            file.seek(unit.position % file_bytes)
            file.write(other.encode())


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    for host in hosts.made:
        host.end()


def sections() -> list[tuple[str, str]]:
    """Heading and text of each section of the guide."""
    parts = re.split(r"^##+ (.*)\n", GUIDE.read_text(), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
def test_the_guides_commands_run_in_order_and_print_what_they_show(hosts: Hosts) -> None:
    headings = [heading for heading, _ in sections()]
    runbooks = headings[headings.index("Runbooks") + 1 :]
    assert [name for name in runbooks if hosts.scene_of(name) is None] == []
    host = hosts.first
    pages = ""
    for heading, text in sections():
        scene = hosts.scene_of(heading)
        if scene:
            host.end()
            host = scene()
        for block in blocks_of(text.replace(SHOWN_PORT, str(host.port))):
            ran(block, host.directory, host.environment, joined=True)
        if heading == "Watch it":
            pages = get(host.port, "/metrics")[1]
    names = {name for name in families_of(pages) if not name.startswith("process_")}
    # A follower of a directory has neither an object store nor a tiering process beside its own.
    elsewhere = ("tieredstore_object_store_", "tieredstore_tiering_process_")
    assert names == {name for name in table_of("Watch it") if not name.startswith(elsewhere)}


def table_of(heading: str) -> list[str]:
    """The metrics that the table of a section explains."""
    text = dict(sections())[heading]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((CONF / "alerts.yml").read_text())["groups"]
    return group["rules"]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_asks_for_metrics_that_exist_and_names_a_runbook(alert: dict[str, Any]) -> None:
    assert promql_parser.parse(alert["expr"])
    text = re.sub(
        r'"[^"]*"|\b(by|on|offset|group_left) *\([^)]*\)|\{[^}]*\}|\[[^]]*\]', "", alert["expr"]
    )
    names = set(re.findall(r"\b[a-z]+_\w+\b(?! *\()", text))
    known = {
        *table_of("Watch it"),
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    }
    assert names <= known
    assert names or "up" in text
    for states in re.findall(r'state=~"([^"]*)"', alert["expr"]):
        assert set(states.split("|")) <= {state.value for state in QueueState}
    path, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert ROOT / path == GUIDE
    assert anchor in {heading.lower().replace(" ", "-") for heading, _ in sections()}


UNITS = sorted(path.name for path in CONF.glob("tieredstore*@.*"))
INSTANCE = "broker-a"


def installed(directory: Path) -> list[str]:
    """Instances of the units, whose program is one of this machine; their paths."""
    found = list[str]()
    for name in UNITS:
        path = directory / name.replace("@", f"@{INSTANCE}")
        path.write_text((CONF / name).read_text().replace(PROGRAM, sys.executable))
        found.append(str(path))
    return found


def systemd_analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        lacks("systemd-analyze is not here to verify the units: install the package systemd")
    return found


def test_the_unit_starts_a_follower_and_ends_it_in_time() -> None:
    text = UNIT.read_text()
    assert re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE) == [
        f"{PROGRAM} --conf /etc/tieredstore/%i.conf tier --follow"
    ]
    assert re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE) == ["2 4"]
    assert re.findall(r"^Watchdog.*$", text, re.MULTILINE) == ["WatchdogSec=120"]
    paths = re.findall(r"^(?:Read\w+Paths|EnvironmentFile)=(.*)$", text, re.MULTILINE)
    assert paths
    assert [path for path in paths if path[0] != "-"] == []
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    default_ms = KEYS["tieredStoreShutdownTimeout"].default
    assert isinstance(default_ms, int)
    ends_s = default_ms / 1000 + UpkeepOptions().finish_s_max + JournalOptions().close_s_max
    assert int(stop_s) >= 1.5 * ends_s


def test_no_unit_starts_before_the_volumes_that_it_uses() -> None:
    """Else a place that is not mounted yet looks like an empty one."""
    services = [name for name in UNITS if name.endswith(".service")]
    assert UNIT.name in services
    for name in services:
        text = (CONF / name).read_text()
        used = re.findall(r"^Read(?:Only|Write)Paths=-(.*)$", text, re.MULTILINE)
        (mounts,) = re.findall(r"^RequiresMountsFor=(.*)$", text, re.MULTILINE)
        assert used
        assert mounts.split() == used


def test_each_timer_has_its_service_with_a_command_and_the_same_sandbox() -> None:
    follower = UNIT.read_text()
    sandbox = follower[follower.index("ProtectHome=") : follower.index("\n[Install]")]
    wanted = [line for line in sandbox.splitlines() if line[0] != "#"]
    timers = [name for name in UNITS if name.endswith(".timer")]
    assert timers
    for timer in timers:
        text = (CONF / timer).with_suffix(".service").read_text()
        assert text.splitlines()[-len(wanted) :] == wanted
        (words,) = re.findall(rf"{PROGRAM} --conf /etc/tieredstore/%i.conf ((?:\\\n|.)*)", text)
        given = words.replace("\\\n", " ").replace("%S", "/var/lib").split()
        command = [one for one in given if not one.startswith("/")]
        assert completed([*COMMAND, *command, "--help"]).returncode == 0


def test_systemd_takes_the_units_and_finds_little_exposed(tmp_path: Path) -> None:
    systemd, units = systemd_analyze(), installed(tmp_path)
    done = completed([systemd, "verify", *units])
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for unit in units:
        if unit.endswith(".service"):
            done = completed([systemd, "security", "--offline=true", "--threshold=29", unit])
            assert done.returncode == 0, done.stdout


def scrape_example() -> str:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return text


def test_the_scrape_example_has_the_ports_and_the_job_of_the_alerts() -> None:
    example = yaml.safe_load(scrape_example())
    (job,) = example["scrape_configs"]
    rules = (CONF / "alerts.yml").read_text()
    assert set(re.findall(r'job="(\w+)"', rules)) == {job["job_name"]}
    ports = {
        target.rpartition(":")[2] for one in job["static_configs"] for target in one["targets"]
    }
    assert ports == {SHOWN_PORT}


@pytest.mark.slow  # promtool is a program of `make test-full`
def test_prometheus_takes_the_scrape_example(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        lacks("promtool is not here to check the example: install the package prometheus")
    text = scrape_example()
    (name,) = yaml.safe_load(text)["rule_files"]
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copy(CONF / name, tmp_path)
    done = completed([promtool, "check", "config", tmp_path / "prometheus.yml"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_gets_an_owner_and_a_standby_of_the_image() -> None:
    service, owners = yaml.safe_load_all((CONF / "kubernetes.yaml").read_text())
    assert [one["kind"] for one in (service, owners)] == ["Service", "StatefulSet"]
    assert [one["apiVersion"] for one in (service, owners)] == ["v1", "apps/v1"]
    spec, labels = owners["spec"], owners["metadata"]["labels"]
    pod = spec["template"]["spec"]
    assert labels == spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"]
    assert labels == service["spec"]["selector"]
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels
    assert service["metadata"]["name"] == spec["serviceName"]
    assert (service["spec"]["clusterIP"], spec["replicas"]) == ("None", 2)
    (container,) = pod["containers"]
    name, *words = container["args"]
    assert (name, words) == ("tier", ["/store", "--follow", "--standby"])
    assert completed([*COMMAND, name, *words, "--help"]).returncode == 0
    given = {one["name"]: one["value"] for one in container["env"]}
    shown = completed([*COMMAND, "config", "--changed", "--json"], env={**os.environ, **given})
    assert shown.stdout.count('"used":true') >= len(given), shown.stderr
    steps = [(word, rest) for word, rest in image_steps() if word in {"USER", "EXPOSE", "ENV"}]
    assert ("USER", str(pod["securityContext"]["runAsUser"])) in steps
    (port,) = container["ports"]
    assert ("EXPOSE", str(port["containerPort"])) in steps
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert mounts["/store"]["readOnly"]
    assert ("ENV", "TIEREDSTORE_TIERED_STORE_STATE_PATH=/state") in steps
    claims = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    volumes = {one["name"] for one in pod["volumes"]}
    assert {one["name"] for one in mounts.values()} == claims | volumes
    stop_s = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert [str(pod["terminationGracePeriodSeconds"])] == stop_s


def image_steps() -> list[tuple[str, str]]:
    """Words and arguments of the recipe, in order."""
    text = re.sub(r"\\\n", "", (CONF / "Containerfile").read_text())
    lines = [line.split(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
    return [(word, rest) for word, rest in lines]


def test_the_image_has_what_the_package_needs_and_starts_a_follower() -> None:
    lines = image_steps()
    known = {"FROM", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in lines} == known
    copied = [name for word, rest in lines if word == "COPY" for name in rest.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    read = {"pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]}
    assert set(copied) == {*wheel["packages"], *wheel["force-include"], *read}
    (extras,) = re.findall(r"/source\[(.*)\]", (CONF / "Containerfile").read_text())
    assert {"s3", "encryption"} == set(extras.split(",")) <= project["optional-dependencies"].keys()
    environment = dict(rest.split("=") for word, rest in lines if word == "ENV")
    environment["TIEREDSTORE_BROKER_NAME"] = "b"
    shown = completed([*COMMAND, "config", "--json"], env={**os.environ, **environment})
    assert shown.returncode == 0, shown.stderr
    for value in environment.values():
        assert f'"{value}"' in shown.stdout or f":{value}," in shown.stdout
    (command,) = [rest for word, rest in lines if word == "CMD"]
    name, store, follow = yaml.safe_load(command)
    assert name in COMMANDS
    assert (store, follow) == ("/store", "--follow")


READ_ONLY = """
for one in "$ROOT" "$ROOT/tier" "$ROOT/state"; do mount --bind "$one" "$one"; done
for one in / "$ROOT"; do mount -o remount,bind,ro "$one"; done
touch "$ROOT/written" 2>/dev/null && exit 99
exec unshare --user --map-user=10001 "$@"
"""
"""Starts a program as the user of the image, where only the tier and the state can be written."""


def image_in(root: Path) -> dict[str, str]:
    """Take the steps of the recipe below `root`; the environment of its process.

    Dependencies are those of this environment, and no user is made.
    """
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "useradd").symlink_to(shutil.which("true") or "")
    path = f"{root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    pip = {"TARGET": str(root / "site"), "NO_DEPS": "1", "NO_INDEX": "1"}
    pip |= {"NO_BUILD_ISOLATION": "0", "DISABLE_PIP_VERSION_CHECK": "1"}  # 0: without isolation
    building = {**os.environ, "PATH": path, **{f"PIP_{key}": pip[key] for key in pip}}
    found = {"PATH": path, "PYTHONPATH": str(root / "site")}
    for word, rest in image_steps():
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                is_tree, to = (ROOT / source).is_dir(), root / target[1:]
                to.mkdir(parents=True, exist_ok=True)
                if is_tree:
                    shutil.copytree(ROOT / source, to, dirs_exist_ok=True)
                else:
                    shutil.copy(ROOT / source, to)
        elif word == "RUN":
            done = completed(
                ["sh", "-ec", re.sub(r"/(?=source|state)", f"{root}/", rest)], env=building
            )
            assert done.returncode == 0, done.stdout + done.stderr
        elif word == "ENV":
            key, value = rest.split("=")
            found[key] = re.sub(r"^/", f"{root}/", value)
    return found


@pytest.mark.slow
@pytest.mark.process
def test_the_image_is_built_and_follows_on_a_read_only_root_without_rights(tmp_path: Path) -> None:
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-ec", READ_ONLY, "sh"]
    if completed([*inside[:3], "mount", "--bind", tmp_path, tmp_path]).returncode:
        lacks("no name spaces here: the image is not tried (unshare of util-linux, as root)")
    environment = image_in(tmp_path) | {"ROOT": str(tmp_path), "TIEREDSTORE_BROKER_NAME": "b"}
    assert not (tmp_path / "source").exists()
    os.chown(tmp_path / "state", os.getuid(), os.getgid())  # the name space has this user alone
    broker, port = FakeBroker(tmp_path / "store"), free_port()
    broker.put("A", 0, b"first")
    (tmp_path / "tier").mkdir()
    environment["TIEREDSTORE_TIERED_STORE_METRICS_HOST"] = "127.0.0.1"
    environment["TIEREDSTORE_TIERED_STORE_METRICS_PORT"] = str(port)
    steps = dict(image_steps())
    words = [*yaml.safe_load(steps["ENTRYPOINT"]), *yaml.safe_load(steps["CMD"])]
    words = [word.replace("/store", str(broker.directory)) for word in words]
    program = [sys.executable, "-c", "from tieredstore.__main__ import main; main()", *words[1:]]
    with subprocess.Popen([*inside, *program], env=environment, cwd="/", stderr=PIPE) as process:
        try:
            patience = Patience(lambda: f"exit status {process.poll()}")
            wait_until(
                lambda: process.poll() is not None or get(port, "/readyz")[0] == OK, patience
            )
            (probe,) = [
                yaml.safe_load(rest[4:]) for word, rest in image_steps() if word == "HEALTHCHECK"
            ]
            asked = completed(
                [sys.executable, *probe[1:-1], probe[-1].replace(SHOWN_PORT, str(port))]
            )
            assert asked.returncode == 0, asked.stderr
        finally:
            process.terminate()
            said = process.communicate()[1].decode()
    assert process.returncode == 0, said
    assert "cannot be kept" not in said
    assert list((tmp_path / "state").iterdir())
    show = [sys.executable, "-c", "import provider; print(provider.__file__)"]
    assert str(tmp_path / "site") in completed(show, env=environment, cwd="/").stdout
    environment["TIEREDSTORE_TIERED_STORE_METRICS_PORT"] = "0"
    shown = completed([*program[:3], "topics", "--json"], env=environment, cwd="/")
    assert '"topic":"A"' in shown.stdout, shown.stderr
