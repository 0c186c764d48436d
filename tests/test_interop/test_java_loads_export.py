"""RocketMQ's own tiered store serves the tier that we made, from the metadata that we export."""

import json
import shutil
from collections.abc import Sequence
from operator import ge
from pathlib import Path
from typing import Any

import javaproperties
import pytest

from tests.support.golden import ROCKETMQ_550, expected, unpack
from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.support.tieredstore_process import Tieredstore
from tests.test_interop.client_view import comparable, json_lines, read_all

pytestmark = [pytest.mark.rocketmq, pytest.mark.nightly, pytest.mark.timeout(HANGS_AFTER_S)]

JAVA_CUTS_AT = 64
"""The queries asked for so many; RocketMQ then gives any of those that there are."""
TOPICS = [f"N_{name}" for name in ("Orders", "Big", "Batch", "Keys", "Delay", "Tx")]


ASKED_MAX = 4


@pytest.mark.leaves_findings("orphan", why="index files for the Java store, and one of its own")
def test_java_serves_our_tier_from_our_exported_metadata(
    rocketmq: BrokerInstall, tmp_path: Path
) -> None:
    golden = unpack(ROCKETMQ_550, "closed", tmp_path)
    shutil.rmtree(golden.tier)
    golden.java_metadata.unlink()
    with ROCKETMQ_550.broker_conf.open("rb") as text:
        settings = {**javaproperties.load(text), "tieredStoreFilePath": str(golden.tier)}
    # the messages are older than the broker would keep them, by 72 hours, since 2026-11-24
    settings |= {"tieredStoreFileReservedTime": "1000000", "fileReservedTime": "1000000"}
    # the tier is asked first; what it cannot give comes from the local store, at other offsets
    assert settings["tieredStorageLevel"] == "FORCE"
    broker = RunningBroker(rocketmq, tmp_path, golden.store, settings)
    ours = Tieredstore(broker.conf_path, golden.tier)
    ours.run("tier", str(golden.store))
    ours.run("metadata", "export", "--with-index", str(golden.java_metadata))

    queries = [row for row in expected(ROCKETMQ_550, "queries") if row["key"]]
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_text("".join(f"{row['topic']}\t{row['key']}\n" for row in queries))
    with broker:
        client = read_all(broker, tmp_path / "client", TOPICS, all_calls=True)
        answers = asked_of(broker, asked, answered, queries)

    found = json_lines(client / "messages.jsonl")
    wanted = expected(ROCKETMQ_550, "messages")
    assert [comparable(row) for row in found] == [comparable(row) for row in wanted]
    # the offset in the tier, so the tier was what served it
    assert [row["physical_offset"] for row in found] == [
        row["tier_physical_offset"] for row in wanted
    ]
    assert json_lines(client / "pulls.jsonl") == expected(ROCKETMQ_550, "pulls")
    assert json_lines(client / "offset_by_time.jsonl") == expected(ROCKETMQ_550, "offset_by_time")
    assert_answers(queries, answers)


def asked_of(
    broker: RunningBroker, asked: Path, answered: Path, queries: Sequence[dict[str, Any]]
) -> list[list[list[int]]]:
    """The answers to all queries. A loaded broker leaves out messages that it fetches too late."""
    answers: list[list[list[int]]] = []
    for _ in range(ASKED_MAX):
        broker.run("Query", str(asked), str(answered))
        answers = [json.loads(line) for line in answered.read_text().splitlines()]
        lengths = [len(row.get("found", ())) for row in queries]
        if all(map(ge, map(len, answers), lengths)):
            break
    return answers


def assert_answers(queries: Sequence[dict[str, Any]], answers: Sequence[list[list[int]]]) -> None:
    """The broker finds by key what it found in its own tier, and what it could not index."""
    found = 0
    for row, answer in zip(queries, answers, strict=True):
        places, wanted = map(sorted, (answer, row.get("found", ())))
        if len(wanted) == JAVA_CUTS_AT:
            assert len(places) == JAVA_CUTS_AT, row
        elif wanted:
            assert places == wanted, row
        found += len(places)
    assert found > 100
