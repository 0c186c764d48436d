"""`tieredstore bench` at sizes that measure nothing: what it prints, keeps and leaves behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run
from tieredstore.bench.run import METRICS

TINY = ("--messages", "300", "--body-bytes", "100", "--queues", "3", "--rounds", "2")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path, Path]:
    kept, work = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("work")
    done = run("bench", *TINY, "--directory", work, "--store-results", kept, "--json")
    assert done.err == ""
    return done.rows, kept, work


def test_every_metric_and_the_run_are_printed_as_objects(
    results: tuple[list[dict[str, Any]], Path, Path],
) -> None:
    rows, _, _ = results
    assert [row["metric"] for row in rows] == [*METRICS, "run"]
    for row in rows[:-1]:
        assert 0 < row["bytes_s"]["low"] <= row["bytes_s"]["median"] <= row["bytes_s"]["high"]
    assert rows[-1]["store"]["messages"] == 300
    assert rows[-1]["rounds"] == 2
    assert rows[-1]["peak_bytes_tiering"] > 1 << 20


def test_what_we_do_is_compared_with_the_raw_limit_of_its_direction(
    results: tuple[list[dict[str, Any]], Path, Path],
) -> None:
    by_metric = {row["metric"]: row for row in results[0]}
    tiering, raw = by_metric["tier"], by_metric["raw_write"]
    assert tiering["to_raw"] == pytest.approx(
        tiering["bytes_s"]["median"] / raw["bytes_s"]["median"]
    )
    assert raw["to_raw"] is None
    assert tiering["to_java"] is None


def test_results_are_kept_as_data_without_names_or_paths(
    results: tuple[list[dict[str, Any]], Path, Path],
) -> None:
    rows, kept, _ = results
    (path,) = kept.iterdir()
    assert path.name == "100-bytes-3-queues.json"
    text = path.read_text()
    assert json.loads(text) == rows
    assert set(rows[-1]["machine"]) == {
        "cpus", "memory_bytes", "kernel", "machine", "python", "versions",
    }  # fmt: skip
    assert "/home" not in text
    assert str(Path.cwd()) not in text


def test_nothing_is_left_in_the_directory(
    results: tuple[list[dict[str, Any]], Path, Path],
) -> None:
    assert list(results[2].iterdir()) == []


def test_people_get_a_table_and_the_peak_memory(tmp_path: Path) -> None:
    out = run("bench", *TINY[:-1], "1", "--directory", tmp_path).out
    for words in METRICS.values():
        assert words in out
    assert "300 messages" in out
    assert "Peak memory" in out
    assert "The Java store was not measured" in out


def test_a_failed_round_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    done = run("bench", *TINY, "--directory", work, "--java-lib", tmp_path / "lib", status=None)
    assert done.status == 2
    assert done.err.startswith("tieredstore: ")
    assert "Traceback" not in done.err
    assert list(work.iterdir()) == []
