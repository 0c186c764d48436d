"""Tries the wheel on every Python that it says it runs on.

The newest gets the newest dependencies there are, without constraints, the oldest gets the lowest
that `pyproject.toml` allows. What CI tries is what the classifiers claim; of a newer Python that
is not there, one line is printed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Version = tuple[int, int]

NEWEST: Version = (3, 14)
"""The newest Python for which every dependency has wheels."""
SHORT = ("tests/test_tieredstore/test_installed.py", "tests/test_tieredstore/test_sync.py")
"""What is tried on the versions between the oldest and the newest."""


class MissingPython(Exception):
    """An interpreter that CI must have is not there."""


@dataclass(frozen=True, slots=True)
class Run:
    """One environment: an interpreter, which dependencies it gets, and what is tried."""

    version: Version
    python: Path
    lowest: bool
    """Whether it gets the lowest dependencies; otherwise the newest."""
    tests: tuple[str, ...]


def text_of(version: Version) -> str:
    """As in 3.11."""
    return ".".join(map(str, version))


def claimed(project: Mapping[str, object]) -> tuple[Version, ...]:
    """The versions among a project's classifiers, oldest first."""
    prefix = "Programming Language :: Python :: 3."
    classifiers = project["classifiers"]
    assert isinstance(classifiers, list)
    minors = [int(str(one).removeprefix(prefix)) for one in classifiers if prefix in str(one)]
    return tuple((3, minor) for minor in sorted(minors))


def planned(
    found: Mapping[Version, Path], wanted: Sequence[Version], tests: Sequence[str], *, ci: bool
) -> tuple[list[Run], list[str]]:
    """The runs, oldest Python first, and a line for each version that is not tried.

    Raises:
        MissingPython: one of `wanted` is not there, on CI.
    """
    absent = [version for version in wanted if version not in found]
    if ci and absent:
        raise MissingPython(f"CI must have Python {', '.join(map(text_of, absent))}")
    there = sorted(version for version in found if wanted[0] <= version <= NEWEST)
    newer = [(3, minor) for minor in range(wanted[-1][1] + 1, NEWEST[1] + 1)]
    said = [
        f"Python {text_of(version)} is not here: the wheel is not tried on it"
        for version in (*absent, *newer)
        if version not in found
    ]
    ends = {there[0], there[-1]} if there else set()
    runs = [
        Run(
            version,
            found[version],
            lowest=version == wanted[0],
            tests=tuple(tests) if version in ends else SHORT,
        )
        for version in there
    ]
    return runs, said


def candidates(version: Version) -> Iterable[Path]:
    """Where an interpreter may be: our own, on PATH, or among the versions of pyenv."""
    if version == sys.version_info[:2]:
        yield Path(sys.executable)
    name = f"python{text_of(version)}"
    for directory in os.get_exec_path():
        yield Path(directory, name)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{text_of(version)}.*/bin/{name}"), reverse=True)


def works_as(python: Path, version: Version) -> bool:
    """Whether a file is an interpreter of this version; a shim of pyenv may be none."""
    if not python.is_file():
        return False
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == text_of(version)


def interpreters() -> dict[Version, Path]:
    """The interpreters of this machine, of 3.11 and newer."""
    found: dict[Version, Path] = {}
    for minor in range(11, NEWEST[1] + 1):
        for python in candidates((3, minor)):
            if works_as(python, (3, minor)):
                found[3, minor] = python
                break
    return found


def tried(run: Run, wheel: Path, elsewhere: Path) -> bool:
    """Install the wheel into an empty environment and run the tests there, beside no sources."""
    uv = [shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"]
    venv = elsewhere.parent / f"venv-{text_of(run.version)}"
    project = elsewhere / "pyproject.toml"
    subprocess.run([*uv, "venv", "--quiet", "--python", run.python, venv], check=True)
    chosen: list[str | Path] = []
    if run.lowest:
        lowest = venv / "lowest.txt"
        resolution = ["--resolution", "lowest-direct", "--python-version", text_of(run.version)]
        compiled = [*uv, "pip", "compile", "--quiet", *resolution, project, "--output-file", lowest]
        subprocess.run(compiled, check=True, stdout=subprocess.DEVNULL)
        chosen = ["--constraints", lowest]
    python = venv.absolute() / "bin" / "python"
    installed = [*uv, "pip", "install", "--quiet", "--python", python]
    groups = [part for name in ("test", "server") for part in ("--group", f"{project}:{name}")]
    subprocess.run([*installed, wheel, *chosen, *groups], check=True)
    print(f"Python {text_of(run.version)}, {'lowest' if run.lowest else 'newest'} dependencies:")
    sys.stdout.flush()
    return passed(python, elsewhere, run.tests)


def tried_here(wheel: Path, elsewhere: Path, tests: Sequence[str]) -> bool:
    """Install the wheel for this Python, beside the dependencies that it has; needs no network."""
    venv = elsewhere.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv.absolute() / "bin" / "python"
    installed = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*installed, "--no-index", wheel], check=True)
    ours, theirs = (sysconfig.get_path("purelib", vars=base_of(one)) for one in (venv, sys.prefix))
    Path(ours, "installed.pth").write_text(f"{theirs}\n")  # files like it are not read from there
    return passed(python, elsewhere, tests)


def base_of(prefix: Path | str) -> dict[str, str]:
    """The variables of `sysconfig` that say where an environment is."""
    return {"base": str(prefix), "platbase": str(prefix)}


def passed(python: Path, elsewhere: Path, tests: Sequence[str]) -> bool:
    """Whether tests pass beside no sources."""
    marks = "not rocketmq and not checkout"
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    return subprocess.run([*pytest, *tests], cwd=elsewhere, check=False).returncode == 0


def main() -> None:
    """Try a wheel; exit with 1 unless it passes everywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="on this Python, without a network")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("elsewhere", type=Path, help="a copy of the tests, without the sources")
    parser.add_argument("tests", nargs="*", default=SHORT)
    arguments = parser.parse_args()
    if arguments.here:
        sys.exit(not tried_here(arguments.wheel, arguments.elsewhere, arguments.tests))
    project = tomllib.loads((arguments.elsewhere / "pyproject.toml").read_text())["project"]
    try:
        runs, said = planned(
            interpreters(), claimed(project), arguments.tests, ci=bool(os.environ.get("CI"))
        )
    except MissingPython as error:
        sys.exit(str(error))
    for line in said:
        print(line)
    results = [tried(run, arguments.wheel, arguments.elsewhere) for run in runs]
    sys.exit(0 if all(results) and results else 1)


if __name__ == "__main__":
    main()
