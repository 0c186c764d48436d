"""`read` over a whole topic, by time, into pipes and terminals, over gaps and damage."""

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from container.record.body import CompressionType
from container.record.header import COMPRESSED
from tests.support.cli import COMMAND, invoke
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker
from tieredstore.reader.cursor import parse_moment

QUEUES, MESSAGES = 3, 8
LONG = "order-1984 " + "x" * 300
DAMAGED = pytest.mark.leaves_findings(
    "checksum", "body-crc", "record", "tag-hash", why="a body of the tier is changed"
)


def text(queue_id: int, offset: int) -> str:
    return f"{LONG} {queue_id} {offset}"


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages over three queues in turn, one a second; read only."""
    root = tmp_path_factory.mktemp("read")
    broker = FakeBroker(root / "store")
    for number in range(QUEUES * MESSAGES):
        broker.now_ms = FIRST_STORE_TIMESTAMP + 1000 * number
        offset, queue_id = divmod(number, QUEUES)
        tags = f"Tag{number % 2}"
        broker.put("T", queue_id, text(queue_id, offset).encode(), tags=tags, keys=f"k-{number} z")
    broker.put("Bytes", 0, bytes(range(200, 256)))
    broker.put("Bytes", 0, b"two\nlines\tand \x1b[31m red")
    invoke(root / "tier", "tier", broker.directory, "-D", "brokerName=b")
    return root / "tier"


def rows(tier: Path, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    done = invoke(tier, "read", *arguments, "--json", status=status)
    return [json.loads(line) for line in done.stdout.splitlines()]


def places(tier: Path, *arguments: str) -> list[tuple[int, int]]:
    return [(row["queue_id"], row["queue_offset"]) for row in rows(tier, *arguments)]


EVERY = [(queue_id, offset) for queue_id in range(QUEUES) for offset in range(MESSAGES)]


def iso(second: int) -> str:
    return str(FIRST_STORE_TIMESTAMP + 1000 * second)


def test_a_topic_is_read_queue_after_queue(tier: Path) -> None:
    assert places(tier, "T") == EVERY
    assert places(tier, "T", "--max", "11") == EVERY[:11]
    tagged = [(queue_id, offset) for queue_id, offset in EVERY if (QUEUES * offset + queue_id) % 2]
    assert places(tier, "T", "--tags", "Tag1") == tagged
    assert places(tier, "T", "--tags", "Tag1", "--max", "5") == tagged[:5]


def test_or_in_the_order_of_store_times(tier: Path) -> None:
    merged = sorted(EVERY, key=lambda place: (place[1], place[0]))
    assert places(tier, "T", "--order", "time") == merged
    assert places(tier, "T", "--order", "time", "--max", "11") == merged[:11]
    assert places(tier, "T", "1", "--order", "time") == [(1, offset) for offset in range(MESSAGES)]


def test_times_bound_what_is_read_from_the_first_to_before_the_second(tier: Path) -> None:
    def stored(since: int, until: int) -> list[tuple[int, int]]:
        return [place for place in EVERY if since <= QUEUES * place[1] + place[0] < until]

    for order in ("queue", "time"):
        found = places(tier, "T", "--order", order, "--since", iso(4), "--until", iso(13))
        assert sorted(found) == stored(4, 13)
    assert places(tier, "T", "--since", iso(20)) == stored(20, 99)
    assert places(tier, "T", "--until", iso(2)) == stored(0, 2)
    assert places(tier, "T", "2", "--since", iso(4), "--offset", "5") == [(2, 5), (2, 6), (2, 7)]
    tagged = places(tier, "T", "--since", iso(4), "--until", iso(13), "--tags", "Tag0")
    assert tagged == [place for place in stored(4, 13) if (QUEUES * place[1] + place[0]) % 2 == 0]
    assert places(tier, "T", "--since", iso(99)) == []
    said = invoke(tier, "read", "T", "--since", "2023-11-14T22:13:24+00:00").stderr
    assert "reading what was stored from 2023-11-14 22:13:24 UTC" in said


def test_a_pipe_gets_whole_lines_that_can_be_searched(tier: Path) -> None:
    out = invoke(tier, "read", "T", "--max", "2").stdout
    assert out == (
        f"0\t0\t2023-11-14T22:13:20.000Z\t{rows(tier, 'T')[0]['store_size']}\tTag0\tk-0 z\t"
        f"{text(0, 0)}\n"
        f"0\t1\t2023-11-14T22:13:23.000Z\t{rows(tier, 'T')[1]['store_size']}\tTag1\tk-3 z\t"
        f"{text(0, 1)}\n"
    )
    binary, lines = invoke(tier, "read", "Bytes").stdout.splitlines()
    assert binary.split("\t")[-1].startswith("base64:yMnKy8zNzs/Q")
    assert lines.split("\t")[-1] == r"two\nlines\tand \x1b[31m red"


@pytest.mark.process
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_a_table_with_the_queue_where_there_are_several(
    tier: Path, width: int
) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "-D", f"tieredStoreFilePath={tier}", "read", "T", "--max", "2"]
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    subprocess.run(command, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    head, first, second = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    assert head.startswith("queue  offset  ")
    assert max(map(len, (head, first, second))) <= width
    assert first.split()[:2] == ["0", "0"]
    assert first.endswith("\u2026")


def test_the_end_of_what_was_read_is_said_where_it_does_not_disturb(tier: Path) -> None:
    def said(*words: str) -> str:
        return invoke(tier, "read", *words).stderr

    assert "end of T: queue 1 at offset 8" in said("T", "1")
    assert "end of T: queue 1 at offset 8" in said("T", "1", "--offset", "8")
    assert "queue 0 at offset 8, queue 1 at offset 8, queue 2 at offset 8" in said("T")
    assert "end of what was stored before 2023-11-14 22:13:21 UTC" in said("T", "--until", iso(1))
    assert said("T", "--max", "3") == ""
    assert said("T", "--log-level", "warning") == ""


def test_json_has_every_field_and_both_ids(tier: Path) -> None:
    (row,) = rows(tier, "T", "--max", "1")
    assert set(row) == {
        "topic", "queue_id", "queue_offset", "store_timestamp", "born_timestamp", "born_host",
        "store_host", "flag", "sys_flag", "store_size", "tier_physical_offset", "body_crc",
        "reconsume_times", "prepared_transaction_offset", "msg_id", "offset_msg_id", "body",
        "properties",
    }  # fmt: skip
    assert row["msg_id"] == row["offset_msg_id"] == "7F00000100002A9F0000000000000000"


def test_a_gap_is_said_when_a_read_passes_over_it(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)
    tier = tmp_path / "tier"
    broker.put_many("A", 0, [b"body"] * 10)
    invoke(tier, "tier", broker.directory, "-D", "brokerName=b")
    broker.put_many("A", 0, [b"body"] * 100)
    newest = broker.unit("A", 0, 109).position
    while broker.min_position + broker.commit_log_bytes <= newest:
        broker.delete_oldest_file()
    invoke(tier, "tier", broker.directory, "-D", "brokerName=b", status=1)
    (summary,) = map(json.loads, invoke(tier, "topics", "--json").stdout.splitlines())
    (gap,) = summary["gaps"]
    note = f"A/0: offsets 10 to {gap['end'] - 1} were lost before they could be tiered"
    for words in (["0"], [], ["--order", "time"], ["--since", iso(-9)], ["0", "--offset", "12"]):
        assert invoke(tier, "read", "A", *words).stderr.count(note) == 1, words
    for words in (["0", "--max", "10"], ["0", "--offset", str(gap["end"])]):
        assert note not in invoke(tier, "read", "A", *words).stderr, words


def damage(tier: Path, body: bytes) -> None:
    (path,) = tier.glob("*/*/A/0/COMMIT_LOG/*")
    raw = path.read_bytes()
    assert raw.count(body) == 1
    path.write_bytes(raw.replace(body, b"?" * len(body)))


@DAMAGED
def test_damaged_messages_end_a_read_or_are_passed_over_and_named(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    for offset in range(20):
        broker.put("A", 0, f"body-{offset:02d}".encode(), tags="TagA")
    tier = tmp_path / "tier"
    invoke(tier, "tier", broker.directory, "-D", "brokerName=b")
    for number in (5, 6, 19):
        damage(tier, f"body-{number:02d}".encode())
    done = invoke(tier, "read", "A", status=1)
    assert len(done.stdout.splitlines()) == 5
    good = [offset for offset in range(20) if offset not in (5, 6, 19)]
    for words in ([], ["0"], ["--order", "time"], ["--tags", "TagA"]):
        done = invoke(tier, "read", "A", *words, "--skip-damaged", "--json", status=1)
        found = [json.loads(line)["queue_offset"] for line in done.stdout.splitlines()]
        assert found == good, words
        assert "A/0: offset 6 is damaged and passed over: the body differs" in done.stderr
        assert "3 damaged messages were passed over" in done.stderr


@pytest.mark.leaves_findings("body-compression", why="a body is poisoned on purpose")
@pytest.mark.process
def test_a_body_that_cannot_be_decompressed_is_passed_over_too(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    poisoned = (CompressionType.ZSTD << 8) | COMPRESSED
    for offset in range(3):
        broker.put("A", 0, b"no frame", sys_flag=poisoned if offset == 1 else 0)
    tier = tmp_path / "tier"
    invoke(tier, "tier", broker.directory, "-D", "brokerName=b")
    command = [*COMMAND, "-D", f"tieredStoreFilePath={tier}", "read", "A"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--skip-damaged continues after it" in done.stderr
    done = invoke(tier, "read", "A", "--skip-damaged", "--json", status=1)
    assert [json.loads(line)["queue_offset"] for line in done.stdout.splitlines()] == [0, 2]
    for words in (("check",), ("check", "--bodies")):
        (row,) = invoke(tier, *words, "--json", status=1).stdout.splitlines()
        found = json.loads(row)
        place = (found["finding"], found["path"], found["position"])
        assert place == ("body-compression", "A/0", 1), words
    done = invoke(tier, "export", tmp_path / "out", status=1)
    assert "`tieredstore check --bodies` finds every such message" in done.stderr


def test_brokers_lists_whose_messages_a_tier_holds(tier: Path, tmp_path: Path) -> None:
    (row,) = map(json.loads, invoke(tier, "brokers", "--json").stdout.splitlines())
    assert (row["cluster"], row["broker"], row["queues"], row["messages"]) == (
        "DefaultCluster", "b", 4, QUEUES * MESSAGES + 2,
    )  # fmt: skip
    assert Path(row["directory"], "T", "0").is_dir()
    for name in ("one", "two"):
        broker = FakeBroker(tmp_path / name)
        broker.put("A", 0, b"body")
        invoke(tmp_path / "both", "tier", broker.directory, "-D", f"brokerName={name}")
    assert [
        line.split()[:4] for line in invoke(tmp_path / "both", "brokers").stdout.splitlines()[3:5]
    ] == [
        ["DefaultCluster", "one", "1", "1"],
        ["DefaultCluster", "two", "1", "1"],
    ]
    invoke(tmp_path / "both", "read", "A", "-D", "brokerName=two")


def test_topics_ends_with_a_total(tier: Path) -> None:
    last = invoke(tier, "topics").stdout.splitlines()[-1]
    assert last.startswith(f"4 queues, {QUEUES * MESSAGES + 2} messages, ")


def test_a_table_in_a_pipe_folds_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    broker = FakeBroker(tmp_path / "store")
    broker.put("T" * 120, 0, b"body")
    invoke(tmp_path / "tier", "tier", broker.directory, "-D", "brokerName=b")
    assert "T" * 120 in invoke(tmp_path / "tier", "topics").stdout


@pytest.mark.parametrize(
    ("said", "wanted_ms"),
    [
        ("2026-11-21", 1_795_219_200_000),
        ("2026-11-21T12:00", 1_795_262_400_000),
        ("2026-11-21T12:00:00Z", 1_795_262_400_000),
        ("2026-11-21T20:00:00.250+08:00", 1_795_262_400_250),
        ("1795262400250", 1_795_262_400_250),
        ("-90s", 910_000),
        ("-2h", 1_000_000 - 7_200_000),
        ("2h", 1_000_000 - 7_200_000),
        ("30m", 1_000_000 - 1_800_000),
        ("-1w", 1_000_000 - 604_800_000),
    ],
)
def test_a_time_is_iso_a_span_or_unix_milliseconds(said: str, wanted_ms: int) -> None:
    assert parse_moment(said, now_ms=1_000_000) == wanted_ms


@pytest.mark.parametrize(
    "said", ["", "2", "+2h", "--2h", "-2", "1795262400", "12:00", "-2y", "noon", "-1e9d"]
)
def test_anything_else_is_no_time(said: str) -> None:
    with pytest.raises(ValueError, match="is no time: write 2026-"):
        parse_moment(said, now_ms=0)
