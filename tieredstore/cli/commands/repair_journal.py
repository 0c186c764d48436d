"""`tieredstore repair --journal-to`: continues a journal without its damaged end."""

import asyncio
import sys
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
from tieredstore.config.effective import Config
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.session.places import directory_of, storage_at
from tieredstore.session.reader import existing_tier, no_journal_error, whole_paths
from tieredstore.session.takeover import sign_of_life
from tieredstore.texts import count_text


def run(invocation: Invocation, *, entry: int, yes: bool, as_json: bool) -> None:
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
