"""Tiering by an owner: its dispatcher, its background tasks, and its state since the start."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple, Protocol, cast

from container.journal.journal import JournalStatistics
from container.metadata.records import Queue, Topic
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.tier_objects import FOLLOWED_PREFIX, FollowedName
from container.tier import Tier
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.ports import HotLog
from dispatcher.statistics import DispatchStatistics
from dispatcher.topic_filter import TopicFilter
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock
from provider.errors import StoreError, Unavailable
from tieredstore.config.effective import Config
from tieredstore.following.directory.layout import TOPICS, read_topic_table
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log_reader.log_scan import Remembered
from tieredstore.following.statistics import ScanStatistics
from tieredstore.hot.hot_log_source import HotLogFeed
from tieredstore.hot.log.topics import (
    RESERVE_TIME,
    ConfirmedTime,
    confirmed_times,
    kept_settings,
)
from tieredstore.lifetime import Worker
from tieredstore.metrics.families import Moment
from tieredstore.metrics.summary import Loss, TopicSummary, new_losses, summarize
from tieredstore.session.report import Look
from tieredstore.session.takeover import watch_ownership

LOGGER = logging.getLogger("tieredstore.store")
LOOK_S = 60.0
"""Seconds between two polls of the file."""


def hours_of(table: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the hours by topic; -1 for a topic without a whole number above 0. Pure."""
    found: dict[str, int] = {}
    for topic, settings in table.items():
        attributes: object = settings.get("attributes")
        is_map = isinstance(attributes, Mapping)
        text = str(cast("Mapping[str, object]", attributes).get(RESERVE_TIME) if is_map else None)
        is_number = text.isascii() and text.isdecimal() and len(text) < 10  # noqa: PLR2004 - 1e9 h
        found[topic] = int(text) if is_number and int(text) > 0 else -1
    return found


class TopicValues(NamedTuple):
    """Values of topics for the tier, by topic."""

    hours: Mapping[str, int]
    settings: Mapping[str, str]
    """As `kept_settings`."""


def values_of(table: Mapping[str, Mapping[str, Any]]) -> TopicValues:
    """Return the values of the topics in a table. Pure."""
    settings = {topic: kept_settings(row) for topic, row in table.items()}
    return TopicValues(hours_of(table), {topic: text for topic, text in settings.items() if text})


async def topic_values(root: Path) -> TopicValues:
    """Return the values of the topics of the store `root`; none if they cannot be read."""
    return await asyncio.to_thread(lambda: values_of(read_topic_table(root)))


class OwnTopicValues:
    """Retention of the topics of a store of our own.

    `config/topics.json` has no checksum. A time that is shorter than the tier's is not applied
    unless `set-retention` or a program set it: a wrong digit would delete messages for good.
    """

    def __init__(self, root: Path, tier: Tier) -> None:
        self._root = root
        self._tier = tier
        self._logged: dict[str, int] = {}
        """Times that were not applied, and were logged."""

    def __repr__(self) -> str:
        return f"<OwnTopicValues of {self._root}>"

    async def read(self) -> TopicValues:
        """Return the values to apply; none if the file cannot be read. Logs what is not applied."""
        document = await asyncio.to_thread(_own_document, self._root)
        confirmed, topics = confirmed_times(document), self._tier.state.topics
        default = self._tier.upkeep.options.retention_hours
        read = values_of(document.get("topicConfigTable", {}))
        found = dict(read.hours)
        for topic, hours in read.hours.items():
            kept = kept_hours(hours, confirmed.get(topic), topics.get(topic), default)
            if kept != hours and self._logged.get(topic) != hours:
                self._logged[topic] = hours
                LOGGER.warning(
                    "%s has %s for the topic %s, which is shorter than the %d hours before, and"
                    " was set by no command: messages are kept for %d hours until `tieredstore"
                    " set-retention` sets it",
                    self._root / TOPICS,
                    f"{RESERVE_TIME} {hours}" if hours > 0 else f"no {RESERVE_TIME}",
                    topic,
                    kept,
                    kept,
                )
            found[topic] = kept
        return TopicValues(found, read.settings)


