"""`tieredstore bench` at sizes that measure nothing: what it prints, keeps and leaves behind."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run
from tieredstore.bench.run import METRICS

TINY = ("--messages", "300", "--body-bytes", "100", "--queues", "3", "--warm-up-rounds", "1")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path, Path]:
    kept, work = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("work")
    done = run(
        "bench", *TINY, "--rounds", "2", "--directory", work, "--store-results", kept, "--json"
    )
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
    assert rows[-1]["warm_up_rounds"] == 1
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


def test_cpu_time_a_message_is_what_the_machines_processors_can_have_spent(
    results: tuple[list[dict[str, Any]], Path, Path],
) -> None:
    cpus = results[0][-1]["machine"]["cpus"]
    for row in results[0][:-1]:
        if row["metric"].startswith("raw"):
            assert row["cpu_us"] is None
        else:
            elapsed_us_max = 1e6 / row["messages_s"]["low"]
            assert 0 < row["cpu_us"]["low"] <= row["cpu_us"]["high"] < 1.1 * cpus * elapsed_us_max


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


@pytest.mark.slow
def test_people_get_a_table_and_the_peak_memory(tmp_path: Path) -> None:
    out = run("bench", *TINY, "--rounds", "1", "--directory", tmp_path).out
    for words in METRICS.values():
        assert words in out
    assert "300 messages" in out
    assert "Peak memory" in out
    assert "1 rounds after 1 of warm-up" in " ".join(out.split())  # a title is folded


def test_a_failed_run_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # less than a file of the store
    try:
        done = run("bench", *TINY, "--rounds", "1", "--directory", tmp_path, status=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.status == 3
    assert done.err.startswith("tieredstore: ")
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []
