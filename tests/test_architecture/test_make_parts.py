"""The parts of `make test` are all of the tests: each test in exactly one part."""

import itertools
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"
MARKS = ("soak", "rocketmq", "slow", "checkout")
PART = re.compile(r"^(test-\w+): \$\(STAMP\)\n\t\$\(PYTEST\) -m \"(.*)\"$", re.MULTILINE)


def makefile() -> str:
    return MAKEFILE.read_text()


@pytest.mark.parametrize(
    "marks", list(itertools.product((False, True), repeat=len(MARKS))), ids=str
)
def test_a_test_with_any_marks_is_in_exactly_one_part(marks: tuple[bool, ...]) -> None:
    parts = PART.findall(makefile())
    names: dict[str, object] = dict(zip(MARKS, marks, strict=True))
    chosen = [name for name, expression in parts if eval(expression, {}, names)]
    assert len(chosen) == 1, chosen


def test_every_part_is_made_by_make_test() -> None:
    text = makefile()
    parts = re.search(r"^PARTS := (.*)$", text, re.MULTILINE)
    assert parts
    assert parts[1].split() == re.findall(r"^(test-\w+):", text, re.MULTILINE)
    recipe = re.search(r"^test: check\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert recipe
    assert re.search(r"\$\(MAKE\) .*--keep-going .*\$\(PARTS\)", recipe[1])
    assert "exit 1" in recipe[1]


def test_every_mark_of_a_part_is_declared() -> None:
    declared = re.findall(r'^    "(\w+): ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(MARKS) == set(declared)


def test_what_is_tried_of_the_wheel_is_there() -> None:
    chosen = re.search(r"^IN_WHEEL := ((?:.*\\\n)*.*)$", makefile(), re.MULTILINE)
    assert chosen
    paths = chosen[1].replace("\\", " ").split()
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
