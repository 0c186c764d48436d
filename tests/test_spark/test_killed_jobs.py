"""Jobs whose workers, executors or driver are killed at random: nothing is lost or doubled."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience, completed, wait_until
from tests.support.spark_settings import ROOT, Job, submitted
from tests.test_spark.test_stream import GrowingTier
from tests.test_spark.test_write import write
from tieredstore import sync
from tieredstore.config.effective import Config
from tieredstore.offline import spark as tiers
from tieredstore.offline.export.job import planned_export
from tieredstore.offline.export.options import ExportOptions
from tieredstore.session.reader import AS_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.scales,
    pytest.mark.timeout(HANGS_AFTER_S),
]

ROUNDS = int(os.environ.get("KILLS") or by_level(quick=1, full=1, nightly=5))
"""Jobs whose workers are killed, in one session; and drivers that are killed, each of which has a
Java machine of its own."""
KILLS_MAX = 3
"""Workers that are killed while a job runs: one task may fail three times."""
FILES_MAX = 15
"""A driver is killed once its work has changed so many files, at most."""
PORTIONS = 2
"""Writes of a job, each of half of the messages."""
EACH = 200
"""Messages of a queue."""
LOCAL = "local[*,4]"
MASTERS = [LOCAL, pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.nightly)]
"""A cluster has three Java machines for each job."""
CLASSES = "classes.jsa"
PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.test_spark import test_killed_jobs

getattr(test_killed_jobs, sys.argv[1])(SparkSession.builder.getOrCreate(), *map(Path, sys.argv[2:]))
"""


def work(spark: "SparkSession", tier: Path, place: Path) -> None:
    """Export a tier, and write it into a store; again after any end, as if it had not been."""
    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415 - imports PySpark

    config = Config.load(settings={"tieredStoreFilePath": str(tier), "brokerName": "b"})
    out, options = place / "export", ExportOptions()
    export = planned_export(config, out, options, split_bytes=2_000, naming=AS_OPTIONS)
    export.run(SparkEngine(spark))
    step = EACH // PORTIONS
    for first in range(0, EACH, step):
        named = {f"Orders/{queue}": first for queue in range(3)}
        frame = tiers.messages(
            spark, tier, columns=["topic", "queue_id", "body"], splitBytes=2_000,
            startingOffsets=named, endingOffsets=dict.fromkeys(named, first + step),
        )  # fmt: skip
        write(frame, place, writeId=f"from-{first}")


def rounds_with_killed_workers(spark: "SparkSession", tier: Path, place: Path) -> None:
    """Do the work, each time into a place of its own, while workers are killed.

    A job fails if the process of Python that plans it was killed, or if Spark meets a daemon that
    was killed before; one of the next completes it.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - likewise

    rng = random.Random(ROUNDS)
    # The Java machine is the parent of a program that spark-submit runs.
    for number in range(ROUNDS):
        with _killing_below(os.getppid(), rng), suppress(Py4JJavaError, PySparkException):
            work(spark, tier, place / f"{number}")
            continue
        for _ in range(KILLS_MAX):
            with suppress(Py4JJavaError, PySparkException):
                work(spark, tier, place / f"{number}")
                break
        else:
            work(spark, tier, place / f"{number}")


@contextmanager
def _killing_below(pid: int, rng: random.Random) -> Iterator[None]:
    ended = Event()

    def kill() -> None:
        killed = 0
        while killed < KILLS_MAX and not ended.wait(rng.uniform(0.05, 1.5)):
            if found := _below(pid, *WORKERS):
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(found), signal.SIGKILL)
                    killed += 1

    thread = Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


WORKERS = ("pyspark.daemon", "pyspark/daemon", "CoarseGrainedExecutorBackend")
"""In the commands of what runs tasks: processes of Python, and Java machines of a cluster."""


def _below(pid: int, *words: str) -> list[int]:
    """Processes below another one whose command has one of these words."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                command = Path(f"/proc/{child}/cmdline").read_text()
                if any(word in command for word in words):
                    found.append(child)
                found += _below(child, *words)
    return found


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    made = GrowingTier(tmp_path)
    made.grow(EACH)
    return made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Iterator[Path]:
    """The program of all jobs, beside the classes of their Java machines.

    A machine that maps them starts with two thirds of the CPU time.
    """
    del spark  # what says that there is no Java
    place = tmp_path_factory.mktemp("program")
    path = place / "program.py"
    path.write_text(PROGRAM)
    tier = GrowingTier(place)
    tier.grow(EACH)
    job = job_of(path, LOCAL, work.__name__, tier, place / "places")
    job.environment["JDK_JAVA_OPTIONS"] = f"-XX:ArchiveClassesAtExit={path.with_name(CLASSES)}"
    done = completed(job.command, env=job.environment, cwd=place)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    yield path
    path.with_name(CLASSES).unlink()  # 150 MB


