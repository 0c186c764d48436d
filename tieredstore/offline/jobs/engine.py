"""Engines of jobs: map over items, group by target, reduce; in processes, without a JVM.

A job is written once, for any engine. Its contract is narrow: items, mapper and reducer can be
pickled, a mapper yields pieces of bytes with a target, and a reducer gets all pieces of one target.
That is `mapInArrow` and `groupBy(target).applyInArrow` of Spark, with one row for each piece.
"""

import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from provider.errors import Denied, Unavailable

ATTEMPTS_MAX = 3
"""Times that a job continues after worker processes died, without one task done in between."""
DIED = 70


class Piece(NamedTuple):
    """Output of a mapper or a reducer."""

    target: str
    """Pieces of one target meet in one call of the reducer."""
    order: int
    """The reducer gets them in this order; those of one order in any."""
    payload: bytes
    """At most some 16 MiB."""


Mapper = Callable[[Any], Iterable[Piece]]
"""Of one item. Can be pickled; called again for the same item if a worker died."""
Reducer = Callable[[str, Sequence[Piece]], Iterable[Piece]]
"""Of all pieces of one target, which fit into one worker's memory."""
Progress = Callable[[int], None]
"""Callback for the index of each item whose mapper has ended, in any order."""
BytesProgress = Callable[[int, int], None]
"""Callback for progress of a job: bytes done, and all bytes."""


class Engine(Protocol):
    """Runs a job's mapper and reducer somewhere."""

    def map_group(
        self,
        items: Sequence[Any],
        mapper: Mapper,
        reducer: Reducer,
        *,
        progress: Progress | None = None,
    ) -> list[Piece]:
        """Return the output of the reducer for all targets, in order of target and order.

        Mapper and reducer may run several times for an item or a target, even at once, and only
        one of the results counts. So their writes must be idempotent.

        Raises:
            the first error of the mapper or the reducer.
            Unavailable: workers died repeatedly.
        """
        ...


class OneProcess:
    """The engine without workers, for small jobs and for tests. Holds all pieces in memory."""

    def __repr__(self) -> str:
        return "<OneProcess>"

    def map_group(
        self,
        items: Sequence[Any],
        mapper: Mapper,
        reducer: Reducer,
        *,
        progress: Progress | None = None,
    ) -> list[Piece]:
        """`Engine.map_group`."""
        groups: dict[str, list[Piece]] = {}
        for index, item in enumerate(items):
            for piece in mapper(item):
                groups.setdefault(piece.target, []).append(piece)
            if progress is not None:
                progress(index)
        return [
            piece
            for target in sorted(groups)
            for piece in _in_order(reducer(target, _in_order(groups[target])))
        ]


class _Place(NamedTuple):
    """Place of a piece that waits for its reducer."""

    target: str
    order: int
    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class _MapTask:
    mapper: Mapper
    directory: str

    def __call__(self, numbered: tuple[int, Any]) -> list[_Place]:
        """Write the item's pieces into one file; a second try has a file of its own."""
        number, item = numbered
        path = f"{self.directory}/{number}-{os.getpid()}"
        places: list[_Place] = []
        with open(path, "wb") as file:  # noqa: PTH123 - a plain name is enough here
            for piece in self.mapper(item):
                places.append(
                    _Place(piece.target, piece.order, path, file.tell(), len(piece.payload))
                )
                file.write(piece.payload)
        return places


@dataclass(frozen=True, slots=True)
class _ReduceTask:
    reducer: Reducer

    def __call__(self, numbered: tuple[int, tuple[str, list[_Place]]]) -> list[Piece]:
        _, (target, places) = numbered
        pieces: list[Piece] = []
        for _, order, path, start, length in places:
            with open(path, "rb") as file:  # noqa: PTH123 - as above
                file.seek(start)
                pieces.append(Piece(target, order, file.read(length)))
        return _in_order(self.reducer(target, pieces))


