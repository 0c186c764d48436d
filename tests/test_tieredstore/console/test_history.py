"""Lag over time: bounds of the samples, the lines of pages, and the task that samples."""

import asyncio
import logging
import re
from collections.abc import Sequence
from http.client import BadStatusLine
from pathlib import Path
from typing import cast

import pytest

from container.names.rocketmq import INT64_MAX
from provider.errors import Unavailable
from provider.testing.manual_clock import ManualClock
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.patience import Patience, until
from tests.test_tieredstore.console.test_pages import SCRIPT
from tieredstore.config.effective import Config
from tieredstore.console import history as of_history
from tieredstore.console.history import (
    GAP_S,
    INTERVAL_S,
    NAME_LENGTH_MAX,
    SAMPLES,
    WINDOW_S,
    LagHistory,
    Sample,
    SeriesKey,
    line_of,
    sample_lags,
)
from tieredstore.console.options import ConsoleOptions
from tieredstore.console.server import serving
from tieredstore.console.tiers import GroupLag, ShownTier, TierName

TIER: TierName = ("C", "b")


def lag(group: str, count: int, topic: str = "T") -> GroupLag:
    """A group in a topic of one queue."""
    return GroupLag(group, topic, 1, count)


def recorded(history: LagHistory, *rounds: list[GroupLag], tiering: Sequence[int] = ()) -> float:
    """Record samples, one each interval from 0 on, and return the time of the last one."""
    for number, groups in enumerate(rounds):
        behind = {TIER: tiering[number]} if tiering else {}
        history.record(number * INTERVAL_S, history.round_of({TIER: groups}, behind))
    return (len(rounds) - 1) * INTERVAL_S


def points_of(path: str) -> list[tuple[str, int, int]]:
    """Points of a path, with the command of each."""
    found = re.findall(r"([ML])(\d+) (\d+)", path)
    return [(command, int(x), int(y)) for command, x, y in found]


def test_a_line_has_the_samples_of_the_window_and_the_lag_of_now() -> None:
    history = LagHistory()
    now_s = recorded(history, *([lag("G", count)] for count in range(2 * SAMPLES)))
    line = history.line(TIER, now_s + 1, lag("G", 37))
    assert line is not None
    points = points_of(line.path)
    assert len(points) == SAMPLES + 1
    assert [command for command, _, _ in points] == ["M"] + ["L"] * (len(points) - 1)
    assert (points[0][1], points[-1][1]) == (1, 240)
    assert line.text.endswith(" messages in the last 2 h, now 37")
    assert (line.low, line.high) == (37, 2 * SAMPLES - 1)
    assert history.line(TIER, now_s + 2 * WINDOW_S, lag("G", 37)) is None


def test_no_sample_has_no_line_and_one_sample_is_a_dot() -> None:
    history = LagHistory()
    assert history.line(TIER, 0, lag("G", 1)) is None
    recorded(history, [])
    assert (len(history), history.left_out(TIER)) == (0, 0)
    recorded(history, [lag("G", 0)])
    line = history.line(TIER, 0, lag("G", 0))
    assert line is not None
    assert line.path.startswith("M240 30h0")
    assert line.text == "lag of G at T: now 0 messages"
    line = history.line(TIER, 8, lag("G", 1200))
    assert line is not None
    assert line.text == "lag of G at T: 0 to 1,200 messages in the last 8 s, now 1,200"
    assert history.line(("C", "other"), 0, lag("G", 0)) is None


def test_a_group_that_vanishes_and_comes_again_has_a_gap() -> None:
    history = LagHistory()
    now_s = recorded(history, [lag("G", 4)], [lag("G", 4)], [], [lag("G", 4)], [lag("G", 4)])
    line = history.line(TIER, now_s, lag("G", 4))
    assert line is not None
    assert [command for command, _, _ in points_of(line.path)] == ["M", "L", "M", "L", "L"]
    history.record(now_s + WINDOW_S + 1, history.round_of({TIER: []}, {}))
    assert len(history) == 0
    far = [Sample(0, 1), Sample(GAP_S, 1)]
    assert [command for command, _, _ in points_of(line_of("lag", far).path)] == ["M", "M"]


def test_the_largest_lags_of_the_window_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_history, "SERIES_MAX", 2)
    history = LagHistory()
    recorded(history, [lag("A", 5), lag("B", 5), lag("C", 4)])
    assert history.left_out(TIER) == 1
    now_s = recorded(history, [], [lag("A", 5), lag("B", 0), lag("C", 5), lag("D", 6)])
    assert history.line(TIER, now_s, lag("C", 5)) is None, "of equal ones, those with samples stay"
    assert history.line(TIER, now_s, lag("D", 6)) is not None
    assert history.left_out(TIER) == 2
    other = ("C", "other")
    history.record(
        now_s + 1, history.round_of({other: [lag("Z", 9), lag("Y", 9), lag("X", 1)]}, {})
    )
    assert (history.left_out(other), len(history)) == (1, 2), "the bound is of all tiers"


