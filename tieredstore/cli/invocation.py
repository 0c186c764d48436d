"""The options that every command takes, and the work of a command, imported when it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tieredstore.cli.streams import JSON, TEXT
from tieredstore.cli.syntax.arguments import GIVEN_PATH, GivenPath
from tieredstore.interrupt import imported

if TYPE_CHECKING:
    from tieredstore.config.effective import Config

TIER_KEY = "tieredStoreFilePath"
LEVELS = ("debug", "info", "warning", "error")
CommandT = TypeVar("CommandT", bound=click.Command)


@dataclass(slots=True)
class Invocation:
    """Options of every command, before or after its name."""

    conf: Path | None = None
    defines: tuple[str, ...] = ()
    log_format: str = TEXT
    log_level: str = "info"

    def load_config(self) -> "Config":
        """Read the configuration.

        Raises:
            ConfigError: see `Config.load`.
        """
        from tieredstore.config.effective import Config  # noqa: PLC0415 - `--help` needs none of it

        return Config.load(conf=self.conf, defines=self.defines)

    def begin(self) -> None:
        """Print log records, as the options require."""
        from tieredstore.cli.logs import set_up  # noqa: PLC0415 - `--help` says nothing

        set_up(self.log_format, self.log_level)

    def say(self, sentence: str, status: int) -> None:
        """Print the last sentence of a command that ends with `status` and has output besides."""
        from tieredstore.cli.logs import say_end  # noqa: PLC0415 - likewise

        say_end(self.log_format, sentence, status)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # noqa: ANN401 - click's
    """Put a given option into the invocation: definitions are added, of others the last wins."""
    if value is None or value == ():
        return
    invocation = ctx.ensure_object(Invocation)
    assert param.name is not None, "an option has a name"
    before: Any = getattr(invocation, param.name)
    setattr(invocation, param.name, (*before, *value) if param.multiple else value)


def _keep_tier(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # noqa: ANN401 - click's
    """Put the place of the tier among the definitions."""
    del param
    if value is not None:
        invocation = ctx.ensure_object(Invocation)
        invocation.defines = (*invocation.defines, f"{TIER_KEY}={value}")


def _global_options() -> list[click.Option]:
    """Fresh ones for each command: click orders and converts them by its own."""
    return [
        click.Option(
            ["--conf"],
            type=GIVEN_PATH,
            metavar="FILE",
            help="Configuration in properties format; a RocketMQ broker's own file works.",
            callback=_keep,
            expose_value=False,
        ),
        click.Option(
            ["--tier"],
            type=GivenPath(),
            metavar="PLACE",
            help=f"The tier: a directory, or a URL such as s3://bucket/prefix. Sets {TIER_KEY}.",
            callback=_keep_tier,
            expose_value=False,
        ),
        click.Option(
            ["-D", "defines"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Set one configuration key; repeatable. Overrides the file and the environment.",
            callback=_keep,
            expose_value=False,
        ),
        click.Option(
            ["--log-format"],
            type=click.Choice([TEXT, JSON]),
            help="Format of the log on standard error. Default: text.",
            callback=_keep,
            expose_value=False,
        ),
        click.Option(
            ["--log-level"],
            type=click.Choice(LEVELS),
            help="Least level of the log. Default: info.",
            callback=_keep,
            expose_value=False,
        ),
        click.Option(
            ["--debug"],
            is_flag=True,  # `main` reads it when it prints an error
            help="Print a traceback with an error.",
            expose_value=False,
        ),
    ]


def global_options(command: CommandT) -> CommandT:
    """Give the whole command line its options."""
    command.params[:0] = _global_options()
    return command


def accept_after_name(command: CommandT) -> CommandT:
    """Add the global options, hidden in its help, to a command and the commands below it."""
    if not any(param.callback is _keep for param in command.params):
        for option in _global_options():
            option.hidden = True
            command.params.append(option)
        if isinstance(command, click.Group):
            for below in command.commands.values():
                accept_after_name(below)
    return command


def done_by(
    module: str, function: str = "run"
) -> Callable[[Callable[[], None]], Callable[..., object]]:
    """Give a command its work: a function of a module that is imported when it runs."""

    def add(syntax: Callable[[], None]) -> Callable[..., object]:
        @click.pass_obj
        def work(invocation: Invocation, **given: object) -> object:
            done = getattr(imported(module), function)
            invocation.begin()
            return done(invocation, **given)

        return update_wrapper(work, syntax)

    return add
