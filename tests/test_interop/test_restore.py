"""A broker whose disk is lost starts again on the directory that `restore` writes from its tier."""

import asyncio
import base64
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.http import free_port
from tests.support.patience import HANGS_AFTER_S, Patience, ended, wait_until
from tests.support.restored import topics_of
from tests.support.rocketmq_broker import BrokerFailed, BrokerInstall, RunningBroker
from tests.support.seaweedfs import SeaweedFs
from tests.support.tieredstore_process import Serve, Tieredstore, stop
from tests.test_interop.client_view import by_queue, comparable, json_lines, read_all
from tests.test_interop.test_follow_real_broker import (
    MESSAGES_A_RUN,
    PREFIX,
    SMALL_SEGMENTS,
    TOPICS,
    assert_tier_equals_client,
    ends_of,
)
from tests.test_interop.test_java_plugin import (
    ENDS,
    MESSAGES,
    QUEUES,
    TOPIC,
    connected,
    make_topic,
    plugged_in,
    produce,
    pulled,
    send,
    with_plugin,
)
from tests.test_tieredstore.offline.test_restore_killed import done

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

KEYED = f"{PREFIX}Keys"
KEYS = ("k3", "k7", "k-17")
WIDE = "Wide"


def seen(client: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What the client read, by queue."""
    queues = by_queue(json_lines(client / "messages.jsonl"))
    return {queue: [comparable(row) for row in rows] for queue, rows in queues.items()}


def places_by_key(broker: RunningBroker, work: Path, keys: Sequence[str]) -> list[list[list[int]]]:
    """Queue and offset of the messages that the broker's own index has, for each key."""
    asked, answered = work / "asked", work / "answered"
    asked.write_text("".join(f"{KEYED}\t{key}\n" for key in keys))
    broker.run("Query", str(asked), str(answered))
    return [sorted(json.loads(line)) for line in answered.read_text().splitlines()]


def test_a_broker_goes_on_from_its_tier_after_the_loss_of_its_disk(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        broker.run("Produce", "1", PREFIX, "1")
        before = seen(read_all(broker, tmp_path / "before", TOPICS))
        broker.broker.stop()
        ours.run("tier", str(store))
        shutil.rmtree(store)
        ours.run("restore", str(store))
        broker.broker.start()
        assert seen(read_all(broker, tmp_path / "restored", TOPICS)) == before
        with ours.following(store, tmp_path / "follow.log") as follower:
            broker.run("Produce", "2", PREFIX, "1")
            client = read_all(broker, tmp_path / "client", TOPICS)
            broker.restart()  # it keeps what it delayed: a crash would deliver it twice
            broker.broker.kill()
            (store / "checkpoint").unlink()
            broker.broker.start()  # which dispatches the whole CommitLog again
            again = read_all(broker, tmp_path / "again", TOPICS)
            found = places_by_key(broker, tmp_path, KEYS)
            ours.wait_for(ends_of(client), follower)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
    assert (client / "messages.jsonl").read_text() == (again / "messages.jsonl").read_text()
    after = seen(client)
    assert {queue: after[queue][: len(rows)] for queue, rows in before.items()} == before
    rows = json_lines(client / "messages.jsonl")
    assert found == [
        sorted(
            [row["queue_id"], row["queue_offset"]]
            for row in rows
            if row["topic"] == KEYED and key in row["properties"].get("KEYS", "").split()
        )
        for key in KEYS
    ]
    assert all(found)
    assert_tier_equals_client(ours, client, 2 * MESSAGES_A_RUN)
    assert ours.rows("check") == []


@pytest.mark.nightly
@pytest.mark.usefixtures("s3_retries_at_once")
def test_a_broker_goes_on_from_an_encrypted_bucket_after_kills_and_an_outage(
    rocketmq: BrokerInstall,
    seaweed: SeaweedFs,
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    monkeypatch.setenv("TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS", f"a:{key}")
    store = tmp_path / "store"
    often = {"tieredStoreGroupCommitTimeout": "500"}
    with RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS | often) as broker:
        ours = Tieredstore(broker.conf_path, s3_url)
        for seed in "12":
            broker.run("Produce", seed, PREFIX, "1")
        before = read_all(broker, tmp_path / "before", TOPICS)
        broker.broker.stop()
        ours.run("tier", str(store))
        shutil.rmtree(store)
        for groups in (1, 2):
            killed_after(ours.command("restore", str(store), "--processes", "1"), store, groups)
        with pytest.raises(BrokerFailed, match="it ended"):
            broker.broker.start()  # no broker begins again on a part of its messages
        with FaultProxy(seaweed.endpoint) as proxy:
            proxy.faults = [WireFault("reset", "GET", calls=tuple(range(6, 1000)))]
            words = ["--conf", broker.conf_path, "--tier", s3_url]
            words += ["-D", f"objectStoreEndpoint={proxy.endpoint}"]
            run(*words, "restore", store, "--processes", "1", status=3)
        assert "parts are of an earlier run" in ours.run("restore", str(store))
        broker.broker.start()
        assert seen(read_all(broker, tmp_path / "restored", TOPICS)) == seen(before)
        with ours.following(store, tmp_path / "follow.log") as follower:
            broker.run("Produce", "3", PREFIX, "1")
            client = read_all(broker, tmp_path / "client", TOPICS)
            ours.wait_for(ends_of(client), follower)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
    assert_tier_equals_client(ours, client, 3 * MESSAGES_A_RUN)
    assert ours.rows("check") == []


def killed_after(command: list[str], store: Path, groups: int) -> None:
    """Run a restore until its ledger has so many groups, and kill it.

    On a busy machine it may have ended before its ledger was looked at: then it begins again.
    """
    for _ in range(5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        patience = Patience("nothing is restored", pids=[process.pid])
        wait_until(lambda p=process: p.poll() is not None or done(store) >= groups, patience, 0.01)
        is_killed = process.poll() is None
        process.kill()
        ended(process)
        if is_killed:
            return
        shutil.rmtree(store)
    raise AssertionError("it always ended before it was killed")


@pytest.mark.nightly
def test_topics_that_the_broker_deleted_or_created_again_go_on(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    sends = ("send", "D", "2", "1")
    with RunningBroker(rocketmq, tmp_path, store, {"timerWheelEnable": "true"}) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        broker.run("Topics", "make", "D", "3", "1", "then", "send", "D", "3", "1", "3", "old")
        with ours.following(store, tmp_path / "follow.log") as follower:
            ours.wait_for(dict.fromkeys([("D0", 0), ("D1", 0), ("D2", 0)], 3), follower)
            made = ("make", "D", "2", "1", "then", *sends, "6", "new")
            broker.run("Topics", "delete", "D", "3", "then", *made)
            ours.wait_for({("D0", 0): 6, ("D1", 0): 6}, follower)
            assert stop(follower) == 1, "each gap is a loss, and ends it with 1"
        broker.broker.stop()
        shutil.rmtree(store)
        ran = ours.attempt("restore", str(store), "--json")
        assert ran.returncode == 1, ran.stderr
        *rows, last = [json.loads(line) for line in ran.stdout.splitlines()]
        assert last["summary"]["deleted"] == [], "a deletion without a loss leaves no sign"
        assert {(row["topic"], row["first"], row["end"], row["why"]) for row in rows} == {
            ("D0", 4, 6, "a gap"),
            ("D1", 4, 6, "a gap"),
            ("D2", 0, 3, ""),
        }
        broker.broker.start()
        broker.run("Topics", *sends, "2", "more")
        found = by_queue(
            json_lines(read_all(broker, tmp_path / "all", ["D0", "D1"]) / "messages.jsonl")
        )
        assert [row["queue_offset"] for row in found["D0", 0]] == [4, 5, 6, 7]
        ours.run("tier", str(store))
        broker.broker.stop()
        shutil.rmtree(store)
        assert ours.attempt("restore", str(store), "--topic", "D0").returncode == 1
        (store / "checkpoint").unlink()
        (store / "abort").touch()
        broker.broker.start()  # as after a crash, with a queue without a message
        broker.run("Topics", *sends, "1", "last")
        found = by_queue(
            json_lines(read_all(broker, tmp_path / "some", ["D0", "D1"]) / "messages.jsonl")
        )
        assert [row["queue_offset"] for row in found["D0", 0]] == [4, 5, 6, 7, 8]
        assert [row["queue_offset"] for row in found["D1", 0]] == [8]
        ours.run("tier", str(store))
    bodies = [row["body"] for row in ours.rows("read", "D1")]
    assert bodies == ["old 0", "old 1", "old 2", "new 4", "new 5", "more 0", "more 1", "last 0"]
    assert ours.rows("check") == []


@pytest.mark.nightly
def test_a_consumer_reads_what_was_not_restored_through_the_plug_in(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store, port = tmp_path / "store", free_port()
    conf = {
        **plugged_in(port),
        "tieredStoreExtentMaxSize": "65536",  # --since leaves whole extents out
    }
    with RunningBroker(with_plugin(rocketmq, tmp_path / "lib"), tmp_path, store, conf) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        before = asyncio.run(produce(broker))
        group = ("CG_restored", TOPIC, "*", "concurrently", "1")
        broker.broker.stop()
        ours.run("tier", str(store))
        shutil.rmtree(store)
        (since_ms,) = struct.unpack_from(">q", before[0, MESSAGES // 2], 56)
        rows = ours.rows("restore", str(store), "--since", str(since_ms))
        firsts = [row["first"] for row in rows if row.get("topic") == TOPIC]
        assert len(firsts) == QUEUES
        assert all(MESSAGES // 3 < first <= MESSAGES // 2 for first in firsts)
        broker.broker.start()
        with Serve(ours, tmp_path, port).running():
            found = broker.run("Consume", *group, str(len(before)), consume_first="true")
            assert places(found) == dict.fromkeys(before, 1)
            assert asyncio.run(goes_on(broker)) == (before, [MESSAGES, MESSAGES])
        with ours.following(store, tmp_path / "follow.log") as follower:
            ours.wait_for({queue: end + 1 for queue, end in ENDS.items()}, follower)
    found_rows = ours.messages(TOPIC)
    for queue in range(QUEUES):
        offsets = [row["queue_offset"] for row in found_rows[queue]]
        assert offsets == list(range(MESSAGES + 1))
    assert ours.rows("check") == []


async def goes_on(broker: RunningBroker) -> tuple[dict[tuple[int, int], bytes], list[int]]:
    """All messages that pulls from offset 0 on give, and the offsets of the next ones."""
    async with connected(broker) as client:
        found = await pulled(client)
        return found, [await send(client, TOPIC, queue, b"new") for queue in range(QUEUES)]


@pytest.mark.nightly
def test_a_group_goes_on_at_its_offset_and_topics_keep_their_queues(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    store, kept = tmp_path / "store", tmp_path / "consumerOffset.json"
    group = ("CG_kept", TOPIC, "*", "concurrently", "1")
    with RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS) as broker:
        ours = Tieredstore(broker.conf_path, tmp_path / "tier")
        before = asyncio.run(produce(broker))
        found = broker.run("Consume", *group, str(len(before)), consume_first="true")
        assert places(found) == dict.fromkeys(before, 1)
        new = asyncio.run(sends_more(broker, 50))
        broker.broker.stop()
        shutil.copy(store / "config" / "consumerOffset.json", kept)
        rows = topics_of(store)
        ours.run("tier", str(store))
        shutil.rmtree(store)
        said = ours.run("restore", str(store), "--offsets", str(kept))
        assert "passes over" not in said
        assert "a guess" not in said
        assert {topic: rows[topic] for topic in (TOPIC, WIDE)} == topics_of(store)
        broker.broker.start()
        found = broker.run("Consume", *group, str(len(new)), consume_first="true")
        assert places(found) == dict.fromkeys(new, 1)


async def sends_more(broker: RunningBroker, messages: int) -> list[tuple[int, int]]:
    """Sends messages to the topic, and one to a topic of many queues; places of the first."""
    async with connected(broker) as client:
        await make_topic(client, WIDE, 9)
        await send(client, WIDE, 0, b"alone")
        queues = [number % QUEUES for number in range(messages)]
        return [(queue, await send(client, TOPIC, queue, b"new")) for queue in queues]


def places(consumed: str) -> dict[tuple[int, int], int]:
    """How often each message came, by queue and offset."""
    found = re.findall(r"^(\d+) (\d+) (\d+)$", consumed, re.MULTILINE)
    return {(int(queue), int(offset)): int(often) for queue, offset, often in found}
