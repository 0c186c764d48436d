"""What README, CHANGELOG and the pages of `docs/` name exists, and their figures are measured."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from tests.bench import compare, store
from tests.support.golden import GOLDEN_SETS
from tieredstore.cli.main import cli
from tieredstore.cli.syntax.repairing import repair_hot_log, repair_journal
from tieredstore.config.effective import Config
from tieredstore.config.keys import JAVA_ONLY, KEYS
from tieredstore.serve.metrics import ServeMetrics, ServeMoment

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
README, CHANGELOG, GUIDE, FIGURES = (
    ROOT / name for name in ("README.md", "CHANGELOG.md", "docs/operating.md", "docs/figures.md")
)
PAGES = (README, CHANGELOG, *sorted((ROOT / "docs").glob("*.md")))
NAMING = {README, CHANGELOG, GUIDE, ROOT / "docs/s3.md", ROOT / "docs/limits.md"}
"""Pages that name settings, options and metrics."""
CHANGELOG_LINES_MAX = 80
STORE_ROWS = {
    "put_1": "`put_message`, one task",
    "put_32": "`put_messages`, 32 a call",
    "put_1024": "`put_messages`, 1,024 a call",
    "put_and_tier_32": "put and tier, 32 a call",
    "put_and_tier_1024": "put and tier, 1,024 a call",
}
RESULTS = ROOT / "tests/bench/results/1024-bytes-8-queues-java.json"


def said(page: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_that_is_named_exists(page: Path) -> None:
    named = said(page, r"`(tieredStore[A-Z]\w+)(?!\w|\.json)")
    assert named or page not in NAMING
    assert named - set(KEYS) - set(JAVA_ONLY) == set()


def test_defaults_in_parentheses_are_the_defaults() -> None:
    units = {"s": 1000, "MiB": 1 << 20, "GiB": 1 << 30}
    shown = re.compile(r"`(tieredStore\w+)`\s+\((\d+) (s|MiB|GiB)\)")
    found = [match for page in PAGES for match in shown.findall(page.read_text())]
    assert len(found) >= 3
    for key, number, unit in found:
        assert KEYS[key].default == int(number) * units[unit], key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_metric_that_is_named_exists(page: Path) -> None:
    table = GUIDE.read_text().split("## Watch it")[1].split("\n## ")[0]
    explained = set(re.findall(r"`((?:tieredstore|rocketmq)_\w+)`", table))
    counts, beside = (0, 0, 0, 0, 0, 0, 0, 0.0, {("PULL", "SUCCESS"): 1}), (0, False, 0)
    server = ServeMetrics(lambda: ServeMoment(*counts, *beside))
    explained |= {sample.name for family in server.collect() for sample in family.samples}
    assert said(page, r"`(tieredstore_\w+|rocketmq_\w+)`") <= explained


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    yield group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from commands(command, context)
        else:
            yield command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_is_named_exists(page: Path) -> None:
    context = click.Context(cli)
    known = {
        option
        for command in (*commands(cli, context), repair_journal, repair_hot_log)
        for parameter in command.get_params(context)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    of_others = {"--unit", "--retry", "--retry-delay", "--retry-all-errors", "--py-files"}
    of_others |= {"--archives", "--aws-sigv", "--user"}
    named = said(page, r"(?<![\w-])(--[a-z][a-z-]+)")
    assert named or page not in NAMING
    assert named - known - of_others == set()


def test_the_changelog_is_short() -> None:
    assert len(CHANGELOG.read_text().splitlines()) <= CHANGELOG_LINES_MAX


def test_the_versions_that_are_named_are_those_of_the_golden_stores() -> None:
    versions = sorted(name.name.split("-")[1] for name in GOLDEN_SETS)
    span = f"{versions[0]} to {versions[-1]}"
    for page in (README, CHANGELOG):
        assert said(page, r"(\d+\.\d+\.\d+ to \d+\.\d+\.\d+)") == {span}


def test_the_pythons_that_are_named_are_those_on_which_the_wheel_is_tried() -> None:
    classified = sorted(re.findall(r"Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text()))
    assert said(README, r"Python (3\.\d+ to 3\.\d+)") == {
        f"3.{classified[0]} to 3.{classified[-1]}"
    }


def test_the_bound_of_memory_is_the_one_of_the_defaults() -> None:
    mib = Config.load(environment={}, defines=[f"tieredStoreFilePath={ROOT}"]).memory_bytes_max
    assert said(README, r"at most (\d+) MiB in memory") == {str(mib >> 20)}


@pytest.mark.parametrize("bench", [store, compare], ids=lambda bench: bench.__name__)
def test_kept_results_are_of_all_messages_and_of_warm_rounds(bench: ModuleType) -> None:
    names = {store: "store-{}-bytes-{}-queues.json", compare: "{}-bytes-{}-queues-java.json"}
    paths = [RESULTS.with_name(names[bench].format(*case)) for *case, _ in bench.CASES]
    for path, (*_, messages) in zip(paths, bench.CASES, strict=True):
        (run,) = (row for row in json.loads(path.read_text()) if row["metric"] == "run")
        assert run["store"]["messages"] >= messages
        assert run["warm_up_rounds"] >= bench.WARM_UP_ROUNDS
        assert run["rounds"] >= bench.ROUNDS


@pytest.mark.parametrize(
    ("column", "case"), [(1, "1024-bytes-8"), (3, "100-bytes-8"), (5, "1024-bytes-64")]
)
def test_figures_of_the_store_are_those_that_are_kept(column: int, case: str) -> None:
    lines = FIGURES.read_text().splitlines()
    rows = json.loads(RESULTS.with_name(f"store-{case}-queues.json").read_text())
    kept = {row["metric"]: row for row in rows}
    for metric, words in STORE_ROWS.items():
        (line,) = [line for line in lines if line.startswith(f"| {words} |")]
        rate, cpu = (cell.strip() for cell in line.strip("|").split("|")[column : column + 2])
        assert float(rate) == round(kept[metric]["messages_s_to_java"], 2)
        both = (kept[metric]["cpu_us"]["median"], kept[metric]["java"]["cpu_us"]["median"])
        assert cpu == " / ".join(f"{one:.1f}" for one in both)


def measured() -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in json.loads(RESULTS.read_text())}


@pytest.mark.parametrize(
    ("row", "metric"),
    [
        ("tiering", "tier"),
        ("reading, 32 a call", "read_32_by_1"),
        ("reading, 1,024 a call (RocketMQ: 32)", "read_1024_by_1"),
        ("reading and decoding, 32 a call", "read_32_decoded"),
    ],
)
def test_a_figure_is_the_one_that_was_measured(row: str, metric: str) -> None:
    (line,) = [line for line in README.read_text().splitlines() if line.startswith(f"| {row} |")]
    _, ratio, cpu = (cell.strip() for cell in line.strip("|").split("|"))
    result = measured()[metric]
    assert float(ratio) == round(result["to_java"], 1)
    ours, java = re.findall(r"([\d.]+) us", cpu)[:2]
    assert float(ours) == round(result["cpu_us"]["median"], 1)
    assert float(java) == round(result["java"]["cpu_us"]["median"], 1)
    assert measured()["run"]["rounds"] == 5


@pytest.mark.parametrize(
    ("row", "case"),
    [
        ("100 B, 8 queues", "100-bytes-8"),
        ("100 B, 64 queues", "100-bytes-64"),
        ("1 KiB, 64 queues", "1024-bytes-64"),
        ("16 KiB, 8 queues", "16384-bytes-8"),
        ("16 KiB, 64 queues", "16384-bytes-64"),
    ],
)
def test_a_figure_of_another_size_is_the_one_that_was_measured(row: str, case: str) -> None:
    (line,) = [line for line in FIGURES.read_text().splitlines() if line.startswith(f"| {row} |")]
    _, tiered, tiered_cpu, read, read_cpu = (cell.strip() for cell in line.strip("|").split("|"))
    results = RESULTS.with_name(f"{case}-queues-java.json").read_text()
    measured = {row["metric"]: row for row in json.loads(results)}
    for rate, cpu, metric in ((tiered, tiered_cpu, "tier"), (read, read_cpu, "read_32_by_1")):
        result = measured[metric]
        assert float(rate) == round(result["to_java"], 1)
        both = (result["cpu_us"]["median"], result["java"]["cpu_us"]["median"])
        assert cpu == " / ".join(f"{round(one, 1)}" for one in both)
