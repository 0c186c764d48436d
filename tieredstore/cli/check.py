"""`tieredstore check`: everything that is wrong with a tier."""

import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from container.check.finding import Finding
from container.check.tier import check_tier
from tieredstore.cli.failures import FINDINGS
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import count_text, size_text, write_json
from tieredstore.cli.printable import printable
from tieredstore.cli.progress import bytes_bar
from tieredstore.cli.reading import ReadableTier, java_metadata_option, with_reader
from tieredstore.summary import log_bytes_of, messages_of


@click.command("check")
@java_metadata_option
@json_option
@pass_invocation
def command(invocation: Invocation, java_metadata: Path | None, *, as_json: bool) -> int:
    """Compare metadata and bytes in both directions; reads every byte twice.

    Never stops at the first finding. Ends with 1 if there is any.
    """

    async def check(tier: ReadableTier) -> int:
        found = 0
        with bytes_bar("checking", _log_bytes(tier)) as progress:
            damage = tier.reader.damage
            if damage is not None:
                detail = f"{damage.reason}; what is published behind it cannot be checked"
                _tell(Finding("journal", damage.path, damage.position, detail), as_json=as_json)
                found += 1
            async for finding in check_tier(
                tier.reader, journal=not tier.is_java, progress=progress
            ):
                found += 1
                _tell(finding, as_json=as_json)
        if not as_json:
            with suppress(BrokenPipeError):
                click.echo(_verdict(tier, found))
        return found

    return FINDINGS if with_reader(invocation, java_metadata, check, damaged=True) else 0


def _tell(finding: Finding, *, as_json: bool) -> None:
    """Print a finding at once. If nobody reads it any more, it still counts."""
    with suppress(BrokenPipeError):
        if as_json:
            write_json([asdict(finding)])
            sys.stdout.buffer.flush()
        else:
            place = f"{finding.path} at {finding.position}"
            click.echo(printable(f"{finding.finding}: {place}: {finding.detail}"))


def _verdict(tier: ReadableTier, found: int) -> str:
    queues = tier.reader.state.queues.values()
    messages = sum(map(messages_of, queues))
    looked = f"{len(queues)} queues, {count_text(messages)} messages, {size_text(_log_bytes(tier))}"
    if not found:
        return f"{looked}: nothing is wrong"
    return f"{looked}: {found} {'findings' if found > 1 else 'finding'}"


def _log_bytes(tier: ReadableTier) -> int:
    return sum(map(log_bytes_of, tier.reader.state.queues.values()))
