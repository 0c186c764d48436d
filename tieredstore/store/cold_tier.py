"""Interface of the open tier of a message store, whichever process owns it."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection

from container.lookup.find import KnownCoverage
from container.lookup.query import KeyQuery, QueryResult
from container.names.queue_id import QueueId
from container.tier_view import TierView
from dispatcher.statistics import DispatchStatistics
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock
from tieredstore.session.tiering import TieringWatch
from tieredstore.store.levels import Span


class ColdTier(ABC):
    """Open tier of a message store: reads, and control of its tiering."""

    fetcher: TieredMessageFetcher
    """Reads messages of `tier`."""

    @property
    @abstractmethod
    def tier(self) -> TierView:
        """Published content. That of an owner in another process may be newer."""

    @property
    @abstractmethod
    def is_paused(self) -> bool:
        """Whether tiering is paused. True at the beginning."""

    @abstractmethod
    def resume(self) -> None:
        """Start or resume tiering of the backlog and of new messages."""

    @abstractmethod
    def pause(self) -> None:
        """Pause tiering. Uploads in progress are settled after `resume`, or by the next start."""

    @abstractmethod
    def watch(self, clock: Clock) -> TieringWatch:
        """Watch the tiering from now on."""

    @abstractmethod
    def statistics(self) -> DispatchStatistics:
        """Return tiering progress by queue, and current failures. O(queues)."""

    @abstractmethod
    def holds_back(self, queue: QueueId) -> int | None:
        """Return the first offset of a queue that is not tiered; None if it is never tiered.

        A callback for `HotLog.trim`. All messages below are in `tier`.
        """

    @abstractmethod
    async def find(self, query: KeyQuery, known: KnownCoverage) -> QueryResult:
        """Find messages in the tier by key; see `find_messages`."""

    @abstractmethod
    async def publish_topics(self) -> None:
        """Publish the topics' values of the hot log in the tier; see `Tier.set_topics`.

        Raises:
            Unavailable: the tier cannot be written now; the next poll of the file tries again.
            Fenced: a newer owner has the tier.
        """

    @abstractmethod
    async def delete_topics(
        self, topics: Collection[str], delete: Callable[[], Awaitable[None]]
    ) -> None:
        """Delete topics from the hot log with `delete`, then from the tier.

        Raises:
            StoreError: of the hot log, or as `Tier.delete_topic`. Repeat the call to complete it.
        """

    def span(self, queue: QueueId) -> Span | None:
        """Return the tier's offsets of a queue; None if it does not have the queue. No request."""
        found = self.tier.container(queue)
        if found is None:
            return None
        return Span(found.min_offset, found.next_offset, found.gaps)

    def figures(self) -> dict[str, float]:
        """Return current figures by name. O(queues)."""
        dispatched, fetched = self.statistics(), self.fetcher.statistics()
        return {
            "tier_behind": dispatched.behind,
            "tier_oldest_age_s": dispatched.oldest_age_s,
            "tier_messages": dispatched.messages,
            "tier_bytes": dispatched.bytes,
            "tier_rounds": dispatched.rounds,
            "tier_rounds_failed": dispatched.rounds_failed,
            "tier_gaps": dispatched.gaps,
            "tier_halted_queues": len(dispatched.halted),
            "cache_hits": fetched.hits,
            "cache_misses": fetched.misses,
        }
