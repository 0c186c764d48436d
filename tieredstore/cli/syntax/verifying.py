"""Commands that verify a tier, or a place for one."""

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import (
    GivenPath,
    WholeNumber,
    brokers_option,
    engine_options,
    java_metadata_option,
    json_option,
    take_over_option,
)


@click.command("check")
@brokers_option
@java_metadata_option
@click.option(
    "--bodies",
    is_flag=True,
    help="Also decompress every compressed body, up to 64 MiB of each: finds messages that a "
    "producer made wrong, which no reader can decompress.",
)
@json_option
@done_by("tieredstore.cli.commands.check")
def check() -> None:
    """Verify a tier: journal, segments, checksums, records, and files that nothing refers to.

    Reads every byte once and continues after a finding. With --broker '*' it verifies one broker
    after another. Exit status 1: there are findings.
    """


@click.command("audit")
@brokers_option
@java_metadata_option
@click.option(
    "--bodies", is_flag=True, help="Also decompress every compressed body, up to 64 MiB of each."
)
@engine_options
@json_option
@done_by("tieredstore.cli.commands.rebuild", "audit")
def audit() -> None:
    """Compare all of a tier: records, units, checksums, keys, metadata, in both directions.

    Finds what `check` finds, with as many processes as there are cores, and continues after a
    finding. With --broker '*' it compares one broker after another. Exit status 1: there are
    findings.
    """


@click.command("scrub")
@click.option(
    "--operations",
    type=WholeNumber(1, 10**12),
    default=1_000,
    metavar="N",
    help="Requests after which the run ends; default 1,000. One reads up to 16 MiB.",
)
@click.option("--from-start", is_flag=True, help="Begin a round, wherever the last run stopped.")
@click.option(
    "--delete",
    is_flag=True,
    help="Delete objects that were unreferenced for --grace hours. This owns the tier for a moment"
    " and gives them tombstones; an owner deletes them tieredStoreCutGraceTime later.",
)
@click.option(
    "--grace",
    type=WholeNumber(0, 10**6),
    default=72,
    metavar="HOURS",
    help="Hours without a reference before --delete deletes an object; default 72.",
)
@take_over_option
@json_option
@done_by("tieredstore.cli.commands.maintaining", "run_scrub")
def scrub() -> None:
    """Verify the next part of a tier. The next run continues there.

    A round reads every published byte once, then compares the names in the storage with the
    metadata. It also runs beside `tier --follow`, and writes only its position, in @scrub.
    Exit status 1: there are findings.
    """


@click.command("doctor")
@click.argument("place", type=GivenPath(), required=False)
@json_option
@done_by("tieredstore.cli.commands.check", "doctor")
def doctor() -> None:
    """Report whether PLACE can keep a tier: a directory, or a URL such as s3://bucket/prefix.

    Without PLACE, the configured tier. Each line is good, a note, or bad with what to do. Of a
    bucket: identity, region, permissions one by one, conditional writes, versioning, object lock,
    life-cycle rules, unfinished uploads, clock and latency. Of a directory: owner, file system,
    free space, locks, syncs and conditional writes. Small objects are created and deleted.

    \b
    Exit status, besides those of `tieredstore --help`:
      1  a line is bad
    """  # noqa: D301 - \b is click's mark of lines that stay
