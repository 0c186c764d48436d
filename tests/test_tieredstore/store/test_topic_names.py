"""One rule for topics and queue ids: the same for each writer, for opening and deleting."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import tieredstore
from dispatcher.topic_filter import QUEUE_ID_MAX, SYSTEM_TOPICS
from provider.errors import Denied
from tests.support.hot_store import SMALL, of_older_version
from tieredstore import LocalMessageStore, MessageRefused, NewMessage
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.offline.writing.appending import StagedWrite, append_staged
from tieredstore.offline.writing.staging import StagingOrder, stage

FILES = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200}
STATIC = [" ", "\u3000", "%LMQ%a", "rmq_sys_x", *sorted(SYSTEM_TOPICS)]
OWN = ["Shop", "Mall", "Mall_REPLY_TOPIC"]
"""Named after the broker, the cluster, and the cluster's replies."""
TAKEN = ["Orders", "%RETRY%group", "%DLQ%group", "日志", "shop", "TBW1020", "_REPLY_TOPIC"]


def settings(root: Path) -> dict[str, object]:
    return {
        "storePathRootDir": str(root / "store"),
        "tieredStoreFilePath": str(root / "tier"),
        "brokerName": "Shop",
        "brokerClusterName": "Mall",
        **FILES,
    }


def command(root: Path, *words: str, status: int = 0) -> Result:
    given = [part for key, value in settings(root).items() for part in ("-D", f"{key}={value}")]
    result = CliRunner().invoke(cli, [*given, *words])
    assert result.exit_code == status, (result.stdout, result.stderr)
    return result


def by_library(root: Path, topic: str, queue_id: int = 0) -> str:
    async def put(count: int) -> str:
        given = {key: one for key, one in settings(root).items() if key != "storePathRootDir"}
        async with tieredstore.open_store(root / "store", settings=given) as store:
            try:
                await store.put_messages([NewMessage(topic, queue_id, b"x")] * count)
            except MessageRefused as error:
                return str(error)
        return ""

    said = {asyncio.run(put(count)) for count in (1, 8)}
    assert len(said) == 1
    return said.pop()


def by_put(root: Path, topic: str, queue_id: int = 0) -> str:
    given = [part for key, value in settings(root).items() for part in ("-D", f"{key}={value}")]
    result = CliRunner().invoke(cli, [*given, "put", topic, "x", "--queue", str(queue_id)])
    assert result.exit_code in {0, 2}
    return result.stderr


def by_spark(root: Path, topic: str, queue_id: int = 0) -> str:
    config = Config.load(settings=settings(root), environment={})
    staged = str(root / "staged")
    row = {"topic": topic, "body": b"x", "queue_id": queue_id}
    try:
        order = StagingOrder(staged, "w", config.hot_write)
        part = stage([pa.RecordBatch.from_pylist([row])], order, 0)
        append_staged(config, StagedWrite("w", staged, is_named=True), [part])
    except MessageRefused as error:
        return str(error)
    return ""


WRITERS: list[Callable[..., str]] = [by_library, by_put, by_spark]


@pytest.mark.slow
@pytest.mark.parametrize("topic", [*STATIC, *OWN])
@pytest.mark.parametrize("put", WRITERS)
def test_a_topic_that_is_never_tiered_is_refused_by_each_writer(
    put: Callable[..., str], topic: str, tmp_path: Path
) -> None:
    assert "is never tiered, for it" in put(tmp_path, topic)
    assert not list((tmp_path / "store").glob("consumequeue/*"))


@pytest.mark.slow
@pytest.mark.parametrize("topic", TAKEN)
@pytest.mark.parametrize("put", WRITERS)
def test_a_topic_that_is_taken_is_tiered_and_deleted(
    put: Callable[..., str], topic: str, tmp_path: Path
) -> None:
    assert not put(tmp_path, topic)
    command(tmp_path, "tier", str(tmp_path / "store"))
    listed = command(tmp_path, "topics", "--json").stdout
    assert [json.loads(line)["topic"] for line in listed.splitlines()] == [topic]
    command(tmp_path, "delete-topic", topic)
    assert not command(tmp_path, "topics", "--json").stdout


@pytest.mark.slow
@pytest.mark.parametrize("queue_id", [QUEUE_ID_MAX + 1, 2_000_000_000])
@pytest.mark.parametrize("put", WRITERS)
def test_a_queue_id_has_a_bound(put: Callable[..., str], queue_id: int, tmp_path: Path) -> None:
    assert f"ueue id is {queue_id}, not within 0 to 65535" in put(tmp_path, "Orders", queue_id)
    assert not list((tmp_path / "store").glob("consumequeue/*"))
    assert not put(tmp_path, "Orders", QUEUE_ID_MAX)


@pytest.mark.parametrize("topic", ["%LMQ%a", "BenchmarkTest", "rmq_sys_x", " ", "Shop", "Mall"])
def test_a_store_of_an_older_version_opens_with_a_warning_and_can_delete_it(
    topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def filled() -> None:
        async with of_older_version(tmp_path / "store", SMALL) as old:
            for name in (topic, "Orders"):
                await old.put_messages([NewMessage(name, 0, b"x")] * 3)

    asyncio.run(filled())
    with caplog.at_level(logging.WARNING, "tieredstore"):
        assert command(tmp_path, "put", "Orders", "y").stdout == "Orders\t0\t3\n"
    assert "has topics that are never tiered, whose messages exist nowhere else" in caplog.text
    assert repr(topic) in caplog.text
    assert "is never tiered" in by_put(tmp_path, topic)
    assert "is never tiered" in by_library(tmp_path, topic)
    command(tmp_path, "delete-topic", topic)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tieredstore"):
        assert command(tmp_path, "put", "Orders", "y").stdout == "Orders\t0\t4\n"
    assert not caplog.text


async def test_light_queues_of_a_broker_are_refused_as_before(tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / "%LMQ%a" / "0").mkdir(parents=True)
    with pytest.raises(Denied, match="light queues are not written by this store"):
        async with LocalMessageStore(tmp_path, options=SMALL):
            pass


def test_a_topic_with_a_huge_queue_id_of_an_older_version_is_written_on(tmp_path: Path) -> None:
    async def filled() -> None:
        async with of_older_version(tmp_path / "store", SMALL) as old:
            await old.put_message(NewMessage("Orders", 2_000_000_000, b"x"))

    asyncio.run(filled())
    assert "2000000001" in (tmp_path / "store/config/topics.json").read_text()
    assert not by_spark(tmp_path, "Orders")
    again = by_spark(tmp_path, "Orders")
    assert not again