def temporary_directory() -> str:
    """Return the directory for temporary files.

    Raises:
        Denied: none can be written.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        reason = "no directory for temporary files can be written: set TMPDIR to one that can"
        raise Denied(reason, "") from error


def _cores() -> int:
    """Cores that this process may use; all of the machine where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalEngine:
    """The engine with worker processes on this machine. Close it, or use `with`.

    Workers are started by `spawn`, so a script that uses it needs `if __name__ == "__main__":`.
    Pieces wait for their reducer in files below `staging` (the system's temporary directory), as
    many bytes as the mapper gives out. A worker that dies, for want of memory for example, is
    replaced, and what it did is done again.
    """

    def __init__(self, processes: int | None = None, *, staging: Path | None = None) -> None:
        """`processes` None: one for each core that this process may use."""
        self._processes = processes or _cores()
        self._staging = staging
        self._pool: ProcessPoolExecutor | None = None
        self._restarts = 0

    def __repr__(self) -> str:
        return f"<LocalEngine: {self._processes} processes, restarted {self._restarts} times>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.close()

    @property
    def restarts(self) -> int:
        """Number of times that the workers were replaced because a worker died."""
        return self._restarts

    def close(self) -> None:
        """End the workers; what they do is lost. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - there is no public way to end a task
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)

    def map_group(
        self,
        items: Sequence[Any],
        mapper: Mapper,
        reducer: Reducer,
        *,
        progress: Progress | None = None,
    ) -> list[Piece]:
        """`Engine.map_group`; the first error of a worker ends the others."""
        directory = tempfile.mkdtemp(
            prefix="tieredstore-job-", dir=self._staging or temporary_directory()
        )
        try:
            mapped = self._each(items, _MapTask(mapper, directory), progress)
            groups: dict[str, list[_Place]] = {}
            for places in mapped:
                for place in places:
                    groups.setdefault(place.target, []).append(place)
            tasks = [
                (target, sorted(groups[target], key=lambda place: place.order))
                for target in sorted(groups)
            ]
            reduced = self._each(tasks, _ReduceTask(reducer), None)
            return [piece for pieces in reduced for piece in pieces]
        except BaseException:
            self.close()
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _each(
        self, tasks: Sequence[Any], work: Callable[[Any], Any], progress: Progress | None
    ) -> list[Any]:
        """The results of all tasks, in their order; started again where workers die."""
        done: dict[int, Any] = {}
        in_vain = 0
        while len(done) < len(tasks):
            before = len(done)
            try:
                for index, result in self._results(tasks, done, work):
                    done[index] = result
                    if progress is not None:
                        progress(index)
            except BrokenProcessPool as error:
                self._pool = None
                self._restarts += 1
                in_vain = 0 if len(done) > before else in_vain + 1
                if in_vain >= ATTEMPTS_MAX:
                    raise Unavailable(
                        f"worker processes died {ATTEMPTS_MAX} times without one task done: give "
                        f"them more memory, or use fewer of them (a script that starts them needs "
                        f'`if __name__ == "__main__":`)',
                        "",
                    ) from error
        return [done[index] for index in range(len(tasks))]

    def _results(
        self, tasks: Sequence[Any], done: dict[int, Any], work: Callable[[Any], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Index and result of each task that is not done, as they come; few wait in the pool."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=get_context("spawn"), initializer=_begin_worker
            )
        left = iter([index for index in range(len(tasks)) if index not in done])
        running: dict[Future[bytes], int] = {}
        while True:
            while len(running) < 2 * self._processes and (index := next(left, None)) is not None:
                running[self._pool.submit(_run, pickle.dumps((work, (index, tasks[index]))))] = (
                    index
                )
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            broken: BrokenProcessPool | None = None
            for future in ended:
                index = running.pop(future)
                try:
                    yield index, pickle.loads(future.result())  # noqa: S301 - our own worker's
                except BrokenProcessPool as error:
                    broken = error  # others may have ended well before that
            if broken is not None:
                raise broken


def _run(task: bytes) -> bytes:
    """Do one task in a worker. Pickled here, so that what cannot be is an error of the job."""
    work, argument = pickle.loads(task)  # noqa: S301 - our own process's
    return pickle.dumps(work(argument))


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that started this one, and end when that has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End this process when its parent has."""
    connection.wait([sentinel])
    os._exit(DIED)


def _in_order(pieces: Iterable[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: piece.order)
