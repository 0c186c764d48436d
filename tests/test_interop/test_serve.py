"""Unmodified official clients read a tier through `tieredstore serve`."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import made_certificates
from tests.support.golden import ROCKETMQ_533, expected, unpacked
from tests.support.http import get, value_of
from tests.support.patience import HANGS_AFTER_S, Patience, completed, wait_until
from tests.support.rocketmq_broker import SHORT_LIVED, BrokerInstall
from tests.support.seaweedfs import SeaweedFs
from tests.support.tieredstore_process import Serve, Tieredstore
from tests.test_interop.client_view import comparable, json_lines

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

TOPICS = ("G_Orders", "G_Big", "G_Batch", "G_Keys", "G_Delay", "G_Tx")
PULLS_OF_A_MINUTE = 36
"""That fail while a bucket is away: the server retries, then the client waits for 3 s."""
BINARY: dict[str, Any] = {"rocketmq.serialize.type": "ROCKETMQ"}


@dataclass(frozen=True)
class Served:
    """A server, and the official clients that have it as their name server."""

    install: BrokerInstall
    home: Path
    port: int
    pages: int
    """Port of its metrics."""
    state: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(
        self,
        program: str,
        *arguments: str,
        marks: Callable[[], object] = lambda: None,
        **properties: str,
    ) -> str:
        """What the program printed. `marks`: its value changes while the program gets on."""
        command = self.install.java(
            program,
            *arguments,
            home=self.home,
            heap_mib=256,
            properties={"rocketmq.namesrv.addr": self.address, **properties},
            options=SHORT_LIVED,
        )
        done = completed(command, marks=marks)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        return done.stdout

    def consume(
        self,
        group: str,
        topic: str,
        tags: str,
        messages: int,
        *,
        how: str = "concurrently",
        consumers: int = 1,
        marks: Callable[[], object] = lambda: None,
        **properties: str,
    ) -> dict[tuple[int, int], int]:
        """How often each message came, by queue and offset, once so many have come."""
        counts = str(consumers), str(messages)
        said = self.run("Consume", group, topic, tags, how, *counts, marks=marks, **properties)
        rows = re.findall(r"^(\d+) (\d+) (\d+)$", said, re.MULTILINE)
        if how == "orderly":
            assert "disorder 0\n" in said
        return {(int(queue), int(offset)): int(times) for queue, offset, times in rows}


@contextmanager
def serving(
    rocketmq: BrokerInstall, directory: Path, tier: str | Path = "", **more: object
) -> Iterator[Served]:
    """`tieredstore serve` over a tier of the golden store, at `tier` or below the directory."""
    ours = Tieredstore(ROCKETMQ_533.broker_conf, tier or directory / "tier")
    ours.run("tier", str(unpacked(ROCKETMQ_533).store))
    home = directory / "home"
    home.mkdir()
    serve = Serve(ours, directory, more=more)
    with serve.running():
        yield Served(rocketmq, home, serve.port, serve.pages, directory / "state")
        assert serve.stop() == 0


@pytest.fixture(scope="module")
def served(rocketmq: BrokerInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(rocketmq, tmp_path_factory.mktemp("served")) as one:
        yield one


def places(topic: str, *tags: str) -> set[tuple[int, int]]:
    return {
        (row["queue_id"], row["queue_offset"])
        for row in expected(ROCKETMQ_533, "messages")
        if row["topic"] == topic and (not tags or row["properties"].get("TAGS") in tags)
    }


def test_the_pull_client_gets_what_a_broker_gave_it(served: Served, tmp_path: Path) -> None:
    served.run("Expect", str(tmp_path), "all", *TOPICS)
    found = json_lines(tmp_path / "messages.jsonl")
    wanted = expected(ROCKETMQ_533, "messages")
    assert len(found) == 3_396
    assert sorted(map(json.dumps, map(comparable, found))) == sorted(
        map(json.dumps, map(comparable, wanted))
    )
    key = ("topic", "queue_id", "subscription", "offset", "max")
    asked = {tuple(row[one] for one in key): row for row in json_lines(tmp_path / "pulls.jsonl")}
    same = [
        row for row in expected(ROCKETMQ_533, "pulls") if tuple(row[one] for one in key) in asked
    ]
    assert len(same) >= 1_320
    assert [asked[tuple(row[one] for one in key)] for row in same] == same
    times = json_lines(tmp_path / "offset_by_time.jsonl")
    assert sorted(map(json.dumps, times)) == sorted(
        map(json.dumps, expected(ROCKETMQ_533, "offset_by_time"))
    )


def test_a_push_consumer_gets_each_message_once_from_the_first_offset_on(served: Served) -> None:
    wanted = places("G_Orders")
    found = served.consume("CG_push", "G_Orders", "*", len(wanted))
    assert found == dict.fromkeys(wanted, 1)
    again = served.consume("CG_push", "G_Orders", "*", 0)
    assert again == {}  # the group is at the end


@pytest.mark.nightly
@pytest.mark.s3
def test_a_push_consumer_gets_each_message_once_after_an_outage_of_the_bucket(
    rocketmq: BrokerInstall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is away for a minute."""
    wanted = places("G_Orders")
    with SeaweedFs(tmp_path / "server") as server:
        for name, value in {**server.environment, "XDG_RUNTIME_DIR": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{server.make_bucket('tiers')}/golden"
        with serving(rocketmq, tmp_path, url) as one, ThreadPoolExecutor(1) as consumer:

            def failed() -> float:
                page, outcome = get(one.pages, "/metrics")[1], 'PULL_MESSAGE",response="SYSTEM_'
                return value_of("\n".join(row for row in page.splitlines() if outcome in row), "")

            server.kill()
            asked = "CG_outage", "G_Orders", "*", len(wanted)
            found = consumer.submit(one.consume, *asked, marks=failed)
            patience = Patience(lambda: f"{failed()} pulls failed; {found}", marks=failed)
            wait_until(lambda: failed() >= PULLS_OF_A_MINUTE, patience, 0.5)
            assert not found.done()
            server.start()
            assert found.result() == dict.fromkeys(wanted, 1)
            assert one.consume("CG_outage", "G_Orders", "*", 0) == {}
        said = (tmp_path / "serve.log").read_text()
        assert "a request failed (PULL_MESSAGE): the storage failed: GetObject" in said


def test_a_push_consumer_gets_the_tags_that_it_wants(served: Served) -> None:
    wanted = places("G_Orders", "TagA", "TagB")
    found = served.consume("CG_tags", "G_Orders", "TagA || TagB", len(wanted))
    assert found == dict.fromkeys(wanted, 1)


def test_a_push_consumer_signs_its_requests_over_tls(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    _, both = made_certificates(tmp_path)
    accounts = tmp_path / "accounts.conf"
    accounts.write_text("reader s3cret-of-reader\n")
    values = {
        "tieredStoreServeAccountsPath": accounts,
        "tieredStoreServeTlsCertPath": both,
        "tieredStoreServeTlsKeyPath": both,
    }
    signed = {"tls.enable": "true", "acl.access": "reader", "acl.secret": "s3cret-of-reader"}
    wanted = places("G_Orders")
    with serving(rocketmq, tmp_path, **values) as one:
        for group, kind in (("CG_json", dict[str, Any]()), ("CG_binary", BINARY)):
            properties: dict[str, Any] = signed | kind
            found = one.consume(group, "G_Orders", "*", len(wanted), **properties)
            assert found == dict.fromkeys(wanted, 1)


def test_two_orderly_consumers_share_the_queues(served: Served) -> None:
    wanted = places("G_Orders")
    found = served.consume(
        "CG_orderly", "G_Orders", "*", len(wanted), how="orderly", consumers=2, **BINARY
    )
    assert set(found) == wanted


def test_messages_are_found_by_key(served: Served, tmp_path: Path) -> None:
    rows = [row for row in expected(ROCKETMQ_533, "queries") if row["key"] and row["found"]][:40]
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_text("".join(f"{row['topic']}\t{row['key']}\n" for row in rows))
    served.run("Query", str(asked), str(answered))
    answers = [sorted(json.loads(line)) for line in answered.read_text().splitlines()]
    assert answers == [sorted(row["found"]) for row in rows]


SHOWN = {
    "clusterList": r"GoldenCluster +golden-a +0 +127\.0\.0\.1:\d+ +V5_3_3",
    "topicList": r"^G_Orders$",
    "topicList -c": r"^GoldenCluster +G_Keys +CG_tools *$",
    "topicRoute -t G_Keys": r'"readQueueNums":2',
    "topicStatus -t G_Keys": r"golden-a +1 +0 +180 +20\d\d-",
    "queryMsgByKey -t G_Keys -k k1": r"[0-9A-F]{32} +\d+ +\d+",
    "consumerProgress -g CG_tools": r"G_Keys +golden-a +0 +180 +180 +0",
    "brokerStatus -b {address}": r"brokerVersionDesc +: V5_3_3",
    "topicClusterList -t G_Keys": r"^GoldenCluster$",
    "consumerProgress": r"^#Group",
    "getBrokerConfig -b {address}": r"brokerName += +golden-a",
    "getConsumerConfig -g CG_tools": r"retryMaxTimes += +16",
    "brokerConsumeStats -b {address}": r"G_Keys +CG_tools",
    "cloneGroupOffset -s CG_tools -d CG_clone -t G_Keys": r"success",
    "queryMsgByOffset -t G_Keys -b golden-a -i 0 -o 3": r"Keys",
    "printMsg -t G_Keys": r"G_Keys",
    "statsAll -t G_Keys": r"G_Keys",
}
"""Commands of mqadmin, and what they show."""


def by_command(
    run: Callable[..., str], directory: Path, address: str, commands: Sequence[str]
) -> dict[str, str]:
    """What each command prints in one process of Java."""
    directory.mkdir()
    given = [one.format(address=address, directory=directory / "export") for one in commands]
    (directory / "in").write_text("".join(f"{one.replace(' ', chr(9))}\n" for one in given))
    run("Admin", str(directory / "in"), str(directory))
    return {one: (directory / str(number)).read_text() for number, one in enumerate(commands)}


@pytest.fixture(scope="module")
def printed(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command prints of the server, where a group has read a topic."""
    served.consume("CG_tools", "G_Keys", "*", len(places("G_Keys")))
    place = tmp_path_factory.mktemp("tools") / "admin"
    return by_command(served.run, place, served.address, [*SHOWN])


@pytest.mark.parametrize("command", SHOWN)
def test_mqadmin_shows_what_is_there(printed: dict[str, str], command: str) -> None:
    assert re.search(SHOWN[command], printed[command], re.MULTILINE), printed[command]
