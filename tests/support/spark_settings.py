"""Spark for tests: small, quick to start, without a network; in this process or another one."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "test_spark" / "log4j2.properties"
PACKAGES = ("tieredstore", "dispatcher", "fetcher", "container", "provider")


def spark_options(scratch: Path) -> dict[str, str]:
    """The options of a session."""
    return {
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


def spark_environment(python: Path | str = sys.executable) -> dict[str, str]:
    """What must be set before a Java machine starts; `python` is that of the workers."""
    # Spark does not start where the name of the host cannot be looked up.
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}


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
    import pyspark  # noqa: PLC0415 - an extra

    home = Path(str(pyspark.__file__)).parent
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
    """Our packages as one file for `--py-files`."""
    path = directory / "tieredstore.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in PACKAGES:
            for file in sorted((ROOT / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(ROOT))
    return path


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
