"""Benches print goals beside rows, and keep no result of a run that is too small."""

import argparse
import re
from pathlib import Path

import pytest

from tests.bench import compare, object_store, store
from tests.bench.rows import Defaults, Goal, goals_beside, refuse_small

pytestmark = pytest.mark.checkout

DEFAULTS = Defaults(100, 3, 5)
BENCHES = Path(str(compare.__file__)).parent
RUN = "parser = argparse.ArgumentParser("


@pytest.mark.parametrize("name", ["messages", "warm_up_rounds", "rounds"])
def test_a_result_of_less_than_the_defaults_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = Defaults(**{"messages": 100, "warm_up_rounds": 3, "rounds": 5, name: 2})
    parser = argparse.ArgumentParser()
    refuse_small(parser, DEFAULTS, DEFAULTS)
    with pytest.raises(SystemExit):
        refuse_small(parser, fewer, DEFAULTS)
    assert f"no result with 2 {name.replace('_', '-')}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bench", "given"),
    [
        (store, ["--messages", "50000"]),
        (store, ["--warm-up-rounds", "1"]),
        (compare, ["--rounds", "1"]),
        (object_store, ["--mib", "256"]),
    ],
    ids=["store-messages", "store-warm-up", "compare-rounds", "object-store"],
)
def test_a_bench_refuses_before_it_measures(
    bench: object, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main([*given, "--store-results", str(tmp_path)])  # type: ignore[attr-defined]
    assert "--store-results keeps no result" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_goal_tells_whether_its_row_meets_it() -> None:
    least, most = Goal("rate", "rate", least=0.75), Goal("p99_us", "p99", most=15.0)
    row = {"rate": 0.5, "p99_us": {"median": 15.0}}
    assert goals_beside(row, [least, most]) == "rate >= 0.75: 0.50, missed; p99 <= 15: met"
    assert goals_beside({}, [least]) == "rate >= 0.75: not measured"


def test_rows_beside_the_java_store_have_goals() -> None:
    assert store.goals_of("put_1", 100) != store.goals_of("put_1", 1024)
    for metric in ("put_32", "put_1024_tiering", "put_32_own", "query", "put_and_tier_32"):
        assert store.goals_of(metric, 1024)
    assert compare.goals_of("tier", 1024, 64)
    assert compare.goals_of("read_32_decoded", 100, 8)


def test_every_bench_prints_goals_beside_its_rows() -> None:
    texts = {path.name: path.read_text() for path in BENCHES.glob("*.py")}
    benches = {name: text for name, text in texts.items() if RUN in text}
    assert len(benches) >= 9
    printed = re.compile(r"goals_beside\(|print_and_keep\(")
    assert [name for name, text in benches.items() if not printed.search(text)] == []
