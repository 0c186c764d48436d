"""`--broker PATTERN`: topics, messages, keys, checks, jobs and tables of several brokers."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tieredstore
from tests.support.cli import Done, run
from tests.support.three_brokers import CLUSTER, MESSAGES, damage, of_tier, tier_of_three
from tieredstore.offline import dataset
from tieredstore.offline.scan import planning


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tier_of_three(tmp_path_factory.mktemp("brokers"))


def of_all(tier: Path, *words: str, pattern: str = "*", status: int = 0) -> Done:
    return run("--tier", tier, *words, "--broker", pattern, status=status)


def test_topics_of_all_brokers_are_the_sum_of_each(tier: Path) -> None:
    rows = of_all(tier, "topics", "--json").rows
    each = [
        {"cluster": CLUSTER, "broker": name} | row
        for name in MESSAGES
        for row in run(*of_tier(tier), "-D", f"brokerName={name}", "topics", "--json").rows
    ]
    assert rows == each
    assert len(rows) == len(MESSAGES) + 1


def test_topics_are_added_up_by_topic_and_by_broker(tier: Path) -> None:
    by_topic = of_all(tier, "topics", "--by", "topic", "--json").rows
    found = {row["topic"]: (row["brokers"], row["queues"], row["messages"]) for row in by_topic}
    assert found == {"Alone": (1, 1, 1), "Orders": (3, 3, 13)}
    by_broker = of_all(tier, "topics", "--by", "broker", "--json").rows
    counts = {row["broker"]: (row["topics"], row["messages"]) for row in by_broker}
    assert counts == {"east-1": (1, 4), "east-2": (1, 6), "west-1": (2, 4)}
    table = of_all(tier, "topics", "--by", "topic", pattern="east-?").out.splitlines()
    assert table[1].split()[:4] == ["topic", "brokers", "queues", "messages"]
    assert table[3].split()[:4] == ["Orders", "2", "2", "10"]
    assert "lost" not in table[1]


def test_a_query_takes_the_newest_of_all_brokers(tier: Path) -> None:
    rows = of_all(tier, "query", "Orders", "the-key", "--max", "5", "--json").rows
    newest = ["east-2:5", "east-2:4", "east-2:3", "east-1:3", "west-1:2"]
    assert [row["body"] for row in rows] == newest
    assert [row["broker"] for row in rows] == [body.partition(":")[0] for body in newest]
    oldest = of_all(tier, "query", "Orders", "the-key", "--oldest-first", "--json").rows
    assert [row["body"] for row in oldest][:4] == ["east-1:0", "east-2:0", "west-1:0", "east-1:1"]
    assert len(oldest) == sum(MESSAGES.values())


def test_messages_are_read_broker_after_broker_up_to_a_maximum(tier: Path) -> None:
    lines = of_all(tier, "read", "Orders").out.splitlines()
    bodies = [f"{name}:{one}" for name, count in MESSAGES.items() for one in range(count)]
    assert [line.split("\t")[-1] for line in lines] == bodies
    assert [line.split("\t")[:2] for line in lines] == [
        [CLUSTER, body.partition(":")[0]] for body in bodies
    ]
    rows = of_all(tier, "read", "Orders", "0", "--max", "7", "--json").rows
    assert [row["body"] for row in rows] == bodies[:7]
    refused = of_all(tier, "read", "Orders", "0", "--once", status=2)
    assert "--once is about one broker" in refused.err


def test_messages_of_all_brokers_are_read_in_one_order_of_time(tier: Path) -> None:
    rows = of_all(tier, "read", "Orders", "--order", "time", "--json").rows
    times = [row["store_timestamp"] for row in rows]
    assert times == sorted(times)
    each = of_all(tier, "read", "Orders", "--json").rows
    assert sorted(rows, key=str) == sorted(each, key=str)
    assert [row["body"] for row in rows[:4]] == ["east-1:0", "east-2:0", "west-1:0", "east-1:1"]
    some = of_all(tier, "read", "Orders", "0", "--order", "time", "--max", "5").out.splitlines()
    assert [line.split("\t")[1] for line in some] == [row["broker"] for row in rows[:5]]
    span = ("--since", str(times[2]), "--until", str(times[7]))
    assert of_all(tier, "read", "Orders", "--order", "time", "--json", *span).rows == rows[2:7]
    assert "nothing of X" in of_all(tier, "read", "X", "--order", "time", status=1).err


@pytest.mark.leaves_findings("checksum", "body-crc", why="a body is overwritten")
def test_a_rotten_body_ends_one_broker_of_a_merge(tier: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    (log,) = copy.glob("*/east-2/Orders/0/COMMIT_LOG/*")
    log.write_bytes(log.read_bytes().replace(b"east-2:2", b"east-2?2"))
    words = ("read", "Orders", "--order", "time")
    done = of_all(copy, *words, status=1)
    counts = Counter(line.split("\t")[1] for line in done.out.splitlines())
    assert (counts["east-1"], counts["west-1"]) == (4, 3)
    assert counts["east-2"] < 3
    assert "east-2 of cluster C: " in done.err
    skipped = of_all(copy, *words, "--skip-damaged", status=1)
    assert len(skipped.out.splitlines()) == 12


def test_a_topic_that_one_broker_has_is_found_and_one_that_none_has_is_named(tier: Path) -> None:
    done = of_all(tier, "read", "Alone")
    assert done.out.split("\t")[1] == "west-1"
    assert done.complaints == ""
    assert "nothing of Nowhere" in of_all(tier, "read", "Nowhere", status=1).err


def test_check_verifies_one_after_another(tier: Path) -> None:
    lines = of_all(tier, "check").out.splitlines()
    assert [line.partition(" of cluster")[0] for line in lines] == list(MESSAGES)
    assert all(line.endswith("nothing is wrong") for line in lines)


@pytest.mark.leaves_findings("journal", why="the metadata of one broker are overwritten")
def test_a_damaged_broker_is_named_and_the_others_are_answered(tier: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    damage(copy, "east-2")
    done = of_all(copy, "topics", "--by", "broker", "--json", status=1)
    assert [row["broker"] for row in done.rows] == ["east-1", "west-1"]
    assert "east-2 of cluster C: " in done.err
    assert "Traceback" not in done.err


def test_a_pattern_that_fits_no_broker_is_refused_with_the_names(tier: Path) -> None:
    done = of_all(tier, "topics", pattern="north-*", status=2)
    assert "no broker of the tier in" in done.err
    assert all(name in done.err for name in MESSAGES)


def test_an_audit_compares_one_after_another(tier: Path) -> None:
    rows = of_all(tier, "audit", "--json", "--processes", "1").rows
    assert [(row["cluster"], row["broker"]) for row in rows] == [
        (CLUSTER, name) for name in MESSAGES
    ]
    counts = [row["summary"]["messages"] for row in rows]
    assert counts == [4, 6, 4]
    alone = run(*of_tier(tier), "-D", "brokerName=east-2", "audit", "--json", "--processes", "1")
    assert alone.rows == [{"summary": rows[1]["summary"]}]


def exported(tier: Path, into: Path, *words: str, status: int = 0) -> Done:
    return of_all(tier, "export", str(into), "--processes", "1", *words, status=status)


def test_each_broker_is_exported_into_partitions_and_again_adds_nothing(
    tier: Path, tmp_path: Path
) -> None:
    into = tmp_path / "out"
    planned = exported(tier, into, "--dry-run", "--json").rows
    assert [(row["broker"], row["topic"], row["to"]) for row in planned] == [
        ("east-1", "Orders", 4),
        ("east-2", "Orders", 6),
        ("west-1", "Alone", 1),
        ("west-1", "Orders", 3),
    ]
    rows = exported(tier, into, "--json").rows
    assert {(row["broker"], row["topic"]): row["messages"] for row in rows} == {
        (row["broker"], row["topic"]): row["to"] for row in planned
    }
    table = pq.read_table(into, partitioning="hive")
    assert sorted(zip(*(table[name].to_pylist() for name in ("broker", "body")), strict=True)) == [
        *(
            (name, f"{name}:{one}".encode())
            for name in ("east-1", "east-2")
            for one in range(MESSAGES[name])
        ),
        ("west-1", b"alone"),
        *(("west-1", f"west-1:{one}".encode()) for one in range(3)),
    ]
    assert set(table["cluster"].to_pylist()) == {CLUSTER}
    assert exported(tier, into, "--json").rows == []
    assert exported(tier, into).out.splitlines()[0] == f"east-1 of cluster {CLUSTER}"
    alone = ("-D", "brokerName=east-1", "export")
    assert "holds no export" in run(*of_tier(tier), *alone, into, status=2).err
    run(*of_tier(tier), *alone, tmp_path / "one", "--processes", "1")
    assert "of one broker" in exported(tier, tmp_path / "one", status=2).err


def test_an_export_names_a_topic_that_no_broker_has_and_refuses_what_it_cannot(
    tier: Path, tmp_path: Path
) -> None:
    words = ("--topic", "Alone", "--topic", "Nowhere", "--json")
    done = exported(tier, tmp_path / "out", *words, status=1)
    assert [(row["broker"], row["topic"]) for row in done.rows] == [("west-1", "Alone")]
    assert "no broker has the topic Nowhere" in done.err
    column = exported(tier, tmp_path / "other", "--property", "Broker:string", status=2)
    assert "Broker:string cannot be a column" in column.err


def test_a_dataset_of_all_brokers_is_that_of_each_with_its_names(tier: Path) -> None:
    of_them = dataset(tier, "Orders", broker="*").read_all()
    assert of_them.column_names == [
        "cluster",
        "broker",
        *dataset(tier, broker="east-1").schema.names,
    ]
    for name, count in MESSAGES.items():
        alone = dataset(tier, "Orders", broker=name).read_all()
        rows = [row for row in of_them.to_pylist() if row["broker"] == name]
        assert len(rows) == count
        assert rows == [{"cluster": CLUSTER, "broker": name} | row for row in alone.to_pylist()]
    some = dataset(
        tier, ["Alone", "Orders"], columns=["body:text", "broker"], broker=["w*", "east-2"]
    )
    assert some.read_all().to_pylist() == [
        *({"body": f"east-2:{one}", "broker": "east-2"} for one in range(6)),
        {"body": "alone", "broker": "west-1"},
        *({"body": f"west-1:{one}", "broker": "west-1"} for one in range(3)),
    ]
    assert dataset(tier, columns=["broker"], broker="*").read_all().num_rows == 14
    assert dataset(tier, queues=2, columns=["body"], broker="*").read_all().num_rows == 1
    with pytest.raises(tieredstore.NotFound, match="Nowhere"):
        dataset(tier, "Nowhere", broker="*")
    with pytest.raises(ValueError, match="named twice"):
        dataset(tier, columns=["broker", "broker:string"], broker="*")
    with pytest.raises(ValueError, match="'broker' is a column of every message"):
        dataset(tier, columns=["body", "broker:string"], broker="*")
    assert "broker" in dataset(tier, columns=["broker:string"], broker="east-1").schema.names


def test_a_dataset_of_all_brokers_takes_topics_and_queues_as_that_of_one(tier: Path) -> None:
    """Each once if it is named twice, and none of an empty list."""
    for broker in ("*", "east-1"):
        twice = dataset(tier, ["Orders", "Orders"], queues=[0, 0], broker=broker)
        assert twice.count_rows() == dataset(tier, "Orders", queues=0, broker=broker).count_rows()
        assert dataset(tier, [], broker=broker).count_rows() == 0
        assert dataset(tier, columns=[], broker=broker).count_rows() > 0
        with pytest.raises(ValueError, match="batch_size is a number of rows, at least 1, not -1"):
            dataset(tier, broker=broker).to_batches(batch_size=-1)


def test_topics_of_all_brokers_are_of_one_state_of_each(
    tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    plan = planning.plan

    def counted(config: Any, *more: Any, **named: Any) -> Any:
        planned.append(config.broker)
        return plan(config, *more, **named)

    monkeypatch.setattr(planning, "plan", counted)
    dataset(tier, ["Alone", "Orders", "Nowhere"], queues=[0, 1, 9], broker="*")
    assert planned == ["east-1", "east-2", "west-1"]


@pytest.mark.leaves_findings("journal", why="the metadata of one broker are overwritten")
def test_jobs_answer_for_the_others_where_one_broker_is_damaged(tier: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    damage(copy, "east-2")
    for done in (
        of_all(copy, "audit", "--json", "--processes", "1", status=1),
        exported(copy, tmp_path / "out", "--json", status=1),
    ):
        assert {row["broker"] for row in done.rows} == {"east-1", "west-1"}
        assert "east-2 of cluster C: " in done.err
    failed: list[tuple[str, str]] = []
    found = dataset(
        copy,
        columns=["broker"],
        broker="*",
        on_broker_failure=lambda cluster, broker, _: failed.append((cluster, broker)),
    )
    assert set(found.read_all()["broker"].to_pylist()) == {"east-1", "west-1"}
    assert failed == [(CLUSTER, "east-2")]
    with pytest.raises(tieredstore.Corrupt):
        dataset(copy, broker="*")
