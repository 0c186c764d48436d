"""Tier behind the server: topics and bounds of its newest metadata, and gaps that readers pass."""

import logging
from collections.abc import Mapping
from functools import lru_cache

from container.metadata.records import (
    ENDS_A_QUEUE,
    Gap,
    Queue,
    gap_at,
    gaps_between,
    next_gap_start,
)
from container.names.queue_id import QueueId, queue_counts
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchResult
from fetcher.source import TierQueue
from provider.clock import Clock
from provider.errors import StoreError
from provider.ranges import QueueOffset
from tieredstore.hot.log.topics import row_of
from tieredstore.reader.readable_tier import ReadableTier

LOGGER = logging.getLogger("tieredstore.serve")
READABLE = 4
"""Permission to read: producers then find no route."""
GAPS_SAID_MAX = 10_000
"""Pairs of group and gap that are remembered, so that each is logged once."""

LOST = "lost before it was tiered"
"""Remark of a unit in a gap."""


class History:
    """Read-only view of a tier that another process may write."""

    def __init__(self, tier: ReadableTier, clock: Clock) -> None:
        self._tier = tier
        self._clock = clock
        self._widths: Mapping[str, int] = {}
        self._widths_of: tuple[int, int] | None = None
        self._gaps_said: set[tuple[str, QueueId, int]] = set()
        self._seen_s = clock.monotonic_s()
        self.failure: StoreError | None = None
        """Failure of the last `refresh`."""
        self.lost = 0
        """Messages in gaps that readers have passed."""

    def __repr__(self) -> str:
        return f"<History of {self._tier!r}>"

    @property
    def tier(self) -> ReadableTier:
        """The tier itself."""
        return self._tier

    @property
    def fetcher(self) -> TieredMessageFetcher:
        """Fetcher of the tier's messages."""
        return self._tier.fetcher

    @property
    def age_s(self) -> float:
        """Seconds since the tier was last looked at with success."""
        return self._clock.monotonic_s() - self._seen_s

    def topics(self) -> Mapping[str, int]:
        """Return the number of queues by topic: the highest queue id and 1. O(queues) if new."""
        if self._widths_of != self.version:
            self._widths = queue_counts(self._tier.reader.state.queues)
            self._widths_of = self.version
        return self._widths

    def permission(self, topic: str) -> int:
        """Return `READABLE`, or 0 for a topic without read permission at its broker."""
        found = self._tier.reader.state.topics.get(topic)
        return READABLE if found is None else _permission(found.settings)

    @property
    def version(self) -> tuple[int, int]:
        """Identity of the loaded metadata. Changes if a `refresh` loads newer ones."""
        state = self._tier.reader.state
        return id(state), state.sequence

    def queue(self, queue: QueueId) -> TierQueue | None:
        """Return a queue for reading; None if the tier does not have it. No request."""
        return self._tier.reader.container(queue)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        """Return the first offset of a queue and the one after its last; (0, 0) without it."""
        found = self._tier.reader.queue(queue)
        return (0, 0) if found is None else (found.min_offset, found.next_offset)

    def readable(self, queue: QueueId) -> tuple[int, int] | None:
        """Return the range of offsets that a broker has had under these numbers.

        None if the tier does not have the queue.
        """
        found = self._tier.reader.queue(queue)
        return None if found is None else readable_range(found)

    async def time_before(self, queue: QueueId, offset: int) -> int:
        """Return the store time of the message before `offset`, Unix ms; 0 if there is none."""
        return await self.fetcher.message_timestamp(queue, offset - 1) or 0

    async def units(self, queue: QueueId, start: int, end: int) -> list[dict[str, object]]:
        """Return the ConsumeQueue units of readable offsets, in RocketMQ's form for tools.

        A lost message has a unit that says so. One request for each segment. Errors as
        `TierQueue.units`.
        """
        source, rows = self.queue(queue), list[dict[str, object]]()
        while source is not None and start < end:
            if gap := gap_at(source.gaps, start):
                until = min(end, gap.end)
                rows += [_unit(0, 0, 0, LOST) for _ in range(start, until)]
            else:
                until = next_gap_start(source.gaps, start, end)
                found = await source.units(QueueOffset(start), QueueOffset(until))
                rows += [_unit(*unit) for unit in found.tolist()]
            start = until
        return rows

    async def refresh(self) -> bool:
        """Look for what the tier's owner has published. Return whether there was any.

        A failure is logged once: readers are served what is known, and the next call looks again.
        """
        try:
            found = await self._tier.refresh()
        except StoreError as error:
            if self.failure is None:
                LOGGER.error(  # noqa: TRY400 - the sentence says all
                    "the tier's news cannot be read, and what is known is served: %s", error
                )
            self.failure = error
            return False
        if self.failure is not None:
            LOGGER.info("the tier's news are read again")
        self.failure, self._seen_s = None, self._clock.monotonic_s()
        return found

    def passed(self, group: str, queue: QueueId, offset: int, result: FetchResult) -> None:
        """Count and log the gaps between `offset` and the next offset of a read. O(log n)."""
        source = self.queue(queue)
        gaps = () if source is None else source.gaps
        for gap in gaps_between(gaps, offset, result.next_offset):
            self._passed(group, queue, gap)

    def _passed(self, group: str, queue: QueueId, gap: Gap) -> None:
        key = group, queue, int(gap.start)
        if key in self._gaps_said:
            return
        if len(self._gaps_said) >= GAPS_SAID_MAX:
            self._gaps_said.clear()
        self._gaps_said.add(key)
        self.lost += gap.end - gap.start
        LOGGER.warning(
            "the group %s passes %d messages of %s that were lost before they were tiered, "
            "offsets %d to %d",
            group, gap.end - gap.start, queue, gap.start, gap.end - 1,
        )  # fmt: skip


def _unit(position: int, size: int, tag_hash: int, remark: str | None = None) -> dict[str, object]:
    named = {"physicOffset": position, "physicSize": size, "tagsCode": tag_hash}
    return {**named, "eval": False, "msg": remark}


def readable_range(queue: Queue) -> tuple[int, int]:
    """Return the first offset of the topic's last incarnation, and the end of the queue. Pure.

    A broker that deleted a topic and created it again gives its offsets a second time. Messages of
    the earlier incarnation stay in the tier, and are not the broker's own under these offsets.
    """
    ends = [gap.end for gap in queue.gaps if gap.reason in ENDS_A_QUEUE]
    return max([queue.min_offset, *ends]), queue.next_offset


@lru_cache(maxsize=1024)
def _permission(settings: str) -> int:
    row = row_of("", settings)
    return READABLE if row is None else row["perm"] & READABLE
