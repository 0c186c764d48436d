"""Session with the settings that our jobs were measured with, and what Spark needs besides us."""

import os
import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from provider.names import is_there
from tieredstore.config.sources import ConfigError
from tieredstore.offline.spark import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


INSTALL = "pip install 'tieredstore[spark]'"
NEEDED = (("pyspark", (4, 3), (5,)), ("pandas", (2, 2), (3,)), ("pyarrow", (20,), (27,)))
"""Distribution, first version, and the first one that is too new."""


def lacking() -> str:
    """Describe a package that this Python lacks, with the remedy; "" if it has all."""
    for name, first, too_new in NEEDED:
        try:
            text = version(name)
        except PackageNotFoundError:
            return f"Spark needs {name}, which is not installed: {INSTALL}"
        found = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
        if not first <= found < too_new:
            lowest, highest = (".".join(map(str, one)) for one in (first, too_new))
            return f"Spark needs {name} from {lowest} up to {highest}, not {text}: {INSTALL}"
    return ""


def lacking_java() -> str:
    """Describe the missing Java of a Spark that starts in this process; "" if it has one."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return "" if is_there(Path(home, "bin", "java")) else f"JAVA_HOME={home} holds no Java"
    if shutil.which("java"):
        return ""
    return "Spark needs a Java machine (17 or 21), and there is none: install one, or set JAVA_HOME"


SETTINGS: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.showConsoleProgress": "false",
}
"""A task in Python costs 10 ms over a Unix socket and 50 ms over TCP."""
VARIABLE: Final = "MASTER"
MASTER: Final = "local[*,4]"
"""All cores of this machine; a task is tried four times, as on a cluster.

`local[*]` gives a job up with the first worker that dies, for want of memory for example."""


def session(**more: str) -> "SparkSession":
    """Return the session of this process, or a new one: `MASTER` unless a master is configured.

    `spark-submit`, `SPARK_REMOTE` and `spark-defaults.conf` choose the cluster, as usual. A new
    session has `SETTINGS` and the settings of `more` (`spark__driver__memory="2g"`).

    Raises:
        ConfigError: PySpark, pandas, pyarrow or Java is missing, with the remedy; or Spark does not
            start.
    """
    is_remote = "SPARK_REMOTE" in os.environ
    try:
        require_spark()
    except ImportError as error:
        raise ConfigError(str(error)) from error
    sentence = "" if is_remote else lacking_java()
    if sentence:
        raise ConfigError(sentence)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second

    builder = SparkSession.builder.appName("tieredstore")
    settings = {} if is_remote else dict(SETTINGS)
    settings |= {name.replace("__", "."): value for name, value in more.items()}
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Workers of the same machine must be the same Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from tieredstore.offline.spark.engine import SPARKS_ERRORS, reason_of  # noqa: PLC0415 - imports PySpark

    try:
        with nullcontext() if is_remote else _default_master():
            return builder.getOrCreate()
    except SPARKS_ERRORS as error:
        raise ConfigError(f"Spark did not start: {reason_of(error)}") from error


@contextmanager
def _default_master() -> Generator[None]:
    """`MASTER` in Spark's own variable, which comes after spark-submit and spark-defaults.conf.

    Not any longer than a session starts: one of Spark Connect is refused where it is set.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = MASTER
    try:
        yield
    finally:
        del os.environ[VARIABLE]
