"""`tieredstore offload`: moves what is closed of a topic to the second store."""

import asyncio
import re
from collections.abc import Sequence

import click

from container.move.offload_plan import Until
from container.names.rocketmq import INT64_MAX
from container.upkeep.offload import OffloadedQueue
from provider.clock import SystemClock
from tieredstore.admin.offload import offload_topic, offloading_config, plan
from tieredstore.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    take_over_option,
)
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.reading import MOMENT, TOPIC
from tieredstore.cli.streams import FINDINGS
from tieredstore.texts import count_text, size_text

COLUMNS = ("topic", "queue", "segments", "size")


class UntilType(click.ParamType[Until]):
    """A queue offset, which is a whole number, or a time, which is none."""

    name = "until"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Until:
        """Take a whole number for an offset."""
        text = str(value)
        if re.fullmatch("[0-9]{1,19}", text) and int(text) <= INT64_MAX:
            return Until(offset=int(text))
        return Until(ms=MOMENT.convert(text, param, ctx))


@click.command("offload")
@click.argument("topic", type=TOPIC)
@click.option(
    "--until",
    type=UntilType(),
    metavar="OFFSET|TIME",
    help="Only messages below this offset of their queue (a whole number), or stored before this"
    " time: 2026-11-21T12:00:00Z, 2h (s, m, h, d or w before now). UTC without a time zone."
    " Default: all.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be moved; change nothing.")
@take_over_option
@json_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    topic: str,
    until: Until | None,
    dry_run: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Move messages of TOPIC to the second store, tieredStoreOffloadPath, which no process may own.

    Segments go whole: one that has a message which is not wanted stays. If all messages of a queue
    are wanted, its open segments are closed and go, too. Each is copied, read back, compared and
    published; the first store's copy goes when tieredStoreOffloadDeletionLag is over. What
    retention would delete within that time stays. What was interrupted is ended by the same
    command.

    Prints what was moved of each queue. Exit status 1: bytes that should have gone are damaged.
    """
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
