"""`tieredstore status`: owner, contents and losses of a tier, and what its process reports."""

from dataclasses import asdict

import click

from provider.clock import SystemClock
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import write_json
from tieredstore.cli.reading import with_tiers
from tieredstore.cli.streams import FINDINGS
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.reader.status import TierStatus, status_rows, tier_status
from tieredstore.texts import printable


def run(invocation: Invocation, *, brokers: tuple[str, ...], as_json: bool) -> int:
    """Show who owns a tier, what it holds, and what it lost."""
    given = invocation.load_config()

    async def look(tier: ReadableTier) -> TierStatus:
        return await tier_status(tier, given.of_broker(tier.cluster, tier.broker))

    found = [one for _, one in with_tiers(invocation, None, brokers, look)]
    if as_json:
        write_json(map(asdict, found))
    else:
        click.echo("\n\n".join(_printable_lines(one, SystemClock().now_ms()) for one in found))
    return 0 if all(one.is_well for one in found) else FINDINGS


def _printable_lines(status: TierStatus, now_ms: int) -> str:
    """The lines for people."""
    head = f"{status.broker} of cluster {status.cluster} in {status.location}"
    rows = (f"  {name:8} {text}" for name, text in status_rows(status, now_ms))
    return "\n".join(map(printable, (head, *rows)))