def test_hostile_values_stay_in_bounds() -> None:
    history, long = LagHistory(), "g" * (NAME_LENGTH_MAX + 1)
    recorded(history, [lag(long, 1), lag(SCRIPT, 1 << 70)])
    assert list(history._series) == [SeriesKey(TIER, SCRIPT, "T")]
    assert history.left_out(TIER) == 1
    line = history.line(TIER, 1, lag(SCRIPT, 0))
    assert line is not None
    assert "\u202e" not in line.text
    assert "\x1b" not in line.text
    assert re.fullmatch(r"[MLh\d ]+", line.path)


class FailingTier:
    """Tier whose groups are read, or fail with the next error."""

    config = Config.named("tier", "C", "b", None, {})

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []
        self.trouble = ""

    async def groups(self) -> list[GroupLag]:
        """Raise the next error, or return one group."""
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return [lag("G", 1)]


async def test_a_sample_that_fails_is_left_out_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tier, other, history, clock = FailingTier(), FailingTier(), LagHistory(), ManualClock()
    away = Unavailable("the storage is away", "tier")
    tier.errors = [None, away, away, RuntimeError(), None]
    tiers = cast("dict[tuple[str, str], ShownTier]", {TIER: tier, ("C", "other"): other})
    sampler = asyncio.create_task(sample_lags(tiers, history, clock))
    for number in range(6):
        await until(lambda: clock.sleeping == 1, Patience("nothing is sampled"))
        if number == 4:
            other.trouble = "newer messages are not shown"
        if number < 5:
            await clock.advance(INTERVAL_S)
    counts = {key.tier: len(one) for key, one in history._series.items()}
    assert counts == {TIER: 3, ("C", "other"): 5}
    texts = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.partition("not sampled: ")[2] for one in texts] == [
        "the storage is away (tier)", "RuntimeError", "newer messages are not shown",
    ]  # fmt: skip
    sampler.cancel()
    await asyncio.gather(sampler, return_exceptions=True)
    assert not clock.sleeping


def test_tiering_has_a_line_while_its_process_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_history, "SERIES_MAX", 2)
    history = LagHistory()
    assert history.tiering_line(TIER, 0) is None
    groups = [lag("A", 50), lag("B", 60), lag("", 70)]
    now_s = recorded(history, groups, groups, groups, tiering=(0, 40, 2))
    line = history.tiering_line(TIER, now_s + 1)
    assert line is not None, "it has its line before any group"
    assert (line.low, line.high, line.newest) == (0, 40, 2)
    assert line.text == "not tiered: 0 to 40 messages in the last 1 min, now 2"
    assert history.left_out(TIER) == 2
    assert history.tiering_line(TIER, now_s + GAP_S) is None, "nothing is known of now"


async def test_the_lag_of_tiering_is_sampled_also_in_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def page_of(config: Config) -> str:
        asked.append(config.metrics_port)
        if config.metrics_port == 2:
            raise BadStatusLine("")
        rows = [
            f'rocketmq_tiered_store_dispatch_behind{{cluster="C",node_id="{broker}"}} {lag}'
            for broker, lag in (("b", 7), ("c", 1 << 70))
        ]
        return "\n".join(rows)

    monkeypatch.setattr("tieredstore.console.tiers.metrics_page", page_of)
    history, clock = LagHistory(), ManualClock()
    tiers: dict[tuple[str, str], FailingTier] = {}
    for broker, port in (("b", 1), ("c", 1), ("d", 2), ("e", 0)):
        tiers["C", broker] = tier = FailingTier()
        settings = {"tieredStoreMetricsPort": port}
        tier.config = Config.named("/tier", "C", broker, None, settings)
        tier.trouble = "the storage is away"
    given = cast("dict[tuple[str, str], ShownTier]", tiers)
    sampler = asyncio.create_task(sample_lags(given, history, clock))
    await until(lambda: clock.sleeping == 1, Patience("nothing is sampled"))
    assert sorted(asked) == [1, 2], "each process is asked once"
    lines = [history.tiering_line(name, clock.monotonic_s()) for name in tiers]
    assert [line and line.newest for line in lines] == [7, INT64_MAX, None, None]
    sampler.cancel()
    await asyncio.gather(sampler, return_exceptions=True)


async def test_the_sampler_ends_with_the_console(tmp_path: Path) -> None:
    broker, clock = FakeBroker(tmp_path / "store"), ManualClock()
    broker.put("T", 0)
    names = ("-D", "brokerClusterName=C", "-D", "brokerName=b")
    run(*names, "--tier", tmp_path / "tier", "tier", broker.directory)
    config, before = Config.named(tmp_path / "tier", "C", "b", None, {}), asyncio.all_tasks()
    async with serving([config], ConsoleOptions("127.0.0.1", 0), clock):
        await until(lambda: clock.sleeping == 1, Patience("nothing is sampled"))
        assert len(asyncio.all_tasks() - before) > 1
    assert asyncio.all_tasks() == before
    assert not clock.sleeping
