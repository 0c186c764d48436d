"""Lag of consumer groups and of tiering over time: samples, and the lines that pages draw."""

import asyncio
import heapq
import logging
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from container.names.rocketmq import INT64_MAX
from provider.clock import Clock
from tieredstore.console.tiers import GroupLag, ShownTier, TierName, tiering_lags
from tieredstore.texts import count_text, escaped

LOGGER = logging.getLogger("tieredstore.console")
INTERVAL_S = 30.0
SAMPLES = 240
WINDOW_S = INTERVAL_S * SAMPLES
GAP_S = 2 * INTERVAL_S
"""Time between two samples from which on no line connects them."""
SERIES_MAX = 1000
NAME_LENGTH_MAX = 255
"""Characters of the name of a group that is sampled."""
WIDTH, HEIGHT, MARGIN = 240, 32, 2
"""Size of a line's picture, and the part of it beside the highest and the lowest lag."""
BOX = f"0 0 {WIDTH} {HEIGHT}"


class SeriesKey(NamedTuple):
    """Consumer group in one topic of a tier; without both names, the tiering of a broker."""

    tier: TierName
    group: str
    topic: str


class Sample(NamedTuple):
    """Lag at a monotonic time."""

    at_s: float
    lag: int


class Round(NamedTuple):
    """Sample of all tiers that answered, of the kept series alone."""

    kept: set[SeriesKey]
    """Series that the history has from now on."""
    lags: dict[SeriesKey, int]
    left_out: dict[TierName, int]


class LagLine(NamedTuple):
    """Line of a group's or broker's lag."""

    path: str
    """Data of an SVG path in `BOX`."""
    low: int
    high: int
    newest: int
    text: str
    """The line in words."""


