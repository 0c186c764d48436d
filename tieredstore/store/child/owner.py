"""Owner of a store's tier in the tiering process: it serves the calls of the store's process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from container.errors import Owned
from container.lookup.find import KnownCoverage
from container.lookup.query import KeyQuery, QueryResult
from container.names.queue_id import QueueId
from container.tier import Tier
from provider.clock import Clock
from provider.errors import Closed, Unavailable
from tieredstore.config.effective import Config
from tieredstore.lifetime import running
from tieredstore.session.tiering import OwnTiering
from tieredstore.store.child.remote_log import Opening, RemoteHotLog
from tieredstore.store.child.reports import ReportSource
from tieredstore.store.child.wire import Peer
from tieredstore.store.cold_side import ColdSide, open_cold_side, open_configured_tier
from tieredstore.version import VERSION

REPORT_S_MIN = 1.0
"""Shortest interval of reports, in seconds."""
REPORT_SHARE_MAX = 0.005
"""Largest share of the time that reports may take."""
ORPHAN_S_MAX = 2.0
"""Seconds in which the kernel has ended the process of a store that was killed."""
ORPHAN_LOOK_S = 0.1
"""Seconds between two attempts meanwhile."""
RELEASE_S = 0.1
"""Shortest interval of messages on tiered offsets, in seconds."""


class TieringOwner:
    """State of a tiering process: the hot log's watermarks, then the open tier."""

    def __init__(
        self,
        clock: Clock,
        *,
        on_opening: Callable[[Peer, Opening], None],
        on_open: Callable[[], None],
        on_orphaned: Callable[[], None],
    ) -> None:
        """Keep the callbacks: before and after the tier is opened, and at the parent's end."""
        self._clock = clock
        self._on_opening = on_opening
        self._on_open = on_open
        self._on_orphaned = on_orphaned
        self._ends: dict[QueueId, int] = {}
        self._known = KnownCoverage()
        self._registry = CollectorRegistry()
        self._log: RemoteHotLog | None = None
        self._cold: ColdSide | None = None
        self._source: ReportSource | None = None
        self._config: Config | None = None
        self._released: dict[QueueId, int] = {}
        self._has_released = asyncio.Event()
        self._begun: asyncio.Future[Opening] = asyncio.get_running_loop().create_future()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closes = asyncio.Event()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer: Peer | None = None
        self._report_s = REPORT_S_MIN
        """Present interval of reports, in seconds."""

    def __repr__(self) -> str:
        return f"<TieringOwner of {self._cold!r}>"

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Own the tier until the parent closes it, or its ownership ends."""
        self._peer = peer = Peer(
            reader,
            writer,
            calls={
                "open": self._open,
                "close": self._close,
                "find": self._find,
                "publish_topics": self._publish_topics,
                "delete_topics": self._delete_topics,
            },
            notes={
                "ends": self._learn,
                "pause": self._pause,
                "limits": self._limit,
            },
        )
        async with running([self._until_orphaned]):
            opening = await self._begun
            self._on_opening(peer, opening)
            failed: Exception | None = None
            try:
                async with running([self._report_forever, self._release_forever]):
                    await self._keep(opening, peer)
            except Exception as error:  # noqa: BLE001 - raised in the store's process
                failed = error
            self._report()
            self._tell_end(failed)
            await peer.finish()

    async def _until_orphaned(self) -> None:
        """Serve the parent. Without one, end at once: a new start must not meet a living owner."""
        assert self._peer is not None, "it was connected"
        await self._peer.run()
        self._on_orphaned()

    async def _keep(self, opening: Opening, peer: Peer) -> None:
        if opening.version != VERSION:
            reason = f"version {VERSION} is installed now: restart the store, of {opening.version}"
            raise Unavailable(reason, str(opening.place.root))
        self._config = opening.config
        self._limit(opening.upload_bytes_per_s, opening.download_bytes_per_s)
        self._log = log = RemoteHotLog(opening.place, self._ends, peer)
        open_tier = partial(self._open_tier, opening)
        async with open_cold_side(opening.config, log, open_tier, clock=self._clock) as cold:
            cold.feed.on_release = self._release
            self._cold = cold
            self._source = ReportSource(OwnTiering(cold.feed, cold.tier, cold.dispatcher))
            if not opening.is_paused:
                cold.resume()
            self._report()
            self._on_open()
            self._opened.set_result(None)
            await self._closes.wait()

    @asynccontextmanager
    async def _open_tier(self, opening: Opening) -> AsyncGenerator[Tier]:
        """Open the tier, once the process of a store that was killed has ended, too."""
        until_s = self._clock.monotonic_s() + ORPHAN_S_MAX
        async with AsyncExitStack() as stack:
            while True:
                try:
                    tier = await stack.enter_async_context(
                        open_configured_tier(
                            opening.config,
                            opening.place.root,
                            clock=self._clock,
                            registry=self._registry,
                            take_over=opening.take_over,
                        )
                    )
                    break
                except Owned:
                    if self._clock.monotonic_s() >= until_s:
                        raise
                    await self._clock.sleep(ORPHAN_LOOK_S)
            yield tier

    def _tell_end(self, error: Exception | None) -> None:
        """Answer the parent's call if it waits for the end; else say why the tier is not owned."""
        if not self._opened.done():
            self._opened.set_exception(error or Closed("it was closed while it was opened", ""))
        elif self._closes.is_set():
            if error is None:
                self._closed.set_result(None)
            else:
                self._closed.set_exception(error)
        elif self._peer is not None:
            self._peer.note("ended", error)

    @property
    def _own(self) -> ColdSide:
        if self._cold is None:
            raise Closed("the tier is not open", "")
        return self._cold

    def _pause(self, is_paused: bool) -> None:  # noqa: FBT001 - of a note
        (self._own.pause if is_paused else self._own.resume)()

    async def _open(self, opening: Opening) -> None:
        self._begun.set_result(opening)
        await self._opened

    async def _close(self) -> None:
        self._closes.set()
        await self._closed

    async def _find(self, query: KeyQuery) -> QueryResult:
        return await self._own.find(query, self._known)

    async def _publish_topics(self) -> None:
        await self._own.publish_topics()

    async def _delete_topics(self, topics: Collection[str]) -> None:
        peer = self._peer
        assert peer is not None, "it calls"
        await self._own.delete_topics(topics, lambda: peer.call("delete_hot"))

    def _learn(self, ends: dict[QueueId, int]) -> None:
        self._ends.update(ends)
        if self._log is not None:
            self._log.news.set()

    def _limit(self, upload_bytes_per_s: int, download_bytes_per_s: int) -> None:
        assert self._config is not None, "limits change after the opening"
        self._config.limits.upload_bytes_per_s = upload_bytes_per_s
        self._config.limits.download_bytes_per_s = download_bytes_per_s

    def _release(self, queue: QueueId, offset: int) -> None:
        self._released[queue] = offset
        self._has_released.set()

    async def _release_forever(self) -> None:
        while True:
            await self._has_released.wait()
            self._has_released.clear()
            released, self._released = self._released, {}
            if self._peer is not None:
                self._peer.note("released", released)
            await self._clock.sleep(RELEASE_S)

    async def _report_forever(self) -> None:
        while True:
            began_s = self._clock.monotonic_s()
            self._report()
            took_s = self._clock.monotonic_s() - began_s
            self._report_s = max(REPORT_S_MIN, took_s / REPORT_SHARE_MAX)
            await self._clock.sleep(self._report_s)

    def _report(self) -> None:
        if self._source is None or self._peer is None:
            return
        for part in self._source.take(list(self._registry.collect()), self._report_s):
            self._peer.note("report", part)
