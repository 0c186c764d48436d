"""Tiering of a broker's store directory, for `tieredstore tier` and for programs."""

import asyncio
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from container.tier import Tier
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.statistics import DispatchStatistics, Progress
from provider.clock import Clock, SystemClock
from provider.errors import Closed, Denied, StoreError, Unavailable
from provider.posix.files import refuse_other_systems
from provider.stores.throttled import TransferLimits
from tieredstore.config.effective import Config, StartWords
from tieredstore.config.sources import ConfigError
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.statistics import ScanStatistics
from tieredstore.lifetime import running
from tieredstore.metrics.families import Moment, Opening
from tieredstore.metrics.page import metrics_of, served_metrics
from tieredstore.metrics.summary import Loss, TopicSummary
from tieredstore.session.identity import memory_of_follower, refuse_unnamed
from tieredstore.session.owner import open_hot_log, open_owner
from tieredstore.session.places import directory_of, local_directory
from tieredstore.session.report import Reporter, log_owned, log_start
from tieredstore.session.takeover import refuse_living_owner
from tieredstore.session.tiering import (
    FollowedMemory,
    OwnTiering,
    TieringWatch,
    dispatcher_of,
    owner_tasks,
    topic_values,
)

SETTLING_LOOKS = 3
"""Polls of `drain` for units that do not count yet."""
SETTLING_S = 0.2
"""Seconds between two of them."""


@dataclass(frozen=True, slots=True)
class _Open:
    """Resources that are open while the block of a follower runs."""

    config: Config
    hot: RocketMqHotLog
    tier: Tier
    dispatcher: TieredDispatcher
    watch: TieringWatch
    registry: CollectorRegistry


