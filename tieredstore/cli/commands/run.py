"""`tieredstore run`: our own store as it is configured, until a signal ends it."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from provider.clock import SystemClock
from provider.errors import Closed, Unavailable
from tieredstore.cli.appending import Appending, GivenFields, InputLines, message_of_line
from tieredstore.cli.commands.put import line_bytes_max
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.live_table import COLUMNS, NUMBERS, cells_of, live_table, row_of
from tieredstore.cli.output import write_json, write_table
from tieredstore.cli.signals import EndingSignals, Signalled, answer_watchdog
from tieredstore.cli.streams import FINDINGS, TEXT, UNAVAILABLE
from tieredstore.cli.tier_run import hindrance_of
from tieredstore.config.effective import Config, StartWords
from tieredstore.console.options import console_beside
from tieredstore.lifetime import Worker, keep_opened, running
from tieredstore.metrics.families import Moment, Opening
from tieredstore.metrics.page import metrics_of, served_metrics
from tieredstore.metrics.summary import TopicSummary
from tieredstore.serve.beside import ServerBeside, unready_reason
from tieredstore.session.report import Reporter, log_owned, log_start
from tieredstore.session.tiering import TieringWatch
from tieredstore.store.configured import plan_store
from tieredstore.store.levels import Level
from tieredstore.store.plugins import PluginContext, StoreLayers, opened
from tieredstore.store.tiered import TieredMessageStore

if TYPE_CHECKING:
    from tieredstore.console.server import ConsoleBeside

LOGGER = logging.getLogger("tieredstore.cli")


@dataclass(slots=True)
class Running:
    """State of a run, and its outcome when the store is closed."""

    config: Config
    context: PluginContext
    layers: StoreLayers
    puts: bool
    is_live: bool
    server: ServerBeside | None
    """Server of RocketMQ clients; None: they are not served."""
    console: "ConsoleBeside | None" = None
    """Web console; None: it is not served."""
    watch: TieringWatch | None = None
    """None: nothing is tiered, or not yet."""
    away: str = ""
    """Why the tier could not be opened from the start to the end; "" if it was, or none is used."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = False
    silent: bool = False
    """The whole time of the stop passed, and nothing was committed in it."""

    def moment(self) -> Moment:
        """Sample the store for the metrics page."""
        if self.watch is None:
            awaited = None if self.layers.tiered is None else self.layers.tiered.awaited
            if awaited:
                raise Closed(f"the tier is away: {awaited}", str(self.context.root))
            raise Opening("the store is being opened", str(self.context.root))
        return self.watch.moment()


def run(
    invocation: Invocation,
    *,
    puts: bool,
    take_over: bool,
    standby: bool,
    new_tier: bool,
    as_json: bool,
) -> int:
    """Run the configured store in storePathRootDir until SIGINT, SIGTERM or SIGHUP."""
    words = StartWords(standby, new_tier)
    config = replace(invocation.load_config().serving(), start=words)
    context, layers = plan_store(config, clock=SystemClock(), take_over=take_over)
    if layers.tiered is None:
        LOGGER.warning("nothing is tiered: messageStorePlugIn names no TieredMessageStore")
    else:
        log_start(config, context.root)
    server = None if layers.tiered is None else ServerBeside.of(config, context.clock)
    is_live = invocation.log_format == TEXT and not puts
    console = None if layers.tiered is None else console_beside([config], context.clock)
    run = Running(config, context, layers, puts, is_live, server, console)
    error = _error_of_end(run)
    if run.away:
        reason = f"what was put is not in the tier, which was away since the start: {run.away}"
        invocation.say(f"{reason}; the next start continues there", UNAVAILABLE)
        return UNAVAILABLE
    if run.watch is None:
        return 0
    topics = run.watch.topics()
    if not puts:
        _print(topics, as_json=as_json)
    hindrance = hindrance_of(run.watch.statistics(), silent=run.silent, error=error)
    if hindrance:
        invocation.say(f"{hindrance}; the next start continues there", UNAVAILABLE)
        return UNAVAILABLE
    is_broken = any(one.is_broken for one in topics)
    return FINDINGS if run.watch.troubles() or run.watch.losses() or is_broken else 0


