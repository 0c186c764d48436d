"""`tieredstore repair --hot-log`: shows the damage of a hot log, and continues without it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from provider.clock import SystemClock
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.sources import ConfigError
from tieredstore.hot.log.durable_ends import DurableEnds
from tieredstore.hot.log.repair import DamagedPlace, HotDamage, WrongUnits, open_repair
from tieredstore.texts import count_text, printable

LISTED_MAX = 100
"""Damaged places, and queues of each, that are listed one by one."""


def run(
    invocation: Invocation,
    *,
    hot_log: bool,
    store: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Continue without the damaged records of a hot log, which no process may be writing."""
    del hot_log
    config = invocation.load_config()
    root = config.store_dir if store is None else store
    with open_repair(root, config.hot_write, SystemClock()) as repair:
        damage = repair.look()
        if not dry_run and damage:
            if not yes:
                _ask(damage)
            repair.carry_out(damage)
    if as_json:
        write_json(_rows(damage))
    elif not damage:
        click.echo(f"the hot log in {root} is not damaged")
    else:
        for sentence in _sentences(damage):
            click.echo(printable(sentence))
        if not dry_run:
            click.echo("repaired: the store can be opened, all other messages are there")
    return FINDINGS if dry_run and damage else 0


def _ask(damage: HotDamage) -> None:
    for sentence in _sentences(damage):
        click.echo(printable(sentence), err=True)
    if not sys.stdin.isatty():
        raise ConfigError("standard input is no terminal to confirm on: use --yes")
    click.confirm("Continue without these messages?", abort=True, err=True)


def _sentences(damage: HotDamage) -> Iterator[str]:
    for place in damage.places[:LISTED_MAX]:
        yield _place_sentence(place)
    if (more := len(damage.places) - LISTED_MAX) > 0:
        yield f"{count_text(more)} more places are damaged; --json lists all"
    for wrong in damage.mended:
        where = ", ".join(map(_offsets, wrong.mended[:LISTED_MAX]))
        yield f"{wrong.path}: units of {wrong.queue} do not lead to their sound records: {where}"
    if damage.ends is not None:
        queues = count_text(len(damage.ends.next_offsets))
        yield (
            "durableEnds and durableEnds.copy are damaged or missing: they are written again; the"
            f" next offsets of {queues} queues are those after all records and units"
        )


def _place_sentence(place: DamagedPlace) -> str:
    one = place.damage
    what = "are missing with their file" if place.is_missing else "hold no sound record"
    lost = [
        f"{queue} {_offsets(part)}" for queue, parts in sorted(place.lost.items()) for part in parts
    ]
    named = ", ".join(lost[:LISTED_MAX])
    if (more := len(lost) - LISTED_MAX) > 0:
        named += f" and {count_text(more)} more ranges"
    kept = f"; the bytes are kept in {', '.join(map(str, place.kept))}" if place.kept else ""
    return (
        f"{one.path}: {count_text(one.end - one.position)} bytes from position {one.position} on"
        f" {what}; lost: {named or 'no message that is known'}{kept}"
    )


def _offsets(part: tuple[int, int]) -> str:
    first, end = part
    return f"offset {first}" if end - first == 1 else f"offsets {first} to {end - 1}"


def _rows(damage: HotDamage) -> list[Row]:
    ends = [] if damage.ends is None else [_ends_row(damage.ends)]
    return [*map(_place_row, damage.places), *map(_units_row, damage.mended), *ends]


def _place_row(place: DamagedPlace) -> Row:
    return {
        "path": place.damage.path,
        "position": place.damage.position,
        "bytes": place.damage.end - place.damage.position,
        "is_missing": place.is_missing,
        "kept": [str(path) for path in place.kept],
        "lost": [
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "first_offset": first,
                "next_offset": end,
            }
            for queue, parts in sorted(place.lost.items())
            for first, end in parts
        ],
    }


def _units_row(wrong: WrongUnits) -> Row:
    return {
        "path": wrong.path,
        "topic": wrong.queue.topic,
        "queue_id": wrong.queue.queue_id,
        "wrong_units": [{"first_offset": first, "next_offset": end} for first, end in wrong.mended],
    }


def _ends_row(ends: DurableEnds) -> Row:
    return {
        "path": "durableEnds",
        "position": ends.position,
        "next_offsets": [
            {"topic": queue.topic, "queue_id": queue.queue_id, "next_offset": offset}
            for queue, offset in sorted(ends.next_offsets.items())
        ],
    }
