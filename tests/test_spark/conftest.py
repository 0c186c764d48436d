"""One Spark session for all tests of a run, and a tier for it to read."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import run
from tests.support.golden import ROCKETMQ_533, GoldenTree, unpacked
from tests.support.lacking import lacks
from tests.support.living_tier import LivingTier
from tests.support.spark_settings import (
    CONNECT_SERVER,
    ROOT,
    spark_environment,
    spark_home,
    spark_options,
)
from tests.test_tieredstore.offline.test_rebuild import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session in this process: small, quick to start, and without a network."""
    if find_spec("pyspark") is None:
        lacks("PySpark is not installed: it is in the group `spark`.")
    from tieredstore.offline.spark.session import lacking_java  # noqa: PLC0415 - the package itself needs no Spark

    if sentence := lacking_java():
        lacks(sentence)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second

    scratch = tmp_path_factory.mktemp("spark")
    home = str(spark_home(scratch))
    os.environ.update(spark_environment(), PYTHONPATH=str(ROOT), SPARK_HOME=home)
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for name, value in {**spark_options(scratch), **CONNECT_SERVER}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[GoldenTree, Path]:
    """The golden store and its tier, with sealed index files; copied by those who damage it."""
    tree = unpacked(ROCKETMQ_533)
    root = tmp_path_factory.mktemp("golden") / "tier"
    run(*options_of(tree, root), "tier", tree.store)
    return tree, root


@pytest.fixture(scope="session")
def golden_tier(sound: tuple[GoldenTree, Path]) -> Path:
    """The same tier, for those who only read it."""
    return sound[1]


@pytest.fixture
def tier(tmp_path: Path) -> LivingTier:
    """Topics A and B of two queues, with 40 old and 10 new messages each."""
    made = LivingTier(tmp_path, str(tmp_path / "tier"))
    made.grow(40)
    made.age()
    made.grow(10)
    return made
