"""`compact`: few large objects and index files, the same answers, owners that live are left."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.index.options import IndexOptions
from provider.clock import SystemClock
from provider.object_store import ObjectStore
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.messages import TOPIC
from tests.support.owned_tier import put
from tests.support.packed_tier import tier_packed
from tieredstore import sync
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.lifetime import running
from tieredstore.session.owner import open_owner
from tieredstore.session.places import directory_of, storage_at

BROKER: dict[str, Any] = {"cluster": "C", "broker": "b"}
NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=b")
AT_ONCE = ("-D", "tieredStoreJournalGraceTime=1000")
TOPICS = ("G_Orders", "G_Keys", "G_Big", "G_Tx", "G_Batch", "G_Delay")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """In this process's memory, which nothing else uses."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fsspec.filesystem("memory").store.clear()
    return f"memory://bucket/{tmp_path.name}"


def invoke(where: Path | str, *words: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["--tier", str(where), *map(str, words)])
    assert result.exit_code == status, result.output
    return result


def rows(where: Path | str, *words: str, status: int = 0) -> list[dict[str, Any]]:
    said = invoke(where, *words, "--json", status=status)
    return [json.loads(line) for line in said.stdout.splitlines()]


def compact(where: Path | str, *words: str, status: int = 0) -> dict[str, Any]:
    *_, last = rows(where, "compact", *words, status=status)
    return last["summary"]


def broker_tier(store_dir: Path, url: str) -> FakeBroker:
    """Six rounds of a message of two topics, a part each."""
    broker = FakeBroker(store_dir)
    for number in range(6):
        for topic in "AB":
            broker.put(topic, 0, b"%s %d" % (topic.encode(), number))
        rows(url, *NAMED, "tier", str(store_dir))
    return broker