def kept_hours(
    hours: int, confirmed: ConfirmedTime | None, tiered: Topic | None, default: int
) -> int:
    """Return the retention to apply where the file has `hours`: no shorter unconfirmed one. Pure.

    Args:
        hours: of the file; -1: the default.
        confirmed: set by a command or a program last; None: never.
        tiered: the tier's record of the topic; None: it has none.
        default: hours of a topic without its own.
    """
    known = [] if tiered is None or tiered.retention_hours <= 0 else [tiered.retention_hours]
    if confirmed is not None and not (known and tiered and confirmed.at_ms < tiered.updated_ms):
        if confirmed.hours == hours:
            return hours
        known += [confirmed.hours] if confirmed.hours > 0 else []
    longest = max(known, default=0)
    return longest if (hours if hours > 0 else default) < longest else hours


def _own_document(root: Path) -> dict[str, Any]:
    """Read `config/topics.json` alone, for its `.bak` is older; empty if it cannot be read."""
    try:
        document: object = json.loads((root / TOPICS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    found = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    table: object = found.get("topicConfigTable")
    is_table = isinstance(table, dict) and all(
        isinstance(one, dict) for one in cast("dict[str, Any]", table).values()
    )
    return found if is_table else {}


async def keep_topic_values(
    read: Callable[[], Awaitable[TopicValues]], tier: Tier, clock: Clock
) -> None:
    """Publish the values that `read` returns, now and after each change, until cancelled.

    Raises:
        Fenced: a newer owner has the tier.
    """
    while True:
        values = await read()
        with suppress(Unavailable):  # the next round retries
            await tier.set_topics(*values)
        await clock.sleep(LOOK_S)


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


class Ownership(NamedTuple):
    """Ownership of a tier at one moment."""

    journal: JournalStatistics
    is_owner: bool
    """Whether the tier is still owned, as far as is known: until the end of an orderly close."""
    ends: bool
    """Whether the journal was closed in an orderly way."""
    garbage_objects: int
    """Objects that nothing refers to and that wait for their deletion."""


class Tiering(Protocol):
    """Source of the statistics of a tier and of its tiering, in this process or in another."""

    @property
    def state(self) -> TierState:
        """Published state of the tier."""
        ...

    def dispatch(self) -> DispatchStatistics:
        """Return progress of tiering by queue, and current failures. O(queues)."""
        ...

    def scan(self) -> ScanStatistics:
        """Return costs, findings and present errors of the hot log's reader."""
        ...

    def upkeep(self) -> UpkeepStatistics:
        """Return results and errors of upkeep."""
        ...

    def ownership(self) -> Ownership:
        """Return the journal's state and counters."""
        ...


class OwnTiering:
    """`Tiering` of a tier that this process owns."""

    def __init__(
        self, hot: RocketMqHotLog | HotLogFeed, tier: Tier, dispatcher: TieredDispatcher
    ) -> None:
        self._hot = hot
        self._tier = tier
        self._dispatcher = dispatcher

    def __repr__(self) -> str:
        return f"<OwnTiering of {self._tier!r}>"

    @property
    def state(self) -> TierState:
        """See `Tiering`."""
        return self._tier.state

    def dispatch(self) -> DispatchStatistics:
        """See `Tiering`."""
        return self._dispatcher.statistics()

    def scan(self) -> ScanStatistics:
        """See `Tiering`."""
        return replace(self._hot.statistics)

    def upkeep(self) -> UpkeepStatistics:
        """See `Tiering`."""
        return self._tier.upkeep.statistics()

    def ownership(self) -> Ownership:
        """See `Tiering`."""
        journal = self._tier.journal
        return Ownership(
            journal.statistics(),
            journal.is_closed or not journal.is_over,
            journal.is_closed,
            len(self._tier.state.tombstones),
        )


class TieringWatch:
    """Statistics of tiering since the tier was opened. They stay readable after its end."""

    def __init__(
        self,
        tiering: Tiering,
        clock: Clock,
        *,
        fetcher: TieredMessageFetcher | None = None,
        knows_topics: bool = True,
    ) -> None:
        """Record the present queues as the baseline.

        `fetcher`: that of the tier's readers. `knows_topics`: whether the hot log reports all
        topics of the tier again.
        """
        self._tiering = tiering
        self._clock = clock
        self._fetcher = fetcher
        self._before = tiering.state.queues.copy()
        before = self._before if knows_topics else ()
        self._topics_before = frozenset(queue.topic for queue in before)

    def __repr__(self) -> str:
        return f"<TieringWatch of {self._tiering!r}>"

    def statistics(self) -> DispatchStatistics:
        """Return progress of tiering by queue, and current failures. O(queues)."""
        return self._tiering.dispatch()

    def topics(self) -> list[TopicSummary]:
        """Return the tier's content and its growth by topic. O(queues)."""
        return summarize(self._before, self._tiering.state.queues, self.statistics().queues)

    def losses(self) -> list[Loss]:
        """Return messages found to be lost since the baseline. O(queues and gaps)."""
        return new_losses(self._before, self._tiering.state.queues)

    def troubles(self) -> Sequence[str]:
        """Return the parts of the hot log that cannot be read now."""
        return self._tiering.scan().troubles

    def look(self) -> Look:
        """Return the input of the reporter."""
        tiering = self._tiering
        return Look(
            tiering.dispatch(),
            tiering.scan(),
            tiering.upkeep(),
            self.losses(),
            self._topics_before,
        )

    def moment(self) -> Moment:
        """Return the values of the metrics page. O(queues)."""
        tiering = self._tiering
        owned = tiering.ownership()
        return Moment(
            now_ms=self._clock.now_ms(),
            dispatch=tiering.dispatch(),
            scan=tiering.scan(),
            journal=owned.journal,
            is_owner=owned.is_owner,
            ends=owned.ends,
            upkeep=tiering.upkeep(),
            queues=tiering.state.queues.copy(),
            garbage_objects=owned.garbage_objects,
            fetch=None if self._fetcher is None else self._fetcher.statistics(),
        )


class FollowedMemory:
    """Replay position of an owner in the log that it follows.

    A storage error costs a restart only the time to read the log again, so none is raised.
    """

    def __init__(self, hot: RocketMqHotLog, tier: Tier, *, kept_every_s: float) -> None:
        """Keep the position every `kept_every_s` seconds.

        After a crash the next start reads again at most the log of those seconds.
        """
        self._kept_every_s = kept_every_s
        self._hot = hot
        self._tier = tier
        self._kept: FollowedName | None = None

    def __repr__(self) -> str:
        return f"<FollowedMemory: {self._kept}>"

    async def recall(self) -> bool:
        """Start the hot log at the replay position of the previous owner, before its first poll.

        One listing, and three requests if there is a position. Positions of earlier owners do not
        count: the previous owner may have truncated the tier, or followed without one.

        Returns:
            Whether there is a position. The first poll verifies it.
        """
        if not self._hot.is_of_log_alone:
            return False
        with suppress(StoreError):
            listed = await self._tier.store.list(FOLLOWED_PREFIX)
            names = [name for one in listed if (name := FollowedName.parse(one.name)) is not None]
            fitting = [name for name in names if self._fits(name)]
            if fitting:
                newest = max(fitting)
                said = Remembered.decode(bytes(await self._tier.store.read(str(newest))))
                if said is not None and self._is_believed(said, newest):
                    await self._hot.resume(said)
                    await self._keep(said)  # else two starts in a row would lose it
            await self._forget([name for name in names if name != self._kept])
        return self._kept is not None

    async def keep(self) -> None:
        """Write down how far the log is tiered now, if that is further than before."""
        if not self._hot.is_of_log_alone:
            return
        with suppress(StoreError):
            said = await self._hot.remembered()
            before = self._kept
            if said is not None and (before is None or said.position > before.position):
                await self._keep(said)
                await self._forget([] if before is None else [before])

    async def run(self, clock: Clock) -> None:
        """`keep` again and again, until cancelled."""
        while self._hot.is_of_log_alone:
            await clock.sleep(self._kept_every_s)
            await self.keep()

    def _fits(self, name: FollowedName) -> bool:
        journal = self._tier.journal
        # a journal that was restored from a copy may end before the entry
        return name.epoch == journal.epoch - 1 and name.sequence < journal.fence

    def _is_believed(self, said: Remembered, name: FollowedName) -> bool:
        """Whether it is of the owner that our fence replaced.

        In a journal that was restored from a copy, another owner may have had the same epoch, and
        entries of the same numbers.
        """
        earlier = self._tier.journal.loaded.earlier
        return said.owner == earlier.owner and said.position == name.position

    async def _keep(self, said: Remembered) -> None:
        # read after what was released, whose entries are therefore below this number
        sequence = self._tier.state.sequence
        name = FollowedName(self._tier.journal.epoch, sequence, said.position)
        kept = replace(said, owner=self._tier.state.broker.owner)
        await self._tier.store.create(str(name), [kept.encode()])
        self._kept = name

    async def _forget(self, names: list[FollowedName]) -> None:
        await self._tier.store.delete([str(name) for name in names])
