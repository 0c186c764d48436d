"""Every line of `lines.md` names tests that exist."""

import ast
import re
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parent / "lines.md"


def rows(columns: int) -> list[list[str]]:
    """The cells of the table with so many columns, without its head."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    found = [row for row in cells if len(row) == columns]
    return found[1:]


@cache
def names_in(path: str) -> set[str]:
    place = ROOT / path if path.startswith("provider/") else ROOT / "tests" / path
    tree = ast.parse(place.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_line_names_a_test_that_exists() -> None:
    assertions, defects = rows(5), rows(4)
    assert len(assertions) > 90
    assert len(defects) > 70
    for row in (*assertions, *defects):
        cell = row[3] if len(row) == 5 else row[2]
        assert named(cell), row
        for one in named(cell):
            path, _, test = one.partition("::")
            assert test.startswith("test_"), one
            assert test in names_in(path), one


ISSUES = frozenset(
    {6455, 6624, 6648, 6650, 6933, 7018, 7035, 7093, 7144, 7222, 7280, 7308, 7345, 7363, 7437, 7545}
    | {7585, 7872, 7878, 8049, 8065, 8076, 8129, 8197, 8334, 8409, 8438, 8481, 8532, 8653, 8955}
    | {9069, 9080, 9213, 9233, 9271, 9358, 9371, 9374, 9379, 9441, 9544, 9648, 9802, 9813, 9838}
    | {9912, 10157, 10193, 10223, 10268, 10462, 10470, 10471, 10572, 10859, 10998, 11168, 11169}
)
"""Of RocketMQ's tiered store: those that were cured up to the present version, and later ones."""
FOUND_IN_THE_SOURCE = 30


def test_no_defect_is_missing() -> None:
    told = [row[0] for row in rows(4)]
    assert {int(one) for cell in told for one in re.findall(r"#(\d+)", cell)} == ISSUES
    found = [int(one) for cell in told if cell[0] == "5" for one in re.findall(r"\d+", cell[4:])]
    assert sorted(found) == list(range(1, FOUND_IN_THE_SOURCE + 1))


def test_the_lines_of_a_class_are_numbered_from_1() -> None:
    for name, group in groupby(rows(5), key=lambda row: row[0]):
        numbers = [int(row[1]) for row in group]
        assert numbers == list(range(1, len(numbers) + 1)), name


def test_what_found_its_way_here_is_in_the_page() -> None:
    mine = {
        f"test_acceptance/{path.name}::{name}"
        for path in Path(__file__).parent.glob("test_*_lines.py")
        for name in names_in(f"test_acceptance/{path.name}")
        if name.startswith("test_")
    }
    assert mine <= set(named(PAGE.read_text()))
