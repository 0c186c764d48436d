"""`config`: effective settings with unit and origin; `java-plugin`: the jar for brokers."""

import shutil
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import click

from provider.setting import NUMBER_MAX, PORT, Key, Kind, Value
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.config.effective import DEFAULT_ORIGIN, Config, Setting, machine
from tieredstore.config.keys import BROKER_PLUG_IN, JAVA_ONLY, KEYS, SECTIONS, config_template
from tieredstore.config.location import offloads_to_object_store
from tieredstore.config.object_store import OBJECT_ORIGIN
from tieredstore.config.prices import (
    Estimate,
    Load,
    estimates,
    forecast,
    forecast_notes,
    forecast_rows,
    offload_estimates,
)
from tieredstore.config.sources import ConfigError, environment_name, unknown_key
from tieredstore.texts import printable, size_text

FOREIGN = "Keys that only the broker knows, or a plug-in"
WIDTH_MAX = 100
COUNTED = frozenset({Kind.COUNT, Kind.BYTES, Kind.MILLISECONDS, Kind.HOURS, Kind.PERCENT})
LARGE_BYTES = 10_240
"""Numbers of bytes from here on are also shown in a larger unit."""


def run(
    invocation: Invocation,
    *,
    name: str | None,
    template: bool,
    changed: bool,
    env: bool,
    bytes_per_s: float | None,
    kept_s: float,
    topics: int,
    as_json: bool,
) -> None:
    """Print every effective setting with its unit, origin and meaning."""
    forms = (name is not None, template, changed or env, bytes_per_s is not None)
    if sum(forms) > 1 or (as_json and (template or env)):
        raise click.UsageError(
            "of KEY, --template, --changed, --env and --cost only --changed goes with --env; "
            "--json goes with KEY, --changed and --cost"
        )
    if template:
        click.echo(config_template(), nl=False)
        return
    config = invocation.load_config()
    if name is not None:
        _show_one(config, name, as_json=as_json)
        return
    if bytes_per_s is not None:
        queues = topics * int(config.settings["defaultTopicQueueNums"].value)
        _show_forecast(config, Load(bytes_per_s, kept_s, queues), as_json=as_json)
        return
    shown = [one for one in config.settings.values() if not changed or config.gives(one.key.name)]
    if env:
        for setting in shown:
            click.echo(_variable(setting, is_given=config.gives(setting.key.name)))
    elif as_json:
        estimated = [] if changed else _estimate_rows(config)
        write_json([*map(_row, shown), *_ignored(config), *estimated])
    else:
        _show_all(config, shown)
        if not changed:
            _show_estimates(config)


def _show_all(config: Config, shown: Sequence[Setting]) -> None:
    """Print settings by section, and what was given and has no effect."""
    listed = {setting.key.name: setting for setting in shown}
    for title, keys in SECTIONS.items():
        if here := [listed[key.name] for key in keys if key.name in listed]:
            click.echo(f"{title}\n")
        for setting in here:
            _show(setting)
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


def _show_estimates(config: Config) -> None:
    for line in _estimate_lines(config):
        click.echo(line)
    most = size_text(config.memory_bytes_max)
    more = size_text(config.hot_write.memory_bytes_max)
    click.echo(f"With these settings tiering and reading hold at most {most} in memory.")
    click.echo(f"Our own hot log (`run`, `put`) holds at most {more} more.")


def _show_forecast(config: Config, load: Load, *, as_json: bool) -> None:
    """Print the forecast of a month.

    Raises:
        ConfigError: the tier is in a directory, which bills nothing.
    """
    if not config.in_object_store:
        raise ConfigError(
            "a tier in a directory has no requests to pay for: give the object store, as in "
            "--tier s3://my-bucket/tier"
        )
    prices = config.prices
    items = forecast(load, config.request_limits, prices)
    if as_json:
        currency = f"{prices.currency}_a_month"
        write_json(
            {
                "item": one.what,
                "bytes": round(one.bytes),
                "requests": round(one.requests_a_month),
                currency: round(one.currency_a_month, 4),
            }
            for one in items
        )
        return
    click.echo(str(load))
    columns = ("a month", "bytes", "requests", prices.currency)
    write_table(columns, forecast_rows(items), numbers=frozenset(columns[1:]))
    for note in forecast_notes(load, config.request_limits, prices):
        click.echo(note)


def _show_one(config: Config, name: str, *, as_json: bool) -> None:
    """Print one setting with all that is known of its key.

    Raises:
        ConfigError: there is no such key; names the nearest.
    """
    if name in JAVA_ONLY:
        raise ConfigError(f"{name} changes nothing here. {JAVA_ONLY[name]}")
    if name not in KEYS:
        raise unknown_key(name)
    setting = config.settings[name]
    if as_json:
        write_json([_row(setting)])
        return
    key = setting.key
    click.echo(f"{name} = {_value(setting)}")
    click.echo(_indented(key.meaning) + "\n")
    default = _text(key, machine(key)) or "empty"
    if key.object_default is not None:
        default += f"; in an object store {_text(key, key.object_default)}"
    for title, text in (
        ("origin", setting.origin),
        ("default", default),
        ("values", _values(key)),
        ("variable", environment_name(name)),
    ):
        click.echo(f"    {title:10}{text}")


def _values(key: Key) -> str:
    """Return the values that a key takes."""
    if key.kind not in COUNTED:
        return key.unit_name
    unit = "" if key.unit == PORT else f" {key.unit_name}"
    if key.most == NUMBER_MAX:
        return f"at least {key.least}{unit}"
    return f"{key.least} to {key.most}{unit}"


def _variable(setting: Setting, *, is_given: bool) -> str:
    """Return the line of an environment file, a comment if it would change nothing or is secret."""
    mark = "" if is_given and setting.key.kind is not Kind.SECRET else "#"
    value = _plain(setting.value)
    return printable(f"{mark}{environment_name(setting.key.name)}={value}")


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
        "values": _values(setting.key),
        "variable": environment_name(setting.key.name),
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
    return _text(setting.key, setting.value)


def _text(key: Key, value: Value) -> str:
    """Return a value with its unit."""
    if key.kind in COUNTED and value != "":
        text = str(value) if key.unit == PORT else f"{value} {key.unit_name}"
        size = int(value)
        is_large = key.kind is Kind.BYTES and size >= LARGE_BYTES
        return f"{text} ({size_text(size)})" if is_large else text
    return _plain(value)


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


JAR = "tieredstore-rocketmq-plugin.jar"
PACKAGED = f"java_plugin/{JAR}"
SERVE_PORT = 10970
"""Port of the server in the plug-in's default."""


def java_plugin(_: Invocation, directory: Path) -> int:
    """Write the plug-in for a Java broker into DIRECTORY, such as the broker's own lib."""
    try:
        jar = files("tieredstore").joinpath(PACKAGED).read_bytes()
    except FileNotFoundError:
        raise click.UsageError(
            "this installation lacks the plug-in, for its wheel was built without Maven: run "
            "`make plugin-jar` in a checkout, and install that"
        ) from None
    directory.mkdir(parents=True, exist_ok=True)
    (directory / JAR).write_bytes(jar)
    click.echo(f"messageStorePlugIn={BROKER_PLUG_IN}")
    click.echo(f"tieredStoreServeAddress=127.0.0.1:{SERVE_PORT}")
    click.echo(f"tieredStoreServePort={SERVE_PORT}")
    return 0
