"""Rows become messages of a store, in order, each once, whatever ends the write: without Spark."""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from container.errors import InUse
from container.record.properties import java_hash
from provider.errors import Corrupt, NotFound, Unavailable
from tests.support.cli import run
from tieredstore import sync
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.hot.encoding import MessageRefused
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.offline.spark.options import check_store, write_options
from tieredstore.offline.writing import appending
from tieredstore.offline.writing.appending import (
    StagedWrite,
    UnfinishedWrite,
    WriteLedger,
    append_staged,
    discard_staged,
)
from tieredstore.offline.writing.new_rows import STAMP, check_columns
from tieredstore.offline.writing.staging import StagedPart, StagingOrder, stage, staged_rows
from tieredstore.store.local import LocalMessageStore

Rows = Sequence[dict[str, Any]]
MESSAGES_MAX = 1000


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.load(settings={"storePathRootDir": str(tmp_path / "store")})


class Run:
    """One run of a write, as Spark's workers and driver make one."""

    def __init__(self, config: Config, write_id: str, run_name: str = "run") -> None:
        self.config = config
        directory = config.store_dir.parent / "staged" / write_id / run_name
        self.write = StagedWrite(write_id, str(directory), is_named=True)
        self.parts: list[StagedPart] = []

    def stage(self, *parts: Rows) -> "Run":
        order = order_of(self.write, self.config)
        for rows in parts:
            batches = [
                pa.RecordBatch.from_pylist([*rows[at : at + 3]]) for at in range(0, len(rows), 3)
            ]
            self.parts.append(stage(batches, order, len(self.parts)))
        return self

    def append(self) -> int:
        return append_staged(self.config, self.write, self.parts)


def order_of(write: StagedWrite, config: Config) -> StagingOrder:
    return StagingOrder(write.directory, write.write_id, config.hot_write)


def rows_of(first: int, count: int, **more: Any) -> Rows:
    return [{"topic": "T", "body": b"%d" % n, **more} for n in range(first, first + count)]


def held(config: Config, topic: str = "T", queue_id: int = 0) -> list[Any]:
    with sync.SyncStore(LocalMessageStore(config.store_dir)) as store:  # type: ignore[arg-type]
        found: list[Any] = []
        while len(found) < store.max_offset(topic, queue_id):
            found += store.get_message(
                "g", topic, queue_id, len(found), messages_max=MESSAGES_MAX
            ).messages
        return found


def bodies(config: Config, topic: str = "T", queues: int = 4) -> list[bytes]:
    return sorted(
        (bytes(one.body) for queue_id in range(queues) for one in held(config, topic, queue_id)),
        key=int,
    )


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_rows_are_messages_in_order_with_what_they_say(config: Config) -> None:
    properties = [("a", "1"), ("__CRC32#", "old"), (STAMP, "old/3"), ("TAGS", "old")]
    row = {
        "topic": "T",
        "body": b"x",
        "queue_id": 2,
        "tags": "new",
        "keys": ["k1", "k2"],
        "properties": properties,
    }
    kind = pa.map_(pa.string(), pa.string())
    table = pa.Table.from_pylist([row]).drop(["properties"])
    table = table.append_column("properties", pa.array([properties], kind))
    run = Run(config, "w")
    run.parts.append(stage(table.to_batches(), order_of(run.write, config), 0))
    assert run.append() == 1
    (message,) = held(config, queue_id=2)
    assert message.property_map == {"a": "1", "TAGS": "new", "KEYS": "k1 k2", STAMP: "w/0"}
    assert (bytes(message.body), message.tags, message.keys) == (b"x", "new", ["k1", "k2"])
    assert not Path(run.write.directory).parent.exists()


def test_columns_of_rows_have_any_case(config: Config) -> None:
    check_columns({"TOPIC": "string", "Body": "binary", "Tags": "string"})
    run = Run(config, "w").stage([{"TOPIC": "T", "Body": b"7", "Tags": "red"}])
    assert run.append() == 1
    (message,) = [one for queue_id in range(8) for one in held(config, "T", queue_id)]
    assert (bytes(message.body), message.tags) == (b"7", "red")


