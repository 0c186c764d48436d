"""Options that the commands of offline jobs share: engine, and sizes of splits."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import click

from tieredstore.cli.invocation import WholeNumber
from tieredstore.cli.signals import sigterm_unwinds
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.engine import Engine, LocalEngine
from tieredstore.offline.scan.planning import SPLIT_BYTES

CommandT = TypeVar("CommandT", bound=Callable[..., object])
LOCAL, SPARK = "local", "spark"
PROCESSES_MAX = 1024
SPLIT_BYTES_MAX = 1 << 40


def engine_options(command: CommandT) -> CommandT:
    """Add the options of a job's engine."""
    engine = click.option(
        "--engine",
        type=click.Choice([LOCAL, SPARK]),
        default=LOCAL,
        help="Where the work is done: by processes of this machine (default), or by Spark, as "
        "spark-submit, SPARK_REMOTE or spark-defaults.conf say.",
    )
    processes = click.option(
        "--processes",
        type=WholeNumber(1, PROCESSES_MAX),
        metavar="N",
        help="Worker processes on this machine. Default: one for each core.",
    )
    split_bytes = click.option(
        "--split-bytes",
        type=WholeNumber(1, SPLIT_BYTES_MAX),
        default=SPLIT_BYTES,
        metavar="BYTES",
        help="What one worker scans at a time. Default: 128 MiB.",
    )
    return engine(processes(split_bytes(command)))


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
