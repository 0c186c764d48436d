"""Measures our message store beside RocketMQ's: `python -m tests.bench.store --help`.

Each round both sides fill stores of their own with the same messages, in turn, each of them first
in every other round: put without a tier and with one, put until all is tiered, then key queries,
offsets by time and a restart of what was filled. Rounds before the first timed one warm both
sides up. Messages are made before anything is timed. One JSON file a case.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.java_side import JavaSide
from tests.bench.rows import Defaults, Goal, add_run_options, goals_beside, keep, refuse_small
from tests.bench.store_worker import WAYS, StoreFigure, StoreWorker
from tests.support.rocketmq_broker import BrokerInstall, rocketmq_version
from tieredstore.bench.measure import Figure
from tieredstore.bench.run import machine_facts, spread
from tieredstore.bench.synthetic_store import SyntheticStore
from tieredstore.cli.output import write_table

CASES = ((100, 8, 400_000), (1_024, 8, 200_000), (1_024, 64, 200_000))
"""Bytes of a body, queues, messages."""
WARM_UP_ROUNDS = 3
ROUNDS = 5
BATCHES = (1, 32, 1_024)
SMALL_BODY_BYTES = 100
WORDS = {
    "put_1": "put_message, one task",
    "put_32": "put_messages, 32 a call",
    "put_1024": "put_messages, 1,024 a call",
    "put_1_tiering": "put_message, tiering",
    "put_32_tiering": "32 a call, tiering",
    "put_1024_tiering": "1,024 a call, tiering",
    "put_1_own": "put_message, tiering in a process of its own",
    "put_32_own": "32 a call, the same",
    "put_1024_own": "1,024 a call, the same",
    "put_paced": "put_message, 2,000 a second",
    "put_paced_tiering": "the same, tiering",
    "put_paced_own": "the same, tiering in a process of its own",
    "put_and_tier_32": "put and tier, 32 a call",
    "put_and_tier_1024": "put and tier, 1,024 a call",
    "query": "key query",
    "offset_by_time": "offset by time",
    "restart": "restart",
    "restart_settled": "restart, all queues compared",
}
"""Every metric in the order of the table."""
JAVA_OF = {
    **{f"put_{batch}": "put_made" for batch in BATCHES},
    **{f"put_and_tier_{batch}": "put_and_tier" for batch in BATCHES},
    "query": "query",
    "offset_by_time": "offset_by_time",
    "restart": "restart",
}
"""What ours is compared with: RocketMQ's store takes one message a call."""
WITHOUT_TIER = {
    metric: metric.removesuffix(way) for metric in WORDS for way in WAYS[1:] if metric.endswith(way)
}


def goals_of(metric: str, body_bytes: int) -> list[Goal]:
    """The goals of a row, beside a warm Java store."""
    is_small = body_bytes == SMALL_BODY_BYTES
    rate, p50, p99 = "messages_s_to_java", "p50_us_to_java", "p99_us_to_java"
    goals = {
        "put_1": [
            Goal(rate, "rate", least=0.75 if is_small else 0.65),
            Goal("cpu_us_to_java", "CPU", most=1.0),
            Goal("p99_us", "p99 us", most=15.0),
        ],
        "put_32": [Goal(rate, "rate", least=1.35 if is_small else 1.15)],
        "put_1024": [Goal(rate, "rate", least=1.7)],
        "put_and_tier_32": [Goal(rate, "rate", least=1.3)],
        "put_and_tier_1024": [Goal(rate, "rate", least=1.6)],
        "query": [Goal(p50, "p50", most=2.0), Goal(p99, "p99", most=1.0)],
    }
    beside_tiering = [
        Goal("messages_s_to_untiered", "rate to untiered", least=0.95),
        Goal("p99_us_to_untiered", "p99 to untiered", most=1.5),
    ]
    if metric.endswith("_own"):
        beside_tiering.append(Goal("cpu_us_to_untiered", "CPU to untiered", most=1.1))
    return goals.get(metric, beside_tiering if metric in WITHOUT_TIER else [])


