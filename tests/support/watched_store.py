"""A memory and a hot log that see at once what no owner may do.

No two owners that live may write to one file, and nobody may tell the hot log that messages are
tiered before they are published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from container.names.queue_id import QueueId
from container.tier import Tier
from provider.object_store import Append
from provider.ranges import QueueOffset
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.store_harness import StoreHotLog


class WatchedObjects(MemoryObjects):
    """Remembers who wrote to which file."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: dict[str, list[WatchedStore]] = {}


class WatchedStore(MemoryStore):
    """Two clients that live at the same time never append to one file."""

    def __init__(self, shared: WatchedObjects | None = None) -> None:
        self._watched = shared or WatchedObjects()
        super().__init__(self._watched)

    async def append(self, appends: Sequence[Append]) -> None:
        await super().append(appends)
        for piece in appends:
            writers = self._watched.writers.setdefault(piece.name, [])
            living = [one for one in writers if one is not self and not one._end]
            assert not living, f"{piece.name} is written by two"
            writers.append(self)

    def forget_writers(self) -> None:
        """Other files lie here now, which nobody who lives has written."""
        self._watched.writers.clear()

    async def delete(self, names: Sequence[str]) -> None:
        """A fenced owner that wakes may begin a file again that expired: nothing refers to it."""
        await super().delete(names)
        for name in names:
            self._watched.writers.pop(name, None)


class WatchedHotLog(StoreHotLog):
    """Whoever is told that messages are tiered finds them published."""

    tier: Callable[[], Tier | None]
    """Of the owner that uses this handle."""

    @classmethod
    def of(cls, hot: StoreHotLog) -> Self:
        """A handle of its own on the messages of `hot`."""
        other = cls(hot._clock, batch_messages_max=hot._batch_messages_max)
        other.queues = hot.queues
        return other

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        tier = self.tier()
        assert tier is not None
        record = tier.journal.state.queues.get(queue)
        if record is None:  # it was deleted, and begins again at the oldest message there is
            self.released.pop(queue, None)
        await super().release(queue, offset)
        if record is not None:  # else where it will begin is released
            published = record.next_offset
            assert offset <= published, f"{queue} is told to {offset}, {published} are published"
