"""Options and help of every command: what they load, and that the command's work takes them."""

import subprocess
import sys
from importlib import import_module
from inspect import isfunction, signature
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from container.metadata.records import CopyState
from container.names.rocketmq import INT32_MAX, INT64_MAX
from container.queue.positions import Boundary, TimeRules
from tieredstore.admin.compact import JOBS_MAX
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.main import COMMANDS, FORMS, cli
from tieredstore.cli.syntax import arguments, reading, rewriting, settings, writing
from tieredstore.config.prices import TOPICS_MAX
from tieredstore.offline.scan.planning import SPLIT_BYTES
from tieredstore.store.local import HOURS_MAX

HELP = """
import sys
from tieredstore.cli.main import cli

before = set(sys.modules)
for words in [words.split() for words in sys.argv[1:]]:
    try:
        cli.main([*words, "--help"])
    except SystemExit as end:
        assert not end.code, (words, end.code)
    found = set(sys.modules) - before
    before |= found
    for name in sorted(found):
        print(name, "by", *words, file=sys.stderr)
"""
"""A program that prints on standard error which modules the help of each command loads."""
OURS = {"tieredstore", "container", "dispatcher", "fetcher", "provider"}
HEAVY = OURS | {"asyncio", "logging", "numpy", "rich", "pyarrow", "orjson", "isal"}
HEAVY |= {"google_crc32c", "javaproperties", "prometheus_client", "boto3", "obstore", "anyio"}


def every_command() -> dict[str, click.Command]:
    """All commands and their other forms, by the words that name them."""
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {below}": one for below, one in command.commands.items()}
    for name, option in FORMS:
        _, command, _ = cli.resolve_command(context, [name, option])
        assert command is not None
        found[f"{name} {option} 1"] = command
    return found


EVERY = every_command()


@pytest.mark.process
def test_help_loads_the_syntax_of_commands_and_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP, "", *EVERY], capture_output=True, text=True, check=True
    )
    loaded = done.stderr.splitlines()
    heavy = [line for line in loaded if line.split()[0].partition(".")[0] in HEAVY]
    syntax = {module for module, _ in COMMANDS.values()}
    assert [line for line in heavy if line.split()[0] not in syntax] == []
    assert syntax == {line.split()[0] for line in heavy}
    for name, (_, text) in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert text in done.stdout


@pytest.mark.parametrize("words", EVERY)
def test_every_command_says_what_its_options_mean(words: str) -> None:
    result = CliRunner().invoke(cli, [*words.split(), "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize("words", [words for words in EVERY if words != "metadata"])
def test_the_work_of_every_command_takes_its_options(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(module: str) -> SimpleNamespace:
        found = vars(import_module(module)).items()
        return SimpleNamespace(
            **{name: signature(one).bind for name, one in found if isfunction(one)}
        )

    monkeypatch.setattr("tieredstore.cli.invocation.imported", bound)
    command = EVERY[words]
    given = {param.name: None for param in command.params if param.expose_value}
    with click.Context(command, obj=Invocation()) as context:
        assert context.invoke(command, **given).arguments


def test_bounds_and_choices_are_those_of_the_rooms_that_use_them() -> None:
    assert (arguments.QUEUE_MAX, arguments.OFFSET_MAX) == (INT32_MAX, INT64_MAX)
    assert (arguments.SPLIT_BYTES, rewriting.JOBS) == (SPLIT_BYTES, JOBS_MAX)
    assert (settings.TOPICS_MAX, writing.HOURS_MAX) == (TOPICS_MAX, HOURS_MAX)
    assert tuple(one.name for one in CopyState) == reading.COPY_STATES
    assert tuple(one.value for one in Boundary) == reading.BOUNDARIES
    assert tuple(one.value for one in TimeRules) == reading.TIME_RULES