def our_round(
    worker: StoreWorker, root: Path, made: SyntheticStore, *, tiers_first: bool
) -> list[StoreFigure]:
    """Every metric once; `root` is empty before and afterwards."""
    figures: list[StoreFigure] = []
    ways = WAYS[::-1] if tiers_first else WAYS
    for batch in BATCHES:
        for way in ways:
            figures.append(worker.put(root / "store", made, batch, way))
            shutil.rmtree(root / "store")
    for way in ways:
        figures.append(worker.put_paced(root / "store", made, way))
        shutil.rmtree(root / "store")
    figures += [worker.put_and_tier(root / f"store-{batch}", made, batch) for batch in BATCHES[1:]]
    filled = root / f"store-{BATCHES[-1]}"
    figures.append(worker.query(filled, made))
    figures.append(worker.offset_by_time(filled, made))
    figures += worker.restart(filled, made)
    for batch in BATCHES[1:]:
        shutil.rmtree(root / f"store-{batch}")
    return figures


def java_round(java: JavaSide) -> list[Figure]:
    """The same of RocketMQ's store."""
    figures: list[Figure] = [java.ask("put_made")]
    java.ask("end")
    figures += [java.ask(metric) for metric in ("put_and_tier", "query", "offset_by_time")]
    figures.append(java.ask("restart"))
    java.ask("end")
    return figures


