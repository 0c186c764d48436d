"""Measures ours beside RocketMQ's own tiered store: `python -m tests.bench.compare --help`.

Each round the JVM puts all messages into a local store; both sides tier that very store, in
batches of the same size, and read their tiers back, in turn, each of them first in every other
round. A second store of the round is tiered by both with their key index, until all keys are found;
a third one by the Java store alone, in batches of its default size. Rounds before the first timed
one warm both sides up: the JVM and the process that tiers for us are the same for all rounds of a
case. One JSON file a case.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.java_side import JavaFigure, JavaSide
from tests.bench.rows import Defaults, Goal, add_run_options, goals_beside, keep, refuse_small
from tests.support.rocketmq_broker import BrokerInstall, rocketmq_version
from tieredstore.bench.measure import TIER, Figure, Worker
from tieredstore.bench.run import (
    METRICS,
    RAW_BYTES_MAX,
    RAW_READ,
    RAW_WRITE,
    BenchResult,
    as_rows,
    lines_of,
    raw_limits,
    spread,
)
from tieredstore.bench.synthetic_store import SyntheticStore
from tieredstore.cli.output import write_table

CASES = (
    (100, 8, 1_000_000),
    (100, 64, 1_000_000),
    (1_024, 8, 524_288),
    (1_024, 64, 524_288),
    (16_384, 8, 32_768),
    (16_384, 64, 32_768),
)
"""Bytes of a body, queues, messages."""
WARM_UP_ROUNDS = 3
ROUNDS = 5
RAW = (RAW_WRITE, RAW_READ)
TABLE_CELLS = 120
TIER_GOALS = {(100, 8): 2.0, (1_024, 8): 2.0, (1_024, 64): 1.2}
"""Rate beside the Java store's, by bytes of a body and queues."""
INDEXED_GOALS = {(1_024, 64): 1.0}
TIER_DEFAULT = "tier_default"
JAVA_READS = ("read_32_by_1", "read_32_by_4", "read_32_decoded")
JAVA_OF = {"read_1024_by_1": "read_32_by_1", "read_32_properties": "read_32_decoded"}
"""What ours is compared with where the Java store has no such metric: it reads 32 a call, and
always decodes all properties."""


@dataclass
class Rounds:
    """The figures of all timed rounds."""

    ours: list[Figure] = field(default_factory=list)
    java: list[JavaFigure] = field(default_factory=list)
    java_indexed: list[JavaFigure] = field(default_factory=list)
    java_default: list[JavaFigure] = field(default_factory=list)
    ours_indexed: list[Figure] = field(default_factory=list)


def measure_case(
    install: BrokerInstall,
    directory: Path,
    made: SyntheticStore,
    *,
    warm_up_rounds: int,
    rounds: int,
    heap_mib: int = 4096,
) -> list[dict[str, Any]]:
    """Rows of one case: those of `tieredstore bench`, with the Java store's figures in each."""
    timed = Rounds()
    peak_bytes = 0
    with Worker() as worker, JavaSide(install, directory / "java", made, heap_mib=heap_mib) as java:
        for number in range(-warm_up_rounds, rounds):
            _tell(f"{made.body_bytes} B, {made.queues} queues, round {number + 1} of {rounds}")
            found = timed if number >= 0 else Rounds()
            put = java.ask("put")
            with java.paused():
                found.ours += raw_limits(directory, min(put.bytes, RAW_BYTES_MAX))

            def ours(store: Path = put.store, found: Rounds = found) -> None:
                nonlocal peak_bytes
                with java.paused():
                    found.ours.append(worker.tier(store, directory / "tier", made))
                    peak_bytes = peak_bytes or worker.peak_bytes()
                    found.ours += worker.read(directory / "tier", made)
                    shutil.rmtree(directory / "tier")

            def javas(found: Rounds = found) -> None:
                found.java += (java.ask(metric) for metric in (TIER, *JAVA_READS))

            in_turn: list[Callable[[], None]] = [ours, javas]
            for side in in_turn if number % 2 else reversed(in_turn):
                side()
            java.ask("end")
            keyed = java.ask("put_indexed")

            def ours_indexed(store: Path = keyed.store, found: Rounds = found) -> None:
                with java.paused():
                    figure = worker.tier(store, directory / "tier", made, indexed=True)
                    found.ours_indexed.append(figure)
                    shutil.rmtree(directory / "tier")

            def javas_indexed(found: Rounds = found) -> None:
                found.java_indexed.append(java.ask(TIER))

            in_turn = [ours_indexed, javas_indexed]
            for side in in_turn if number % 2 else reversed(in_turn):
                side()
            java.ask("end")
            java.ask("put")
            found.java_default.append(java.ask(TIER_DEFAULT))
            java.ask("end")
    result = BenchResult(made, warm_up_rounds, rounds, lines_of(timed.ours), peak_bytes)
    return compared_rows(as_rows(result), timed)


