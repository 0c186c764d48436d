"""What Spark lacks here is one sentence, whoever asks for it: without Spark."""

from pathlib import Path

import pytest

from tieredstore.cli.jobs import engine_of
from tieredstore.cli.syntax.arguments import SPARK
from tieredstore.config.sources import ConfigError
from tieredstore.offline.spark import SparkMissing, require_spark
from tieredstore.offline.spark.session import lacking_java, session


@pytest.mark.parametrize(
    ("needed", "sentence"),
    [
        (("no-such-package", (1,), (2,)), "needs no-such-package, which is not installed: pip"),
        (("pytest", (99,), (100,)), "needs pytest from 99 up to 100, not "),
        (("pytest", (1,), (2, 5)), "needs pytest from 1 up to 2.5, not "),
    ],
)
def test_a_package_that_is_missing_or_of_a_wrong_version_is_named(
    needed: tuple[str, tuple[int, ...], tuple[int, ...]],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tieredstore.offline.spark.session.NEEDED", (needed,))
    with pytest.raises(SparkMissing, match=sentence):
        require_spark()


def test_without_java_a_job_on_spark_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.offline.spark.session.NEEDED", ())
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert lacking_java() == f"JAVA_HOME={tmp_path / 'java'} holds no Java"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Spark needs a Java machine"):
        session()


def test_the_local_engines_option_is_not_for_spark() -> None:
    with pytest.raises(ConfigError, match="--processes is for the local engine"):
        engine_of(SPARK, 2).__enter__()
