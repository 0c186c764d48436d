"""How far a job on Spark came: by its job group, or by what a Spark Connect server tells."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportArgumentType=false
# PySpark's types want an abstract class for a handler, and no None for a property that is unset.
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Final, Protocol
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

LOOKS_EVERY_S: Final = 0.5
"""A look asks the Java machine for a few numbers of each stage, some 5 ms."""
GROUP: Final = "spark.jobGroup.id"
"""The local property that Spark knows a thread's jobs by."""
Told = Callable[[int], None]
"""Takes how many tasks have ended, at most all; raises nothing."""


class _Stage(Protocol):
    """What a server tells of a stage."""

    @property
    def num_tasks(self) -> int: ...
    @property
    def num_completed_tasks(self) -> int: ...


@contextmanager
def watched(spark: SparkSession, tasks: int, told: Told) -> Generator[None]:
    """Tell how many tasks have ended of the block's job, which begins with a stage of `tasks`.

    From a thread of its own, or from the block's where Spark Connect is used; not any more once the
    block has ended. `told` raises nothing.
    """

    def counted(stages: Iterable[tuple[int, int]]) -> None:
        # A task that was done again counts twice.
        told(min(tasks, max((done for all_of, done in stages if all_of == tasks), default=0)))

    def handler(*, stages: Iterable[_Stage] | None, **_: object) -> None:
        counted((stage.num_tasks, stage.num_completed_tasks) for stage in stages or ())

    try:
        spark.registerProgressHandler(handler)
    except PySparkException:  # no Spark Connect
        with _polled(spark.sparkContext, counted):
            yield
        return
    try:
        yield
    finally:
        with suppress(ValueError):  # the user has removed all handlers
            spark.removeProgressHandler(handler)


@contextmanager
def _polled(
    context: SparkContext, counted: Callable[[Iterable[tuple[int, int]]], None]
) -> Generator[None]:
    """Look at the stages of the jobs that this thread starts, until the block ends."""
    theirs = context.getLocalProperty(GROUP)
    group = theirs or f"tieredstore-{uuid4().hex}"
    tracker = context.statusTracker()
    before = frozenset(tracker.getJobIdsForGroup(group))
    is_ended = threading.Event()

    def look() -> None:
        with suppress(Py4JError, OSError):  # the Java machine is gone, which the job says
            while not is_ended.wait(LOOKS_EVERY_S):
                new = frozenset(tracker.getJobIdsForGroup(group)) - before
                numbers = [n for job in map(tracker.getJobInfo, new) if job for n in job.stageIds]
                stages = [tracker.getStageInfo(number) for number in numbers]
                counted((one.numTasks, one.numCompletedTasks) for one in stages if one)

    looking = threading.Thread(target=look, name="tieredstore-progress", daemon=True)
    if theirs is None:
        context.setLocalProperty(GROUP, group)
    looking.start()
    try:
        yield
    finally:
        is_ended.set()
        looking.join()
        if theirs is None:
            context.setLocalProperty(GROUP, None)  # pyright: ignore[reportArgumentType] - unsets it
