"""What an open store of our own tells about its tiering: for a table, the log and the metrics."""

from collections.abc import Sequence
from dataclasses import replace

from dispatcher.statistics import DispatchStatistics
from provider.clock import Clock
from tieredstore.metrics.families import Moment
from tieredstore.report import Look
from tieredstore.store.cold_side import ColdSide
from tieredstore.summary import Loss, TopicSummary, new_losses, summarize


class StoreWatch:
    """Looks at one tier from when it was opened; its figures stay when the store is closed."""

    def __init__(self, cold: ColdSide, clock: Clock) -> None:
        """To be made when the tier was opened: what is there then is not new."""
        self._cold = cold
        self._clock = clock
        self._before = cold.tier.state.queues.copy()

    def __repr__(self) -> str:
        return f"<StoreWatch of {self._cold!r}>"

    def statistics(self) -> DispatchStatistics:
        """How far tiering is, queue by queue, and what fails at present. O(queues)."""
        return self._cold.dispatcher.statistics()

    def topics(self) -> list[TopicSummary]:
        """What the tier holds and what was added to it, topic by topic. O(queues)."""
        now = self._cold.tier.state.queues
        return summarize(self._before, now, self.statistics().queues)

    def losses(self) -> list[Loss]:
        """Messages that were found to be lost since. O(queues and gaps)."""
        return new_losses(self._before, self._cold.tier.state.queues)

    def troubles(self) -> Sequence[str]:
        """Parts of the hot log that cannot be read now."""
        return self._cold.feed.statistics.troubles

    def look(self) -> Look:
        """What the reporter tells of. A new tier's first topics are no stranger's."""
        cold = self._cold
        return Look(
            self.statistics(),
            cold.feed.statistics,
            cold.tier.upkeep.statistics(),
            self.losses(),
            frozenset(queue.topic for queue in self._before),
        )

    def moment(self) -> Moment:
        """What the metrics page shows. O(queues)."""
        tier = self._cold.tier
        return Moment(
            now_ms=self._clock.now_ms(),
            dispatch=self.statistics(),
            scan=replace(self._cold.feed.statistics),
            journal=tier.journal.statistics(),
            is_owner=tier.journal.is_closed or not tier.journal.is_over,
            ends=tier.journal.is_closed,
            upkeep=tier.upkeep.statistics(),
            queues=tier.state.queues.copy(),
            garbage_objects=len(tier.state.tombstones),
            fetch=self._cold.fetcher.statistics(),
        )
