"""Which topics of a CommitLog are tiered, as its records and the store's settings tell."""

from collections.abc import Callable, Mapping

from container.names.queue_id import QueueId
from container.names.rocketmq import INT32_MAX
from dispatcher.ports import HotQueue, HotQueueState
from provider.errors import StoreError
from provider.ranges import QueueOffset
from tieredstore.following.directory.layout import (
    StoreLayout,
    read_topic_attributes,
    refused_topics,
)
from tieredstore.following.directory.queues import DirectoryWatch, FoundQueues, refuse_name


class LoggedTopics:
    """Sorts queues by their names. One thread at a time."""

    def __init__(self, layout: StoreLayout, is_excluded: Callable[[str], bool]) -> None:
        self._layout = layout
        self._is_excluded = is_excluded
        self._watch = DirectoryWatch()
        self._refused: Mapping[str, str] = {}
        """A sentence for each topic that the store's settings say is of another kind."""
        self._wanted: dict[str, bool] = {}
        """Whether messages of a topic are tiered, as far as is known."""
        self.found = FoundQueues()
        """Topics of the log that are refused or left out, and what keeps that from being told."""

    def __repr__(self) -> str:
        return f"<LoggedTopics: {len(self._wanted)} topics>"

    def look(self) -> None:
        """Read the store's settings if they changed.

        Raises:
            Unavailable, Denied: nothing can be read now.
        """
        config = self._layout.root / "config"
        if self._watch.changed(config) or self.found.troubles:
            try:
                attributes = read_topic_attributes(self._layout)
                refused, self.found.troubles = refused_topics(self._layout, attributes)
            except StoreError:
                self._watch.forget(config)
                raise
            if refused != self._refused:
                self._refused = refused
                self._wanted.clear()

    def is_wanted(self, queue: QueueId) -> bool:
        """Whether messages of a queue are tiered, as far as its names tell."""
        topic = queue.topic
        is_wanted = self._wanted.get(topic)
        if is_wanted is None:
            is_named = not refuse_name(self.found, topic)
            is_excluded = is_named and self._is_excluded(topic)
            if is_excluded:
                self.found.excluded.add(topic)
            elif topic in self._refused:
                self.found.refused[QueueId(topic, 0)] = self._refused[topic]
            is_wanted = is_named and not is_excluded and topic not in self._refused
            self._wanted[topic] = is_wanted
        return is_wanted and 0 <= queue.queue_id <= INT32_MAX

    def refused(self) -> dict[QueueId, HotQueue]:
        """What is told of queues that are refused."""
        zero = QueueOffset(0)
        return {
            queue: HotQueue(queue, zero, zero, HotQueueState.REFUSED, sentence)
            for queue, sentence in self.found.refused.items()
        }
