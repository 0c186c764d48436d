"""One Spark session for all tests of a run, and a tier for it to read."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import run, settings
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.lacking import lacks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LOG = Path(__file__).with_name("log4j2.properties")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session in this process: small, quick to start, and without a network."""
    if find_spec("pyspark") is None:
        lacks("PySpark is not installed: it is in the group `spark`.")
    from tieredstore.offline.spark.requirements import lacking_java  # noqa: PLC0415 - the package itself needs no Spark

    if sentence := lacking_java():
        lacks(sentence)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second

    scratch = tmp_path_factory.mktemp("spark")
    # Read when the JVM starts, which fails where the name of the host cannot be looked up.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    options = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        f" -Dlog4j2.configurationFile=file:{LOG}",
        "spark.local.dir": str(scratch / "local"),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def golden_tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of the golden store, with index files; read only."""
    root = tmp_path_factory.mktemp("golden") / "tier"
    tree = unpacked(ROCKETMQ_533)
    run(*settings(tree, root), "tier", tree.store)
    return root
