"""Followers and stores without `await`, as `tieredstore.sync` opens them."""

from collections.abc import Iterator

from container.record.message import StoredMessage
from provider.errors import StoreError
from tieredstore.follower import Follower
from tieredstore.message import Message
from tieredstore.reader.cursor import Moment
from tieredstore.store.by_topic import Position, TopicCalls
from tieredstore.store.levels import Level
from tieredstore.store.plugins import PluggedStore
from tieredstore.store.protocol import MessageStore
from tieredstore.store.read_only import StoreReader
from tieredstore.store.tiered import TieredMessageStore
from tieredstore.threaded import Threaded, blocking


class SyncFollower(Threaded):
    """Tiers a broker's store directory: `tieredstore.Follower` without `await`."""

    def __init__(self, follower: Follower) -> None:
        """Opens it; see `follow`."""
        super().__init__(follower)

    drain = blocking(Follower.drain)
    statistics = blocking(Follower.statistics)
    losses = blocking(Follower.losses)
    topics = blocking(Follower.topics)


class SyncStore(Threaded):
    """A message store with a cold tier: `tieredstore.TieredMessageStore` without `await`."""

    def __init__(self, store: TieredMessageStore | PluggedStore) -> None:
        """Opens it; see `open_store`."""
        self._store = store
        super().__init__(store)

    @property
    def level(self) -> Level:
        """Reads that go to the tier at present."""
        return self._store.level

    @property
    def awaited(self) -> StoreError | None:
        """Why the tier could not be opened yet; None if it is not awaited."""
        return self._store.awaited

    set_level = blocking(TieredMessageStore.set_level)
    commit_offset = blocking(TieredMessageStore.commit_offset)
    put_message = blocking(MessageStore.put_message)
    put_messages = blocking(MessageStore.put_messages)
    get_message = blocking(MessageStore.get_message)
    query_message = blocking(MessageStore.query_message)
    offset_by_time = blocking(MessageStore.offset_by_time)
    min_offset = blocking(MessageStore.min_offset)
    max_offset = blocking(MessageStore.max_offset)
    earliest_message_time = blocking(MessageStore.earliest_message_time)
    message_store_time = blocking(MessageStore.message_store_time)
    is_in_store = blocking(MessageStore.is_in_store)
    is_in_memory = blocking(MessageStore.is_in_memory)
    wait_for_message = blocking(MessageStore.wait_for_message)
    delete_topics = blocking(MessageStore.delete_topics)
    clean_unused_topics = blocking(MessageStore.clean_unused_topics)
    topics = blocking(MessageStore.topics)
    queue_ids = blocking(MessageStore.queue_ids)
    statistics = blocking(MessageStore.statistics)

    append = blocking(TopicCalls.append)

    def read(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        tags: str | None = None,
        follow: bool = False,
    ) -> Iterator[Message]:
        """Iterate over a topic; arguments and errors as `TieredMessageStore.read`."""
        return self.each_of(
            lambda: self._store.chunks(topic, since=since, until=until, tags=tags, follow=follow)
        )

    def position(self, group: str, topic: str) -> "SyncPosition":
        """Position of a group of readers in a topic, which is kept; see `SyncPosition`."""
        return SyncPosition(self, self._store.position(group, topic))

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> Iterator[StoredMessage]:
        """Yield every message from `start` on, and new ones, until the loop is left."""
        return self._each(self._running.call(self._store.messages, group, topic, queue_id, start))


class SyncStoreReader(Threaded):
    """A store that another process writes: `tieredstore.StoreReader` without `await`."""

    def __init__(self, store: StoreReader) -> None:
        """Opens it; see `read_store`."""
        self._store = store
        super().__init__(store)

    refresh = blocking(StoreReader.refresh)
    topics = blocking(StoreReader.topics)
    queue_ids = blocking(StoreReader.queue_ids)
    min_offset = blocking(StoreReader.min_offset)
    max_offset = blocking(StoreReader.max_offset)
    get_message = blocking(StoreReader.get_message)
    offset_by_time = blocking(StoreReader.offset_by_time)
    wait_for_message = blocking(StoreReader.wait_for_message)

    def read(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        tags: str | None = None,
        follow: bool = False,
    ) -> Iterator[Message]:
        """Iterate over a topic; arguments and errors as `StoreReader.read`."""
        return self.each_of(
            lambda: self._store.chunks(topic, since=since, until=until, tags=tags, follow=follow)
        )


class SyncPosition:
    """Position of a group of readers in a topic: `tieredstore.Position` without `await`."""

    def __init__(self, store: SyncStore, position: Position) -> None:
        """See `SyncStore.position`."""
        self._store = store
        self._position = position

    def __repr__(self) -> str:
        return repr(self._position)

    def offsets(self) -> dict[int, int]:
        """Return the offset of the next message by queue; see `tieredstore.Position`."""
        return self._store.run(self._position.offsets)

    def messages(self, *, tags: str | None = None, follow: bool = False) -> Iterator[Message]:
        """Iterate from the position on; see `tieredstore.Position`."""
        return self._store.each_of(lambda: self._position.chunks(tags=tags, follow=follow))

    def acknowledge(self, message: Message) -> None:
        """Move the position past a message; see `tieredstore.Position`."""
        self._store.run(lambda: self._position.acknowledge(message))
