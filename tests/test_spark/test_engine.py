"""The engine on Spark gives what the engine in one process gives, errors too."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from provider.errors import Corrupt, Unavailable
from tests.support.spark_settings import python_without
from tests.test_tieredstore.offline.test_export import files_of, planned
from tieredstore.offline import spark as tiers
from tieredstore.offline.jobs.engine import OneProcess, Piece

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.offline.spark.engine import SparkEngine

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(spark: "SparkSession") -> "SparkEngine":
    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415 - imports PySpark

    return SparkEngine(spark)


def digits(number: int) -> Iterator[Piece]:
    """A piece for each of a number's digits."""
    for order, digit in enumerate(str(number)):
        yield Piece(digit, order, b"%d;" % number)


def joined(target: str, pieces: Sequence[Piece]) -> Iterable[Piece]:
    """All numbers that have a digit."""
    assert [piece.order for piece in pieces] == sorted(piece.order for piece in pieces)
    numbers = sorted({int(piece.payload[:-1]) for piece in pieces})
    yield Piece(target, 1, b"last")
    yield Piece(target, 0, repr(numbers).encode())


def refused(number: int) -> Iterator[Piece]:
    yield Piece("T", 0, b"")
    if number >= 3:
        raise Corrupt(f"item {number} is damaged", "T/0", number)


def refusing(target: str, pieces: Sequence[Piece]) -> Iterable[Piece]:
    raise ValueError(f"{target} has {len(pieces)} pieces")


def unavailable(number: int) -> Iterator[Piece]:
    raise Unavailable("the storage does not answer", "T/0", number)
    yield


def test_pieces_meet_by_target_as_in_one_process(engine: "SparkEngine") -> None:
    items = [1, 12, 123, 31, 7, 70]
    told: list[int] = []
    found = engine.map_group(items, digits, joined, progress=told.append)
    assert found == OneProcess().map_group(items, digits, joined)
    assert sorted(told) == [*range(len(items))]
    assert engine.map_group([], digits, joined) == []


def test_an_error_of_a_worker_is_raised_as_it_was(engine: "SparkEngine") -> None:
    with pytest.raises(Corrupt) as raised:
        engine.map_group([1, 4, 3], refused, joined)
    assert raised.value.args == ("item 4 is damaged", "T/0", 4)
    with pytest.raises(ValueError, match="T has 2 pieces"):
        engine.map_group([1, 2], refused, refusing)
    with pytest.raises(Unavailable, match="the storage does not answer"):
        engine.map_group([1], unavailable, joined)


def kept_out_of_collections(number: int) -> Iterator[Piece]:
    yield Piece("T", number, b"%d" % gc.get_freeze_count())


def most(target: str, pieces: Sequence[Piece]) -> Iterable[Piece]:
    yield Piece(target, max(int(piece.payload) for piece in pieces), b"")


def test_a_worker_does_not_collect_what_it_has_loaded_after_each_task(
    engine: "SparkEngine",
) -> None:
    frozen = gc.get_freeze_count()  # pytest freezes its collection, frees some of it
    engine.map_group(range(4), digits, joined)
    (found,) = engine.map_group(range(4), kept_out_of_collections, most)
    assert found.order > 10_000  # objects
    assert gc.get_freeze_count() <= frozen  # the driver is no worker


def test_workers_that_lack_a_package_are_one_sentence(
    spark: "SparkSession", engine: "SparkEngine", golden_tier: Path, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    from tieredstore.offline.spark.engine import said_by  # noqa: PLC0415 - imports PySpark

    context = spark.sparkContext
    ours, context.pythonExec = context.pythonExec, str(python_without(("pyarrow",), tmp_path))
    sentence = "the workers' Python lacks pyarrow: install what docs/spark.md says on every worker"
    try:
        with pytest.raises(Unavailable) as refused:
            engine.map_group([1], digits, joined)
        assert str(refused.value) == f"Spark gave up the job: {sentence}"
        with pytest.raises(PySparkException) as raised:
            tiers.messages(spark, str(golden_tier), topics="G_Tx").count()
        assert said_by(raised.value) == sentence
    finally:
        context.pythonExec = ours
        tiers.register(spark)


def test_an_export_is_the_same_on_both_engines(
    engine: "SparkEngine", golden_tier: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    topics = ("G_Keys", "G_Tx")
    planned(golden_tier, one, topics=topics).run(OneProcess())
    report = planned(golden_tier, two, topics=topics).run(engine)
    assert [topic.messages for topic in report.topics] == [360, 60]
    assert files_of(two) == files_of(one)
