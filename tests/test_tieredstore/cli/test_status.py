"""`tieredstore status`: owner, contents and losses, from the tier and from its process."""

import json
import socket
import threading
from pathlib import Path

import pytest

from container.journal.heartbeat import LOOKS_PER_LEASE
from provider.clock import SystemClock
from tests.support.cli import run
from tests.test_tieredstore.metrics.test_follower_page import Served, served
from tieredstore.process_name import ProcessLife
from tieredstore.reader import process_page
from tieredstore.reader import status as of_status
from tieredstore.reader.process_page import figures_of
from tieredstore.reader.status import (
    GONE,
    LIVES,
    SILENT,
    SILENT_S,
    TierStatus,
    state_of,
    status_rows,
)
from tieredstore.texts import printable

__all__ = ["served"]


def test_a_tier_says_who_owned_it_and_what_it_holds(golden_tier: Path) -> None:
    done = run("--tier", golden_tier, "status", "--json")
    (row,) = done.rows
    assert (row["owner_state"], row["epoch"], row["process"]) == ("ended", 1, None)
    assert row["messages"] == 3396
    assert row["stored_bytes"] > row["commit_log_bytes"]
    assert row["cost"] is None
    assert (row["lost"], row["garbage_objects"]) == (0, 0)
    lines = run("--tier", golden_tier, "status").out.splitlines()
    assert lines[1].endswith("epoch 1: has ended cleanly")
    assert [line.split()[0] for line in lines[1:]] == ["owner", "tier", "stored", "lost", "garbage"]


def test_a_process_that_does_not_answer_is_named_with_its_page(golden_tier: Path) -> None:
    done = run("--tier", golden_tier, "-D", "tieredStoreMetricsPort=9", "status", status=1)
    page = "http://127.0.0.1:9: it does not answer: connection refused"
    assert done.out.splitlines()[-1] == f"  process  {page}"


def test_an_owner_elsewhere_lives_while_its_signs_are_younger_than_its_lease() -> None:
    beat_s = 30
    owner = f"elsewhere:17 since 2026-11-21T12:00:00Z;boot=b;pidns=1;start=2;beat={beat_s}"
    now_ms = SystemClock().now_ms()
    for text, lease_s in ((owner, LOOKS_PER_LEASE * beat_s), ("an older program", SILENT_S)):
        young, old = now_ms - int(lease_s * 500), now_ms - int(lease_s * 2000)
        assert state_of(text, ProcessLife.UNKNOWN, young) == LIVES
        assert state_of(text, ProcessLife.UNKNOWN, old) == SILENT
        assert state_of(text, ProcessLife.UNKNOWN, None) == SILENT
        assert state_of(text, ProcessLife.GONE, young) == GONE
        assert state_of(text, ProcessLife.LIVES, old) == LIVES


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (LIVES, "process 1, epoch 1: lives"),
        (GONE, "process 1, epoch 1: is gone without a clean end: start it again"),
        (SILENT, "process 1, epoch 1: silent: start it again, or a standby"),
    ],
)
def test_an_owner_without_a_sign_has_no_age(state: str, words: str) -> None:
    status = TierStatus(
        cluster="C",
        broker="b",
        location="tier",
        epoch=1,
        owner="process 1",
        owner_state=state,
        owner_version="",
        last_sign_ms=None,
        queues=0,
        messages=0,
        lost=0,
        commit_log_bytes=0,
        first_timestamp=None,
        last_timestamp=None,
        stored_bytes=0,
        garbage_objects=0,
        process=None,
        cost=None,
    )
    assert status_rows(status, 0)[0] == ("owner", words)


PAGE = """\
# TYPE tieredstore_queues gauge
rocketmq_tiered_store_dispatch_behind{topic="T\x85",queue_id="0",cluster="C",node_id="b"} 7.0
rocketmq_tiered_store_dispatch_behind{topic="T",queue_id="1",cluster="C",node_id="b"} 1.0
rocketmq_tiered_store_dispatch_latency{topic="T",queue_id="1",cluster="C",node_id="b"} 125000.0
rocketmq_tiered_store_dispatch_behind{topic="T",queue_id="1",cluster="C",node_id="other"} 90.0
rocketmq_tiered_store_dispatch_behind{topic="T",queue_id="1",cluster="D",node_id="b"} 90.0
tieredstore_queues{state="ready",cluster="C",node_id="b"} 20.0
tieredstore_queues{state="stopped",cluster="C",node_id="b"} 1.0
tieredstore_queues{state="damaged",cluster="C",node_id="b"} 2.0
tieredstore_next_commit_seconds{cluster="C",node_id="b"} 41.3
tieredstore_last_commit_age_seconds{cluster="C",node_id="b"} 18.9
tieredstore_outage{cluster="C",node_id="b"} 1.0
tieredstore_messages_waiting{cluster="C",node_id="b"} 3.0
another{ is not parsed
process_start_time_seconds 1.0
"""