def job_of(program: Path, master: str, function: str, tier: GrowingTier, place: Path) -> Job:
    submit = ["--master", master, "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"]
    job = submitted(program, function, tier.path, place, scratch=place.parent, submit=submit)
    job.environment["JDK_JAVA_OPTIONS"] = f"-XX:SharedArchiveFile={program.with_name(CLASSES)}"
    return job


def assert_whole(tier: GrowingTier, place: Path) -> None:
    """The export and the store have each message once."""
    table = ds.dataset(place / "export", partitioning="hive").to_table(
        columns=["queue_id", "queue_offset", "body"]
    )
    assert sorted(tuple(row.values()) for row in table.to_pylist()) == sorted(tier.sent)
    with sync.open(place / "tier") as copy:
        found = [(one.queue_id, one.body) for one in copy.messages("Orders")]
    assert sorted(found) == sorted((queue, body) for queue, _, body in tier.sent)


@pytest.mark.parametrize("master", MASTERS)
def test_jobs_whose_workers_are_killed_have_each_message_once(
    tier: GrowingTier, program: Path, tmp_path: Path, master: str
) -> None:
    job = job_of(program, master, rounds_with_killed_workers.__name__, tier, tmp_path / "places")
    done = completed(job.command, env=job.environment, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for number in range(ROUNDS):
        assert_whole(tier, tmp_path / "places" / f"{number}")


@pytest.mark.parametrize("master", MASTERS)
def test_jobs_whose_driver_is_killed_have_each_message_once(
    tier: GrowingTier, program: Path, tmp_path: Path, master: str
) -> None:
    """The driver, its Java machines and what tasks they can reach; others end by themselves."""
    rng, kills, number = random.Random(ROUNDS), 0, 0
    while kills < ROUNDS:
        job = job_of(program, master, work.__name__, tier, tmp_path / "places" / f"{number}")
        if is_killed(job, tmp_path / "places" / f"{number}", rng):
            kills += 1
        else:
            number += 1  # it was done before
    job = job_of(program, master, work.__name__, tier, tmp_path / "places" / f"{number}")
    done = completed(job.command, env=job.environment, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for one in range(number + 1):
        assert_whole(tier, tmp_path / "places" / f"{one}")


def is_killed(job: Job, place: Path, rng: random.Random) -> bool:
    """Run a job and kill it once it has changed some files; False if it ends before."""
    process = subprocess.Popen(
        job.command,
        env=job.environment,
        cwd=place.parent.parent,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen, behind = files_in(place), rng.randrange(1, FILES_MAX)
    try:
        wait_until(
            lambda: process.poll() is not None or len(files_in(place) ^ seen) >= behind,
            Patience("the job stands still", marks=lambda: files_in(place), pids=[process.pid]),
            look_s=0.01,
        )
        if process.poll() is not None:
            assert process.returncode == 0
            return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def files_in(place: Path) -> set[tuple[str, int]]:
    """Names and lengths of all files in a place."""
    found: set[tuple[str, int]] = set()
    for parent, _, names in os.walk(place):
        for name in names:
            with suppress(OSError):
                path = Path(parent, name)
                found.add((str(path), path.stat().st_size))
    return found
