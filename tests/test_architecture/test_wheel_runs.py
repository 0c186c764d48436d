"""On which Pythons the wheel is tried, with which dependencies."""

import tomllib
from pathlib import Path

import pytest

from tests.support.wheel_runs import (
    NEWEST,
    SHORT,
    MissingPython,
    Version,
    claimed,
    interpreters,
    planned,
    works_as,
)

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WANTED = ((3, 11), (3, 12), (3, 13))
TESTS = ("tests/a.py", "tests/b.py")


def pythons(*versions: Version) -> dict[Version, Path]:
    return {version: Path(f"python3.{version[1]}") for version in versions}


def test_the_oldest_gets_the_lowest_dependencies_and_the_newest_the_newest() -> None:
    runs, said = planned(pythons(*WANTED), WANTED, TESTS, ci=True)
    assert [(run.version, run.lowest, run.tests) for run in runs] == [
        ((3, 11), True, TESTS),
        ((3, 12), False, SHORT),
        ((3, 13), False, TESTS),
    ]
    assert said == ["Python 3.14 is not here: the wheel is not tried on it"]


def test_a_newer_python_than_ci_must_have_is_the_newest() -> None:
    runs, said = planned(pythons(*WANTED, NEWEST), WANTED, TESTS, ci=True)
    assert [run.tests for run in runs] == [TESTS, SHORT, SHORT, TESTS]
    assert said == []


def test_ci_fails_without_a_python_that_is_claimed_and_a_person_is_told() -> None:
    found = pythons((3, 11))
    with pytest.raises(MissingPython, match=r"3\.12, 3\.13"):
        planned(found, WANTED, TESTS, ci=True)
    runs, said = planned(found, WANTED, TESTS, ci=False)
    assert [(run.version, run.lowest) for run in runs] == [((3, 11), True)]
    assert len(said) == 3
    runs, _ = planned(pythons((3, 12), (3, 13)), WANTED, TESTS, ci=False)
    assert [run.lowest for run in runs] == [False, False]


def test_the_classifiers_begin_where_the_project_begins_and_are_what_is_tried() -> None:
    versions = claimed(PROJECT)
    assert PROJECT["requires-python"] == f">=3.{versions[0][1]}"
    assert versions == WANTED
    assert versions[-1] <= NEWEST


def test_a_file_that_only_bears_the_name_is_no_interpreter(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert not works_as(shim, (3, 12))
    assert not works_as(tmp_path / "python3.13", (3, 13))
    assert (3, 11) in interpreters()
