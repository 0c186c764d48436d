"""What a wheel can break: modules and files that it lacks, its command, its dependencies."""

import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import tieredstore
from tieredstore.cli import commands
from tieredstore.cli.main import COMMANDS

OF_EXTRAS = {
    "pyspark": "tieredstore.offline.spark.",
    "py4j": "tieredstore.offline.spark.",  # comes with PySpark
    "jinja2": "tieredstore.console.",
    "starlette": "tieredstore.console.",
    "uvicorn": "tieredstore.console.",
    "pyiceberg": "tieredstore.offline.export.iceberg_",
}
"""What comes with extras, without which the wheel is tried, and the modules that need it."""
PACKAGES = ("tieredstore", "dispatcher", "fetcher", "container", "provider")


@pytest.fixture(scope="module")
def imported() -> dict[str, ModuleNotFoundError | None]:
    """Every module of ours, imported, and what it lacks.

    Shared: Spark, Iceberg and pandas take seconds, whichever test imports them first.
    """
    found: dict[str, ModuleNotFoundError | None] = {}
    for package in PACKAGES:
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, f"{package}."):
            if module.name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(module.name)
                found[module.name] = None
            except ModuleNotFoundError as error:
                found[module.name] = error
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_imported(
    package: str, imported: dict[str, ModuleNotFoundError | None]
) -> None:
    mine = {name: lacking for name, lacking in imported.items() if name.startswith(f"{package}.")}
    assert mine
    for name, error in mine.items():
        if error is not None:
            wanting = OF_EXTRAS.get((error.name or "").partition(".")[0])
            if wanting is None or not name.startswith(wanting):
                raise error


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (files(package) / "py.typed").is_file()


@pytest.mark.process
def test_the_command_is_installed_and_knows_every_command() -> None:
    command = Path(sys.executable).parent / "tieredstore"
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"tieredstore, version {tieredstore.__version__}\n"
    assert tieredstore.__version__ == importlib.metadata.version("tieredstore")
    shown = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []


@pytest.mark.process
@pytest.mark.slow
def test_nothing_that_only_tests_need_is_imported_by_the_commands() -> None:
    modules = [
        name for _, name, _ in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")
    ]
    program = (
        "import importlib, sys\n"
        f"[importlib.import_module(name) for name in {modules}]\n"
        "print([name for name in ('pytest', 'hypothesis', 'blockbuster') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
