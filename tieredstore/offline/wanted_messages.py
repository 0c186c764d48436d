"""Which tier, and which of its messages: what a job is told. Plain values; all can be pickled."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from container.names.queue_id import QueueId
from tieredstore.config.effective import Config
from tieredstore.offline.cutting import Selection
from tieredstore.offline.split import ALL_OFFSETS, ALL_TIMES
from tieredstore.summary import absence_text, no_such_number


@dataclass(frozen=True, slots=True)
class TierAddress:
    """Which tier, as `tieredstore.open` takes it. Holds no secret."""

    where: str | None = None
    cluster: str | None = None
    broker: str | None = None
    conf: str | None = None
    java_metadata: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def load(self) -> Config:
        """The configuration that it names; reads `conf` and the environment.

        Raises:
            ConfigError: a setting is wrong.
        """
        named = {
            "tieredStoreFilePath": self.where,
            "brokerClusterName": self.cluster,
            "brokerName": self.broker,
        }
        given = {name: value for name, value in named.items() if value is not None}
        conf = None if self.conf is None else Path(self.conf)
        return Config.load(conf=conf, settings={**self.settings, **given})


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """Which messages; None: no bound."""

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    """Only topics whose whole names this regular expression matches, besides `topics`."""
    queues: frozenset[QueueId | int] | None = None
    """Queues by name, or of every topic by number."""
    starts: Mapping[str, int] = field(default_factory=dict[str, int])
    """First queue offsets by `topic/queue`."""
    ends: Mapping[str, int] = field(default_factory=dict[str, int])
    """Queue offsets behind the last, likewise."""
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def times_ms(self) -> tuple[int, int]:
        """Store timestamps `[from, to)`."""
        return (
            ALL_TIMES[0] if self.since_ms is None else self.since_ms,
            ALL_TIMES[1] if self.until_ms is None else self.until_ms,
        )

    def has_topic(self, topic: str) -> bool:
        """Whether a topic was asked for."""
        return (self.topics is None or topic in self.topics) and (
            self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None
        )

    def has(self, queue: QueueId) -> bool:
        """Whether messages of a queue may be wanted."""
        return self.has_topic(queue.topic) and (
            self.queues is None or queue in self.queues or queue.queue_id in self.queues
        )

    def absence(self, queues: Collection[QueueId]) -> str | None:
        """What of the topics and queues that are named a tier with these queues has not.

        None where it has all. Offsets and a pattern may name what is not there.
        """
        known = {queue.topic for queue in queues}
        for topic in sorted((self.topics or frozenset()) - known):
            return absence_text(topic, None, queues)
        numbers = {one.queue_id for one in queues if self.has_topic(one.topic)}
        for queue in sorted(self.queues or (), key=str):
            if isinstance(queue, QueueId):
                if queue not in queues:
                    return absence_text(queue.topic, queue.queue_id, queues)
                if not self.has_topic(queue.topic):
                    return f"the queue {queue} is of none of the topics that are wanted"
            elif queue not in numbers:
                return no_such_number(queue, numbers)
        return None

    def offsets_of(self, queue: QueueId) -> tuple[int, int]:
        """Queue offsets `[from, to)` of a queue."""
        name = str(queue)
        first = self.starts.get(name, ALL_OFFSETS[0])
        return first, max(first, self.ends.get(name, ALL_OFFSETS[1]))

    def selection(self, queues: Iterable[QueueId]) -> Selection:
        """The same for a scan; `queues` are those that there are."""
        mine = [queue for queue in queues if self.has(queue)]
        return Selection(
            times_ms=self.times_ms, by_queue={queue: self.offsets_of(queue) for queue in mine}
        )
