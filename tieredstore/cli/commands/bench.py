"""`tieredstore bench`: this machine's figures, beside its raw limits."""

import json
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from tieredstore.bench.run import METRICS, BenchResult, MetricSpread, Spread, as_rows, run_bench
from tieredstore.bench.synthetic_store import SyntheticStore
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import write_json, write_table
from tieredstore.texts import count_text, size_text

MEGABYTE = 1_000_000


def run(
    _: Invocation,
    *,
    directory: Path | None,
    body_bytes: int,
    queues: int,
    messages: int,
    rounds: int,
    warm_up_rounds: int,
    store_results: Path | None,
    as_json: bool,
) -> None:
    """Measure tiering and cold reading on this machine, beside its raw limits."""
    made = SyntheticStore(messages=messages, body_bytes=body_bytes, queues=queues)
    with (
        tempfile.TemporaryDirectory(prefix="tieredstore-bench-", dir=directory) as work,
        _steps() as on_step,
    ):
        try:
            result = run_bench(
                Path(work), made, warm_up_rounds=warm_up_rounds, rounds=rounds, on_step=on_step
            )
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
    rows = as_rows(result)
    if store_results is not None:
        store_results.mkdir(parents=True, exist_ok=True)
        name = f"{body_bytes}-bytes-{queues}-queues.json"
        (store_results / name).write_text(json.dumps(rows, indent=1) + "\n")
    if as_json:
        write_json(rows)
    else:
        print_result(result)


@contextmanager
def _steps() -> Generator[Callable[[str], None]]:
    """Shows the current step on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status("measuring") as status:
        yield status.update


def print_result(result: BenchResult) -> None:
    """The table, and the lines below it."""
    made = result.made
    title = (
        f"{count_text(made.messages)} messages with bodies of {size_text(made.body_bytes)} in "
        f"{made.queues} queues, {result.rounds} rounds after {result.warm_up_rounds} of warm-up"
    )
    columns = ["medians", "k msg/s", "MB/s", "min-max", "CPU us/msg", "/ raw"]
    rows = [_cells(line) for line in result.lines]
    write_table(columns, rows, numbers=frozenset(columns[1:]), title=title)
    click.echo(f"Peak memory of the process that tiers: {size_text(result.peak_bytes_tiering)}.")


def _cells(line: MetricSpread) -> list[str]:
    messages = line.messages_s
    return [
        METRICS[line.metric],
        f"{messages.median / 1000:,.0f}" if messages else "",
        f"{line.bytes_s.median / MEGABYTE:,.0f}",
        _range_text(messages, 1000) if messages else _range_text(line.bytes_s, MEGABYTE),
        f"{line.cpu_us.median:.2f}" if line.cpu_us else "",
        f"{line.to_raw:.2f}" if line.to_raw else "",
    ]


def _range_text(spread: Spread, unit: int) -> str:
    """Minimum and maximum, in the unit of the row's first number."""
    return f"{spread.low / unit:,.0f}-{spread.high / unit:,.0f}"
