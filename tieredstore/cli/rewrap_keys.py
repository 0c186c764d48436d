"""`tieredstore rewrap-keys`: puts an encrypted tier's data keys under another master key."""

import asyncio

import click

from provider.errors import NotFound
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import write_json, write_table
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.opening import existing_tier, whole_paths
from tieredstore.places import directory_of, rewrap_keys


@click.command("rewrap-keys")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@json_option
@pass_invocation
def command(invocation: Invocation, *, dry_run: bool, as_json: bool) -> None:
    """Wrap all data keys under the first master key, and forget the others' wraps.

    The environment variable TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS names the new master key and
    then the old ones: new:BASE64,old:BASE64. No message is read or written again. Give the new
    master key to every process before the old one is thrown away.
    """
    config = existing_tier(invocation.load_config())
    location = directory_of(config)
    if not isinstance(location, TierUrl):
        raise ConfigError(f"the tier in {location} is a directory, which is not encrypted")
    with whole_paths(location):
        found = asyncio.run(rewrap_keys(config, location, dry_run=dry_run))
    if not found:
        raise NotFound("there is no data key: the tier is not encrypted", str(location))
    rows = [
        {"data_key": one.key_id, "was_under": list(one.was_under), "under": one.under}
        for one in found
    ]
    if as_json:
        write_json(rows)
        return
    title = "would be" if dry_run else "is"
    columns = ("data key", "was under", f"{title} under")
    write_table(columns, [(one.key_id, ", ".join(one.was_under), one.under) for one in found])