class Follower:
    """Tiers a broker's store directory. `tieredstore.follow` makes it: use `async with`.

    The block owns the tier, and learns within `tieredStoreOwnerCheckInterval` that another process
    took it. Nothing is tiered before `drain` or `run` is called. The broker's directory is never
    written.

    The logger `tieredstore.follower` says what happens: broker, cluster, store and tier at the
    start, troubles when they begin and end, messages that were lost (level ERROR), and once a
    minute where tiering stands (level INFO).
    """

    def __init__(
        self,
        load: Callable[[], Config],
        store_dir: Path,
        *,
        take_over: bool = False,
        serves: bool = True,
        clock: Clock | None = None,
        counted: CollectorRegistry | None = None,
        further: Callable[[], str] = str,
    ) -> None:
        """Nothing is read before the block is entered; then `load` runs in a thread.

        `take_over`: take the tier from an owner that lives, too. `serves`: serve the metrics page
        where `tieredStoreMetricsPort` is set. `counted` and `further`: metrics of other parts of
        the process for that page, and why they are not ready ("" while they are).
        """
        self._load = load
        self._store_dir = store_dir
        self._take_over = take_over
        self._serves = serves
        self._clock = clock or SystemClock()
        self._counted = counted
        self._further = further
        self._stack: AsyncExitStack | None = None
        self._open: _Open | None = None
        self._awaited: StoreError | None = None
        """Why the storage could not be used yet, while the start waits for it."""

    async def __aenter__(self) -> Self:
        """Open the store directory and serve the metrics page, then take the tier or begin it.

        Raises:
            ConfigError: a setting is wrong, tiering is switched off, no tier is named, store
                and tier lie inside one another, the store is another broker's, a tier would be
                begun under the host's name, or the port of the metrics page is taken.
            NotAStore: the directory is no RocketMQ store.
            Owned: a process that lives owns the tier; nothing was changed.
            Denied: the storage cannot keep a tier, or the tier is another broker's.
            Corrupt: the tier's journal is damaged.
            Unavailable: the storage does not answer.
            RuntimeError: it is open already.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        config, clock = await asyncio.to_thread(self._begin), self._clock
        counted = self._counted or CollectorRegistry()
        registry = metrics_of(config, self.moment, counted)
        async with AsyncExitStack() as stack:
            hot = await stack.enter_async_context(
                open_hot_log(config, self._store_dir, clock=clock)
            )
            await asyncio.to_thread(refuse_unnamed, config, self._store_dir)
            memory = await asyncio.to_thread(memory_of_follower, config, self._store_dir)
            if not self._take_over:
                await refuse_living_owner(config, clock=clock)
            if self._serves:
                await stack.enter_async_context(
                    served_metrics(config, self.moment, registry, further=self._further)
                )
            # All that can fail has been tried: from here on the tier is ours.
            tier = await stack.enter_async_context(
                open_owner(
                    config,
                    clock=clock,
                    registry=counted,
                    take_over=self._take_over,
                    memory=memory,
                    on_wait=self._wait,
                )
            )
            dispatcher = dispatcher_of(config, hot, tier, clock)
            followed = FollowedMemory(hot, tier, kept_every_s=config.remember_s)
            is_known = await followed.recall()
            # Of a log that is read from a replay position on, only the newest topics are seen.
            tiering = OwnTiering(hot, tier, dispatcher)
            watch = TieringWatch(tiering, clock, knows_topics=not is_known)
            log_owned(tier.state)
            tasks = await owner_tasks(config, tier, clock, partial(topic_values, self._store_dir))
            tasks += [Reporter(watch.look, clock).run, partial(followed.run, clock)]
            await stack.enter_async_context(running(tasks))
            stack.push_async_callback(tier.close)
            stack.push_async_callback(followed.keep)
            self._open = _Open(config, hot, tier, dispatcher, watch, registry)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the journal and give up the ownership of the tier.

        Untiered messages stay in the broker's log, and the next start continues there.

        Raises:
            Fenced: a newer owner took the tier while the block ran; names it.
        """
        stack, self._stack = self._stack, None
        if stack is None:
            return
        await stack.__aexit__(kind, error, traceback)

    def __del__(self) -> None:
        if self._stack is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        if self._stack is None or self._open is None:
            return f"<Follower of {self._store_dir}: not open>"
        return f"<Follower of {self._store_dir} into {self.location}>"

    @property
    def directory(self) -> Path:
        """The directory of the broker's tier.

        Raises:
            ConfigError: the tier is in an object store.
        """
        return local_directory(directory_of(self._opened().config))

    @property
    def location(self) -> str:
        """The path or the URL of the broker's tier."""
        return str(directory_of(self._opened().config))

    @property
    def limits(self) -> TransferLimits:
        """Bytes a second to and from an object store: set them at any time."""
        return self._opened().config.limits

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of this block, which are served if a port is configured."""
        return self._opened().registry

    async def drain(
        self, *, on_progress: Callable[[Progress], None] | None = None
    ) -> DispatchStatistics:
        """Tier everything that the broker's log has now; returns when it is durable.

        Queues that are stopped, refused or damaged raise nothing: they are in the result's
        `halted`.
        May be called again, beside `run`, and cancelled.

        Args:
            on_progress: called whenever something changed.

        Raises:
            Unavailable: nothing reached the tier for a minute, in an object store for five.
            Fenced: a newer owner has the tier.
        """
        opened = self._opened()
        await self._read_ahead()
        for left in reversed(range(SETTLING_LOOKS)):
            opened.hot.poll_all()
            statistics = await opened.dispatcher.drain(
                patience_s=opened.config.drain_patience_s, on_progress=on_progress
            )
            if not left or not statistics.waiting:
                return statistics
            await self._clock.sleep(SETTLING_S)  # a unit that was half written is whole by then
        raise AssertionError("the last look returns")

    async def run(self) -> None:
        """Tier present and new messages, until cancelled or `stop` is called.

        An outage of the storage or of the broker's disk ends nothing: work continues when it is
        over.

        Raises:
            Fenced: a newer owner has the tier.
        """
        await self._read_ahead()
        await self._opened().dispatcher.run()

    async def stop(self) -> None:
        """Commit the waiting messages, for at most `tieredStoreShutdownTimeout`, then end `run`.

        Uncommitted messages raise no error: `statistics` reports them as `behind`.
        """
        opened = self._opened()
        opened.hot.poll_all()
        await opened.dispatcher.close()

    def statistics(self) -> DispatchStatistics:
        """Return progress and present failures of tiering, queue by queue. O(queues)."""
        return self._opened().dispatcher.statistics()

    def scan_statistics(self) -> ScanStatistics:
        """Return the findings in the store directory, and its parts that cannot be read now."""
        return self._opened().hot.statistics

    def upkeep_statistics(self) -> UpkeepStatistics:
        """Return the counts of the tier's upkeep, and its failing steps. O(tombstones)."""
        return self._opened().tier.upkeep.statistics()

    def losses(self) -> list[Loss]:
        """Messages that were found to be lost while this block was open. O(queues and gaps)."""
        return self._opened().watch.losses()

    def moment(self) -> Moment:
        """Sample the follower for the metrics page. O(queues).

        Raises:
            Closed: the tier is not open yet.
        """
        if self._open is None:
            reason, place = "the tier is being opened", str(self._store_dir)
            if self._awaited:
                raise Closed(f"{reason}: {self._awaited}", place)
            raise Opening(reason, place)
        return self._open.watch.moment()

    def topics(self) -> list[TopicSummary]:
        """Summarize the tier and the additions of this block, topic by topic. O(queues)."""
        return self._opened().watch.topics()

    def _begin(self) -> Config:
        config = self._load()
        refuse_other_systems(str(self._store_dir))
        if config.level == "DISABLE":
            origin = config.settings["tieredStorageLevel"].origin
            raise ConfigError(f"tieredStorageLevel=DISABLE ({origin}) switches tiering off")
        log_start(config, self._store_dir)
        return config

    def _wait(self, error: StoreError) -> None:
        self._awaited = error

    async def _read_ahead(self) -> None:
        """Read a log without queues to its end before anyone counts the time without a commit."""
        with suppress(Unavailable, Denied):  # the dispatcher meets it again, and deals with it
            await self._opened().hot.read_ahead()

    def _opened(self) -> _Open:
        if self._stack is None or self._open is None:
            raise Closed("the follower is not open: use `async with`", str(self._store_dir))
        return self._open


def follow(
    store_dir: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    take_over: bool = False,
    standby: bool = False,
    new_tier: bool = False,
) -> Follower:
    """Follow a broker's store: `async with tieredstore.follow("store", "tier") as follower`.

    Entering the block reads `conf`, opens the store and takes over the tier of an owner that ended.
    `Follower.drain` and `Follower.run` then tier. The broker may run. Nothing is written into its
    directory.

    Args:
        store_dir: the broker's `storePathRootDir`.
        where: the tier's directory, made if missing; as in `open`.
        cluster: the broker's cluster, a part of the tier's paths; None: `brokerClusterName`.
        broker: the broker's name, likewise; None: `brokerName`, by default the host's name.
        conf: the broker's configuration file, used as it is.
        settings: further keys with their values; they win over `conf` and the environment.
        take_over: take the tier from an owner that lives, too, which then ends with `Fenced`;
            otherwise `Owned` is raised.
        standby: wait while another process owns the tier, and take over when it ends.
        new_tier: use another tier than was remembered for this store, or begin an empty one.
    """
    return Follower(
        lambda: replace(
            Config.named(where, cluster, broker, conf, settings),
            start=StartWords(standby, new_tier),
        ),
        Path(store_dir),
        take_over=take_over,
    )