def _error_of_end(run: Running) -> str:
    """Keep the store open; the error of a tier that failed at the end with a backlog, or "".

    Raises:
        StoreError: any other failure.
    """
    try:
        asyncio.run(_run(run))
    except Unavailable as error:
        if run.watch and hindrance_of(run.watch.statistics(), silent=False, error=str(error)):
            return str(error)
        raise
    return ""


def _print(topics: Sequence[TopicSummary], *, as_json: bool) -> None:
    with suppress(OSError):  # the output has no reader any more, such as a closed terminal
        if as_json:
            write_json(map(row_of, topics))
        else:
            write_table(COLUMNS, map(cells_of, topics), numbers=NUMBERS)


async def _run(run: Running) -> None:
    task = asyncio.current_task()
    assert task is not None, "a command is a task"
    signals = EndingSignals(lambda: run.stop.set() if run.is_open else task.cancel())
    answer_watchdog()
    clock = run.context.clock
    stopped_s, rounds = 0.0, 0
    try:
        async with _metrics(run), opened(run.context, run.layers):
            run.is_open = True
            async with _watched(run):
                await _until_stopped(run)
            stopped_s, rounds = clock.monotonic_s(), _rounds(run)
    except asyncio.CancelledError:
        if not signals.first:
            raise
        if not run.config.start.stands_by:
            raise Signalled(signals.first) from None
        task.uncancel()  # as `tier --follow --standby`: nothing was waiting
        return
    took_s, most_s = clock.monotonic_s() - stopped_s, run.config.dispatch.close_s_max
    run.silent = 0 < most_s <= took_s and rounds == _rounds(run)
    LOGGER.info("the store is closed")


@asynccontextmanager
async def _metrics(run: Running) -> AsyncGenerator[None]:
    """Serve the page from before the tier is taken, where something is tiered."""
    tiered = run.layers.tiered
    if tiered is None:
        yield
        return
    further = partial(unready_reason, [run.server, run.console])
    if run.server is not None:
        run.context.registry.register(run.server)
    registry = metrics_of(run.config, run.moment, run.context.registry)
    async with served_metrics(run.config, run.moment, registry, further=further):
        yield


@asynccontextmanager
async def _watched(run: Running) -> AsyncGenerator[None]:
    """Report how tiering goes, in the log and on a terminal, from when the tier is open."""
    tiered = run.layers.tiered
    if tiered is None or tiered.level is Level.DISABLE:
        if tiered is not None:
            LOGGER.warning("nothing is tiered: tieredStorageLevel is DISABLE")
        yield
        return
    async with running([partial(_watch, run, tiered)]):
        yield
    if run.watch is None and tiered.awaited is not None:
        run.away = str(tiered.awaited)


async def _watch(run: Running, tiered: TieredMessageStore) -> None:
    cold = await tiered.wait_for_tier()
    run.watch = watch = cold.watch(run.context.clock)
    log_owned(cold.tier.state)
    keep_opened()
    reporter = Reporter(watch.look, run.context.clock)
    beside = list[Worker]()
    if run.server is not None:
        beside.append(partial(run.server.run, tiered.meter))
    if run.console is not None:
        beside.append(run.console.run)
    async with live_table(watch, run.config, is_live=run.is_live), running(beside):
        await reporter.run()


async def _until_stopped(run: Running) -> None:
    """Append the input, if wanted, until a signal. Input read by then is appended."""
    if run.puts:
        bytes_max = line_bytes_max(run.config, as_json=True)
        lines = InputLines(sys.stdin.fileno(), line_bytes_max=bytes_max)
        ended = asyncio.Event()
        async with running([partial(_put_lines, run, lines, ended)]):
            await run.stop.wait()
            lines.end()
            await ended.wait()
    else:
        await run.stop.wait()
    LOGGER.info(
        "stopping: what waits is tiered, for at most %g s; a second signal ends at once",
        run.config.dispatch.close_s_max,
    )


async def _put_lines(run: Running, lines: InputLines, ended: asyncio.Event) -> None:
    decode = partial(message_of_line, given=GivenFields())
    appending = Appending(run.layers.outermost, decode, as_json=True, goes_on=True)
    try:
        await appending.append_lines(lines)
    finally:
        LOGGER.info("standard input ended: %s", appending.done)
        ended.set()


def _rounds(run: Running) -> int:
    return 0 if run.watch is None else run.watch.statistics().rounds
