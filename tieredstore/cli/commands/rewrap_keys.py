"""`tieredstore rewrap-keys`: another master key for an encrypted tier, and the newer form."""

import asyncio
from collections.abc import Mapping

import click

from provider.clock import SystemClock
from provider.errors import NotFound
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.admin.rewrap import Moved, move_to_bound
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import second_location
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.summary import counted
from tieredstore.session.places import directory_of, rewrap_keys
from tieredstore.session.reader import existing_tier
from tieredstore.texts import printable, size_text


def run(invocation: Invocation, *, dry_run: bool, take_over: bool, as_json: bool) -> int:
    """Wrap all data keys under the first master key, and delete the wraps of the others."""
    config = existing_tier(invocation.load_config())
    places = {FIRST_STORE: directory_of(config), SECOND_STORE: second_location(config)}
    names = {place: name for name, place in places.items() if isinstance(place, TierUrl)}
    if not names:
        raise ConfigError(
            f"the tier in {places[FIRST_STORE]} is a directory, which is not encrypted"
        )
    found = asyncio.run(rewrap_keys(config, list(names), dry_run=dry_run))
    if not found:
        where = " and ".join(map(str, names))
        raise NotFound("there is no data key: the tier is not encrypted", where)
    rows = [
        {
            "store": names[place],
            "data_key": one.key_id,
            "was_under": list(one.was_under),
            "under": one.under,
        }
        for place, one in found
    ]
    moved = asyncio.run(
        move_to_bound(config, names, clock=SystemClock(), dry_run=dry_run, take_over=take_over)
    )
    if as_json:
        write_json([*rows, *(_moved_row(which, one) for which, one in moved.items())])
        return _status(moved)
    title = "would be" if dry_run else "is"
    columns = ("store", "data key", "was under", f"{title} under")
    cells = [
        (names[place], one.key_id, ", ".join(one.was_under), one.under) for place, one in found
    ]
    write_table(columns, cells)
    for which, one in moved.items():
        would = "would be" if dry_run else "were"
        click.echo(
            f"{which} store: {counted(one.objects, 'object')} ({size_text(one.size_bytes)}) of the "
            f"older form {would} bound to the tier"
        )
        if one.left:
            click.echo(f"{which} store: {counted(one.left, 'object')} of other tiers are left")
        for error in one.failures:
            click.echo(printable(f"{error.path} at {error.position}: {error.reason}"))
    return _status(moved)


def _moved_row(which: str, moved: Moved) -> Row:
    return {
        "store": which,
        "objects_bound": moved.objects,
        "bytes": moved.size_bytes,
        "objects_left": moved.left,
        "failures": [f"{one.path} at {one.position}: {one.reason}" for one in moved.failures],
    }


def _status(moved: Mapping[str, Moved]) -> int:
    return FINDINGS if any(one.failures for one in moved.values()) else 0
