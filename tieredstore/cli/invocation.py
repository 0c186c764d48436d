"""The options before the command, and types of arguments that several commands share."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tieredstore.config.effective import Config

DIGITS_MAX = 40
_DIGITS = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options before the command."""

    conf: Path | None
    defines: tuple[str, ...]

    def load_config(self) -> "Config":
        """Read the configuration.

        Raises:
            ConfigError: see `Config.load`.
        """
        from tieredstore.config.effective import Config  # noqa: PLC0415 - `--help` needs none of it

        return Config.load(conf=self.conf, defines=self.defines)


class GivenPath(click.Path):
    """A path; refuses an empty text, such as an unset shell variable."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Refuse an empty text, which would otherwise be the working directory."""
        if not os.fspath(value):
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.ParamType[int]):
    """A number from `least` to `most`, in plain digits without leading zeros."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Refuse a text that is no number or out of bounds."""
        text = str(value)
        if not _DIGITS.fullmatch(text):
            self.fail(f"{text[:DIGITS_MAX]!r} is no whole number", param, ctx)
        number = int(text[:DIGITS_MAX])  # so many digits are out of bounds in any case
        if not self._least <= number <= self._most:
            bound = f"less than {self._least}" if number < self._least else f"over {self._most}"
            self.fail(f"{text[:DIGITS_MAX]} is {bound}", param, ctx)
        return number


GIVEN_PATH = GivenPath(path_type=Path)
pass_invocation = click.make_pass_decorator(Invocation)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