class Series:
    """Samples of a group in a topic or of a broker: the newest `SAMPLES` of the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._times_s = array("d")
        self._lags = array("q")

    def __len__(self) -> int:
        return len(self._lags)

    @property
    def high(self) -> int:
        """Highest lag. 0 without a sample."""
        return max(self._lags, default=0)

    def add(self, sample: Sample) -> None:
        """Add the newest sample."""
        self._times_s.append(sample.at_s)
        self._lags.append(min(sample.lag, INT64_MAX))
        if len(self) > SAMPLES:
            self._drop_oldest()

    def expire(self, now_s: float) -> None:
        """Drop samples before the window."""
        while self._times_s and self._times_s[0] < now_s - WINDOW_S:
            self._drop_oldest()

    def since(self, start_s: float) -> list[Sample]:
        """Return the samples from a time on, in order."""
        pairs = zip(self._times_s, self._lags, strict=True)
        return [Sample(at_s, lag) for at_s, lag in pairs if at_s >= start_s]

    def _drop_oldest(self) -> None:
        del self._times_s[0], self._lags[0]


class LagHistory:
    """Samples of all tiers of a console: of tiering, and of the groups with the largest lags.

    It has at most `SERIES_MAX` series of `SAMPLES` samples of 16 bytes, with an eighth more that
    arrays reserve, names of 4 bytes a character, and 1 KiB of objects a series:
    SERIES_MAX * (SAMPLES * 16 * 9 / 8 + 2 * NAME_LENGTH_MAX * 4 + 1,024) bytes, 7.4 MB.
    """

    def __init__(self) -> None:
        self._series: dict[SeriesKey, Series] = {}
        self._left_out: dict[TierName, int] = {}

    def __len__(self) -> int:
        return len(self._series)

    def left_out(self, tier: TierName) -> int:
        """Groups in topics that the last sample of a tier left out."""
        return self._left_out.get(tier, 0)

    def round_of(
        self, found: Mapping[TierName, Sequence[GroupLag]], tiering: Mapping[TierName, int]
    ) -> Round:
        """Choose what a sample keeps, without a change. O(groups, and all samples)."""
        present = {
            SeriesKey(tier, one.group, one.topic): one.lag
            for tier, groups in found.items()
            for one in groups
            if len(one.group) <= NAME_LENGTH_MAX
        } | {SeriesKey(tier, "", ""): lag for tier, lag in tiering.items()}
        highest = {key: one.high for key, one in self._series.items()}
        for key, lag in present.items():
            highest[key] = max(lag, highest.get(key, 0))
        kept = kept_of(highest, self._series)
        lags = {key: present[key] for key in present.keys() & kept}
        sampled = Counter(key.tier for key in lags if key.topic)
        left_out = {tier: len(groups) - sampled[tier] for tier, groups in found.items()}
        return Round(kept, lags, left_out)

    def record(self, now_s: float, chosen: Round) -> None:
        """Add a sample of each tier that answered. O(`SERIES_MAX`)."""
        self._series = {key: self._series.get(key) or Series() for key in chosen.kept}
        for key, lag in chosen.lags.items():
            self._series[key].add(Sample(now_s, lag))
        for series in self._series.values():
            series.expire(now_s)
        self._series = {key: one for key, one in self._series.items() if len(one)}
        self._left_out |= chosen.left_out

    def line(self, tier: TierName, now_s: float, row: GroupLag) -> LagLine | None:
        """Draw the lag of a group until now, which `row` has. None without a sample."""
        series = self._series.get(SeriesKey(tier, row.group, row.topic))
        samples = series.since(now_s - WINDOW_S) if series is not None else []
        words = f"lag of {escaped(row.group)} at {escaped(row.topic)}"
        return line_of(words, [*samples, Sample(now_s, row.lag)]) if samples else None

    def tiering_line(self, tier: TierName, now_s: float) -> LagLine | None:
        """Draw the lag of the tiering of a broker. None if no sample is younger than `GAP_S`."""
        series = self._series.get(SeriesKey(tier, "", ""))
        samples = series.since(now_s - WINDOW_S) if series is not None else []
        if not samples or now_s - samples[-1].at_s >= GAP_S:
            return None
        return line_of("not tiered", samples)


def kept_of(highest: Mapping[SeriesKey, int], known: Mapping[SeriesKey, object]) -> set[SeriesKey]:
    """Choose the series of tiering, then those with the largest lags. Pure.

    Of equal ones, those that have samples.
    """
    if len(highest) <= SERIES_MAX:
        return set(highest)

    def rank(key: SeriesKey) -> tuple[bool, int, bool]:
        return not key.topic, highest[key], key in known

    return set(heapq.nlargest(SERIES_MAX, highest, key=rank))


def line_of(words: str, samples: Sequence[Sample]) -> LagLine:
    """Draw samples until the time of the last one; `words` say what they count. Pure."""
    now_s, newest = samples[-1]
    low, high = min(one.lag for one in samples), max(one.lag for one in samples)
    parts = list[str]()
    for before, one in pairwise([Sample(-math.inf, 0), *samples]):
        x = max(0, round(WIDTH * (1 - (now_s - one.at_s) / WINDOW_S)))
        rise = one.lag / high if high else 0
        y = round(HEIGHT - MARGIN - rise * (HEIGHT - 2 * MARGIN))
        is_next = one.at_s - before.at_s < GAP_S
        parts.append(f"L{x} {y}" if is_next else f"M{x} {y}h0")  # h0: a dot if nothing follows
    span_s = now_s - samples[0].at_s
    if span_s < 1:
        text = f"{words}: now {count_text(newest)} messages"
    else:
        text = (
            f"{words}: {count_text(low)} to {count_text(high)} messages in the last "
            f"{_span_text(span_s)}, now {count_text(newest)}"
        )
    return LagLine("".join(parts), low, high, newest, text)


def _span_text(span_s: float) -> str:
    minutes = round(span_s / 60)
    if minutes >= round(WINDOW_S / 60):
        return f"{WINDOW_S / 3600:g} h"
    return f"{minutes} min" if minutes else f"{span_s:.0f} s"


async def sample_lags(
    tiers: Mapping[TierName, ShownTier], history: LagHistory, clock: Clock
) -> None:
    """Record the lag of all groups and of tiering each `INTERVAL_S`, until it is cancelled.

    A tier that fails is left out of a sample of groups. Its failure is logged once until it
    changes. A process that does not answer is left out of a sample of tiering.
    """
    failures: dict[TierName, str] = {}
    while True:
        found: dict[TierName, Sequence[GroupLag]] = {}
        for name, shown in tiers.items():
            try:
                groups = await shown.groups()
                failure = shown.trouble
            except Exception as error:  # noqa: BLE001 - logged, and the console continues
                groups, failure = [], str(error) or type(error).__name__
            if not failure:
                found[name] = groups
            elif failures.get(name) != failure:
                broker = shown.config.broker
                LOGGER.warning("the lag of groups of %s is not sampled: %s", broker, failure)
            failures[name] = failure
        tiering = await tiering_lags([one.config for one in tiers.values()])
        chosen = await asyncio.to_thread(history.round_of, found, tiering)
        history.record(clock.monotonic_s(), chosen)
        await clock.sleep(INTERVAL_S)
