"""What the words before the command say."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tieredstore.config import Config


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options of the group."""

    conf: Path | None
    defines: tuple[str, ...]

    def load_config(self) -> "Config":
        """Read the configuration.

        Raises:
            ConfigError: see `Config.load`.
        """
        from tieredstore.config import Config  # noqa: PLC0415 - `--help` needs none of it

        return Config.load(conf=self.conf, defines=self.defines)


pass_invocation = click.make_pass_decorator(Invocation)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
