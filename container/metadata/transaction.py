"""The records that one transaction changes, on top of a state that stays as it is."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from container.metadata.records import Attempt, Broker, IndexFile, Queue, Tombstone, Topic
from container.names.queue_id import QueueId

Key = TypeVar("Key")
Record = TypeVar("Record")


class Overlay(Generic[Key, Record]):
    """A table with changes that are not in it yet; None stands for a record that goes."""

    __slots__ = ("_base", "changed")

    def __init__(self, base: Mapping[Key, Record]) -> None:
        self._base = base
        self.changed: dict[Key, Record | None] = {}

    def get(self, key: Key) -> Record | None:
        """The record as it will be; None where there will be none."""
        if key in self.changed:
            return self.changed[key]
        return self._base.get(key)

    def any(self, wanted: Callable[[Record], bool]) -> bool:
        """Whether some record will be `wanted`. O(records)."""
        if any(record is not None and wanted(record) for record in self.changed.values()):
            return True
        return any(wanted(record) for key, record in self._base.items() if key not in self.changed)

    def put(self, key: Key, record: Record) -> None:
        """Add or replace a record."""
        self.changed[key] = record

    def drop(self, key: Key) -> None:
        """Remove a record; nothing happens where there is none."""
        self.changed[key] = None

    def install(self, into: dict[Key, Record]) -> None:
        """Make the changes in `into`."""
        for key, record in self.changed.items():
            if record is None:
                into.pop(key, None)
            else:
                into[key] = record


class StateChange:
    """What a transaction does to a state: made by `TierState.plan`, carried out by `install`."""

    __slots__ = (
        "attempts",
        "broker",
        "index_files",
        "next_topic_id",
        "queues",
        "tombstones",
        "topics",
    )

    def __init__(
        self,
        *,
        broker: Broker,
        next_topic_id: int,
        topics: Mapping[str, Topic],
        queues: Mapping[QueueId, Queue],
        tombstones: Mapping[str, Tombstone],
        attempts: Mapping[str, Attempt],
        index_files: Mapping[str, IndexFile],
    ) -> None:
        self.broker = broker
        self.next_topic_id = next_topic_id
        self.topics = Overlay(topics)
        self.queues = Overlay(queues)
        self.tombstones = Overlay(tombstones)
        self.attempts = Overlay(attempts)
        self.index_files = Overlay(index_files)

    def __repr__(self) -> str:
        tables = (self.topics, self.queues, self.tombstones, self.attempts, self.index_files)
        return f"<StateChange: {sum(len(table.changed) for table in tables)} records>"
