"""`tieredstore tier`: copies a store directory into the tier, once or continuously."""

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from dispatcher.ports import HALTED
from dispatcher.statistics import DispatchStatistics, Progress
from provider.clock import SystemClock
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.live_table import COLUMNS, NUMBERS, cells_of, live_table, row_of
from tieredstore.cli.output import Show, progress_bar, write_json, write_table
from tieredstore.cli.signals import EndingSignals, Signalled, answer_watchdog
from tieredstore.cli.streams import FINDINGS, TEXT, UNAVAILABLE, give_up_output
from tieredstore.config.effective import Config, StartWords
from tieredstore.config.sources import ConfigError
from tieredstore.console.options import console_beside
from tieredstore.follower import Follower
from tieredstore.lifetime import Worker, keep_opened, running
from tieredstore.metrics.reads import ReadMeter
from tieredstore.metrics.summary import TopicSummary, counted
from tieredstore.serve.beside import ServerBeside, unready_reason
from tieredstore.texts import count_text, size_text

if TYPE_CHECKING:
    from tieredstore.console.server import ConsoleBeside

GONE = frozenset({errno.EPIPE, errno.EIO})
"""Errors of an output without a reader, such as a closed terminal: the exit status still reports
the end of the run."""
LOGGER = logging.getLogger("tieredstore.cli")


def run(
    invocation: Invocation,
    store_dir: Path | None,
    *,
    follow: bool,
    take_over: bool,
    standby: bool,
    new_tier: bool,
    as_json: bool,
) -> int:
    """Copy every message in STORE_DIR into the tier."""
    config = replace(invocation.load_config(), start=StartWords(standby, new_tier))
    if follow:
        config = config.serving()
    clock, registry = SystemClock(), CollectorRegistry()
    server = ServerBeside.of(config, clock) if follow else None
    console = console_beside([config], clock) if follow else None
    follower = Follower(
        lambda: config,
        store_dir or _configured_store(config),
        take_over=take_over,
        serves=follow,
        clock=clock,
        counted=registry,
        further=partial(unready_reason, [server, console]),
    )
    beside = _beside(server, console, registry)
    is_live = follow and invocation.log_format == TEXT
    ended = asyncio.run(_run(follower, config, beside, follow=follow, is_live=is_live))
    try:
        if as_json:
            write_json(map(row_of, ended.topics))
        else:
            write_table(COLUMNS, map(cells_of, ended.topics), numbers=NUMBERS)
    except OSError as error:
        if error.errno not in GONE:
            raise
        give_up_output()
    if ended.hindrance:
        invocation.say(f"{ended.hindrance}; the next start continues there", UNAVAILABLE)
        return UNAVAILABLE
    is_broken = any(one.is_broken for one in ended.topics)
    is_damaged = ended.losses or ended.bodies_damaged
    return FINDINGS if ended.troubles or is_damaged or is_broken or ended.is_waiting else 0


def _configured_store(config: Config) -> Path:
    if not config.gives("storePathRootDir"):
        raise ConfigError(
            "the broker's store is not named: give STORE_DIR, or storePathRootDir in the file "
            "given to --conf"
        )
    return config.store_dir


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run."""

    topics: list[TopicSummary]
    """The outcome, topic by topic."""
    troubles: Sequence[str]
    """Parts of the store that could not be read."""
    losses: int
    """Gaps that are new."""
    bodies_damaged: int
    """Messages that rotted before they were tiered."""
    hindrance: str
    """Why a follower could not finish; see `hindrance_of`."""
    is_waiting: bool
    """Whether messages could not be tiered yet, without `--follow` or for long."""


def _beside(
    server: ServerBeside | None, console: "ConsoleBeside | None", registry: CollectorRegistry
) -> list[Worker]:
    """Workers beside tiering; the server's metrics join `registry`."""
    found = list[Worker]()
    if server is not None:
        registry.register(server)
        found.append(partial(server.run, ReadMeter(registry, SystemClock())))
    if console is not None:
        found.append(console.run)
    return found


async def _run(
    opened: Follower, config: Config, beside: Sequence[Worker], *, follow: bool, is_live: bool
) -> RunOutcome:
    """Tier once, or follow with the workers of `beside` until a signal."""
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None, "a command is a task"
    signals = EndingSignals(stop.set if follow else task.cancel)
    answer_watchdog()
    hindrance = ""
    done = ""
    try:
        async with opened as follower:
            if follow:
                keep_opened()
                async with live_table(follower, config, is_live=is_live), running(beside):
                    hindrance = await _follow(follower, config, stop)
            else:
                with progress_bar("tiering") as show:
                    try:
                        await follower.drain(on_progress=_shown(show))
                    finally:
                        done = _so_far(follower.statistics())
            return RunOutcome(
                follower.topics(),
                follower.scan_statistics().troubles,
                len(follower.losses()),
                follower.scan_statistics().bodies_damaged,
                hindrance,
                any(one.waits_long or not follow for one in follower.statistics().waiting),
            )
    except asyncio.CancelledError:
        if not signals.first:
            raise
        raise Signalled(signals.first, done) from None


def _so_far(statistics: DispatchStatistics) -> str:
    text = f"tiered {counted(statistics.messages, 'message')}"
    if not statistics.queues:  # the store is empty, or was not polled yet
        return text
    if not statistics.behind:
        return f"{text}, none is waiting"
    return f"{text}, {count_text(statistics.behind)} still waiting; the next start continues there"


async def _follow(follower: Follower, config: Config, stop: asyncio.Event) -> str:
    """Follow until `stop`; returns `hindrance_of` the end."""
    clock = SystemClock()
    # A stop may have come while the tier was opened: then stopping alone commits what is there.
    async with running(() if stop.is_set() else (follower.run,)):
        await stop.wait()
        LOGGER.info(
            "stopping: committing the backlog, for at most %g s; a second signal ends at once",
            config.dispatch.close_s_max,
        )
        rounds, stopped_s = follower.statistics().rounds, clock.monotonic_s()
        await follower.stop()
    statistics = follower.statistics()
    LOGGER.info("stopped: %s", _so_far(statistics))
    took_s = clock.monotonic_s() - stopped_s
    is_in_vain = 0 < config.dispatch.close_s_max <= took_s
    return hindrance_of(statistics, silent=is_in_vain and rounds == statistics.rounds)


def hindrance_of(statistics: DispatchStatistics, *, silent: bool, error: str = "") -> str:
    """Why a follower could not tier everything before it ended, and its backlog; "" if it could.

    Messages that the broker wrote meanwhile, or a backlog that was shrinking, are no hindrance.
    Storage that fails is one, and so is storage that was `silent` for the whole time of the stop,
    or an `error` of the tier that ended it.
    """
    if statistics.hot_error:
        return f"the backlog is unknown, for the store cannot be read: {statistics.hot_error}"
    late = [one for one in statistics.restless if one.behind and one.state not in HALTED]
    failing = statistics.outage or any(one.failures for one in late)
    if not late or not (failing or silent or error):
        return ""
    count = counted(sum(one.behind for one in late), "message")
    why = error or next(
        (one.reason for one in late if one.failures and one.reason), statistics.last_error
    )
    return f"{count} of {counted(len(late), 'queue')} are not in the tier: {why or 'no answer'}"


def _shown(show: Show | None) -> Callable[[Progress], None] | None:
    if show is None:
        return None

    def report(progress: Progress) -> None:
        counts = f"{count_text(progress.messages_done)} of {count_text(progress.messages_total)}"
        note = f"{counts} messages, {size_text(progress.bytes_done)}"
        show(progress.messages_done, progress.messages_total, note)

    return report
