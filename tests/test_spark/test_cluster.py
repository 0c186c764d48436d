"""Two worker processes, and Spark Connect: as `docs/spark.md` says what they need."""

import json
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lacking import lacks
from tests.support.patience import HANGS_AFTER_S, completed
from tests.support.spark_settings import (
    ROOT,
    Job,
    connect_url,
    java_machine,
    python_without,
    submitted,
    zipped,
)
from tieredstore import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(HANGS_AFTER_S)]

FOUND = "FOUND "
CLUSTER = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tieredstore.offline import spark as tiers
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.spark.engine import SparkEngine

tier, place = map(Path, sys.argv[1:])
spark = SparkSession.builder.getOrCreate()


def where(item):
    import tieredstore
    marker = place / "killed"
    if item == 3 and not marker.exists():
        marker.touch()
        os._exit(1)  # as the kernel ends a worker that takes too much memory
    yield Piece(os.getcwd(), item, str(tieredstore.__file__).encode())


def same(target, pieces):
    return pieces


pieces = SparkEngine(spark).map_group(range(16), where, same)
frame = tiers.messages(spark, str(tier), columns=["topic", "body"], topics="G_Keys")
rows = frame.repartition(3).count()
writing = frame.repartition(3).write.format("tieredstore").mode("append")
writing = writing.option("staging", str(place / "staging")).option("broker", "b")
writing.option("tieredStoreFilePath", str(place / "copy")).save(str(place / "store"))
print("FOUND " + json.dumps({
    "directories": sorted({piece.target for piece in pieces}),
    "items": sorted(piece.order for piece in pieces),
    "files": sorted({piece.payload.decode() for piece in pieces}),
    "rows": rows,
}))
spark.stop()
"""

CONNECT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.test_spark.test_engine import digits, joined
from tests.test_spark.test_job_runs import WaitsForProgress, same
from tieredstore.offline import spark as tiers
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.spark.engine import SparkEngine

tier, place = map(Path, sys.argv[2:])
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
items = [1, 12, 123, 31]
found = SparkEngine(spark).map_group(items, digits, joined)
assert found == OneProcess().map_group(items, digits, joined)
told, heard = [], place / "heard"


def progress(number):
    told.append(number)
    heard.touch()


SparkEngine(spark).map_group(range(4), WaitsForProgress(heard), same, progress=progress)
assert told == [0, 1, 2, 3]
frame = tiers.messages(spark, str(tier), columns=["topic", "body"], topics="G_Keys")
frame = frame.withColumnsRenamed({"topic": "TOPIC", "body": "Body"})
copied = None
for times in (1, 2):
    writing = frame.write.format("tieredstore").mode("append").option("broker", "b")
    writing.option("tieredStoreFilePath", str(place / "copy")).save(str(place / "store"))
    copied = copied or tiers.messages(spark, place / "copy", columns=["BODY"])
    assert copied.count() == times * frame.count()
print("FOUND " + json.dumps({"kind": type(spark).__module__, "rows": frame.count()}))
spark.stop()
"""


def found_by(job: Job, place: Path, servers: Iterable[int] = ()) -> dict[str, Any]:
    """What a script printed last; `servers` are processes that work for it."""
    done = completed(job.command, servers=servers, env=job.environment, cwd=place)
    lines = [line for line in done.stdout.splitlines() if line.startswith(FOUND)]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(lines[-1].removeprefix(FOUND))


def assert_copied(golden_tier: Path, copy: Path, times: int = 1) -> None:
    with sync.open(golden_tier) as before, sync.open(copy) as after:
        wanted = sorted(times * [one.body for one in before.messages("G_Keys")])
        assert sorted(one.body for one in after.messages("G_Keys")) == wanted


@pytest.mark.nightly
def test_a_cluster_of_two_workers_runs_a_job_that_ships_itself(
    golden_tier: Path, tmp_path: Path
) -> None:
    """No Python of the cluster has tieredstore but as `--py-files`; a killed task is done again."""
    script = tmp_path / "job.py"
    script.write_text(CLUSTER)
    submit = ["--master", "local-cluster[2,1,1024]", "--py-files", str(zipped(tmp_path))]
    python = python_without((), tmp_path)
    job = submitted(
        script, golden_tier, tmp_path, scratch=tmp_path, submit=submit, python=python, is_here=False
    )
    found = found_by(job, tmp_path)
    assert len(found["directories"]) == 2
    assert found["items"] == [*range(16)]
    assert all("tieredstore.zip/" in file for file in found["files"])
    assert found["rows"] == 360
    assert_copied(golden_tier, tmp_path / "copy")
    assert (tmp_path / "killed").exists()


def test_tables_the_engine_and_the_writer_work_through_spark_connect(
    spark: "SparkSession", golden_tier: Path, tmp_path: Path
) -> None:
    """The client is a process without a Java machine."""
    if find_spec("grpc") is None:
        lacks("grpcio is not installed: it is in the group `spark`.")
    script = tmp_path / "job.py"
    script.write_text(CONNECT)
    words = [connect_url(spark), str(golden_tier), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)}
    server = java_machine(spark)
    found = found_by(Job([sys.executable, str(script), *words], environment), tmp_path, [server])
    assert found == {"kind": "pyspark.sql.connect.session", "rows": 360}
    assert_copied(golden_tier, tmp_path / "copy", times=2)
