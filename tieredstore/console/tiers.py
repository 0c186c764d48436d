"""Open tiers that the console shows, and figures of their queues."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import groupby
from typing import NamedTuple

from container.metadata.tables import QueueTable
from provider.clock import Clock
from provider.errors import Corrupt, NotFound, StoreError
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.summary import QueueSummary, QueueTotals
from tieredstore.reader.process_page import NO_ANSWER, figures_of, metrics_page
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.reader.status import Contents, contents_of
from tieredstore.serve.options import ServeOptions
from tieredstore.session.consumer_offsets import ConsumerOffsets, QueueKey

LOGGER = logging.getLogger("tieredstore.console")
REFRESH_S = 1.0
"""Age of the metadata from which on a request polls for newer ones."""

TierName = tuple[str, str]
"""Cluster and broker."""


class GroupLag(NamedTuple):
    """Consumer group in one topic."""

    group: str
    topic: str
    queues: int
    """Queues of the tier of which the group has an offset."""
    lag: int
    """Offsets in the tier from those of the group on."""


class ShownTier:
    """Tier of one broker."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.tier: ReadableTier | None = None
        """None: it could not be opened."""
        self.trouble = ""
        """Cause why it could not be opened or refreshed; "" without one."""
        self._clock = clock
        self._polled_s = clock.monotonic_s()
        self._lock = asyncio.Lock()
        self._sequence = -1
        self._contents: Contents
        self._by_topic: dict[str, list[QueueSummary]] = {}
        self._topics: dict[str, QueueTotals] = {}

    async def open(self, stack: AsyncExitStack) -> None:
        """Open it for as long as `stack` is open. Raises as `ReadableTier.__aenter__`."""
        tier = ReadableTier(lambda: self.config, damaged=True)
        self.tier = await stack.enter_async_context(tier)

    async def fresh(self) -> ReadableTier:
        """Return the tier, with metadata of this second if the storage answers.

        Raises:
            NotFound: it could not be opened.
        """
        if self.tier is None:
            raise NotFound(f"the tier cannot be shown: {self.trouble}", self.config.broker)
        async with self._lock:
            if self._clock.monotonic_s() - self._polled_s >= REFRESH_S:
                try:
                    await self.tier.refresh()
                    self.trouble = ""
                except StoreError as error:
                    self.trouble = f"newer messages are not shown: {error}"
                self._polled_s = self._clock.monotonic_s()
        return self.tier

    async def contents(self) -> Contents:
        """All queues and their sums. O(queues) in a thread if anything has changed."""
        state = (await self.fresh()).reader.state
        async with self._lock:
            if state.sequence != self._sequence:
                sequence = state.sequence
                self._contents = await contents_of(state)
                grouped = await asyncio.to_thread(_by_topic, self._contents.queues)
                self._by_topic, self._topics = grouped
                self._sequence = sequence
        return self._contents

    async def by_topic(self) -> dict[str, list[QueueSummary]]:
        """Queues of every topic, in order. As `contents`."""
        await self.contents()
        return self._by_topic

    async def topics(self) -> dict[str, QueueTotals]:
        """Totals of all topics, in order. As `contents`."""
        await self.contents()
        return self._topics

    async def groups(self) -> list[GroupLag]:
        """Consumer groups with offsets in this tier, in order; none where no file keeps them.

        Raises:
            Corrupt: a file keeps them and is damaged.
            NotFound, Unavailable, Denied: the tier or the file cannot be read.
        """
        offsets = await asyncio.to_thread(_offsets, self.config)
        if not offsets:  # then the tier is not polled either
            return []
        queues = (await self.fresh()).reader.state.queues.copy()
        return await asyncio.to_thread(_lags, offsets, queues)


async def tiering_lags(configs: Iterable[Config]) -> dict[TierName, int]:
    """Return the messages that are not in the tier, of each broker whose process answers.

    One scrape of each process, all at once, in threads.
    """
    by_process: dict[tuple[str, int], list[Config]] = {}
    for config in configs:
        if config.metrics_port:
            address = config.metrics_host, config.metrics_port
            by_process.setdefault(address, []).append(config)
    async with asyncio.TaskGroup() as group:
        scrapes = [
            group.create_task(asyncio.to_thread(_tiering_lags, of_one))
            for of_one in by_process.values()
        ]
    return {name: lag for one in scrapes for name, lag in one.result().items()}


def _tiering_lags(configs: Sequence[Config]) -> dict[TierName, int]:
    """Ask one process for the lags of its brokers; none if it does not answer. Blocks."""
    found: dict[TierName, int] = {}
    with suppress(*NO_ANSWER):
        page = metrics_page(configs[0])
        for one in configs:
            figures = figures_of(page, one.cluster, one.broker)
            if "messages_behind" in figures:
                found[one.cluster, one.broker] = int(figures["messages_behind"])
    return found


def _lags(offsets: ConsumerOffsets, queues: QueueTable) -> list[GroupLag]:
    """Compare the offsets of groups with those of the tier. O(topics and queues of groups)."""
    found: list[GroupLag] = []
    for group, topics in sorted(offsets.topics_by_group().items()):
        for topic in sorted(filter(queues.has_topic, topics)):
            known = [
                max(0, one.next_offset - max(offset, one.min_offset))
                for queue in queues.names_of_topic(topic)
                if (offset := offsets.get(QueueKey(group, *queue))) is not None
                and (one := queues.bounds_of(queue)) is not None
            ]
            found.append(GroupLag(group, topic, len(known), sum(known)))
    return found


def _offsets(config: Config) -> ConsumerOffsets | None:
    """Read the offsets that `serve` keeps for this tier, or else those of its broker."""
    try:
        options = ServeOptions.of(config)
    except ConfigError:
        return None
    try:
        return ConsumerOffsets.load(options.offsets_path, options.seed_path, is_poll=True)
    except ConfigError as error:
        raise Corrupt(str(error), str(options.offsets_path)) from error


def _by_topic(
    queues: Sequence[QueueSummary],
) -> tuple[dict[str, list[QueueSummary]], dict[str, QueueTotals]]:
    found = {topic: list(of_it) for topic, of_it in groupby(queues, lambda one: one.topic)}
    return found, {topic: QueueTotals.of(of_it) for topic, of_it in found.items()}


@asynccontextmanager
async def shown_tiers(
    configs: Sequence[Config], clock: Clock
) -> AsyncGenerator[dict[tuple[str, str], ShownTier]]:
    """Open tiers while the block runs, by cluster and broker.

    Of several, one that cannot be opened has a `trouble`.

    Raises:
        StoreError, ConfigError: the only one cannot be opened.
    """
    async with AsyncExitStack() as stack:
        tiers = [ShownTier(config, clock) for config in configs]
        for one in tiers:
            try:
                await one.open(stack)
            except (StoreError, ConfigError) as error:
                if len(tiers) == 1:
                    raise
                one.trouble = str(error)
                LOGGER.warning("%s cannot be shown: %s", one.config.broker, error)
        yield {(one.config.cluster, one.config.broker): one for one in tiers}
