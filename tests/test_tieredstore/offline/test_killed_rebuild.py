"""A rebuild whose workers are killed gives the same bytes."""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import run
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.test_tieredstore.offline.test_rebuild import (
    all_of,
    broker_of,
    config_of,
    options_of,
    remove_derived,
)
from tieredstore.offline.jobs.engine import Engine, LocalEngine, Mapper, Piece, Progress, Reducer
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_job import RebuildTask, rebuild_item


class KillsWorkers:
    """A mapper whose process dies the first time for some of the items."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, task: RebuildTask) -> Iterator[Piece]:
        mark = self.directory / f"{task.split.queue}-{task.split.start}".replace("/", "-")
        if task.split.queue == ("G_Big", 0) and not task.split.start and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rebuild_item(task)


@dataclass(frozen=True)
class KillsReducers:
    """A reducer whose process dies the first time for some of the targets."""

    reducer: Reducer
    directory: Path

    def __call__(self, target: str, pieces: Sequence[Piece]) -> Iterable[Piece]:
        mark = self.directory / "reducer"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.reducer(target, pieces)


class WithDeadlyWork:
    """An engine that runs a job with a mapper and a reducer that kill workers."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.mapper = KillsWorkers(directory)

    def map_group(
        self,
        items: Sequence[RebuildTask],
        mapper: Mapper,
        reducer: Reducer,
        *,
        progress: Progress | None = None,
    ) -> list[Piece]:
        assert mapper is rebuild_item
        deadly = KillsReducers(reducer, self.directory)
        return self.engine.map_group(items, self.mapper, deadly, progress=progress)


@pytest.mark.nightly
def test_workers_that_are_killed_change_no_byte(tmp_path: Path) -> None:
    tree, tier, marks = unpacked(ROCKETMQ_533), tmp_path / "tier", tmp_path / "marks"
    run(*options_of(tree, tier), "tier", tree.store)
    broker = broker_of(tree, tier)
    before = all_of(broker)
    remove_derived(broker)
    marks.mkdir()
    with LocalEngine(2, staging=tmp_path) as engine:
        report = restore(config_of(tree, tier), WithDeadlyWork(engine, marks))
        assert engine.restarts > 1
    assert report.faults == []
    assert all_of(broker) == before
