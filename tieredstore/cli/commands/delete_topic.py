"""`tieredstore delete-topic`: deletes topics from a store of our own, from a tier, or from both."""

import asyncio
from collections.abc import Sequence

import click

from provider.clock import SystemClock
from tieredstore.admin.delete import (
    DeletedTopic,
    DeletionPlaces,
    delete_topics,
    places_of,
    topics_in,
)
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.sources import ConfigError
from tieredstore.texts import count_text, size_text

COLUMNS = ("topic", "queues", "queues in tier", "messages in tier", "size in tier")


def run(
    invocation: Invocation,
    *,
    topics: tuple[str, ...],
    dry_run: bool,
    tier_only: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Delete topics with all their messages, for good, without a confirmation."""
    places = places_of(invocation.load_config(), tier_only=tier_only)
    found, completed = asyncio.run(_delete(places, topics, dry_run=dry_run, take_over=take_over))
    if as_json:
        write_json(map(_row, found))
    else:
        numbers = frozenset(COLUMNS[1:])
        write_table(COLUMNS, map(_cells, found), numbers=numbers)
    absent = [one.topic for one in found if not one.is_there]
    if completed:
        click.echo("what an interrupted deletion had left is deleted", err=True)
        return 0
    for topic in absent:
        click.echo(f"tieredstore: there is no topic {topic}", err=True)
    return FINDINGS if absent else 0


async def _delete(
    places: DeletionPlaces, topics: Sequence[str], *, dry_run: bool, take_over: bool
) -> tuple[Sequence[DeletedTopic], bool]:
    try:
        found = await topics_in(places, topics)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if dry_run:
        return found, False
    # Also what is not there: an interrupted deletion may have left something.
    return found, await delete_topics(places, topics, clock=SystemClock(), take_over=take_over)


def _row(one: DeletedTopic) -> Row:
    return {
        "topic": one.topic,
        "store_queues": one.store_queues,
        "tier_queues": one.tier_queues,
        "tier_messages": one.tier_messages,
        "tier_bytes": one.tier_bytes,
    }


def _cells(one: DeletedTopic) -> list[str]:
    return [
        one.topic,
        str(one.store_queues),
        str(one.tier_queues),
        count_text(one.tier_messages),
        size_text(one.tier_bytes),
    ]
