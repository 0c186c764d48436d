"""`tieredstore scrub`: verifies a part of a tier at each run, and finds what nothing refers to."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import click

from container.check.scrub import (
    Scrubber,
    ScrubMark,
    ScrubPlace,
    read_mark,
    unclaimed_since,
    write_mark,
)
from container.names.queue_id import SegmentType
from provider.clock import SystemClock
from provider.errors import StoreError
from tieredstore.admin.scrub import give_up
from tieredstore.cli.commands.check import print_finding
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.output import write_json
from tieredstore.cli.reading import with_tier
from tieredstore.cli.streams import FINDINGS
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.reader import existing_tier
from tieredstore.texts import count_text, printable, size_text

HOUR_MS = 3_600_000
SETTLE_S = 2.0
"""Seconds that a commit under way has to publish its files before they are reported."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run."""

    before: ScrubMark
    after: ScrubMark
    is_round_over: bool
    operations: int
    bytes_read: int
    findings: int


def run(
    invocation: Invocation,
    *,
    operations: int,
    from_start: bool,
    delete: bool,
    grace: int,
    take_over: bool,
    as_json: bool,
) -> int:
    """Verify the next part of a tier."""

    async def scrub(tier: ReadableTier) -> Done:
        return await _scrub(tier, operations, from_start=from_start, as_json=as_json)

    done = with_tier(invocation, None, scrub, damaged=False, from_disk=False)
    clock = SystemClock()
    due = unclaimed_since(done.after, clock.now_ms() - grace * HOUR_MS)
    given_up: list[str] = []
    if delete and due:
        config = existing_tier(invocation.load_config())
        grace_s = config.tier.cut_grace_hours * HOUR_MS / 1000
        given_up = asyncio.run(
            give_up(config, due, grace_s=grace_s, take_over=take_over, clock=clock)
        )
    with suppress(BrokenPipeError):
        _sum_up(done, due, given_up, delete=delete, as_json=as_json)
    return FINDINGS if done.findings else 0


async def _scrub(
    tier: ReadableTier, operations_max: int, *, from_start: bool, as_json: bool
) -> Done:
    """Scrub once, and write the mark even if a storage error ends the run."""
    store, before = tier.reader.store, await read_mark(tier.reader.store)
    if from_start:
        before = ScrubMark(before.number, before.round, unclaimed=before.unclaimed)
    scrubber = Scrubber(
        tier.reader, before, operations_max=operations_max, clock=SystemClock(), settle_s=SETTLE_S
    )
    count = 0
    try:
        async for finding in scrubber.run():
            count += 1
            print_finding(finding, as_json=as_json)
    except StoreError:
        with suppress(StoreError):  # the first error is reported
            await write_mark(store, scrubber.mark)
        raise
    await write_mark(store, scrubber.mark)
    return Done(
        before,
        scrubber.mark,
        scrubber.is_round_over,
        scrubber.operations,
        scrubber.bytes_read,
        count,
    )


def _sum_up(
    done: Done, due: list[str], given_up: list[str], *, delete: bool, as_json: bool
) -> None:
    if as_json:
        row = {
            "round": done.before.round,
            "round_over": done.is_round_over,
            "operations": done.operations,
            "bytes_read": done.bytes_read,
            "findings": done.findings,
            "unclaimed": len(done.after.unclaimed),
            "unclaimed_for_grace": len(due),
            "given_up": given_up,
        }
        write_json([row])
        return
    cost = f"{count_text(done.operations)} requests, {size_text(done.bytes_read)} read"
    found = f"{done.findings} {'finding' if done.findings == 1 else 'findings'}"
    result = found if done.findings else "nothing is wrong"
    if done.is_round_over:
        click.echo(f"{cost}: {result}; round {done.before.round} is over")
    else:
        where = printable(_place_text(done.after.place))
        click.echo(f"{cost}: {result}; round {done.before.round} continues after {where}")
    if given_up:
        click.echo(f"{count_text(len(given_up))} objects got tombstones")
    if due and not delete:
        click.echo(
            f"{count_text(len(due))} objects have had no reference for the grace time: --delete "
            f"gives those that a tier made tombstones"
        )


def _place_text(place: ScrubPlace) -> str:
    if place.phase:
        return f"index file {place.name}"
    queue = f"{place.name}/{place.queue_id}"
    return queue if place.type < 0 else f"{queue} {SegmentType(place.type).name} {place.base}"
