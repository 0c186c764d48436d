"""Runs a follower for `tieredstore tier`, and keeps the outcome."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from dispatcher.ports import HALTED
from dispatcher.statistics import DispatchStatistics, Progress
from provider.clock import SystemClock
from tieredstore.cli.live_table import live_table
from tieredstore.cli.output import Show, progress_bar
from tieredstore.cli.signals import EndingSignals, Signalled, answer_watchdog
from tieredstore.cli.streams import FINDINGS, UNAVAILABLE
from tieredstore.config.effective import Config
from tieredstore.follower import Follower
from tieredstore.lifetime import Worker, keep_opened, running
from tieredstore.metrics.reads import ReadMeter
from tieredstore.metrics.summary import TopicSummary, counted
from tieredstore.serve.beside import ServerBeside
from tieredstore.texts import count_text, size_text

if TYPE_CHECKING:
    from tieredstore.console.server import ConsoleBeside

LOGGER = logging.getLogger("tieredstore.cli")


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

    @property
    def status(self) -> int:
        """Exit status of a command that ends like this."""
        if self.hindrance:
            return UNAVAILABLE
        is_broken = any(one.is_broken for one in self.topics)
        is_damaged = self.losses or self.bodies_damaged
        has_findings = self.troubles or is_damaged or is_broken or self.is_waiting
        return FINDINGS if has_findings else 0


NOTHING_DONE = RunOutcome([], (), 0, 0, "", is_waiting=False)
"""Of a standby that a signal ended."""


def beside_of(
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


async def tier_once(opened: Follower) -> RunOutcome:
    """Tier what the store has now.

    Raises:
        Signalled: a signal ended it; with what was done until then.
    """
    task = asyncio.current_task()
    assert task is not None, "a command is a task"
    signals = EndingSignals(task.cancel)
    answer_watchdog()
    done = ""
    try:
        async with opened as follower:
            with progress_bar("tiering") as show:
                try:
                    await follower.drain(on_progress=_shown(show))
                finally:
                    done = _so_far(follower.statistics())
            return _outcome(follower, "", follow=False)
    except asyncio.CancelledError:
        if not signals.first:
            raise
        raise Signalled(signals.first, done) from None


async def follow_until(
    stop: asyncio.Event,
    follower: Follower,
    config: Config,
    beside: Sequence[Worker],
    *,
    is_live: bool,
) -> RunOutcome:
    """Follow with the workers of `beside` until `stop`. The follower is open."""
    keep_opened()
    async with live_table(follower, config, is_live=is_live), running(beside):
        hindrance = await _follow(follower, config, stop)
    return _outcome(follower, hindrance, follow=True)


def _outcome(follower: Follower, hindrance: str, *, follow: bool) -> RunOutcome:
    return RunOutcome(
        follower.topics(),
        follower.scan_statistics().troubles,
        len(follower.losses()),
        follower.scan_statistics().bodies_damaged,
        hindrance,
        any(one.waits_long or not follow for one in follower.statistics().waiting),
    )


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
