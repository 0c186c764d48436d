"""`to_arrow`: the same messages as everywhere, as columns that data tools read."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tieredstore
from container.names.queue_id import QueueId
from container.record.body import CompressionType, compress
from provider.errors import Corrupt
from tests.support.cli import run, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import (
    GOLDEN_SETS,
    GoldenSet,
    expected,
    tree_name,
    unpacked,
)
from tieredstore import sync
from tieredstore.cli.message_printer import message_row
from tieredstore.message import Message
from tieredstore.reader import arrow_batches
from tieredstore.reader.arrow_columns import SCHEMA


def row_of(message: Message) -> dict[str, Any]:
    """A message as a row of Arrow."""
    row: dict[str, Any] = message_row(message, digest=False)
    body = row.pop("body", None)
    row["body"] = base64.b64decode(row.pop("body_base64")) if body is None else body.encode()
    row["tags"] = message.tags or None
    row["keys"] = message.keys
    return row


def as_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    rows = batch.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        for name in ("store_timestamp", "born_timestamp"):
            row[name] = int(row[name].timestamp() * 1000 + 0.5)
    return rows


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
def test_every_message_of_every_broker_has_the_same_fields(
    golden: GoldenSet, tmp_path: Path
) -> None:
    tree = unpacked(golden)
    run(*settings(tree, tmp_path / "tier"), "tier", tree.store)
    topics = {row["topic"] for row in expected(golden, "messages")}
    with sync.open(tmp_path / "tier") as opened:
        for topic in sorted(topics):
            table = opened.to_arrow(topic).read_all()
            table.validate(full=True)
            assert as_rows(table) == [row_of(message) for message in opened.messages(topic)]
            assert table.schema == SCHEMA


async def test_batches_are_those_of_the_fetches_and_can_be_narrowed(golden_tier: Path) -> None:
    async with tieredstore.open(golden_tier) as opened:
        columns = ["body", "queue_offset", "tags"]
        batches = [
            batch
            async for batch in opened.to_arrow(
                "G_Orders", columns=columns, tags="TagA", messages_max=250
            )
        ]
        wanted = opened.messages("G_Orders", tags="TagA", messages_max=250)
        bodies = [message.body async for message in wanted]
    table = pa.Table.from_batches(batches)
    assert table.column_names == columns
    assert table["body"].to_pylist() == bodies
    assert set(table["tags"].to_pylist()) == {"TagA"}


def test_one_queue_from_an_offset_between_two_times(golden_tier: Path) -> None:
    with sync.open(golden_tier) as opened:
        rows = list(opened.messages("G_Orders", 1))
        since, until = rows[10].store_timestamp, rows[400].store_timestamp
        found = opened.to_arrow("G_Orders", 1, 17, since=since, until=until).read_all()
    offsets = [row.offset for row in rows if since <= row.store_timestamp < until]
    assert found["queue_offset"].to_pylist() == [offset for offset in offsets if offset >= 17]


def test_an_empty_range_is_an_empty_table_with_all_columns(golden_tier: Path) -> None:
    with sync.open(golden_tier) as opened:
        table = opened.to_arrow("G_Orders", 1, 600).read_all()
    assert (table.num_rows, table.schema) == (0, SCHEMA)


@pytest.fixture
def compressed(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A tier of bodies that compress well, with one between them that is poisoned."""
    broker = FakeBroker(tmp_path / "store")
    bodies = [bytes([number]) * 300_000 for number in range(40)]
    for number, body in enumerate(bodies):
        raw, flags = compress(body, list(CompressionType)[number % 3])
        broker.put("T", 0, b"poisoned" if number == 7 else raw, sys_flag=flags)
    with sync.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
        follower.drain()
    return tmp_path / "tier", bodies


@pytest.mark.leaves_findings("body-compression", why="one body is no frame")
def test_batches_end_before_decompressed_bodies_take_much_memory(
    compressed: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, bodies = compressed
    monkeypatch.setattr(arrow_batches, "BODIES_BYTES_MAX", 1_000_000)
    damaged: list[tuple[QueueId, int]] = []

    def on_damage(queue: QueueId, offset: int, error: Corrupt) -> None:
        damaged.append((queue, offset))

    with sync.open(tier) as opened:
        sizes: list[int] = []
        found: list[bytes] = []
        for batch in opened.to_arrow("T", columns=["body"], on_damage=on_damage):
            sizes.append(batch.num_rows)
            found += batch["body"].to_pylist()
        assert max(sizes) == 4
        assert found == [body for number, body in enumerate(bodies) if number != 7]
        assert damaged == [(QueueId("T", 0), 7)]
        with pytest.raises(Corrupt, match="compressed body"):
            opened.to_arrow("T").read_all()
        assert opened.to_arrow("T", columns=["queue_offset"]).read_all().num_rows == 40


def test_an_unknown_column_is_refused_with_the_nearest(golden_tier: Path) -> None:
    with (
        sync.open(golden_tier) as opened,
        pytest.raises(ValueError, match="no column 'offset': did you mean queue_offset"),
    ):
        opened.to_arrow("G_Orders", columns=["offset"])


def test_without_arrow_one_sentence_says_what_to_install(golden_tier: Path) -> None:
    program = (
        "import sys, tieredstore.sync\n"
        "sys.modules['pyarrow'] = None\n"
        f"with tieredstore.sync.open({str(golden_tier)!r}) as tier:\n"
        "    print(len(list(tier.messages('G_Orders', 0))))\n"
        "    tier.to_arrow('G_Orders')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "600\n"
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: to_arrow needs pyarrow: pip install 'tieredstore[arrow]'"
