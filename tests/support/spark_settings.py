"""Spark for tests: small, quick to start, without a network; in this process or another one."""

import importlib.util
import os
import py_compile
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "test_spark" / "log4j2.properties"
PACKAGES = ("tieredstore", "dispatcher", "fetcher", "container", "provider")
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java machines that live a few seconds."""
CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.connect.progress.reportInterval": "200ms",
}
"""More options of a session, which then serves Spark Connect, too; see `connect_url`."""


def spark_options(scratch: Path) -> dict[str, str]:
    """The options of a session."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{QUICK_START} -Dlog4j2.configurationFile=file:{LOG}",
        "spark.executor.extraJavaOptions": f"{QUICK_START} -Dlog4j2.configurationFile=file:{LOG}",
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


def spark_environment(python: Path | str = sys.executable) -> dict[str, str]:
    """What must be set before a Java machine starts; `python` is that of the workers."""
    # Spark does not start where the name of the host cannot be looked up. The launcher is one more
    # Java machine, before each.
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": QUICK_START,
        "PYSPARK_PYTHON": str(python),
    }


def spark_home(scratch: Path) -> Path:
    """What is installed, without `pyspark.zip`, so that workers import the installed PySpark.

    Each process that Spark starts for a look at a table, a commit or a query of a stream would
    compile what it imports from that archive, which takes as long as what a test asks for. What a
    cluster leaves in its home is in `scratch`, too, and not in the environment.
    """
    import pyspark  # noqa: PLC0415 - an extra

    home = scratch / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for path in Path(str(pyspark.__file__)).parent.iterdir():
        if path.name not in {"python", "work"} and not (home / path.name).exists():
            (home / path.name).symlink_to(path)
    return home


def environment_of_programs(scratch: Path) -> dict[str, str]:
    """What halves the CPU time of a program that makes a session as a user does."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home(scratch)),
        "JDK_JAVA_OPTIONS": QUICK_START,
    }


def connect_url(spark: "SparkSession") -> str:
    """Where a session with the options `CONNECT_SERVER` serves Spark Connect."""
    jvm = spark.sparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


def java_machine(spark: "SparkSession") -> int:
    """The process of a session, which does its work and that of its Connect clients."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.proc.pid


class Job(NamedTuple):
    """A script as `spark-submit` runs it."""

    command: list[str]
    environment: dict[str, str]


def submitted(
    script: Path,
    *words: object,
    scratch: Path,
    submit: Sequence[str] = (),
    python: Path | str = sys.executable,
    is_here: bool = True,
) -> Job:
    """A script with arguments; `submit`: further options, `is_here`: it finds this checkout."""
    home = spark_home(scratch)
    command = [str(home / "bin" / "spark-submit"), *submit]
    for name, value in spark_options(scratch).items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, **spark_environment(python), "SPARK_HOME": str(home)}
    environment |= {
        "PYTHONPATH": str(ROOT) if is_here else "",
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    return Job([*command, str(script), *map(str, words)], environment)


def zipped(directory: Path) -> Path:
    """Our packages as one file for `--py-files`, compiled, which each process does otherwise."""
    path = directory / "tieredstore.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in PACKAGES:
            for file in sorted((ROOT / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, name := file.relative_to(ROOT))
                    if file.suffix == ".py":
                        archive.write(compiled(file), name.with_suffix(".pyc"))
    return path


def compiled(file: Path) -> Path:
    """Where a module's bytecode is, which is made if there is none."""
    made = Path(importlib.util.cache_from_source(str(file)))
    if not made.exists() or made.stat().st_mtime < file.stat().st_mtime:
        py_compile.compile(str(file), doraise=True)
    return made


def python_without(names: tuple[str, ...], directory: Path) -> Path:
    """A Python with what this one has installed, but for some distributions, and without us."""
    made = directory / "python"
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(made)]
    subprocess.run(command, check=True)
    (site,) = made.glob("lib/*/site-packages")
    (theirs,) = Path(sys.executable).parents[1].glob("lib/*/site-packages")
    for path in theirs.iterdir():
        is_ours = "tieredstore" in path.name or path.suffix == ".pth"
        if not is_ours and not path.name.startswith((*names, "__pycache__")):
            (site / path.name).symlink_to(path)
    return made / "bin" / "python"
