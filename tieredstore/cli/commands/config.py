"""`tieredstore config`: every effective setting with its unit, origin and meaning."""

import shutil
from collections.abc import Iterator, Sequence

import click

from provider.setting import PORT, Kind
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import Row, size_text, write_json
from tieredstore.config.effective import DEFAULT_ORIGIN, Config, Setting
from tieredstore.config.keys import JAVA_ONLY, SECTIONS, config_template
from tieredstore.config.location import offloads_to_object_store
from tieredstore.config.object_store import OBJECT_ORIGIN
from tieredstore.config.prices import Estimate, estimates, offload_estimates

FOREIGN = "Keys that only the broker knows, or a plug-in"
WIDTH_MAX = 100
COUNTED = frozenset({Kind.COUNT, Kind.BYTES, Kind.MILLISECONDS, Kind.HOURS, Kind.PERCENT})
LARGE_BYTES = 10_240
"""Numbers of bytes from here on are also shown in a larger unit."""


@click.command("config")
@click.option(
    "--template", is_flag=True, help="Print a configuration file with every key at its default."
)
@json_option
@pass_invocation
def command(invocation: Invocation, *, template: bool, as_json: bool) -> None:
    """Print every effective setting with its unit, origin and meaning."""
    if template:
        click.echo(config_template(), nl=False)
        return
    config = invocation.load_config()
    if as_json:
        write_json(
            [*map(_row, config.settings.values()), *_ignored(config), *_estimate_rows(config)]
        )
        return
    for title, keys in SECTIONS.items():
        click.echo(f"{title}\n")
        for key in keys:
            _show(config.settings[key.name])
    if config.java_only:
        click.echo("What changes nothing here\n")
    for given in config.java_only:
        click.echo(f"{given.name}   ({given.origin})")
        click.echo(_indented(JAVA_ONLY[given.name]) + "\n")
    if config.foreign:
        click.echo(f"{FOREIGN}\n")
        for given in config.foreign:
            click.echo(f"{given.name}   ({given.origin})")
        click.echo("")
    for line in _estimate_lines(config):
        click.echo(line)
    most = size_text(config.memory_bytes_max)
    more = size_text(config.hot_write.memory_bytes_max)
    click.echo(f"With these settings tiering and reading hold at most {most} in memory.")
    click.echo(f"Our own hot log (`run`, `put`) holds at most {more} more.")


def _estimates(config: Config) -> Iterator[tuple[str, Sequence[Estimate]]]:
    """Each object store of the tier, as metrics name it, and what requests to it come to."""
    if config.in_object_store:
        yield FIRST_STORE, estimates(config.request_limits, config.prices)
    if offloads_to_object_store(config.settings):
        yield SECOND_STORE, offload_estimates(config.request_limits, config.prices)


def _estimate_rows(config: Config) -> list[Row]:
    """Estimate the cost of requests to the object stores; no row for a tier in directories."""
    return [
        {
            "key": "estimate",
            "store": store,
            "value": one.state,
            "requests_per_s": one.requests_per_s,
            f"{config.prices.currency}_a_month": one.currency_a_month,
            "prices": config.prices.name,
        }
        for store, found in _estimates(config)
        for one in found
    ]


def _estimate_lines(config: Config) -> Iterator[str]:
    for store, found in _estimates(config):
        prices = config.prices
        what = "object store" if store == FIRST_STORE else "second store"
        yield f"What the {what} bills at these settings, by the prices of {prices.name}:"
        for one in found:
            cost = f"{one.currency_a_month:,.2f} {prices.currency} a month"
            yield f"    {one.state}: {one.requests_per_s:,.3f} requests a second, {cost}"
        stored = prices.stored_gib_month * 1024
        yield f"    each TiB that is stored: {stored:,.2f} {prices.currency} a month\n"


def _show(setting: Setting) -> None:
    origin = "" if setting.origin == DEFAULT_ORIGIN else f"   ({setting.origin})"
    click.echo(f"{setting.key.name} = {_value(setting)}{origin}")
    click.echo(_indented(setting.key.meaning) + "\n")


def _indented(text: str) -> str:
    width = min(shutil.get_terminal_size((80, 24)).columns, WIDTH_MAX)
    return click.wrap_text(text, width, "    ", "    ")


def _row(setting: Setting) -> Row:
    return {
        "key": setting.key.name,
        "value": setting.value,
        "unit": setting.key.unit_name,
        "default": setting.origin in {DEFAULT_ORIGIN, OBJECT_ORIGIN},
        "origin": setting.origin,
        "meaning": setting.key.meaning,
        "used": True,
    }


def _ignored(config: Config) -> list[Row]:
    """Keys that change nothing here; values of the broker's own are not shown: some are secrets."""
    return [
        {
            "key": given.name,
            "value": given.text if given.name in JAVA_ONLY else None,
            "unit": "",
            "default": False,
            "origin": given.origin,
            "meaning": JAVA_ONLY.get(given.name, FOREIGN),
            "used": False,
        }
        for given in (*config.java_only, *config.foreign)
    ]


def _value(setting: Setting) -> str:
    if isinstance(setting.value, bool):
        return str(setting.value).lower()
    if setting.key.kind in COUNTED:
        text = f"{setting.value} {setting.key.unit_name}"
        if setting.key.unit == PORT:
            text = str(setting.value)
        size = int(setting.value)
        is_large = setting.key.kind is Kind.BYTES and size >= LARGE_BYTES
        return f"{text} ({size_text(size)})" if is_large else text
    return str(setting.value)
