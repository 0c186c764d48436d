"""Tiering by an owner: its dispatcher, its background tasks, and its state since the start."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import SystemRandom

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.tier import Tier
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.ports import HotLog
from dispatcher.statistics import DispatchStatistics
from dispatcher.topic_filter import TopicFilter
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock
from tieredstore.config.effective import Config
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.hot.hot_log_source import HotLogFeed
from tieredstore.lifetime import Worker
from tieredstore.metrics.families import Moment
from tieredstore.metrics.summary import Loss, TopicSummary, new_losses, summarize
from tieredstore.session.report import Look
from tieredstore.session.takeover import watch_ownership
from tieredstore.session.topic_retention import TopicValues, keep_topic_values


def dispatcher_of(
    config: Config,
    hot: HotLog,
    tier: Tier,
    clock: Clock,
    agreed: Mapping[QueueId, Queue] | None = None,
) -> TieredDispatcher:
    """Create the configured dispatcher.

    `agreed`: the tier's state of queues that were already compared with the hot log.
    """
    return TieredDispatcher(
        hot,
        tier,
        options=config.dispatch,
        clock=clock,
        topics=TopicFilter(config.cluster, config.broker),
        rng=SystemRandom() if config.in_object_store else None,
        agreed=agreed,
    )


async def owner_tasks(
    config: Config, tier: Tier, clock: Clock, read: Callable[[], Awaitable[TopicValues]]
) -> list[Worker]:
    """Return the background tasks of an owner: journal, upkeep, ownership, values of topics.

    `read` reads the values of topics. Nothing expires or is tiered before it was called once. A
    tier where nothing expires keeps no retention but that of the settings.
    """

    async def values() -> TopicValues:
        found = await read()
        return found if config.upkeep.expires else found._replace(hours={})

    tier.apply_topics(*await values())
    watch = partial(watch_ownership, tier.journal, clock=clock, interval_s=config.owner_check_s)
    return [tier.run, watch, partial(keep_topic_values, values, tier, clock)]


class TieringWatch:
    """Statistics of tiering since the tier was opened. They stay readable after its end."""

    def __init__(
        self,
        hot: RocketMqHotLog | HotLogFeed,
        tier: Tier,
        dispatcher: TieredDispatcher,
        clock: Clock,
        *,
        fetcher: TieredMessageFetcher | None = None,
        knows_topics: bool = True,
    ) -> None:
        """Record the present queues as the baseline.

        `fetcher`: that of the tier's readers. `knows_topics`: whether the hot log reports all
        topics of the tier again.
        """
        self._hot = hot
        self._tier = tier
        self._dispatcher = dispatcher
        self._clock = clock
        self._fetcher = fetcher
        self._before = tier.state.queues.copy()
        before = self._before if knows_topics else ()
        self._topics_before = frozenset(queue.topic for queue in before)

    def __repr__(self) -> str:
        return f"<TieringWatch of {self._tier!r}>"

    def statistics(self) -> DispatchStatistics:
        """Return progress of tiering by queue, and current failures. O(queues)."""
        return self._dispatcher.statistics()

    def topics(self) -> list[TopicSummary]:
        """Return the tier's content and its growth by topic. O(queues)."""
        return summarize(self._before, self._tier.state.queues, self.statistics().queues)

    def losses(self) -> list[Loss]:
        """Return messages found to be lost since the baseline. O(queues and gaps)."""
        return new_losses(self._before, self._tier.state.queues)

    def troubles(self) -> Sequence[str]:
        """Return the parts of the hot log that cannot be read now."""
        return self._hot.statistics.troubles

    def look(self) -> Look:
        """Return the input of the reporter."""
        return Look(
            self.statistics(),
            self._hot.statistics,
            self._tier.upkeep.statistics(),
            self.losses(),
            self._topics_before,
        )

    def moment(self) -> Moment:
        """Return the values of the metrics page. O(queues)."""
        tier = self._tier
        return Moment(
            now_ms=self._clock.now_ms(),
            dispatch=self.statistics(),
            scan=replace(self._hot.statistics),
            journal=tier.journal.statistics(),
            is_owner=tier.journal.is_closed or not tier.journal.is_over,
            ends=tier.journal.is_closed,
            upkeep=tier.upkeep.statistics(),
            queues=tier.state.queues.copy(),
            garbage_objects=len(tier.state.tombstones),
            fetch=None if self._fetcher is None else self._fetcher.statistics(),
        )
