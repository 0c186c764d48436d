"""Each test is in exactly one level of tests, and those that scale are in every one."""

import itertools
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
LEVELS = {
    "test": {"test-rooms"},
    "test-full": {"test-broker", "test-spark", "test-slow", "test-s3"},
    "test-nightly": {"test-soak", "test-soak-store", "test-seeds", "test-long"},
}
MARKS = ("slow", "data", "s3", "spark", "rocketmq", "nightly", "soak")
SCALES = ("scales", "hypothesis")
DECLARED = {*MARKS, "scales", "fixed", "process", "checkout"}
PART = re.compile(r"^(test-[\w-]+): \$\(\w*STAMP\)\n\t.*\$\(PYTEST\).* -m (.*)$", re.MULTILINE)
DECORATORS = re.compile(r"^(@.*\n(?:[@ )\]].*\n)*)(?=(?:async )?def test_)", re.MULTILINE)
PLACES = {"soak": "tests/soak", "rocketmq": "tests/test_interop", "spark": "tests/test_spark"}
"""Where the tests with a mark are: a part that looks only there collects no others."""


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def value_of(name: str) -> str:
    value = re.search(rf"^{name} := ((?:.*\\\n)*.*)$", makefile(), re.MULTILINE)
    assert value, name
    return value[1].replace("\\\n", " ")


def expressions() -> dict[str, str]:
    """What each part chooses by."""
    found: dict[str, str] = {}
    for part, words in PART.findall(makefile()):
        chosen = re.match(r'"(?:\$\((\w+)\)|([^"]*))"|(\w+)', words)
        assert chosen, words
        variable, quoted, word = chosen.groups()
        found[part] = value_of(variable) if variable else quoted or word
    return found


def parts_of(marks: set[str]) -> set[str]:
    """The parts that run a test with these marks."""
    names: dict[str, object] = {name: name in marks for name in (*MARKS, *SCALES, "fixed")}
    return {
        part
        for part, expression in expressions().items()
        if part != "test-cpu" and eval(expression, {}, names)
    }


@pytest.mark.parametrize("marks", list(itertools.product((False, True), repeat=len(MARKS))))
def test_a_test_with_any_marks_is_in_exactly_one_level(marks: tuple[bool, ...]) -> None:
    parts = parts_of({name for name, has in zip(MARKS, marks, strict=True) if has})
    assert parts
    assert len([level for level, made in LEVELS.items() if parts & made]) == 1, parts
    assert len(parts - {"test-soak-store"}) == 1, parts


@pytest.mark.parametrize("scales", SCALES)
def test_a_test_that_scales_is_in_every_level_from_its_own_on(scales: str) -> None:
    assert parts_of({scales}) == {"test-rooms", "test-slow", "test-seeds"}
    assert parts_of({scales, "slow"}) == {"test-slow", "test-seeds"}
    assert parts_of({scales, "slow", "nightly"}) == {"test-seeds"}
    assert parts_of({scales, "s3"}) == {"test-s3", "test-seeds"}


def test_a_fixed_number_of_examples_is_met_once_by_day() -> None:
    assert parts_of({"hypothesis", "fixed"}) == {"test-rooms", "test-seeds"}
    assert parts_of({"hypothesis", "fixed", "slow"}) == {"test-slow", "test-seeds"}


def test_every_part_is_made_by_its_level() -> None:
    text = makefile()
    assert set(expressions()) == set().union(*LEVELS.values()) | {"test-cpu"}
    assert set(value_of("FULL_PARTS").split()) == LEVELS["test-full"]
    assert set(value_of("NIGHTLY_PARTS").split()) == LEVELS["test-nightly"] | {
        "test-broker",
        "test-old-broker",
        "test-million",
        "test-wheels",
        "test-cpu",
    }
    for level, parts in (
        ("test", "test-rooms check test-wheel"),
        ("test-full", r"\$\(FULL_PARTS\) check-full"),
        ("test-nightly", r"\$\(NIGHTLY_PARTS\)"),
    ):
        recipe = re.search(
            rf"^{level}: \$\(\w*STAMP\)(?: promtool chromium)?\n((?:\t.*\n)+)", text, re.MULTILINE
        )
        assert recipe, level
        assert re.search(rf"\$\(LEVEL_JOBS\) --jobs=\S+ {parts}$", recipe[1], re.MULTILINE), level
    assert "--keep-going" in text


@pytest.mark.parametrize("mark", PLACES)
def test_a_part_that_looks_in_one_place_misses_no_test(mark: str) -> None:
    named = re.compile(rf"mark\.{mark}\b")
    files = (ROOT / "tests").glob("**/*.py")
    marked = [path for path in files if named.search(path.read_text())]
    assert marked
    assert [path for path in marked if not path.is_relative_to(ROOT / PLACES[mark])] == []


def test_every_mark_of_a_part_is_declared() -> None:
    declared = re.findall(r'^    "(\w+): ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(declared) == DECLARED


def decorators_of_tests() -> list[str]:
    files = (ROOT / "tests").glob("test_*/**/test_*.py")
    return [found for path in files for found in DECORATORS.findall(path.read_text())]


def test_the_part_of_what_takes_minutes_has_tests() -> None:
    """Without one pytest ends with 5."""
    nightly = [one for one in decorators_of_tests() if "mark.nightly" in one]
    assert any("mark.scales" not in one for one in nightly)


def test_make_test_starts_tens_of_commands_as_processes() -> None:
    processes = [one for one in decorators_of_tests() if "mark.process" in one]
    assert len([one for one in processes if not re.search(r"mark\.(slow|s3)\b", one)]) >= 20


FULL_PACKAGES = r"(?:pandas|pyiceberg|pyspark)\b"
"""Packages that `make test` does not install."""
IMPORTS = re.compile(rf"^[ ]*(?:import|from) {FULL_PACKAGES}", re.MULTILINE)
DOCSTRINGS = re.compile(r'""".*?"""', re.DOTALL)


def test_the_types_of_make_test_need_no_package_of_make_test_full() -> None:
    ignored = json.loads((ROOT / "pyrightbase.json").read_text())["ignore"]
    left_out = {path for pattern in ignored for path in ROOT.glob(pattern)}
    files = [path for room in ("tieredstore", "tests") for path in (ROOT / room).rglob("*.py")]
    wanting = {path for path in files if IMPORTS.search(DOCSTRINGS.sub("", path.read_text()))}
    assert wanting
    assert [path for path in wanting if not left_out & {path, *path.parents}] == []


def test_what_is_tried_of_the_wheel_is_there() -> None:
    paths = value_of("IN_WHEEL").split()
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
