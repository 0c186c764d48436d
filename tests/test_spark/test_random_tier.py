"""The random tier on Spark: the same bytes, whatever the splits, from a directory and from S3."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.test_tieredstore.offline.test_random_objects import comes_back
from tests.test_tieredstore.offline.test_random_tier import (
    SPLIT_BYTES,
    RandomTier,
    hashes_of,
    is_remade,
    is_restored,
    kept,
    made_at,
)
from tests.test_tieredstore.offline.test_rebuild import remove_derived, remove_metadata
from tieredstore.offline.jobs.engine import OneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.seaweedfs import SeaweedFs
    from tieredstore.offline.spark.engine import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(HANGS_AFTER_S)]

BY_DAY = [
    pytest.param(one, marks=[] if one == SPLIT_BYTES[1] else [pytest.mark.nightly])
    for one in SPLIT_BYTES
]


@pytest.fixture(scope="session")
def sound_random(tmp_path_factory: pytest.TempPathFactory) -> RandomTier:
    return made_at(tmp_path_factory.mktemp("random") / "tier")


@pytest.fixture
def engine(spark: "SparkSession") -> "SparkEngine":
    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415 - imports PySpark

    return SparkEngine(spark)


@pytest.mark.parametrize("split_bytes", BY_DAY)
def test_lost_files_and_then_all_but_the_logs_come_back_byte_for_byte(
    engine: "SparkEngine", sound_random: RandomTier, tmp_path: Path, split_bytes: int
) -> None:
    """Index files, too, are those that one process makes, which others have compared."""
    tier, same = (sound_random.copied(tmp_path / name) for name in ("spark", "one"))
    wanted = kept(hashes_of(tier.broker))
    is_restored(tier, engine, split_bytes)
    for one in (tier, same):
        remove_derived(one.broker)
        remove_metadata(one.broker)
    index = is_remade(same, wanted, OneProcess(), split_bytes)
    assert is_remade(tier, wanted, engine, split_bytes) == index


@pytest.mark.nightly
def test_parts_on_s3_give_all_back(
    spark: "SparkSession",
    engine: "SparkEngine",
    seaweed: "SeaweedFs",
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in seaweed.environment.items():  # the workers have that of the Java machine
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    comes_back(made_at(s3_url), engine, SPLIT_BYTES[1])
