"""`tieredstore rewrap-keys`: puts an encrypted tier's data keys under another master key."""

import asyncio

import click

from provider.errors import NotFound
from provider.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import write_json, write_table
from tieredstore.config.location import TierUrl
from tieredstore.config.second_store import second_location
from tieredstore.config.sources import ConfigError
from tieredstore.opening import existing_tier
from tieredstore.places import directory_of, rewrap_keys


@click.command("rewrap-keys")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@json_option
@pass_invocation
def command(invocation: Invocation, *, dry_run: bool, as_json: bool) -> None:
    """Wrap all data keys under the first master key, and forget the others' wraps.

    The environment variable TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS names the new master key and
    then the old ones: new:BASE64,old:BASE64. No message is read or written again. Give the new
    master key to every process before the old one is thrown away. Where the tier has a second
    store, the keys of both are wrapped, and none before those of both could be opened.
    """
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
    if as_json:
        write_json(rows)
        return
    title = "would be" if dry_run else "is"
    columns = ("store", "data key", "was under", f"{title} under")
    cells = [
        (names[place], one.key_id, ", ".join(one.was_under), one.under) for place, one in found
    ]
    write_table(columns, cells)