@asynccontextmanager
async def storage(url: str) -> AsyncGenerator[ObjectStore]:
    """What the golden broker's tier lies in."""
    golden = ROCKETMQ_533
    named = {"brokerClusterName": golden.cluster, "brokerName": golden.broker}
    config = Config.load(settings={**named, "tieredStoreFilePath": url})
    store = storage_at(config, directory_of(config), clock=SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def names(url: str, prefix: str = "") -> set[str]:
    async with storage(url) as store:
        return {entry.name for entry in await store.list(prefix)}


async def golden_tier(url: str, at_once: int) -> None:
    """The golden store in small parts and small index files."""
    tree = unpacked(ROCKETMQ_533)
    async with storage(url) as store:
        index = IndexOptions(items_max=100, finish_items_min=1, merge_growth=1000.0)
        assert await tier_packed(tree, store, index=index, batch_messages_max=at_once) == []


def answers(where: Path | str) -> list[str]:
    """What readers get of it."""
    said = [invoke(where, "read", topic, "--digest", "--json").stdout for topic in TOPICS]
    found = invoke(where, "query", "G_Orders", "order-76", "--json").stdout
    return [*said, found]


def assert_compacts(url: str, at_once: int = 2) -> None:
    """From many objects to one, as the dry run said; the answers and `check` stay as they were."""
    asyncio.run(golden_tier(url, at_once))
    before, objects = answers(url), asyncio.run(names(url))
    planned = compact(url, "--dry-run")
    assert asyncio.run(names(url)) == objects, "nothing was written"
    done = compact(url)
    assert {**done, "deletable_ms": None} == {**planned, "dry_run": False}
    assert done["before"]["objects"] > 60 // at_once
    assert done["before"]["index_files"] > 3
    assert done["after"]["objects"] == done["after"]["index_files"] == 1
    parts = asyncio.run(names(url, "@parts/"))
    assert len(parts) == done["before"]["objects"] + 1, "the old ones stay for the grace time"
    assert answers(url) == before
    assert rows(url, "check", "--bodies") == []
    assert (
        "nothing is to be done: 1 object of messages, 1 index file" in invoke(url, "compact").stdout
    )


@pytest.mark.slow
def test_many_objects_in_memory_become_one(url: str) -> None:
    assert_compacts(url)


@pytest.mark.slow
def test_many_objects_on_s3_become_one(s3_url: str) -> None:
    assert_compacts(s3_url, at_once=8)


def test_people_are_told_what_became_of_it_and_when_the_old_goes(tmp_path: Path, url: str) -> None:
    broker_tier(tmp_path / "store", url)
    said = invoke(url, "compact", "--dry-run").stdout
    assert [line.split() for line in said.splitlines()[3:5]] == [
        ["objects", "of", "messages", "6", "1"],
        ["pieces", "in", "them", "24", "4"],
    ]
    assert "would be rewritten, 6 objects would be replaced" in said
    said = invoke(url, "compact", *AT_ONCE).stdout
    assert "rewritten, 6 objects replaced" in said
    assert "the next owner deletes what was replaced after" in said
    time.sleep(1.0)  # the grace time
    assert "6 objects deleted that earlier work had replaced" in invoke(url, "compact").stdout
    assert compact(url)["after"]["objects"] == 1
    assert sum("@parts" in name for name in fsspec.filesystem("memory").store) == 1


def test_one_topic_alone(tmp_path: Path, url: str) -> None:
    broker_tier(tmp_path / "store", url)
    done = compact(url, "--topic", "A")
    assert (done["before"]["extents"], done["after"]["extents"]) == (24, 14)
    assert compact(url, "--topic", "A")["bytes_rewritten"] == 0
    assert compact(url)["after"] == {"objects": 1, "extents": 4, "index_files": 0}
    assert [row["body"] for row in rows(url, "read", "A")] == [f"A {n}" for n in range(6)]
    assert [row["body"] for row in rows(url, "read", "B")] == [f"B {n}" for n in range(6)]


async def index_in_a_directory(tier: Path) -> None:
    """Owners that end one after the other, each with an index file."""
    where = {"brokerClusterName": "C", "brokerName": "b", "tieredStoreFilePath": str(tier)}
    config = Config.load(settings=where)
    index = replace(config.index, finish_items_min=1, merge_growth=1000.0)
    for _ in range(3):
        opened = open_owner(replace(config, index=index), clock=SystemClock())
        async with opened as owner, running([owner.run]):
            await put(owner, 4)
            await owner.close()


def test_in_a_directory_only_index_files_are_merged(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    asyncio.run(index_in_a_directory(tier))
    segments = {path: path.read_bytes() for path in tier.glob(f"*/*/{TOPIC}/*/*/*")}
    before = [rows(tier, "query", TOPIC, f"key-{number}") for number in range(12)]
    assert all(before)
    planned = compact(tier, "--dry-run")
    done = compact(tier)
    assert {**done, "deletable_ms": None} == {**planned, "dry_run": False}
    assert (done["before"]["index_files"], done["after"]["index_files"]) == (3, 1)
    assert (done["before"]["objects"], done["after"]["extents"]) == (0, 0)
    assert [rows(tier, "query", TOPIC, f"key-{number}") for number in range(12)] == before
    assert {path: path.read_bytes() for path in segments} == segments
    assert "nothing is to be done: 1 index file" in invoke(tier, "compact").stdout


def rival(store_dir: Path, url: str) -> None:
    """An owner that lives, and compactions beside it."""
    broker = broker_tier(store_dir, url)
    with sync.follow(store_dir, url, **BROKER) as follower:
        said = invoke(url, "compact", status=4).output
        assert "owns the tier and lives" in said
        assert "end that process, or take the tier from it with --take-over" in said
        assert "6 objects would be" in invoke(url, "compact", "--dry-run").output
        assert "6 objects replaced" in invoke(url, "compact", "--take-over").output
        broker.put("A", 0, b"one more")
        follower.drain()


def test_an_owner_that_lives_is_left_alone_or_fenced_on_purpose(tmp_path: Path, url: str) -> None:
    with pytest.raises(tieredstore.Fenced, match="took this tier over"):
        rival(tmp_path / "store", url)


def test_damaged_bytes_are_told_and_the_rest_is_done(tmp_path: Path, url: str) -> None:
    broker_tier(tmp_path / "store", url)
    objects = fsspec.filesystem("memory").store
    name = next(name for name in objects if "@parts" in name)
    raw = bytearray(objects[name].getvalue())
    raw[60] ^= 1
    objects[name].seek(0)
    objects[name].write(raw)
    failure, last = rows(url, "compact", status=1)
    assert name.endswith(failure["path"])
    assert "CRC-32C" in failure["reason"]
    assert last["summary"]["failures"] == 1
    assert last["summary"]["after"]["extents"] < 24
    assert "CRC-32C" in invoke(url, "compact", status=1).stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--topic", "C"], 1, "the tier has nothing of C"),
        (["--topic", "a/b"], 2, "this is no topic"),
        (["--merge-bytes-max", "1000"], 2, "less than 65536"),
        (["--jobs", "0"], 2, "0 is less than 1"),
        (["--dry-run", "more"], 2, "unexpected extra argument"),
    ],
)
def test_wrong_use_is_one_sentence(
    tmp_path: Path, url: str, words: list[str], status: int, said: str
) -> None:
    broker_tier(tmp_path / "store", url)
    known = sorted(fsspec.filesystem("memory").store)
    output = invoke(url, "compact", *words, status=status).output
    assert said in output
    assert output.count("\n") == 1
    assert sorted(fsspec.filesystem("memory").store) == known


def test_where_there_is_no_tier(tmp_path: Path, url: str) -> None:
    for where in (url, tmp_path / "none"):
        output = invoke(where, "compact", status=1).output
        assert "there is no tier" in output
        assert output.count("\n") == 1
    java = unpacked(ROCKETMQ_533).tier
    assert "--java-metadata FILE" in invoke(java, "compact", status=1).output
