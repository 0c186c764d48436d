"""A tier that stays open in a thread of its own, for drivers that poll it."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from container.metadata.objects import place_of as recorded_second
from container.metadata.records import Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from provider.errors import NotFound
from tieredstore.config.effective import Config
from tieredstore.offline.scan.planning import (
    Selection,
    TierAddress,
    TierPlan,
    WantedMessages,
    plan_of,
)
from tieredstore.offline.scan.relocation import by_newest
from tieredstore.offline.scan.sources import place_of
from tieredstore.offline.scan.split import Seen, TierPlace
from tieredstore.reader.readable_tier import OpenedTier, opened_tier
from tieredstore.session.reader import AS_ARGUMENTS, existing_tier
from tieredstore.threaded import Threaded

ResultT = TypeVar("ResultT")


class OpenTier(Threaded):
    """The metadata of one broker's tier; any thread may ask. Close it, or use `with`."""

    def __init__(
        self,
        load: Callable[[], Config],
        java_metadata: str | None = None,
        *,
        naming: str = AS_ARGUMENTS,
    ) -> None:
        """Open it, at once; the arguments are those of `ReadableTier`.

        `naming` is how the caller's user names a broker.

        Raises:
            NotFound: there is no tier.
            ConfigError: a setting is wrong, or the tier is of several brokers; lists them.
            NewerVersion: a newer program wrote it.
            Corrupt: the metadata is damaged.
            Denied, Unavailable: the storage refuses or does not answer.
        """
        self._inside = _Inside(lambda: existing_tier(load(), naming), java_metadata)
        super().__init__(self._inside)

    @classmethod
    def at(cls, address: TierAddress) -> Self:
        """The tier at an address; raises as above."""
        return cls(address.load, address.java_metadata)

    @property
    def place(self) -> TierPlace:
        """Place at which workers read its bytes."""
        inside = self._inside
        second = recorded_second(inside.tier.reader.state.attempts)
        return replace(place_of(inside.config), recorded_second=second)

    def seen(self) -> Seen:
        """Position of the journal as of the last poll. At most one request."""
        state = self.state()
        return Seen.of(state, self.entry_crc(state.sequence))

    def continues(self, before: Seen) -> bool:
        """Whether the tier is the same or later than `before` in one history. One request."""
        now = self.seen()
        is_kept = before.entry and before.sequence <= now.sequence
        entry = self.entry_crc(before.sequence) if is_kept else 0
        return before.is_continued_by(now, entry)

    @property
    def sequence(self) -> int:
        """Number of the last journal entry that was read."""
        return self._inside.tier.reader.state.sequence

    def by_newest(self, work: Callable[[], ResultT]) -> ResultT:
        """Return `work()`, which asks this tier; `planning.by_newest` in the caller's words."""
        return self._running.call(
            by_newest, self._inside.tier.reader, partial(asyncio.to_thread, work)
        )

    def refresh(self) -> bool:
        """Poll for newer entries; one request if there are none."""
        return self._running.call(self._inside.tier.reader.refresh)

    @property
    def histories(self) -> int:
        """Number of restores of the tier from a backup since it was opened."""
        return self._inside.tier.reader.histories

    def entry_crc(self, sequence: int) -> int:
        """Return the CRC-32 of a journal entry. 0: it was deleted, or is not readable."""
        return self._running.call(self._inside.tier.reader.entry_crc, sequence)

    def state(self) -> TierState:
        """All metadata except manifests, as of the last poll."""
        return self._running.call(self._inside.tier.reader.state.copy)

    def queues(self, wanted: WantedMessages) -> dict[QueueId, Queue]:
        """The queues that are wanted, in order.

        Raises:
            NotFound: there is no queue of a topic that is wanted, or none with a number that is;
                names the nearest.
        """
        if text := wanted.absence(self.state().queues):
            raise NotFound(text, self.place.location)
        return self.queues_there(wanted)

    def queues_there(self, wanted: WantedMessages) -> dict[QueueId, Queue]:
        """The queues that are wanted, in order, whatever of what was named is not there."""
        state = self.state()
        return {name: state.queues[name] for name in sorted(state.queues) if wanted.has(name)}

    def plan(self, selection: Selection, split_bytes: int) -> TierPlan:
        """The splits of what is selected; `planning.plan_of`."""
        reader, place = self._inside.tier.reader, self.place
        return self._running.call(plan_of, reader, place, selection, split_bytes)

    def segments(self, queue: QueueId, kind: SegmentType) -> list[Segment]:
        """All segments of a flat file, those in manifests too."""
        container = self._inside.tier.reader.container(queue)
        return [] if container is None else self._running.call(container.segments, kind)

    def offset_by_time(self, queue: QueueId, moment_ms: int) -> int | None:
        """The first message of a queue that was stored then or later; None: no such queue."""
        return self._running.call(self._fetcher.offset_by_time, queue, moment_ms)

    @property
    def _fetcher(self) -> TieredMessageFetcher:
        return self._inside.tier.fetcher


class _Inside:
    """Resources that are open while the thread runs."""

    tier: OpenedTier
    config: Config

    def __init__(self, load: Callable[[], Config], java_metadata: str | None) -> None:
        self._load = load
        self._java_metadata = None if java_metadata is None else Path(java_metadata)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.config = await asyncio.to_thread(self._load)
        async with AsyncExitStack() as stack:
            self.tier = await opened_tier(
                stack,
                self.config,
                java_metadata=self._java_metadata,
                damaged=False,
                clock=SystemClock(),
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
