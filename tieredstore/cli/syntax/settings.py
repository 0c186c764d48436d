"""Commands that show settings, and measure a machine."""

from pathlib import Path

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import WholeNumber, json_option
from tieredstore.interrupt import imported

TOPICS_MAX = 1_000_000
"""As that of `config/prices.py`."""


class PriceType(click.ParamType[float]):
    """A number with its unit, as `config/prices.py` parses it: bytes a second, or seconds."""

    def __init__(self, name: str, parser: str) -> None:
        self.name = name
        self._parser = parser

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse a text that is none."""
        try:
            return getattr(imported("tieredstore.config.prices"), self._parser)(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("config")
@click.argument("name", metavar="[KEY]", required=False)
@click.option(
    "--template", is_flag=True, help="Print a configuration file with every key at its default."
)
@click.option("--changed", is_flag=True, help="Only what a file, a variable or -D has set.")
@click.option(
    "--env",
    is_flag=True,
    help="Print environment variables, for a unit's EnvironmentFile or a container's --env-file; "
    "defaults and secrets in comments.",
)
@click.option(
    "--cost",
    "bytes_per_s",
    type=PriceType("rate", "rate_of"),
    metavar="RATE",
    help="Forecast what a tier in an object store costs a month if brokers write so much, as "
    "20MB/s.",
)
@click.option(
    "--retention",
    "kept_s",
    type=PriceType("span", "span_of"),
    default="30d",
    metavar="SPAN",
    help="With --cost: how long messages are kept. Default: 30d.",
)
@click.option(
    "--topics",
    type=WholeNumber(1, TOPICS_MAX),
    default=100,
    metavar="N",
    help="With --cost: topics, of defaultTopicQueueNums queues each. Default: 100.",
)
@json_option
@done_by("tieredstore.cli.commands.config")
def config() -> None:
    """Print every effective setting with its unit, origin and meaning.

    With KEY only this one, with its default, range and environment variable.
    """


@click.command("bench")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory on the disk to be measured; a directory is made in it and removed.",
)
@click.option(
    "--body-bytes",
    type=click.IntRange(1, 4 << 20),
    default=1024,
    show_default=True,
    help="Length of each message's body.",
)
@click.option(
    "--queues",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Number of queues.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 100_000_000),
    default=524_288,
    show_default=True,
    help="Number of messages over all queues.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Rounds that are measured.",
)
@click.option(
    "--warm-up-rounds",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Rounds that are run first and not counted.",
)
@click.option(
    "--store-results",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the results into this directory, as a JSON file.",
)
@json_option
@done_by("tieredstore.cli.commands.bench")
def bench() -> None:
    """Measure tiering and cold reading on this machine, beside its raw limits.

    Generates a store of its own and needs about four times its size of disk, 2.5 GB by default.
    All settings are defaults. Everything is written back to the device before it is timed.
    """
