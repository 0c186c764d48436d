"""`tieredstore check`: verifies a tier and prints everything that is wrong."""

import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from container.check.finding import Finding
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import bytes_bar, count_text, printable, size_text, write_json
from tieredstore.cli.reading import java_metadata_option, with_tier
from tieredstore.cli.streams import FINDINGS
from tieredstore.metrics.summary import losses_text
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import unbound_stores


@click.command("check")
@java_metadata_option
@click.option(
    "--bodies",
    is_flag=True,
    help="Also decompress every compressed body, up to 64 MiB of each: finds messages that a "
    "producer made wrong, which no reader can decompress.",
)
@json_option
@pass_invocation
def command(
    invocation: Invocation, java_metadata: Path | None, *, bodies: bool, as_json: bool
) -> int:
    """Verify a tier: journal, segments, checksums, records, and files that nothing refers to.

    Reads every byte once and continues after a finding. Exit status 1: there are findings.
    """

    async def check(tier: ReadableTier) -> int:
        found = 0
        with bytes_bar("checking", _log_bytes(tier)) as progress:
            async for finding in tier.check(bodies=bodies, progress=progress):
                found += 1
                print_finding(finding, as_json=as_json)
        if not as_json:
            with suppress(BrokenPipeError):
                click.echo(_verdict(tier, found))
                if lost := losses_text(tier.queues()):
                    click.echo(f"{lost}: `tieredstore topics` shows where")
                if unbound := unbound_stores(tier.reader.store):
                    click.echo(
                        f"the {' and the '.join(unbound)} store may have encrypted objects of an "
                        "older program, which are not bound to this tier: `tieredstore "
                        "rewrap-keys` binds them"
                    )
        return found

    return FINDINGS if with_tier(invocation, java_metadata, check, from_disk=False) else 0


def print_finding(finding: Finding, *, as_json: bool) -> None:
    """Print a finding at once. It counts even if the output is closed."""
    with suppress(BrokenPipeError):
        if as_json:
            write_json([asdict(finding)])
            sys.stdout.buffer.flush()
        else:
            place = f"{finding.path} at {finding.position}"
            click.echo(printable(f"{finding.finding}: {place}: {finding.detail}"))


def _verdict(tier: ReadableTier, found: int) -> str:
    queues = tier.queues()
    messages = sum(queue.messages for queue in queues)
    read = f"{len(queues)} queues, {count_text(messages)} messages, {size_text(_log_bytes(tier))}"
    if not found:
        return f"{read}: nothing is wrong"
    return f"{read}: {found} {'findings' if found > 1 else 'finding'}"


def _log_bytes(tier: ReadableTier) -> int:
    return sum(queue.commit_log_bytes for queue in tier.queues())
