"""`tieredstore offload`: moves what is closed of a topic to the second store."""

import asyncio
from collections.abc import Sequence

import click

from container.move.offload_plan import Until
from container.upkeep.offload import OffloadedQueue
from provider.clock import SystemClock
from tieredstore.admin.offload import offload_topic, offloading_config, plan
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.texts import count_text, size_text

COLUMNS = ("topic", "queue", "segments", "size")


def run(
    invocation: Invocation,
    *,
    topic: str,
    until: Until | None,
    dry_run: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Move messages of TOPIC to the second store."""
    config = offloading_config(invocation.load_config())
    clock, wanted = SystemClock(), until or Until()
    work = (
        plan(config, topic, wanted, clock=clock)
        if dry_run
        else offload_topic(config, topic, wanted, clock=clock, take_over=take_over)
    )
    found = asyncio.run(work)
    _print(found, as_json=as_json)
    errors = [error for one in found for error in one.errors]
    for error in errors:
        click.echo(f"tieredstore: {error}", err=True)
    return FINDINGS if errors else 0


def _print(found: Sequence[OffloadedQueue], *, as_json: bool) -> None:
    if as_json:
        write_json(map(_row, found))
    elif not found:
        click.echo("nothing is to be moved")
    else:
        write_table(COLUMNS, map(_cells, found), numbers=frozenset(COLUMNS[1:]))


def _row(one: OffloadedQueue) -> Row:
    return {
        "topic": one.queue.topic,
        "queue_id": one.queue.queue_id,
        "segments": one.segments,
        "bytes": one.bytes,
        "errors": [str(error) for error in one.errors],
    }


def _cells(one: OffloadedQueue) -> list[str]:
    return [
        one.queue.topic,
        str(one.queue.queue_id),
        count_text(one.segments),
        size_text(one.bytes),
    ]
