"""Engines of the commands of offline jobs."""

from collections.abc import Generator
from contextlib import contextmanager, suppress

from tieredstore.cli.signals import sigterm_unwinds
from tieredstore.cli.syntax.arguments import LOCAL
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.engine import Engine, LocalEngine


@contextmanager
def engine_of(name: str, processes: int | None) -> Generator[Engine]:
    """Open the requested engine; it ends with the block.

    Raises:
        ConfigError: Spark is wanted, and a requirement of it is missing.
        Signalled: SIGTERM ends the block of a local engine.
    """
    if name == LOCAL:
        with sigterm_unwinds(), LocalEngine(processes) as engine:
            yield engine
        return
    if processes is not None:
        raise ConfigError("--processes is for the local engine: Spark has settings of its own")
    from tieredstore.offline.spark.session import session  # noqa: PLC0415 - loaded on first use

    spark = session()
    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415 - imports PySpark

    try:
        yield SparkEngine(spark)
    finally:
        with suppress(ConnectionError):  # its JVM has ended, as in the job's error
            spark.stop()