def test_parts_are_appended_in_their_order_and_queues_take_turns(config: Config) -> None:
    run = Run(config, "w").stage(rows_of(0, 7), [], rows_of(7, 5))
    run.parts.reverse()
    assert run.append() == 12
    assert [[int(one.body) for one in held(config, queue_id=n)] for n in range(4)] == [
        [0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11],
    ]  # fmt: skip


def test_rows_with_one_key_are_in_one_queue_in_order(config: Config) -> None:
    words = ["a", "polygenelubricants", "订单", "b"]
    rows = [{"topic": "T", "body": b"%d" % n, "keys": words[n % 4]} for n in range(40)]
    Run(config, "w").stage(rows[:20], rows[20:]).append()
    for n, word in enumerate(words):
        found = held(config, queue_id=abs(java_hash(word)) % 4)
        mine = [int(one.body) for one in found if one.keys == [word]]
        assert mine == [*range(n, 40, 4)]


def test_a_topic_that_is_there_keeps_its_number_of_queues(config: Config) -> None:
    Run(config, "first").stage(rows_of(0, 1, queue_id=5)).append()
    Run(config, "second").stage(rows_of(1, 11)).append()
    assert [len(held(config, queue_id=n)) for n in range(7)] == [2, 2, 2, 2, 2, 2, 0]


