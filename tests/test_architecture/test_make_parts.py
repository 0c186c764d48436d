"""The parts of `make test` are all of the tests: each test in exactly one part."""

import itertools
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"
MARKS = ("soak", "rocketmq", "slow", "spark", "s3", "checkout")
PART = re.compile(
    r"^(test-\w+): \$\(STAMP\)\n\t\$\(PYTEST\) -m \"(.*)\"(?: (--ignore=)?(\S+))?$", re.MULTILINE
)
DIVIDED = "$(TIEREDSTORE)"
PLACES = {"soak": "tests/soak", "rocketmq": "tests/test_interop", "spark": "tests/test_spark"}
"""Where the tests with a mark are: a part that looks only there collects no others."""


def makefile() -> str:
    return MAKEFILE.read_text()


def takes(ignored: str, path: str, *, is_in_it: bool) -> bool:
    """Whether a part takes tests in, or outside, the directory that two parts divide."""
    return path != DIVIDED or is_in_it != bool(ignored)


@pytest.mark.parametrize("is_in_it", [False, True], ids=["elsewhere", "in it"])
@pytest.mark.parametrize(
    "marks", list(itertools.product((False, True), repeat=len(MARKS))), ids=str
)
def test_a_test_with_any_marks_is_in_exactly_one_part(
    marks: tuple[bool, ...], *, is_in_it: bool
) -> None:
    parts = PART.findall(makefile())
    names: dict[str, object] = dict(zip(MARKS, marks, strict=True))
    chosen = [
        name
        for name, expression, ignored, path in parts
        if eval(expression, {}, names) and takes(ignored, path, is_in_it=is_in_it)
    ]
    assert len(chosen) == 1, chosen


def test_every_part_is_made_by_make_test() -> None:
    text = makefile()
    parts = re.search(r"^PARTS := (.*)$", text, re.MULTILINE)
    assert parts
    assert parts[1].split() == re.findall(r"^(test-\w+):", text, re.MULTILINE)
    recipe = re.search(r"^test: \$\(STAMP\)\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert recipe
    assert re.search(r"\$\(MAKE\) .*--keep-going .* check \$\(PARTS\)", recipe[1])
    assert "exit 1" in recipe[1]


@pytest.mark.parametrize("mark", PLACES)
def test_a_part_that_looks_in_one_place_misses_no_test(mark: str) -> None:
    named = re.compile(rf"mark\.{mark}\b")
    files = (ROOT / "tests").glob("**/*.py")
    marked = [path for path in files if named.search(path.read_text())]
    assert marked
    assert [path for path in marked if not path.is_relative_to(ROOT / PLACES[mark])] == []
    looked_at = {path for _, _, _, path in PART.findall(makefile())}
    assert looked_at == {"", DIVIDED, *PLACES.values()}


def test_the_directory_that_two_parts_divide_is_there() -> None:
    divided = re.search(r"^TIEREDSTORE := (.*)$", makefile(), re.MULTILINE)
    assert divided
    assert (ROOT / divided[1]).is_dir()


def test_every_mark_of_a_part_is_declared() -> None:
    declared = re.findall(r'^    "(\w+): ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(MARKS) == set(declared)


def test_what_is_tried_of_the_wheel_is_there() -> None:
    chosen = re.search(r"^IN_WHEEL := ((?:.*\\\n)*.*)$", makefile(), re.MULTILINE)
    assert chosen
    paths = chosen[1].replace("\\", " ").split()
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
