"""Options that several commands share."""

from collections.abc import Callable
from typing import TypeVar

import click

from tieredstore.cli.syntax.arguments import GIVEN_PATH, WholeNumber

CommandT = TypeVar("CommandT", bound=Callable[..., object])
LOCAL, SPARK = "local", "spark"
PROCESSES_MAX = 1024
SPLIT_BYTES, SPLIT_BYTES_MAX = 128 << 20, 1 << 40
"""The first as in `offline/scan/planning.py`."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Take the tier even from a living owner, which then ends with exit status 4.",
)
standby_option = click.option(
    "--standby",
    is_flag=True,
    help="Wait while another process owns the tier, and take over within twice its lease "
    "(tieredStoreOwnerLease) when it ends or shows no sign of life.",
)
new_tier_option = click.option(
    "--new-tier",
    is_flag=True,
    help="Use another tier than the one that the store knows, or begin an empty one there.",
)
java_metadata_option = click.option(
    "--java-metadata",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Read a tier that RocketMQ's tiered store wrote, with its tieredStoreMetadata.json.",
)
brokers_option = click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="PATTERN",
    help="Only this broker, or all that fit, as '*'; repeatable. Rows name cluster and broker.",
)


def engine_options(command: CommandT) -> CommandT:
    """Add the options of a job's engine."""
    engine = click.option(
        "--engine",
        type=click.Choice([LOCAL, SPARK]),
        default=LOCAL,
        help="Where the work is done: by processes of this machine (default), or by Spark, as "
        "spark-submit, SPARK_REMOTE or spark-defaults.conf say.",
    )
    processes = click.option(
        "--processes",
        type=WholeNumber(1, PROCESSES_MAX),
        metavar="N",
        help="Worker processes on this machine. Default: one for each core.",
    )
    split_bytes = click.option(
        "--split-bytes",
        type=WholeNumber(1, SPLIT_BYTES_MAX),
        default=SPLIT_BYTES,
        metavar="BYTES",
        help="What one worker scans at a time. Default: 128 MiB.",
    )
    return engine(processes(split_bytes(command)))
