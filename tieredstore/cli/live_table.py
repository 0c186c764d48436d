"""A table of the topics on the terminal while `tier --follow` runs."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dispatcher.statistics import DispatchStatistics
from provider.clock import Clock, SystemClock
from tieredstore.cli.output import count_text, table_of
from tieredstore.cli.printable import printable
from tieredstore.cli.topic_rows import COLUMNS, NUMBERS, cells_of
from tieredstore.config.effective import Config
from tieredstore.follower import Follower
from tieredstore.lifetime import running
from tieredstore.report import LOOK_S_MIN, LOOK_SHARE_MAX
from tieredstore.summary import TopicSummary, counted

AROUND_LINES = 8
"""Lines of a screen that topics do not get: what is above and below them, and a log line."""
RATE_LOOKS = 10
"""Looks over which the rate is taken."""


@asynccontextmanager
async def live_table(follower: Follower, config: Config, *, is_live: bool) -> AsyncGenerator[None]:
    """Show where `follower` stands, if `is_live` and standard error is a terminal.

    What is logged meanwhile appears above the table. The terminal is written in a thread: one that
    is held (Ctrl-S) or gone does not hold up tiering.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not is_live or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield
        return
    live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
    title = f"{config.broker} of cluster {config.cluster}"
    with suppress(OSError):
        live.start()
    try:
        async with running([partial(_show, live, follower, title, SystemClock())]):
            yield
    finally:
        with suppress(OSError):
            live.stop()


async def _show(live: Live, follower: Follower, title: str, clock: Clock) -> None:
    rate = Rate()
    while True:
        began_s = clock.monotonic_s()
        statistics = follower.statistics()
        rate.add(began_s, statistics.messages)
        height = live.console.height - AROUND_LINES
        head = head_of(title, statistics, rate.per_second)
        rows, more = listed(follower.topics(), max(1, height))
        screen = Group(
            Text(printable(head), overflow="fold"),
            table_of(COLUMNS, list(map(cells_of, rows)), NUMBERS),
            Text(f"{more}Ctrl-C commits what is waiting and ends"),
        )
        took_s = clock.monotonic_s() - began_s
        try:
            await asyncio.to_thread(live.update, screen, refresh=True)
        except OSError:
            return  # the terminal is gone
        await clock.sleep(max(LOOK_S_MIN, took_s / LOOK_SHARE_MAX))


class Rate:
    """Messages a second over the last looks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_LOOKS)

    def add(self, now_s: float, messages: int) -> None:
        """Take one look."""
        self._looks.append((now_s, messages))

    @property
    def per_second(self) -> float:
        """The rate; 0 with fewer than two looks."""
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


def head_of(title: str, statistics: DispatchStatistics, per_second: float) -> str:
    """The line above the table. Pure."""
    said = [title, f"{counted(statistics.messages, 'message')} tiered"]
    if statistics.behind:
        oldest = f"the oldest for {statistics.oldest_age_s:,.0f} s"
        said.append(f"{count_text(statistics.behind)} behind, {oldest}")
    else:
        said.append("up to date")
    said.append(f"{per_second:,.0f} a second")
    if statistics.behind and per_second >= 1:
        said.append(f"{_duration(statistics.behind / per_second)} to go")
    return " · ".join(said)


def listed(topics: Sequence[TopicSummary], rows_max: int) -> tuple[list[TopicSummary], str]:
    """The topics that fit, those first that need a look; and a sentence on the others. Pure."""
    order = sorted(topics, key=lambda one: (not one.over, -one.behind, -one.messages_new))
    shown = sorted(order[:rows_max], key=lambda one: one.topic)
    more = len(topics) - len(shown)
    return shown, f"and {counted(more, 'more topic')}; " if more else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
