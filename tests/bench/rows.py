"""Rows of all benches: goals beside them, and which results may be kept."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tieredstore.bench.run import machine_facts

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of one column of a row."""

    column: str
    """Key of the row, whose value is a number or a spread with a median."""
    words: str
    least: float | None = None
    most: float | None = None

    def beside(self, row: Mapping[str, Any]) -> str:
        """The goal, and whether the row meets it."""
        found = row.get(self.column)
        value = found["median"] if isinstance(found, dict) else found
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        if value is None:
            return f"{self.words} {bound}: not measured"
        meets = value >= self.least if self.least is not None else value <= (self.most or 0.0)
        return f"{self.words} {bound}: {'met' if meets else f'{value:.2f}, missed'}"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a run must have at least so that its results are kept."""

    messages: int
    warm_up_rounds: int
    rounds: int


def goals_beside(row: Mapping[str, Any], goals: Sequence[Goal]) -> str:
    """All goals of a row in one cell; empty without any."""
    return "; ".join(goal.beside(row) for goal in goals)


def add_run_options(parser: argparse.ArgumentParser, defaults: Defaults) -> None:
    """The options that every bench has."""
    parser.add_argument("--rounds", type=int, default=defaults.rounds)
    parser.add_argument("--warm-up-rounds", type=int, default=defaults.warm_up_rounds)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument(
        "--store-results",
        type=Path,
        help="keep a JSON file a case there; refused with less than the defaults",
    )


def refuse_small(parser: argparse.ArgumentParser, measured: Defaults, defaults: Defaults) -> None:
    """End the program before it measures what must not be kept.

    With fewer messages or rounds the Java machine still compiles, and its store looks slow.
    """
    for name in ("messages", "warm_up_rounds", "rounds"):
        given, least = getattr(measured, name), getattr(defaults, name)
        if given < least:
            words = name.replace("_", "-")
            parser.error(
                f"--store-results keeps no result with {given:,} {words}: "
                f"leave out --{words} or --store-results, the default is {least:,}"
            )


def keep(rows: Sequence[Row] | Row, path: Path) -> None:
    """Write the rows of a case."""
    path.write_text(json.dumps(rows, indent=1) + "\n")


def print_and_keep(row: Row, goals: Sequence[Goal], path: Path | None) -> None:
    """Print a row beside its goals, and keep it with facts of the machine if there is a path."""
    for name, value in row.items():
        print(f"{name:28}{value}")
    print(goals_beside(row, goals))
    if path is not None:
        run = {"metric": "run", "load": os.getloadavg()[1], "machine": machine_facts()}
        keep([row, run], path)
