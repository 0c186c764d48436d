"""`tieredstore repair --journal-to` and `--hot-log`: continue without a damaged end."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

import click

from container.journal.reader import JournalReader, Loaded
from container.journal.truncation import JournalCut, cut_journal, find_journal_cut
from container.options import JournalOptions
from provider.clock import Clock, SystemClock
from provider.errors import NotFound
from provider.object_store import AppendingStore
from provider.stores.in_place_segments import LOCK_NAME
from tieredstore.cli.failures import NOTHING_WHOLE
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.hot.log.durable_ends import DurableEnds
from tieredstore.hot.log.repair import DamagedPlace, HotDamage, WrongUnits, open_repair
from tieredstore.session.places import directory_of, storage_at
from tieredstore.session.reader import existing_tier, no_journal_error, whole_paths
from tieredstore.session.takeover import sign_of_life
from tieredstore.texts import count_text, printable


def repair_journal(invocation: Invocation, *, entry: int, yes: bool, as_json: bool) -> None:
    """Continue without the entries after ENTRY, the last whole one of a damaged journal."""
    config = existing_tier(invocation.load_config())
    cut = asyncio.run(_work(config, entry, agreed=None))
    if not yes:
        _ask(cut)
    asyncio.run(_work(config, entry, agreed=cut))
    if as_json:
        write_json(_rows(cut))
    else:
        click.echo(
            f"the journal continues after entry {entry}: `tieredstore tier` tiers again the "
            f"messages that the broker still has, `tieredstore check` finds what is wrong"
        )


def _ask(cut: JournalCut) -> None:
    click.echo(f"{_entries(len(cut.given_up))} after entry {cut.kept} would be given up", err=True)
    for queue, (stays, end) in cut.ends.items():
        click.echo(
            f"{queue}: {count_text(end - stays)} messages, offsets {stays} to {end - 1}, would "
            f"be unpublished",
            err=True,
        )
    if cut.unreadable:
        click.echo(f"the content of {_entries(cut.unreadable)} of them is unknown", err=True)
    if not sys.stdin.isatty():
        raise ConfigError("standard input is no terminal to confirm on: use --yes")
    click.confirm("Give them up?", abort=True, err=True)


def _entries(count: int) -> str:
    return f"{count_text(count)} {'entry' if count == 1 else 'entries'}"


async def _work(config: Config, entry: int, *, agreed: JournalCut | None) -> JournalCut:
    """Find the journal entries to drop, and truncate if they match the confirmed ones."""
    directory, clock = directory_of(config), SystemClock()
    store = storage_at(config, directory, clock=clock)
    try:
        with whole_paths(directory):
            reader = JournalReader(store, JournalOptions(), clock=clock)
            _refuse(directory, await reader.load_whole_part(), entry)
            # An owner that takes over from here on finds a damaged journal, and writes nothing.
            if await _is_owned(config, store, clock=clock):
                raise ConfigError(
                    f"a process that owns the tier in {directory} lives and has the content of the "
                    f"damaged entry: leave it running, and its next snapshot, within "
                    f"{config.upkeep.snapshot_age_s_max:.0f} s, replaces that entry"
                )
            loaded = await reader.load_whole_part()
            _refuse(directory, loaded, entry)
            cut = await find_journal_cut(store, loaded)
            if agreed is not None:
                if cut != agreed:
                    raise ConfigError("the journal changed meanwhile: run the command again")
                await cut_journal(store, loaded, cut, rng=SystemRandom(), clock=clock)
    finally:
        await store.close()
    return cut


async def _is_owned(config: Config, store: AppendingStore, *, clock: Clock) -> bool:
    """Whether an owner lives. In an object store this takes up to the lease."""
    where = directory_of(config)
    if not isinstance(where, TierUrl):
        return not await store.register(LOCK_NAME)
    return await sign_of_life(store, where, config.journal, clock=clock) is not None


def _refuse(directory: Location, loaded: Loaded, entry: int) -> None:
    """Refuse a cut that is not needed, or that does not match the damage."""
    kept = loaded.state.sequence
    if not kept and loaded.damage is None:
        raise no_journal_error(directory)
    if not kept:
        raise NotFound(f"nothing of the journal is whole: {NOTHING_WHOLE}", "@journal")
    if loaded.damage is None:
        raise NotFound("the journal is whole: nothing is to be cut", "@journal")
    if entry != kept:
        raise ConfigError(
            f"the journal is whole up to entry {kept} and damaged after it: use --journal-to {kept}"
        )


def _rows(cut: JournalCut) -> list[Row]:
    return [
        {
            "kept": cut.kept,
            "given_up": len(cut.given_up),
            "unreadable": cut.unreadable,
            "queues": [
                {
                    "topic": queue.topic,
                    "queue_id": queue.queue_id,
                    "commit_offset": stays,
                    "told_offset": end,
                }
                for queue, (stays, end) in cut.ends.items()
            ],
        }
    ]


LISTED_MAX = 100
"""Damaged places, and queues of each, that are listed one by one."""


def repair_hot_log(
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
                _ask_hot_log(damage)
            repair.carry_out(damage)
    if as_json:
        write_json(_hot_log_rows(damage))
    elif not damage:
        click.echo(f"the hot log in {root} is not damaged")
    else:
        for sentence in _sentences(damage):
            click.echo(printable(sentence))
        if not dry_run:
            click.echo("repaired: the store can be opened, all other messages are there")
    return FINDINGS if dry_run and damage else 0


def _ask_hot_log(damage: HotDamage) -> None:
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


def _hot_log_rows(damage: HotDamage) -> list[Row]:
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
