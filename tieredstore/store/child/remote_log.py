"""Hot log of the store's process, as the tiering process sees it, and the words of its start."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from container.names.queue_id import QueueId
from provider.posix.files import posix_errors
from tieredstore.config.effective import Config
from tieredstore.hot.log.directory import refuse_moved
from tieredstore.hot.reading import Bounds
from tieredstore.store.child.wire import Peer
from tieredstore.version import VERSION


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Place of a hot log that another process writes."""

    root: Path
    """Store directory."""
    commit_log: Path
    """Directory of the CommitLog files."""
    identities: Mapping[Path, os.stat_result]
    """Both, as the writer opened them."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything that a tiering process needs to open the tier."""

    config: Config
    place: LogPlace
    is_paused: bool
    take_over: bool
    """Whether to take the tier from a living owner."""
    upload_bytes_per_s: int
    download_bytes_per_s: int
    log_level: int
    version: str = VERSION
    """Version of the store's process. An installation may be replaced while it runs."""


class RemoteHotLog:
    """`WrittenLog` of another process. Its files are read here, and never written."""

    def __init__(self, place: LogPlace, ends: dict[QueueId, int], peer: Peer) -> None:
        """`ends`: durable watermarks, and the ends of queues that continue their tier."""
        self._place = place
        self._ends = ends
        self._peer = peer
        self.news = asyncio.Event()
        """Set when messages became durable. Its waiter clears it."""

    def __repr__(self) -> str:
        return f"<RemoteHotLog {self.root}: {len(self._ends)} queues>"

    @property
    def root(self) -> Path:
        """See `WrittenLog`."""
        return self._place.root

    @property
    def commit_log(self) -> Path:
        """See `WrittenLog`."""
        return self._place.commit_log

    def durable_offset(self, queue: QueueId) -> int:
        """See `WrittenLog`."""
        return self._ends.get(queue, 0)

    def next_offset(self, queue: QueueId) -> int:
        """Return the durable end. Messages above it are of calls that were made meanwhile."""
        return self._ends.get(queue, 0)

    def refuse_if_moved(self) -> None:
        """See `WrittenLog`."""
        with posix_errors(str(self.root)):
            refuse_moved(self._place.identities)

    async def bounds(self, queue: QueueId) -> Bounds:
        """See `WrittenLog`."""
        return await self._peer.call("bounds", queue)

    async def flush(self) -> None:
        """Make all acknowledged messages durable, and learn of them."""
        await self._peer.call("flush")

    async def continue_queues(
        self, offsets: Mapping[QueueId, int], compared: Mapping[QueueId, int] | None = None
    ) -> frozenset[QueueId]:
        """See `WrittenLog`."""
        return await self._peer.call("continue_queues", offsets, compared)

    async def remember_place(self) -> None:
        """See `WrittenLog`."""
        await self._peer.call("remember_place")