def measure_case(
    install: BrokerInstall,
    directory: Path,
    made: SyntheticStore,
    *,
    warm_up_rounds: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """Rows of one case, a metric each, and one about the run."""
    ours: list[StoreFigure] = []
    javas: list[Figure] = []
    with StoreWorker() as worker, JavaSide(install, directory / "java", made) as java:

        def measure_ours(number: int) -> list[StoreFigure]:
            with java.paused():
                return our_round(worker, directory, made, tiers_first=number % 4 > 1)

        for number in range(-warm_up_rounds, rounds):
            case = f"{made.body_bytes} B, {made.queues} queues"
            print(f"{case}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            sides: list[Callable[[], Sequence[Figure]]] = [
                partial(measure_ours, number),
                lambda: java_round(java),
            ]
            found = [side() for side in (sides if number % 2 else reversed(sides))]
            if number >= 0:
                mine, other = found if number % 2 else reversed(found)
                ours += (figure for figure in mine if isinstance(figure, StoreFigure))
                javas += other
    rows = [_row(metric, ours, javas) for metric in WORDS]
    _compare_with_untiered(rows, ours)
    run = {"warm_up_rounds": warm_up_rounds, "rounds": rounds, "store": asdict(made)}
    about = {"machine": machine_facts(), "rocketmq": rocketmq_version()}
    return [*rows, {"metric": "run", **run, **about}]


def _row(metric: str, ours: Sequence[Figure], javas: Sequence[Figure]) -> dict[str, Any]:
    row = _spreads([figure for figure in ours if figure.metric == metric])
    mine = [figure for figure in javas if figure.metric == JAVA_OF.get(metric)]
    row |= {"metric": metric, "java": _spreads(mine) if mine else None}
    for name in ("messages_s", "seconds", "cpu_us", "p50_us", "p99_us"):
        other = row["java"][name]["median"] if mine else 0
        row[f"{name}_to_java"] = row[name]["median"] / other if other else None
    return row


def _spreads(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        name: spread([getattr(figure, name) for figure in figures])._asdict()
        for name in ("messages_s", "seconds", "cpu_us", "p50_us", "p99_us")
    }


def _compare_with_untiered(rows: Sequence[dict[str, Any]], ours: Sequence[StoreFigure]) -> None:
    """Medians over the rounds of what tiering costs in each: rounds differ more than both do."""
    by_metric = {row["metric"]: row for row in rows}
    for metric, untiered in WITHOUT_TIER.items():
        pairs = list(
            zip(
                [figure for figure in ours if figure.metric == metric],
                [figure for figure in ours if figure.metric == untiered],
                strict=True,
            )
        )
        for name in ("messages_s", "cpu_us", "p50_us", "p99_us"):
            ratios = [getattr(one, name) / getattr(other, name) for one, other in pairs]
            by_metric[metric][f"{name}_to_untiered"] = spread(ratios).median


def print_case(rows: Sequence[dict[str, Any]]) -> None:
    """Medians side by side: rates in thousands a second, CPU and percentiles in microseconds."""
    *measured, run = rows
    store = run["store"]
    columns = ["k/s (CPU us) p50/p99 us", "ours", "Java", "rate", "CPU", "p50", "p99", "goal"]
    write_table(
        columns,
        [
            [
                WORDS[row["metric"]],
                _cell(row),
                _cell(row["java"]) if row["java"] else "",
                *(
                    f"{row[name]:.2f}" if row[name] else ""
                    for name in (f"{one}_to_java" for one in ("messages_s", "cpu_us", "p50_us"))
                ),
                f"{row['p99_us_to_java']:.2f}" if row["p99_us_to_java"] else "",
                goals_beside(row, goals_of(row["metric"], store["body_bytes"])),
            ]
            for row in measured
        ],
        numbers=frozenset(columns[1:-1]),
        title=f"{store['messages']:,} messages of {store['body_bytes']:,} B, {store['queues']} "
        f"queues, {run['rounds']} rounds after {run['warm_up_rounds']}",
    )
    for row in measured:
        if "p99_us_to_untiered" in row:
            rate, cpu, p50, p99 = (
                row[f"{name}_to_untiered"] for name in ("messages_s", "cpu_us", "p50_us", "p99_us")
            )
            print(
                f"{WORDS[row['metric']]}: {rate:.2f} of the rate without, {cpu:.2f} times its CPU,"
                f" p50 {p50:.2f} and p99 {p99:.2f} times"
            )
    print(flush=True)


def _cell(side: dict[str, Any]) -> str:
    rate, cpu, seconds = (side[name]["median"] for name in ("messages_s", "cpu_us", "seconds"))
    p50, p99 = side["p50_us"]["median"], side["p99_us"]["median"]
    calls = f" {p50:,.0f}/{p99:,.0f}" if p99 else f" {seconds:.2f} s"
    return f"{rate / 1e3:,.0f} ({cpu:.2f}){calls}"


def measure_history(directory: Path, made: SyntheticStore, times: int) -> dict[str, Any]:
    """What a restart takes of ours with so many times the messages."""
    longer = SyntheticStore(
        messages=made.messages * times,
        body_bytes=made.body_bytes,
        queues=made.queues,
        topic=made.topic,
    )
    with StoreWorker() as worker:
        worker.put_and_tier(directory / "store", longer, BATCHES[-1])
        found = [figure for _ in range(5) for figure in worker.restart(directory / "store", longer)]
    shutil.rmtree(directory / "store")
    rows = {
        metric: _spreads([figure for figure in found[2:] if figure.metric == metric])["seconds"]
        for metric in ("restart", "restart_settled")
    }
    return {"messages": longer.messages, "queues": longer.queues, **rows}


def main(arguments: Sequence[str]) -> None:
    """Measure the cases that were asked for, print a table of each, and keep its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body-bytes", type=int, help="only cases with such bodies")
    parser.add_argument("--queues", type=int, help="only cases with so many queues")
    parser.add_argument("--messages", type=int, help="so many, in place of the case's own number")
    parser.add_argument(
        "--history",
        type=int,
        nargs="+",
        help="instead: how long a restart takes with so many times the messages",
    )
    add_run_options(parser, Defaults(0, WARM_UP_ROUNDS, ROUNDS))
    options = parser.parse_args(arguments)
    if options.store_results is not None and not options.history:
        for body_bytes, queues, messages in CASES:
            if options.body_bytes in (None, body_bytes) and options.queues in (None, queues):
                given = options.messages or messages
                measured = Defaults(given, options.warm_up_rounds, options.rounds)
                refuse_small(parser, measured, Defaults(messages, WARM_UP_ROUNDS, ROUNDS))
    os.environ.setdefault("COLUMNS", "170")  # a pipe has no width of its own
    for body_bytes, queues, messages in CASES:
        if options.body_bytes not in (None, body_bytes) or options.queues not in (None, queues):
            continue
        made = SyntheticStore(
            messages=options.messages or messages,
            body_bytes=body_bytes,
            queues=queues,
            topic="bench",
        )
        with tempfile.TemporaryDirectory(dir=options.directory) as name:
            directory = Path(name)
            if options.history:
                rows = [measure_history(directory, made, times) for times in options.history]
                print(json.dumps(rows, indent=1))
                kept = f"store-history-{body_bytes}-bytes-{queues}-queues.json"
            else:
                rows = measure_case(
                    BrokerInstall.fetched(),
                    directory,
                    made,
                    warm_up_rounds=options.warm_up_rounds,
                    rounds=options.rounds,
                )
                print_case(rows)
                kept = f"store-{body_bytes}-bytes-{queues}-queues.json"
        if options.store_results is not None:
            keep(rows, options.store_results / kept)


if __name__ == "__main__":
    main(sys.argv[1:])
