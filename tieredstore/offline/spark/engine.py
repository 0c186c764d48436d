"""Spark engine of our jobs, with progress by job group or Spark Connect."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import pickle
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from provider.errors import StoreError, Unavailable
from tieredstore.offline.jobs.engine import Mapper, Piece, Progress, Reducer
from tieredstore.offline.spark.conversion import keep_what_is_loaded

# PySpark's types want an abstract class for a handler, and no None for a property that is unset.


LOOKS_EVERY_S: Final = 0.5
"""A poll asks the JVM for a few numbers of each stage, some 5 ms."""
GROUP: Final = "spark.jobGroup.id"
"""The local property that Spark knows a thread's jobs by."""
OnProgress = Callable[[int], None]
"""Takes how many tasks have ended, at most all; raises nothing."""


class _Stage(Protocol):
    """Stage as Spark's status tracker reports it."""

    @property
    def num_tasks(self) -> int: ...
    @property
    def num_completed_tasks(self) -> int: ...


@contextmanager
def watched(spark: SparkSession, tasks: int, report: OnProgress) -> Generator[None]:
    """Report how many tasks have ended of the block's job, which begins with a stage of `tasks`.

    From a thread of its own, or from the block's where Spark Connect is used; not any more once the
    block has ended. `report` raises nothing.
    """

    def counted(stages: Iterable[tuple[int, int]]) -> None:
        # A task that was done again counts twice.
        report(min(tasks, max((done for all_of, done in stages if all_of == tasks), default=0)))

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
    """Poll the stages of the jobs that this thread starts, until the block ends."""
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


# pyarrow ships no types.


PAYLOAD_BYTES = 4 << 20
"""Of the pieces in one record batch, which a worker holds twice."""
FAILED = "!failed"
"""The target of an error, which goes the way of the pieces; no job has a target of this name."""
AFTER_ALL_ITEMS = 1 << 62
"""Order of a reducer's error: one of a mapper came first."""
PIECE_COLUMNS = "target string, piece_order bigint, payload binary"
SPARKS_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""Errors of Spark: its own, errors of Java unknown to its Python, and a lost connection."""
_CODE = "SQLSTATE:"
_LACKING = re.compile(r"No module named '(\w+)|PACKAGE_NOT_INSTALLED\] (\w+)")
_RAISED = re.compile(r"[a-zA-Z_][\w.]*: .", re.ASCII)
_SCHEMA = pa.schema([
    ("target", pa.string()),
    ("piece_order", pa.int64()),
    ("payload", pa.binary()),
])  # fmt: skip


class SparkEngine:
    """An `Engine` on a Spark session. What it runs must be importable on the workers.

    Spark repeats a task whose worker died (`spark.task.maxFailures`), but in `local[N]` only as
    `local[N,4]`. All pieces of a target are in the memory of one worker at once.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __repr__(self) -> str:
        return f"<SparkEngine {self._spark.version}>"

    def map_group(
        self,
        items: Sequence[Any],
        mapper: Mapper,
        reducer: Reducer,
        *,
        progress: Progress | None = None,
    ) -> list[Piece]:
        """`Engine.map_group`: a task for each item.

        Spark reports the number of finished tasks, not which: `progress` receives items in their
        order, from a thread of its own, and the last ones when the job has ended.

        Raises:
            the error of the mapper or the reducer; or that of `progress`, when the job has ended.
            Unavailable: Spark gave up: workers died, or the storage did not answer.
        """
        if not items:
            return []
        reports = _Reports(progress)
        try:
            results = self._results(items, mapper, reducer)
            with watched(self._spark, len(items), reports.up_to) if progress else nullcontext():
                rows = results.collect()
        except SPARKS_ERRORS as error:
            raise Unavailable(f"Spark gave up the job: {reason_of(error)}", "") from error
        pieces = [Piece(row.target, row.piece_order, bytes(row.payload)) for row in rows]
        failures = [piece for piece in pieces if piece.target == FAILED]
        if failures:
            first = min(failures, key=lambda piece: piece.order)
            raise pickle.loads(first.payload)  # noqa: S301 - our own worker's
        reports.up_to(len(items))
        reports.raise_error()
        return sorted(pieces, key=lambda piece: (piece.target, piece.order))

    def _results(self, items: Sequence[Any], mapper: Mapper, reducer: Reducer) -> DataFrame:
        mapping = _Mapping(mapper, [pickle.dumps(item) for item in items])
        # With as many partitions as numbers, each item has a task of its own.
        numbers = self._spark.range(0, len(items), 1, len(items))
        mapped = numbers.mapInArrow(mapping, PIECE_COLUMNS)
        reducing = _Reducing(reducer)

        # Spark examines the number and types of a function's arguments.
        def reduced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return reducing(batches)

        return mapped.groupBy("target").applyInArrow(reduced, PIECE_COLUMNS)


