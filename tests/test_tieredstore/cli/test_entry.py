"""The first moments of a command: Ctrl-C while it loads, and packages that are not ours."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import tieredstore
from tieredstore.cli.main import cli
from tieredstore.interrupt import ctrl_c_ends_at_once, let_ctrl_c_end
from tieredstore.layers import LAYERS, refuse_intruders

HOME = Path(tieredstore.__file__).parents[1]
INTERRUPTED = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it for us
sys.meta_path.insert(0, CtrlC())
sys.argv = ["tieredstore", *{words}]
from tieredstore.__main__ import main

main()
"""
"""A command line that is interrupted when it begins to import `name`."""


AT_ONCE = [
    "asyncio.base_events",
    "click",
    "logging",
    "numpy",
    "tieredstore.cli.failures",
    "tieredstore.cli.main",
    "tieredstore.cli.commands.listing",
]
"""Modules of our own and of others, in all phases of a start."""


@pytest.mark.process
@pytest.mark.parametrize("name", AT_ONCE)
def test_ctrl_c_while_modules_are_loaded_gives_no_traceback(name: str) -> None:
    program = INTERRUPTED.format(name=name, words=["topics"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.mark.process
def test_ctrl_c_while_an_error_is_explained_gives_no_traceback() -> None:
    program = INTERRUPTED.format(name="tieredstore.cli.failures", words=["tpics"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_ctrl_c_while_a_command_works_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("tieredstore.config.effective.Config.load", interrupted)
    result = CliRunner().invoke(cli, ["--log-format", "json", "config"])
    assert result.exit_code == 130
    (line,) = result.stderr.splitlines()
    assert json.loads(line)["message"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before


def test_another_handler_of_sigint_stays_what_it_is() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with ctrl_c_ends_at_once():
            signal.raise_signal(signal.SIGINT)
        let_ctrl_c_end()
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT] * 2


def test_a_thread_may_load_commands_too() -> None:
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(CliRunner().invoke, cli, ["config"]).result()
    assert result.exit_code == 0


def test_what_comes_before_ctrl_c_is_heard_is_little() -> None:
    program = (
        "import sys, signal; before = set(sys.modules)\n"
        "import tieredstore.__main__\n"
        "print(*sorted(name for name in set(sys.modules) - before if '.' in name or "
        "name in {'asyncio', 'click', 'pathlib', 'logging', 'typing', *" + repr(LAYERS) + "}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(HOME)},
    )
    names = [name for name in done.stdout.split() if name.startswith("tieredstore")]
    assert names == [
        f"tieredstore.{name}" for name in ("__main__", "interrupt", "layers", "version")
    ]
    assert {"asyncio", "click", "pathlib", "logging", "typing", *LAYERS}.isdisjoint(
        done.stdout.split()
    )


@pytest.mark.process
def test_a_command_starts_no_threads_for_linear_algebra() -> None:
    program = (
        "import os, sys\n"
        "from tieredstore.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "import numpy\n"
        "print(len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if "BLAS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stderr == "1\n"


# Packages that are not ours.


@pytest.fixture(params=LAYERS)
def intruder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's own module that bears the name of a layer, and tells if it is run."""
    path = tmp_path / f"{request.param}.py"
    path.write_text("print('the intruder runs')\n")
    return path


@pytest.mark.process
def test_a_command_names_a_file_that_hides_a_package_of_ours(intruder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tieredstore", "topics"],
        cwd=intruder.parent,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{intruder.parent}{os.pathsep}{HOME}"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"tieredstore: {intruder} has the name of tieredstore's own package")
    assert "rename that file" in sentence


@pytest.mark.process
def test_the_installed_command_names_it_too(intruder: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "tieredstore", "topics"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(intruder.parent)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_a_script_gets_an_import_error_whose_last_line_says_it(intruder: Path) -> None:
    script = intruder.parent / "script.py"
    script.write_text("import tieredstore\n")
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(HOME)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {intruder} has the name of")


def test_a_layer_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.layers.LAYERS", ("container", "containr"))
    with pytest.raises(ImportError, match=r"package 'containr' is not in .*: install"):
        refuse_intruders(str(HOME))
