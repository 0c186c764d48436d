"""Topics as rows, and their table on the terminal while `tier --follow` or `run` runs."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dispatcher.statistics import DispatchStatistics
from provider.clock import Clock, SystemClock
from tieredstore.cli.output import BETWEEN, Row, table_of
from tieredstore.config.effective import Config
from tieredstore.lifetime import running
from tieredstore.metrics.summary import TopicSummary, counted
from tieredstore.session.report import LOOK_S_MIN, LOOK_SHARE_MAX
from tieredstore.texts import count_text, printable, size_text

COLUMNS = ("topic", "queues", "messages", "new", "size", "behind", "lost")
NUMBERS = frozenset(COLUMNS[1:])


def cells_of(topic: TopicSummary) -> tuple[str, ...]:
    """Return the cells of a row. Counts that should be zero are left out if they are."""
    return (
        topic.topic,
        str(topic.queues),
        count_text(topic.messages),
        count_text(topic.messages_new),
        size_text(topic.bytes),
        count_text(topic.behind) if topic.behind else "",
        count_text(topic.lost) if topic.lost else "",
    )


def row_of(topic: TopicSummary) -> Row:
    """The same with all that `--json` prints."""
    return {
        "topic": topic.topic,
        "queues": topic.queues,
        "messages": topic.messages,
        "messages_new": topic.messages_new,
        "commit_log_bytes": topic.bytes,
        "commit_log_bytes_new": topic.bytes_new,
        "behind": topic.behind,
        "lost": topic.lost,
        "over": [
            {"queue_id": queue, "state": state, "reason": reason}
            for queue, state, reason in topic.over
        ],
    }


AROUND_LINES = 9
"""Lines of a screen that topics do not get: what is above and below them, and a log line."""
NARROW = {"queues": 80, "size": 70, "new": 58}
"""The width of a terminal, in columns, below which a column is left out."""
TOPIC_WIDTH_MIN = 8
RATE_LOOKS = 10
"""Samples over which the rate is taken."""


class Watched(Protocol):
    """Source of tiering progress: a follower, or a store of our own."""

    def statistics(self) -> DispatchStatistics:
        """Return the progress of tiering."""
        ...

    def topics(self) -> list[TopicSummary]:
        """The rows."""
        ...


@asynccontextmanager
async def live_table(follower: Watched, config: Config, *, is_live: bool) -> AsyncGenerator[None]:
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


async def _show(live: Live, follower: Watched, title: str, clock: Clock) -> None:
    rate = Rate()
    while True:
        began_s = clock.monotonic_s()
        statistics = follower.statistics()
        rate.add(began_s, statistics.messages)
        width, height = live.console.size
        rows, more = listed(follower.topics(), max(1, height - AROUND_LINES))
        columns = columns_for(width, are_lost=any(one.lost for one in rows))
        cells = [[cells_of(one)[COLUMNS.index(name)] for name in columns] for one in rows]
        cells = cut_off(columns, cells, width)
        screen = Group(
            _line(title),
            _line(head_of(statistics, rate.per_second)),
            table_of(columns, cells, NUMBERS),
            _line(f"{more}Ctrl-C commits what is waiting and ends"),
        )
        took_s = clock.monotonic_s() - began_s
        try:
            await asyncio.to_thread(live.update, screen, refresh=True)
        except (OSError, ValueError):
            return  # the terminal is gone, or cannot show this: tiering continues
        await clock.sleep(max(LOOK_S_MIN, took_s / LOOK_SHARE_MAX))


class Rate:
    """Messages a second over the last samples."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_LOOKS)

    def add(self, now_s: float, messages: int) -> None:
        """Take a sample."""
        self._looks.append((now_s, messages))

    @property
    def per_second(self) -> float:
        """The rate; 0 with fewer than two samples."""
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


def _line(text: str) -> Text:
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def columns_for(width: int, *, are_lost: bool) -> list[str]:
    """The columns that fit beside topics of some length; "lost" where something is. Pure."""
    dropped = {name for name, width_min in NARROW.items() if width < width_min}
    if not are_lost:
        dropped.add("lost")
    return [name for name in COLUMNS if name not in dropped]


def cut_off(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The rows with topics short enough for one line each beside their numbers. Pure."""
    numbers = range(1, len(columns))
    taken = sum(
        max(len(columns[place]), *(len(row[place]) for row in rows), 0) + BETWEEN
        for place in numbers
    )
    room = max(TOPIC_WIDTH_MIN, width - taken - BETWEEN)
    return [[_cut(printable(row[0]), room), *row[1:]] for row in rows]


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else f"{set_cell_size(text, room - 1).rstrip()}…"


def head_of(statistics: DispatchStatistics, per_second: float) -> str:
    """Line with progress, backlog, and the rate or the time until something is committed. Pure."""
    parts = [f"{counted(statistics.messages, 'message')} tiered"]
    if statistics.behind:
        oldest = f"the oldest for {statistics.oldest_age_s:,.0f} s"
        parts.append(f"{count_text(statistics.behind)} behind, {oldest}")
    else:
        parts.append("up to date")
    if per_second < 1 and statistics.next_commit_s >= 1:  # in an object store, most of the time
        parts.insert(1, f"next commit in {statistics.next_commit_s:,.0f} s")
    else:
        parts.append(f"{per_second:,.0f} a second")
    if statistics.behind and per_second >= 1:
        parts.append(f"{_duration(statistics.behind / per_second)} to go")
    return " · ".join(parts)


def listed(topics: Sequence[TopicSummary], rows_max: int) -> tuple[list[TopicSummary], str]:
    """The topics that fit, the most urgent first, and a sentence on the others. Pure."""
    order = sorted(topics, key=lambda one: (not one.over, -one.behind, -one.messages_new))
    shown = sorted(order[:rows_max], key=lambda one: one.topic)
    more = len(topics) - len(shown)
    return shown, f"and {counted(more, 'more topic')}; " if more else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