def test_figures_of_a_process_are_those_of_one_of_its_brokers() -> None:
    found = figures_of(PAGE, "C", "b")
    assert found.pop("hours") > 400_000
    assert found == {
        "messages_behind": 8.0,
        "oldest_behind_ms": 125_000.0,
        "messages_waiting": 3.0,
        "queues_halted": 3.0,
        "next_commit_s": 41.3,
        "last_commit_age_s": 18.9,
        "outage": 1.0,
    }
    assert figures_of("", "C", "b") == {}
    tiers_nothing = "tieredstore_next_commit_seconds 0.0"
    assert figures_of(tiers_nothing, "C", "b") == {"next_commit_s": 0.0, "messages_behind": 0.0}
    assert figures_of('tieredstore_outage{node_id="a\\"\\\\"} 1', "C", 'a"\\') == {"outage": 1.0}


@pytest.mark.parametrize("value", ["x", "NaN", "+Inf", "-1", ""])
def test_a_figure_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's sentences are not ours
        figures_of(f"tieredstore_outage {value}", "C", "b")
    with pytest.raises(ValueError, match="label"):
        figures_of('tieredstore_outage{="b"} 1', "C", "b")


def test_figures_of_a_process_are_one_sentence_each(
    golden_tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page: dict[str, object] = {"page": "http://127.0.0.1:9", "ready": True, "reason": ""}
    every = (
        "8 messages behind, the oldest for 2 min; 3 messages may not be tiered yet; 3 queues "
        "stopped, damaged or refused; no commit reaches the storage; next commit in 41 s; last "
        "commit 18 s ago"
    )
    idle = {"messages_behind": 0.0, "last_commit_age_s": 2.0}
    cases = [
        (figures_of(PAGE, "C", "b"), every),
        (idle, "no message behind; last commit 2 s ago"),
    ]
    for figures, words in cases:
        monkeypatch.setattr(of_status, "process_figures", lambda _, of=figures: page | of)
        done = run("--tier", golden_tier, "-D", "tieredStoreMetricsPort=9", "status")
        assert done.out.splitlines()[-1] == f"  process  http://127.0.0.1:9: ready; {words}"


def head(status: str, length: int) -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (head("503 Service Unavailable", 1) + b"x", "service unavailable"),
        (head("200 OK", 30) + b"tieredstore_outage 1\n", "the page is cut off"),
        (head("200 OK", 200) + b"x" * 200, "the page has more than 100 bytes"),
        (head("200 OK", 2) + b"\xff\xfe", "'utf-8' codec can't decode byte"),
        (head("200 OK", 21) + b"tieredstore_outage{ 1", ""),
        (b"\x15\x03\x01\x00\x02", "\x15"),
        (b"", "remote end closed connection without response"),
    ],
)
def test_metrics_that_cannot_be_read_are_said_beside_readiness(
    golden_tier: Path, monkeypatch: pytest.MonkeyPatch, metrics: bytes, reason: str
) -> None:
    monkeypatch.setattr(process_page, "PAGE_BYTES_MAX", 100)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in (head("200 OK", 3) + b"ok\n", metrics):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        port = listener.getsockname()[1]
        done = run("--tier", golden_tier, "-D", f"tieredStoreMetricsPort={port}", "status")
        server.join()
    said = f"http://127.0.0.1:{port}: ready; its metrics are not known: it does not answer: "
    assert said + printable(reason) in done.out.splitlines()[-1]


@pytest.mark.slow
def test_a_living_owner_is_seen_and_a_killed_one_is_missed(served: Served) -> None:
    served.broker.put_many("A", 0, [b"body"] * 3)
    served.wait_for_messages(3)
    named = (*served.words[: served.words.index("tier")], "status", "--json")
    (row,) = run(*named).rows
    assert (row["owner_state"], row["messages"]) == ("lives", 3)
    assert row["process"]["ready"] is True
    assert row["process"]["messages_waiting"] == 0
    assert row["process"]["messages_behind"] == row["process"]["oldest_behind_ms"] == 0
    assert "ready; no message behind; last commit " in run(*named[:-1]).out
    served.process.kill()
    served.process.wait()
    killed = json.loads(run(*named, status=1).out)
    assert killed["owner_state"] == "gone"
    assert killed["process"]["ready"] is False
