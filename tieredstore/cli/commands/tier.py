"""`tieredstore tier`: copies store directories into the tier, once or continuously."""

import asyncio
import errno
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.live_table import COLUMNS, NUMBERS, cells_of, row_of
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.several_stores import (
    StoreRun,
    brokers_of,
    configured_store,
    follow_all,
    tier_each,
)
from tieredstore.cli.signals import EndingSignals, answer_watchdog
from tieredstore.cli.streams import TEXT, UNAVAILABLE, give_up_output
from tieredstore.cli.tier_run import NOTHING_DONE, RunOutcome, beside_of, follow_until, tier_once
from tieredstore.config.effective import Config, StartWords
from tieredstore.config.sources import ConfigError
from tieredstore.console.options import console_beside
from tieredstore.follower import Follower
from tieredstore.lifetime import Worker
from tieredstore.serve.beside import ServerBeside, unready_reason

GONE = frozenset({errno.EPIPE, errno.EIO})
"""Errors of an output without a reader, such as a closed terminal: the exit status still reports
the end of the run."""
ORIGIN = ("cluster", "broker")


def run(
    invocation: Invocation,
    stores: tuple[Path, ...],
    *,
    brokers: tuple[str, ...],
    follow: bool,
    take_over: bool,
    standby: bool,
    new_tier: bool,
    as_json: bool,
) -> int:
    """Copy every message in the stores into the tier."""
    words = StartWords(standby, new_tier)
    if len(stores) > 1:
        return _run_several(
            invocation, stores, brokers, words, follow=follow, take_over=take_over, as_json=as_json
        )
    if brokers:
        raise ConfigError("--broker is for several stores: give brokerName of the only one")
    config = replace(invocation.load_config(), start=words)
    if follow:
        config = config.serving()
    clock, registry = SystemClock(), CollectorRegistry()
    server = ServerBeside.of(config, clock) if follow else None
    console = console_beside([config], clock) if follow else None
    follower = Follower(
        lambda: config,
        stores[0] if stores else configured_store(config),
        take_over=take_over,
        serves=follow,
        clock=clock,
        counted=registry,
        further=partial(unready_reason, [server, console]),
    )
    beside = beside_of(server, console, registry)
    is_live = follow and invocation.log_format == TEXT
    tiering = _follow(follower, config, beside, is_live=is_live) if follow else tier_once(follower)
    ended = asyncio.run(tiering)
    _print(COLUMNS, map(cells_of, ended.topics), map(row_of, ended.topics), as_json=as_json)
    if ended.hindrance:
        invocation.say(f"{ended.hindrance}; the next start continues there", UNAVAILABLE)
    return ended.status


async def _follow(
    opened: Follower, config: Config, beside: Sequence[Worker], *, is_live: bool
) -> RunOutcome:
    stop, task = asyncio.Event(), asyncio.current_task()
    assert task is not None, "a command is a task"
    stands_by = config.start.stands_by

    def end() -> None:
        stop.set()
        if stands_by:  # the wait for the owner's end has none of its own
            task.cancel()

    EndingSignals(end)
    answer_watchdog()
    try:
        async with opened as follower:
            stands_by = False
            return await follow_until(stop, follower, config, beside, is_live=is_live)
    except asyncio.CancelledError:
        if not (stands_by and stop.is_set()):
            raise
        task.uncancel()
        return NOTHING_DONE


def _run_several(
    invocation: Invocation,
    stores: Sequence[Path],
    brokers: Sequence[str],
    words: StartWords,
    *,
    follow: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    clock = SystemClock()
    given = brokers_of(invocation, stores, brokers)
    configs = [(replace(one, start=words), store) for one, store in given]
    if follow:
        configs = [(one.serving(), store) for one, store in configs]
    runs = [StoreRun(one, store, clock=clock, take_over=take_over) for one, store in configs]
    if follow:
        asyncio.run(follow_all(runs, clock))
    else:
        tier_each(runs)
    topics = [(run, topic) for run in runs if run.outcome for topic in run.outcome.topics]
    _print(
        (*ORIGIN, *COLUMNS),
        ((run.config.cluster, run.config.broker, *cells_of(topic)) for run, topic in topics),
        (
            {"cluster": run.config.cluster, "broker": run.config.broker, **row_of(topic)}
            for run, topic in topics
        ),
        as_json=as_json,
    )
    for run in runs:
        if run.outcome and run.outcome.hindrance:
            sentence = f"{run}: {run.outcome.hindrance}; the next start continues there"
            invocation.say(sentence, UNAVAILABLE)
    return max(run.status for run in runs)


def _print(
    columns: Sequence[str], cells: Iterable[Sequence[str]], rows: Iterable[Row], *, as_json: bool
) -> None:
    try:
        if as_json:
            write_json(rows)
        else:
            write_table(columns, cells, numbers=NUMBERS)
    except OSError as error:
        if error.errno not in GONE:
            raise
        give_up_output()