def compared_rows(rows: list[dict[str, Any]], timed: Rounds) -> list[dict[str, Any]]:
    """The same rows with what the Java store did, and the ratios of the medians."""
    for row in rows:
        metric = row["metric"]
        if metric == "run":
            row["java"] = {"rocketmq": rocketmq_version()}
            continue
        wanted = JAVA_OF.get(metric, metric)
        row["java"] = _java([figure for figure in timed.java if figure.metric == wanted])
        row["java_indexed"] = _java([one for one in timed.java_indexed if one.metric == wanted])
        row["indexed"] = _java(timed.ours_indexed) if metric == TIER else None
        row["java_default"] = _java(timed.java_default) if metric == TIER else None
        for name, ratio in (("messages_s", "to_java"), ("cpu_us", "cpu_to_java")):
            java = row["java"]
            row[ratio] = row[name]["median"] / java[name]["median"] if java else None
    _add_ratios({row["metric"]: row for row in rows})
    return rows


def _add_ratios(rows: dict[str, dict[str, Any]]) -> None:
    """What goals are about besides: both sides indexed, and what verification costs."""
    tier = rows[TIER]
    if tier["indexed"] and tier["java_indexed"]:
        ours, java = (tier[side]["messages_s"]["median"] for side in ("indexed", "java_indexed"))
        tier["indexed_to_java"] = ours / java
    cpu = [rows[name]["cpu_us"]["median"] for name in ("read_32_by_1", "read_32_unverified")]
    rows["read_32_by_1"]["cpu_to_unverified"] = cpu[0] / cpu[1]


def goals_of(metric: str, body_bytes: int, queues: int) -> list[Goal]:
    """The goals of a row: ratios to the Java store, both warm, in batches of one size."""
    case = (body_bytes, queues)
    if metric == TIER:
        found = [
            (TIER_GOALS, "rate", "to_java"),
            (INDEXED_GOALS, "rate with index", "indexed_to_java"),
        ]
        return [Goal(name, words, least=by[case]) for by, words, name in found if case in by]
    if metric == "read_32_by_1" and body_bytes == 1_024:
        return [Goal("cpu_to_unverified", "CPU to unverified", most=1.2)]
    if metric == "read_32_decoded":
        return [Goal("to_java", "rate", least=1.0)]
    return []


def _java(figures: Sequence[Figure]) -> dict[str, Any] | None:
    if not figures:
        return None
    return {
        "messages_s": spread([figure.messages_s for figure in figures])._asdict(),
        "bytes_s": spread([figure.bytes_s for figure in figures])._asdict(),
        "cpu_us": spread([figure.cpu_us for figure in figures])._asdict(),
        "wrong_messages": sum(
            figure.wrong_messages for figure in figures if isinstance(figure, JavaFigure)
        ),
    }


