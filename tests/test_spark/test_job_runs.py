"""While a job runs on Spark: how far it came is told, and what a dead worker did is repeated."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from provider.errors import Unavailable
from tests.support.golden import GoldenTree
from tests.support.patience import Patience, wait_until
from tests.test_spark.test_jobs import tier
from tests.test_tieredstore.offline.test_killed_rebuild import WithDeadlyWork
from tests.test_tieredstore.offline.test_rebuild import (
    all_of,
    broker_of,
    config_of,
    remove_derived,
)
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.jobs.rebuild_files import restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.offline.spark.engine import SparkEngine

pytestmark = pytest.mark.spark
__all__ = ["tier"]
GROUP = "spark.jobGroup.id"


@pytest.fixture
def engine(spark: "SparkSession") -> "SparkEngine":
    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415 - imports PySpark

    return SparkEngine(spark)


@dataclass(frozen=True)
class WaitsForProgress:
    """The last item's mapper ends when the driver was told of an item."""

    heard: Path

    def __call__(self, number: int) -> Iterator[Piece]:
        if number == 3:
            wait_until(self.heard.exists, Patience("the driver is told nothing"))
        yield Piece("T", number, b"")


def same(target: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
    assert target == "T"
    return pieces


@pytest.mark.parametrize("group", [None, "a group of the user's"])
def test_progress_is_told_while_a_job_runs(
    spark: "SparkSession", engine: "SparkEngine", tmp_path: Path, group: str | None
) -> None:
    told: list[int] = []

    def progress(number: int) -> None:
        told.append(number)
        (tmp_path / "heard").touch()

    spark.sparkContext.setLocalProperty(GROUP, group)  # pyright: ignore[reportArgumentType, reportUnknownMemberType] - None unsets it
    mapper = WaitsForProgress(tmp_path / "heard")
    found = engine.map_group(range(4), mapper, same, progress=progress)
    assert [piece.order for piece in found] == told == [0, 1, 2, 3]
    assert spark.sparkContext.getLocalProperty(GROUP) == group
    spark.sparkContext.setLocalProperty(GROUP, None)  # pyright: ignore[reportArgumentType, reportUnknownMemberType] - as above


def test_an_error_of_progress_is_raised_when_the_job_has_ended(engine: "SparkEngine") -> None:
    told: list[int] = []

    def progress(number: int) -> None:
        told.append(number)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        engine.map_group(range(3), WaitsForProgress(Path()), same, progress=progress)
    assert told == [0]


@dataclass
class Served:
    """A session of Spark Connect, whose server counts a task again that was done again."""

    handlers: list[Any]

    def registerProgressHandler(self, handler: object) -> None:  # noqa: N802 - Spark's name
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: object) -> None:  # noqa: N802 - likewise
        self.handlers.remove(handler)


@pytest.mark.usefixtures("spark")
def test_no_more_tasks_are_told_than_there_are() -> None:
    from tieredstore.offline.spark.engine import watched  # noqa: PLC0415 - imports PySpark

    told: list[int] = []
    served = Served([])
    with watched(cast("SparkSession", served), 4, told.append):
        (handler,) = served.handlers
        for done in (None, [], [(4, 3), (2, 2)], [(4, 5), (2, 1)]):
            stages = done and [
                SimpleNamespace(num_tasks=tasks, num_completed_tasks=ended) for tasks, ended in done
            ]
            handler(stages=stages, inflight_tasks=0, operation_id="1", done=False)
    assert told == [0, 0, 3, 4]
    assert served.handlers == []
    with watched(cast("SparkSession", served), 4, told.append):
        served.handlers.clear()  # as `clearProgressHandlers` does


def test_workers_that_are_killed_change_no_byte(
    engine: "SparkEngine", sound: tuple[GoldenTree, Path], tier: Path, tmp_path: Path
) -> None:
    tree, _ = sound
    broker, marks = broker_of(tree, tier), tmp_path / "marks"
    before = all_of(broker)
    remove_derived(broker)
    marks.mkdir()
    report = restore(config_of(tree, tier), WithDeadlyWork(engine, marks))
    assert len([*marks.iterdir()]) == 2
    assert report.faults == []
    assert all_of(broker) == before


def test_a_java_machine_that_ended_is_one_sentence(
    spark: "SparkSession", engine: "SparkEngine", monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - with PySpark

    for error in (Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError()):

        def collect(_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(type(spark.range(1)), "collect", collect)
        with pytest.raises(Unavailable) as raised:
            engine.map_group(range(4), WaitsForProgress(Path()), same)
        assert str(raised.value) == (
            "Spark gave up the job: its Java machine has ended (spark.driver.memory gives it more "
            "memory)"
        )


@pytest.mark.usefixtures("spark")
def test_a_session_of_ours_repeats_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local[N]` would not; the variable counts only where nothing else is configured."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from tieredstore.offline.spark.session import session  # noqa: PLC0415 - imports PySpark

    seen: list[str] = []

    def made(builder: SparkSession.Builder) -> None:
        seen.append(os.environ["MASTER"])

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", made)
    monkeypatch.delenv("MASTER", raising=False)
    session()
    assert "MASTER" not in os.environ, "with it no session of Spark Connect starts"
    monkeypatch.setenv("MASTER", "local[3]")
    session()
    assert re.fullmatch(r"local\[\*,[2-9]\]", seen[0])
    assert seen[1] == os.environ["MASTER"] == "local[3]"


@pytest.mark.usefixtures("spark")  # what says that there is no Java
def test_a_session_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - likewise

    from tieredstore.offline.spark.session import session  # noqa: PLC0415 - imports PySpark

    def refused(_: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refused)
    with pytest.raises(ConfigError, match=r"^Spark did not start: \[JAVA_GATEWAY_EXITED\] Java "):
        session()