class _Reports:
    """Reports a growing count as item numbers, each once, from any thread."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._count = 0
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def up_to(self, count: int) -> None:
        """Report the items below `count` that were not reported yet. Raises nothing."""
        with self._lock:
            while self._progress is not None and self._error is None and self._count < count:
                self._count += 1
                try:
                    self._progress(self._count - 1)
                except Exception as error:  # noqa: BLE001 - it is raised where the job was begun
                    self._error = error

    def raise_error(self) -> None:
        """Raise what `progress` raised."""
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class _Mapping:
    """From batches of numbers of items to batches of pieces, in a worker."""

    mapper: Mapper
    items: Sequence[bytes]
    """All of them, for a table of them would cost a shuffle; Spark broadcasts more than 1 MiB."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from _in_batches(self._mapped(number, self.items[number]))
        keep_what_is_loaded()

    def _mapped(self, number: int, item: bytes) -> Iterator[Piece]:
        try:
            yield from self.mapper(pickle.loads(item))  # noqa: S301 - our own driver's
        except (StoreError, ValueError) as error:
            yield _failure(number, error)


@dataclass(frozen=True, slots=True)
class _Reducing:
    """From all pieces of a target to the reducer's, in a worker."""

    reducer: Reducer

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces: list[Piece] = []
        for batch in batches:  # each is freed when the next one comes
            pieces += map(Piece, *(batch.column(name).to_pylist() for name in _SCHEMA.names))
        pieces.sort(key=lambda piece: piece.order)
        target = pieces[0].target
        if target == FAILED:
            yield from _in_batches(pieces)
            return
        try:
            found = list(self.reducer(target, pieces))
        except (StoreError, ValueError) as error:
            found = [_failure(AFTER_ALL_ITEMS, error)]
        yield from _in_batches(found)


def _failure(number: int, error: Exception) -> Piece:
    """An error as a piece; what may succeed the next time is left to Spark, which tries again.

    Raises:
        Unavailable: that was it.
    """
    if isinstance(error, Unavailable):
        raise error
    return Piece(FAILED, number, pickle.dumps(error))


def _in_batches(pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Pieces as batches of some `PAYLOAD_BYTES`."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece.payload)
        if size >= PAYLOAD_BYTES:
            yield _batch(held)
            held, size = [], 0
    if held:
        yield _batch(held)


def _batch(pieces: Sequence[Piece]) -> pa.RecordBatch:
    columns = zip(*pieces, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def reason_of(error: Exception) -> str:
    """Return the reason of an error of `SPARKS_ERRORS`, as a line."""
    if isinstance(error, PySparkException):
        return said_by(error)
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception)
    return "its Java machine has ended (spark.driver.memory gives it more memory)"


def said_by(error: PySparkException) -> str:
    """Return the last line of a worker's traceback, else the first line of Spark's message.

    Of a package that the workers lack, what to do.
    """
    if lacking := _LACKING.search(str(error)):
        name = (lacking[1] or lacking[2]).lower()
        return f"the workers' Python lacks {name}: install what docs/spark.md says on every worker"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line) and not line.startswith(_CODE)]
    return (raised[-1:] or lines or [type(error).__name__])[0]