def print_case(rows: list[dict[str, Any]]) -> None:
    """Medians: thousands of messages a second and CPU microseconds a message, side by side."""
    *measured, run = rows
    store = run["store"]
    columns = ["k msg/s (CPU us)", "ours", "Java", "with index", "rate", "CPU", "/ raw", "goal"]
    case = (store["body_bytes"], store["queues"])
    write_table(
        columns,
        [
            [
                METRICS[row["metric"]],
                *_cells(row),
                goals_beside(row, goals_of(row["metric"], *case)),
            ]
            for row in measured
            if row["messages_s"]
        ],
        numbers=frozenset(columns[1:-1]),
        title=f"{store['messages']:,} messages of {store['body_bytes']:,} B, {store['queues']} "
        f"queues, {run['rounds']} rounds after {run['warm_up_rounds']}",
    )
    for row in measured:
        if row["metric"] in RAW:
            low, median, high = (row["bytes_s"][name] / 1e6 for name in ("low", "median", "high"))
            print(
                f"{METRICS[row['metric']]}: {median:,.0f} MB/s ({low:,.0f}-{high:,.0f}), "
                f"{row['cpu_s']['median']:.2f} s of CPU a round"
            )
        elif row["java"] and row["java"]["wrong_messages"]:
            print(
                f"{METRICS[row['metric']]}: {row['java']['wrong_messages']:,} wrong of the Java's"
            )
    for row in measured:
        if row["indexed"] and row["java_indexed"]:
            print(f"{METRICS[row['metric']]} with index: {_indexed(row)}")
        if row["java_default"]:
            rate, cpu = (row["java_default"][name]["median"] for name in ("messages_s", "cpu_us"))
            print(f"Java in batches of its default size: {rate / 1e3:,.0f} k/s ({cpu:.2f} us)")
    print(flush=True)


def _indexed(row: dict[str, Any]) -> str:
    ours, java = (
        (side["messages_s"]["median"], side["cpu_us"]["median"])
        for side in (row["indexed"], row["java_indexed"])
    )
    return (
        f"{ours[0] / 1e3:,.0f} k/s ({ours[1]:.2f} us) against {java[0] / 1e3:,.0f} "
        f"({java[1]:.2f} us): {ours[0] / java[0]:.1f} times the rate, "
        f"{ours[1] / java[1]:.2f} of the CPU"
    )


def _cells(row: dict[str, Any]) -> list[str]:
    sides = (row, row["java"], row["java_indexed"])
    ratios = ((row["to_java"], 1), (row["cpu_to_java"], 2), (row["to_raw"], 2))
    rates = [
        (side["messages_s"]["median"], side["cpu_us"]["median"]) if side else None for side in sides
    ]
    return [
        *(f"{rate[0] / 1e3:,.0f} ({rate[1]:.2f})" if rate else "" for rate in rates),
        *(f"{ratio:.{digits}f}" if ratio else "" for ratio, digits in ratios),
    ]


def _tell(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> None:
    """Measure the cases that were asked for, print a table of each, and keep its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body-bytes", type=int, help="only cases with such bodies")
    parser.add_argument("--queues", type=int, help="only cases with so many queues")
    parser.add_argument("--messages", type=int, help="so many, in place of the case's own number")
    add_run_options(parser, Defaults(0, WARM_UP_ROUNDS, ROUNDS))
    options = parser.parse_args(arguments)
    if options.store_results is not None:
        for body_bytes, queues, messages in CASES:
            if options.body_bytes in (None, body_bytes) and options.queues in (None, queues):
                given = options.messages or messages
                measured = Defaults(given, options.warm_up_rounds, options.rounds)
                refuse_small(parser, measured, Defaults(messages, WARM_UP_ROUNDS, ROUNDS))
    os.environ.setdefault("COLUMNS", str(TABLE_CELLS))  # a pipe has no width of its own
    install = BrokerInstall.fetched()
    for body_bytes, queues, messages in CASES:
        if options.body_bytes not in (None, body_bytes) or options.queues not in (None, queues):
            continue
        made = SyntheticStore(
            messages=options.messages or messages,
            body_bytes=body_bytes,
            queues=queues,
            topic="bench",
        )
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            rows = measure_case(
                install,
                Path(directory),
                made,
                warm_up_rounds=options.warm_up_rounds,
                rounds=options.rounds,
            )
        print_case(rows)
        if options.store_results is not None:
            name = f"{body_bytes}-bytes-{queues}-queues-java.json"
            keep(rows, options.store_results / name)


if __name__ == "__main__":
    main(sys.argv[1:])