def test_what_is_done_is_not_done_again(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    assert Run(config, "w").stage(rows_of(0, 9)).append() == 9
    again = Run(config, "w", "again").stage(rows_of(0, 4), rows_of(4, 6))
    assert again.append() == 0
    assert bodies(config) == numbers(9)
    said = " ".join(caplog.messages)
    assert "since an earlier run, so the 10 given now are not: another write needs another" in said
    assert not Path(again.write.directory).exists()
    unnamed = replace(again.write, write_id="x", is_named=False)
    again = Run(config, "x").stage(rows_of(9, 1))
    assert append_staged(config, replace(unnamed, directory=again.write.directory), again.parts)
    assert sorted(path.name for path in (config.store_dir / "writes").iterdir()) == ["w.json"]


class Ended(Exception):
    """As a killed process: nothing behind it is done."""


@pytest.mark.parametrize("seed", range(4))
def test_a_write_that_is_ended_anywhere_goes_on_with_its_first_rows(
    config: Config, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The repeated job has other rows in another order; those that were begun count."""
    rng = random.Random(seed)
    monkeypatch.setattr(appending, "BATCH_MESSAGES", 5)
    put = LocalMessageStore.put_messages
    left = rng.randrange(0, 4)

    async def put_some(store: Any, messages: Any, **options: Any) -> Any:
        nonlocal left
        if not left:
            raise Ended
        left -= 1
        return await put(store, messages, **options)

    monkeypatch.setattr(LocalMessageStore, "put_messages", put_some)
    first = Run(config, "w").stage(rows_of(0, 17), rows_of(17, 30))
    with pytest.raises(Ended):
        first.append()
    monkeypatch.setattr(LocalMessageStore, "put_messages", put)
    discard_staged(config, first.write)  # Spark says so of a job that failed
    between = Run(config, "other").stage(rows_of(1000, 3))
    between.append()
    left = rng.randrange(0, 3)
    monkeypatch.setattr(LocalMessageStore, "put_messages", put_some)
    second = Run(config, "w", "again").stage([*reversed(rows_of(0, 47))])
    with pytest.raises(Ended):
        second.append()
    discard_staged(config, second.write)
    left = 1000
    assert Run(config, "w", "more").append() > 0
    assert bodies(config) == [*numbers(47), b"1000", b"1001", b"1002"]
    assert sorted(path.name for path in (config.store_dir.parent / "staged").iterdir()) == []
    queues = [[int(one.body) for one in held(config, queue_id=n)] for n in range(4)]
    mine = [[number for number in queue if number < 1000] for queue in queues]
    assert mine == [[*range(n, 47, 4)] for n in range(4)]


def test_an_error_in_the_middle_says_how_to_go_on(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "BATCH_MESSAGES", 5)
    put = LocalMessageStore.put_messages

    async def full(store: Any, messages: Any, **options: Any) -> Any:
        if messages[0].body == b"5":
            raise Unavailable("the file system is full", "")
        return await put(store, messages, **options)

    monkeypatch.setattr(LocalMessageStore, "put_messages", full)
    first = Run(config, "w").stage(rows_of(0, 12))
    said = "full: of the write w 5 of 12 messages are in the store; write again with writeId=w"
    with pytest.raises(UnfinishedWrite, match=said):
        first.append()
    monkeypatch.undo()
    shutil.rmtree(first.write.directory)
    with pytest.raises(UnfinishedWrite, match="name a staging directory"):
        Run(config, "w", "again").stage(rows_of(0, 12)).append()


def test_a_done_write_whose_end_was_not_written_down_is_done(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = WriteLedger.save

    def ended(ledger: WriteLedger, plan: Any) -> None:
        if plan.is_done:
            raise Ended
        save(ledger, plan)

    monkeypatch.setattr(WriteLedger, "save", ended)
    with pytest.raises(Ended):
        Run(config, "w").stage(rows_of(0, 12)).append()
    monkeypatch.undo()
    assert Run(config, "w", "again").append() == 0
    assert bodies(config) == numbers(12)


def test_with_a_tier_messages_are_in_it_when_the_write_ends(config: Config, tmp_path: Path) -> None:
    settings = {
        "storePathRootDir": str(config.store_dir),
        "tieredStoreFilePath": str(tmp_path / "tier"),
        "brokerName": "b",
    }
    Run(Config.load(settings=settings), "w").stage(rows_of(0, 9, queue_id=1)).append()
    with sync.open(tmp_path / "tier") as tier:
        assert [one.body for one in tier.messages("T", 1)] == numbers(9)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"topic": None}, "row 4 of partition 1: the topic is null"),
        ({"body": None}, "row 4 of partition 1: the body is null"),
        ({"body": b"x" * 5_000_000}, "the body has 5000000 bytes, more than 4194304"),
        ({"topic": "a/b"}, "the topic 'a/b' names no directory"),
        ({"topic": ""}, "the topic '' names no directory: it is empty"),
        ({"queue_id": -1}, "the queue id is -1, not within 0 to 65535"),
        ({"keys": ["a b"]}, "a key is a text without blanks"),
        ({"tags": "a\x02b"}, "the properties cannot be stored: property 'TAGS' holds a separator"),
        ({"tags": "x" * 32_760}, "the properties have"),
    ],
)
def test_a_row_that_is_no_message_is_one_sentence_and_nothing_is_appended(
    config: Config, row: dict[str, Any], sentence: str
) -> None:
    run = Run(config, "w").stage(rows_of(0, 2))
    bad = {"topic": "T", "body": b"", "queue_id": 0, "keys": ["k"], "tags": "t", **row}
    fine = {"topic": "T", "body": b"", "queue_id": 0, "keys": ["k"], "tags": "t"}
    with pytest.raises(MessageRefused, match=re.escape(sentence)):
        run.stage([*[fine] * 4, bad])
    discard_staged(config, run.write)
    assert not Path(run.write.directory).exists()
    assert not config.store_dir.exists()


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": "string"}, "there is no column body: a message has topic and body"),
        ({"topic": "string", "body": "string"}, "body is string, not binary: write cast(body AS"),
        ({"topic": "int", "body": "binary"}, "the column topic is int, not string"),
        (
            {"topic": "string", "body": "binary", "properties": "string"},
            "properties is string, not map<string,string>",
        ),
        (
            {"topic": "string", "body": "binary", "Body": "binary"},
            "the columns body and Body are one: leave one out with select",
        ),
        (
            {"topic": "string", "body": "binary", "queue_offset": "bigint"},
            "the column queue_offset is none of a message's",
        ),
    ],
)
def test_a_table_that_is_none_of_messages_is_one_sentence(
    columns: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check_columns(columns)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "s3://b/p"}, "a store lies in a directory of the driver's machine, not s3://b/p"),
        ({"path": "s", "writeId": "a/b"}, "writeId: 'a/b' is no name"),
        ({"path": "s", "writeId": ".."}, "writeId: '..' is no name"),
        ({"path": "s", "staging": "here"}, "staging: here is no whole path"),
        ({"path": "s", "writeID2": "x"}, "there is no option writeID2: did you mean writeId?"),
        ({"path": "s", "topics": "x"}, "there is no option topics"),
        ({"objectStoreSecretKey": "x"}, "is a secret"),
    ],
)
def test_a_wrong_option_of_a_write_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        write_options(given)


def in_a_file(path: Path) -> None:
    path.write_text("")


def in_a_tier(path: Path) -> None:
    (path / "abcdef12_c" / "b").mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [(in_a_file, "is no directory"), (in_a_tier, "holds something else than a store")],
)
def test_what_is_no_store_is_refused_before_anything_is_computed(
    tmp_path: Path, make: Callable[[Path], None], sentence: str
) -> None:
    make(tmp_path / "there")
    config = write_options({"path": str(tmp_path / "there")}).address.load()
    with pytest.raises(ConfigError, match=sentence):
        check_store(config)
    with pytest.raises(ConfigError, match="the store is not named"):
        check_store(write_options({}).address.load())


def test_a_store_that_is_in_use_is_refused_with_its_writer(config: Config) -> None:
    run = Run(config, "w").stage(rows_of(0, 2))
    writer = StoreDirectory(config.store_dir)
    with pytest.raises(InUse, match="writes the store"):
        check_store(config)
    with pytest.raises(InUse, match="writes the store"):
        run.append()
    (config.store_dir / "lock").unlink()  # the writer has the CommitLog's directory, too
    with pytest.raises(InUse, match="writes the store"):
        check_store(config)
    writer.close()
    check_store(config)
    assert run.append() == 2


def test_a_store_whose_commit_log_another_store_writes_is_refused(tmp_path: Path) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    settings = {"storePathRootDir": str(tmp_path / "store"), "storePathCommitLog": str(log)}
    config = Config.load(settings=settings, environment={})
    writer = StoreDirectory(other, log)
    with pytest.raises(InUse, match="writes the store"):
        check_store(config)
    writer.close()
    check_store(config)


def test_a_failed_write_leaves_a_directory_in_which_a_store_may_begin(tmp_path: Path) -> None:
    options = write_options({"path": str(tmp_path / "store")})
    config = options.address.load()
    failed = options.new_run(config)
    stage([pa.RecordBatch.from_pylist([*rows_of(0, 1)])], order_of(failed, config), 0)
    discard_staged(config, failed)
    check_store(config)
    begun = options.new_run(config)
    part = stage([pa.RecordBatch.from_pylist([*rows_of(0, 1)])], order_of(begun, config), 0)
    assert append_staged(config, begun, [part]) == 1


def test_what_a_worker_wrote_elsewhere_is_one_sentence(config: Config) -> None:
    first = Run(config, "w").stage(rows_of(0, 2))
    shutil.rmtree(first.write.directory)
    with pytest.raises(NotFound, match="that the workers and the driver see under one name"):
        first.append()
    assert WriteLedger(config.store_dir).load("w") is None


def test_a_damaged_record_of_a_write_is_no_new_write(config: Config) -> None:
    Run(config, "w").stage(rows_of(0, 2)).append()
    (config.store_dir / "writes" / "w.json").write_text("{}")
    with pytest.raises(Corrupt, match="no record of a write"):
        Run(config, "w", "again").stage(rows_of(0, 2)).append()


def test_a_staged_file_is_read_from_any_row_on(config: Config, tmp_path: Path) -> None:
    run = Run(config, "w").stage(rows_of(0, 10))
    path = Path(run.write.directory, run.parts[0].name)
    for first in (0, 3, 9, 10):
        assert [row.body for row in staged_rows(path, first)] == numbers(10)[first:]


def test_the_store_is_read_by_its_command_afterwards(config: Config, tmp_path: Path) -> None:
    """A clean end: nothing of the write stands in the way of others."""
    Run(config, "w").stage(rows_of(0, 3, queue_id=0)).append()
    run("-D", f"storePathRootDir={config.store_dir}", "put", "T", "next")
    assert [bytes(one.body) for one in held(config)] == [b"0", b"1", b"2", b"next"]
