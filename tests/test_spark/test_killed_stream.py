"""A stream whose whole driver is killed at random moments and started again."""

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.patience import HANGS_AFTER_S, Patience, wait_until
from tests.support.spark_settings import submitted
from tests.test_spark.test_stream import GrowingTier, held, into, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.timeout(HANGS_AFTER_S),
]

DRIVER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from pyspark.sql import SparkSession
from tests.test_spark.test_stream import into, stream

spark = SparkSession.builder.getOrCreate()
tier, sink = map(Path, sys.argv[1:])
frame = stream(spark, SimpleNamespace(path=tier), maxRowsPerTrigger=7, splitBytes=8192)
into(frame, sink, at_once=False).awaitTermination()
"""
ROUNDS = 2


def test_killed_at_random_and_restarted_the_sink_has_each_message_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    tier, rng = GrowingTier(tmp_path), random.Random(11)
    tier.grow(60)
    sink, script = tmp_path / "sink", tmp_path / "driver.py"
    script.write_text(DRIVER)
    for _ in range(ROUNDS):
        before = batches_of(sink)
        job = submitted(script, tier.path, sink, scratch=tmp_path)
        process = subprocess.Popen(
            job.command,
            env=job.environment,
            cwd=tmp_path,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            killed_behind(process.pid, sink, before + rng.randrange(2, 6), rng)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        tier.grow(rng.randrange(1, 4))
    assert 0 < batches_of(sink) < len(tier.sent) // 7
    into(stream(spark, tier), sink).awaitTermination()
    assert sorted(held(spark, sink)) == sorted(tier.sent)


def batches_of(sink: Path) -> int:
    """How many batches the checkpoint has as done."""
    return len([*Path(f"{sink}-checkpoint", "commits").glob("[0-9]*")])


def killed_behind(pid: int, sink: Path, batches: int, rng: random.Random) -> None:
    """Wait for so many batches, then for a random number of files of the next ones."""
    wait_until(
        lambda: batches_of(sink) >= batches,
        Patience("the stream stands still", marks=lambda: batches_of(sink), pids=[pid]),
    )
    files = len([*sink.rglob("*")]) + rng.randrange(0, 6)
    wait_until(
        lambda: len([*sink.rglob("*")]) >= files,
        Patience("the stream stands still", marks=lambda: len([*sink.rglob("*")]), pids=[pid]),
    )
