"""`tieredstore repair`: lifts the stop of queues whose broker lost or rewrote their tail."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import click
import orjson

from provider.clock import SystemClock
from provider.posix.files import sync_directory
from tieredstore.admin.repair import Cut, RepairPlan, plan_repair, repair
from tieredstore.cli.failures import explain
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.message_printer import message_row
from tieredstore.cli.output import Row, progress_bar, write_json
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.reader.cursor import messages_of
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.owner import open_hot_log
from tieredstore.session.reader import existing_tier
from tieredstore.session.takeover import refuse_living_owner
from tieredstore.texts import count_text, printable

LISTED_MAX = 20
"""Queues to be cut that are listed one by one."""
SAID_MAX = 8
"""Queues that are not cut, each with its sentence."""


def run(
    invocation: Invocation,
    *,
    topic: str | None,
    queue: int | None,
    cut_to_hot: bool,
    store: Path | None,
    dry_run: bool,
    save: Path | None,
    leave_nothing: bool,
    yes: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Lift the stop of queues after their broker lost or rewrote the newest messages."""
    del cut_to_hot  # required, so that a later repair of another kind changes no command
    config = existing_tier(invocation.load_config())
    store = config.store_dir if store is None else store
    plan = asyncio.run(_plan(config, store, topic, queue))
    cuts = plan.cuts if leave_nothing else _partial(plan.cuts, single=queue is not None)
    is_unfinished = bool(plan.unknown) or len(cuts) < len(plan.cuts)
    _say_unknown(plan)
    if cuts and not dry_run:
        asyncio.run(_cut(config, store, cuts, save=save, yes=yes, take_over=take_over))
    if as_json:
        write_json(map(_row, cuts))
    elif not cuts and not is_unfinished:
        what = "" if topic is None else f"{topic}: " if queue is None else f"{topic}/{queue}: "
        click.echo(f"{what}the tier and the hot log agree, nothing is to be cut")
    elif dry_run:
        _list(cuts, err=False)
    else:
        for cut in cuts:
            click.echo(f"{cut.queue}: cut, tiering continues at offset {cut.end}")
    return FINDINGS if is_unfinished else 0


async def _plan(config: Config, store: Path, topic: str | None, queue: int | None) -> RepairPlan:
    compared = config.dispatch.compared_messages_max
    async with (
        open_hot_log(config, store, clock=SystemClock()) as hot,
        ReadableTier(lambda: config) as tier,
    ):
        with progress_bar("comparing") as show:

            def progress(done: int, total: int) -> None:
                if show is not None:
                    show(done, total, f"{count_text(done)} of {count_text(total)} queues")

            return await plan_repair(
                hot, tier.reader, topic, queue, compared_messages=compared, progress=progress
            )


def _partial(cuts: Sequence[Cut], *, single: bool) -> Sequence[Cut]:
    """Cuts that leave messages in their queue. Print the others.

    Raises:
        ConfigError: the queue was named, and nothing of it would stay.
    """
    whole = [cut for cut in cuts if cut.is_whole]
    sentences = [
        f"{cut.queue}: the hot log has none of its messages, so nothing of it would stay in "
        f"the tier, offsets {cut.end} to {cut.next_offset - 1}: restore the broker's log, "
        f"or add --leave-nothing"
        for cut in whole[:SAID_MAX]
    ]
    if single and whole:
        raise ConfigError(sentences[0])
    _say(sentences, len(whole), "nothing would stay of")
    return [cut for cut in cuts if not cut.is_whole]


def _say_unknown(plan: RepairPlan) -> None:
    sentences = [explain(error)[1] for error in plan.unknown[:SAID_MAX]]
    _say(sentences, len(plan.unknown), "the cut is unknown of")


def _say(sentences: Sequence[str], count: int, rest: str) -> None:
    """Print why queues are not truncated; queues without a sentence are counted."""
    for sentence in sentences:
        click.echo(f"tieredstore: {printable(sentence)}", err=True)
    if count > len(sentences):
        more = count_text(count - len(sentences))
        click.echo(f"tieredstore: {rest} {more} more queues", err=True)


async def _cut(
    config: Config,
    store: Path,
    cuts: Sequence[Cut],
    *,
    save: Path | None,
    yes: bool,
    take_over: bool,
) -> None:
    """Confirm, save, then truncate. Nothing is asked if the tier cannot be owned anyway."""
    clock = SystemClock()
    if not take_over:
        await refuse_living_owner(config, clock=clock)
    if not yes:
        await asyncio.to_thread(_ask, cuts)
    if save is not None:
        await _save(config, cuts, save)
    await repair(config, store, cuts, take_over=take_over, clock=clock)


def _ask(cuts: Sequence[Cut]) -> None:
    _list(cuts, err=True)
    if not sys.stdin.isatty():
        raise ConfigError("standard input is no terminal to confirm on: use --yes")
    click.confirm("Unpublish them?", abort=True, err=True)


def _list(cuts: Sequence[Cut], *, err: bool) -> None:
    for cut in cuts[:LISTED_MAX]:
        offsets = f"offsets {cut.end} to {cut.next_offset - 1}"
        sentence = f"{count_text(cut.messages)} messages, {offsets}, would be unpublished"
        click.echo(printable(f"{cut.queue}: {sentence}"), err=err)
    if len(cuts) > 1:
        total = count_text(sum(cut.messages for cut in cuts))
        click.echo(f"{len(cuts)} queues, {total} messages in all", err=err)


async def _save(config: Config, cuts: Sequence[Cut], path: Path) -> None:
    """Write the messages of the cuts into a new file, durably.

    Raises:
        ConfigError: the file is there already, or cannot be written.
        Corrupt: a message is damaged, so it cannot be saved; nothing is cut.
    """
    try:
        file = await asyncio.to_thread(path.open, "xb")
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise ConfigError(f"{path} cannot be made, so nothing is cut: {reason}") from error
    try:
        async with ReadableTier(lambda: config) as tier:
            for cut in cuts:
                async for result in tier.results(*cut.queue, cut.end):
                    messages = messages_of(result.messages, cut.queue, None)
                    rows = [message_row(message, digest=False) for message in messages]
                    await asyncio.to_thread(_write, file, rows)
        await asyncio.to_thread(_sync, file, path.parent)
    finally:
        await asyncio.to_thread(file.close)


def _write(file: BinaryIO, rows: Sequence[Row]) -> None:
    file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    file.flush()


def _sync(file: BinaryIO, directory: Path) -> None:
    """Make a new file durable, and its name."""
    os.fsync(file.fileno())
    sync_directory(str(directory))


def _row(cut: Cut) -> Row:
    return {
        "topic": cut.queue.topic,
        "queue_id": cut.queue.queue_id,
        "cut_to": cut.end,
        "next_offset": cut.next_offset,
        "messages": cut.messages,
    }
