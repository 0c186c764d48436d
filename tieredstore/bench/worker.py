"""The process that tiers and reads: one for all rounds of a run, so that it is warm."""

import asyncio
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from tieredstore.bench.figure import Figure, settle
from tieredstore.bench.measure import READ_SHAPES, ReadShape, measure_reading, measure_tiering
from tieredstore.bench.synthetic_store import SyntheticStore

KIB = 1024
P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """A process of its own: its CPU time and its memory are those of tiering and reading alone.

    Leaving the context ends the process. Errors are those of the measured code;
    `concurrent.futures.process.BrokenProcessPool`, a `RuntimeError`, when the process died.
    """

    def __init__(self) -> None:
        # Spawned: a fork would begin with the memory of the process that starts it.
        self._process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.shutdown()

    def tier(
        self, store_dir: Path, tier_dir: Path, made: SyntheticStore, *, indexed: bool = False
    ) -> Figure:
        """Tier the whole store at `store_dir` into the empty `tier_dir`, everything at defaults.

        `indexed`: with its keys.
        """
        settle(made.memory_bytes)
        return self._call(_tier, store_dir, tier_dir, made, indexed=indexed)

    def read(self, tier_dir: Path, made: SyntheticStore) -> list[Figure]:
        """Read the whole tier once in each of `READ_SHAPES`."""
        figures: list[Figure] = []
        for shape in READ_SHAPES:
            settle(made.memory_bytes)
            figures.append(self._call(_read, tier_dir, made, shape))
        return figures

    def peak_bytes(self) -> int:
        """Resident memory of the process at its highest so far."""
        return self._call(_peak_bytes)

    def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._process.submit(function, *args, **kwargs).result()


def _tier(store_dir: Path, tier_dir: Path, made: SyntheticStore, *, indexed: bool) -> Figure:
    return asyncio.run(measure_tiering(store_dir, tier_dir, made, indexed=indexed))


def _read(tier_dir: Path, made: SyntheticStore, shape: ReadShape) -> Figure:
    return asyncio.run(measure_reading(tier_dir, made, shape))


def _peak_bytes() -> int:
    # Not `ru_maxrss`: it begins with what the parent had when it started this process, and the
    # parent touches memory before each timed part.
    (peak,) = re.findall(
        r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return int(peak) * KIB
