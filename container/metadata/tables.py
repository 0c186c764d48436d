"""Tables of a state: queue records, keys, overlays of one transaction, tombstones by queue."""

from collections import deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast
from weakref import ref

from container.metadata.record_codecs import RECORD_CODECS
from container.metadata.records import Attempt, IndexFile, Part, Queue, Tombstone, Topic
from container.metadata.resting_queue import Packed, bounds, pack, packed_of, raw_of, unpack
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a state: the type of its records, and the field that is their key."""

    record: type
    key: str


TABLES: Final = {
    "topics": Table(Topic, "name"),
    "queues": Table(Queue, "id"),
    "tombstones": Table(Tombstone, "object_name"),
    "attempts": Table(Attempt, "attempt_id"),
    "index_files": Table(IndexFile, "object_name"),
    "parts": Table(Part, "object_name"),
}
"""The tables of a state by attribute, in the order in which a snapshot has them."""


Key = TypeVar("Key")
Record = TypeVar("Record")


class Overlay(Generic[Key, Record]):
    """Table with changes that are not installed yet. None marks a removed record."""

    __slots__ = ("_base", "changed")

    def __init__(self, base: Mapping[Key, Record]) -> None:
        self._base = base
        self.changed: dict[Key, Record | None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no record and no change. O(1)."""
        return not self._base and not self.changed

    def get(self, key: Key) -> Record | None:
        """Return the record after the changes. None if there will be none."""
        if key in self.changed:
            return self.changed[key]
        return self._base.get(key)

    def records(self) -> Iterator[Record]:
        """Records after the changes. O(records)."""
        yield from (record for key, record in self._base.items() if key not in self.changed)
        yield from (record for record in self.changed.values() if record is not None)

    def any(self, wanted: Callable[[Record], bool]) -> bool:
        """Whether any record after the changes is `wanted`. O(records)."""
        return any(map(wanted, self.records()))

    def found(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """Records after the changes that are `wanted`. O(records)."""
        return list(filter(wanted, self.records()))

    def put(self, key: Key, record: Record) -> None:
        """Add or replace a record."""
        self.changed[key] = record

    def drop(self, key: Key) -> None:
        """Remove a record, if there is one."""
        self.changed[key] = None

    def install(self, into: MutableMapping[Key, Record]) -> None:
        """Apply the changes to `into`."""
        for key, record in self.changed.items():
            if record is None:
                into.pop(key, None)
            else:
                into[key] = record


def directory_of(object_name: str) -> str:
    """Queue directory at the beginning of a segment's name. Any other text for other names."""
    return object_name.rsplit("/", 2)[0]


class TombstoneTable(dict[str, Tombstone]):
    """Tombstones by object name. Lookup by directory is O(tombstones in it).

    The first lookup builds the index in O(tombstones). It is kept from then on. A copy builds its
    own. Only single items are changed.
    """

    __slots__ = ("_by_directory",)

    def __init__(self, tombstones: Mapping[str, Tombstone] | None = None) -> None:
        super().__init__(tombstones or {})
        self._by_directory: dict[str, set[str]] | None = None

    def in_directory(self, directory: str) -> Iterable[str]:
        """Names of the objects with a tombstone in a directory (`directory_of`), in no order."""
        if self._by_directory is None:
            self._by_directory = {}
            for name in self:
                self._by_directory.setdefault(directory_of(name), set()).add(name)
        return self._by_directory.get(directory, ())

    def __setitem__(self, name: str, tombstone: Tombstone) -> None:
        if self._by_directory is not None:
            self._by_directory.setdefault(directory_of(name), set()).add(name)
        super().__setitem__(name, tombstone)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if self._by_directory is not None:
            directory = directory_of(name)
            self._by_directory[directory].discard(name)
            if not self._by_directory[directory]:
                del self._by_directory[directory]

    def pop(self, name: str, default: Tombstone | None = None) -> Tombstone | None:  # type: ignore[override]
        """Remove a tombstone and return it, or the default if there is none."""
        known = self.get(name, default)
        if name in self:
            del self[name]
        return known

    def copy(self) -> Self:
        """Copy the table. O(tombstones), about 10 ns each."""
        return type(self)(self)


class TombstoneOverlay(Overlay[str, Tombstone]):
    """Changes to a table of tombstones."""

    __slots__ = ("_added", "_table")

    def __init__(self, base: TombstoneTable) -> None:
        super().__init__(base)
        self._table = base
        self._added: dict[str, set[str]] = {}

    def put(self, key: str, record: Tombstone) -> None:
        """Add or replace a tombstone."""
        super().put(key, record)
        self._added.setdefault(directory_of(key), set()).add(key)

    def has_in_directory(self, directory: str) -> bool:
        """Whether any object in a queue's directory will have a tombstone. O(tombstones in it)."""
        known = self._table.in_directory(directory)
        added = self._added.get(directory, ())
        return any(self.get(name) is not None for some in (known, added) for name in some)


_QUEUE = RECORD_CODECS.of(Queue)
AWAKE_MAX = 1_000
"""Records that a table and its copies keep as objects, 7 to 40 KB each."""


class QueueBounds(NamedTuple):
    """Offsets of the messages of a queue, from its record."""

    id: QueueId
    min_offset: QueueOffset
    next_offset: QueueOffset
    generation: int
    gaps: int
    """Number of gaps."""


class _Place:
    """Place of a record, as an object or packed. Shared by all tables that contain this record.

    While any caller holds the record, all callers get the same object.
    """

    __slots__ = ("__weakref__", "id", "packed", "record", "seen")

    def __init__(self, queue: QueueId, record: Queue | None, packed: Packed | None) -> None:
        self.id = queue
        self.record = record
        self.packed = packed
        self.seen: ref[Queue] | None = None
        """Weak reference to the record that was unpacked last."""

    def rest(self) -> None:
        """Drop the record object and keep only its packed form. The caller holds the lock."""
        record = self.record
        if record is None:
            return
        if self.packed is None:
            self.packed = pack(record)
        self.seen = ref(record)
        self.record = record = None
        self.forget()

    def forget(self) -> None:
        """Drop the weak reference to a record that is gone: 88 bytes. The caller holds the lock."""
        if self.seen is not None and self.seen() is None:
            self.seen = None

    def unpacked(self) -> Queue:
        """Return the record. The caller holds the lock."""
        record = self.record or (None if self.seen is None else self.seen())
        if record is None:
            assert self.packed is not None, "a record rests packed"
            record = unpack(self.packed, self.id)
            self.seen = ref(record)
        return record


class _Awake:
    """Places with a record object, oldest first. Shared by a table and its copies."""

    __slots__ = ("lock", "places")

    def __init__(self) -> None:
        self.places: deque[ref[_Place]] = deque()
        self.lock = Lock()

    def add(self, place: _Place) -> None:
        """Add a place with an object, and rest the oldest beyond the limit.

        The caller holds the lock.
        """
        self.places.append(ref(place))
        while len(self.places) > AWAKE_MAX:
            oldest = self.places.popleft()()
            if oldest is not None:  # else its record was replaced in every table
                oldest.rest()


class QueueTable(MutableMapping[QueueId, Queue]):
    """Records by queue, in insertion order.

    At most `AWAKE_MAX` records are kept as objects: the most recently written or read. All others
    rest packed, and are unpacked on access. Iteration unpacks one at a time and keeps none. Reads
    from several threads are safe, changes are not.

    As long as any caller holds a record, all callers get the same object, from any copy of the
    table. So an `is` comparison detects changes of a queue.
    """

    __slots__ = ("_awake", "_by_topic", "_places")

    def __init__(self, records: Iterable[Queue] = ()) -> None:
        """Create a table of these records, all packed."""
        self._places: dict[QueueId, _Place] = {}
        self._awake = _Awake()
        self._by_topic: dict[str, set[int]] | None = None
        for record in records:
            self._places[record.id] = _Place(record.id, None, pack(record))

    def add_raws(self, raws: Iterable[object]) -> None:
        """Add records in their snapshot form. All of them rest. 17 us each.

        Raises `DecodeError` or `NewerVersion` for a value that is no record.
        """
        for raw in raws:
            found = packed_of(raw)
            if found is None:
                record = _QUEUE.decode(raw)
                found = record.id, pack(record)
            self._places[found[0]] = _Place(found[0], None, found[1])
            self._note(found[0])

    def __repr__(self) -> str:
        return f"<QueueTable of {len(self)}>"

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._places)

    def __contains__(self, queue: object) -> bool:
        return queue in self._places

    def __getitem__(self, queue: QueueId) -> Queue:
        place = self._places[queue]
        return place.record or self._woken(place)

    def _woken(self, place: _Place) -> Queue:
        """Return the record of a place and keep it as an object from now on. 20 us."""
        with self._awake.lock:
            record = place.unpacked()
            if place.record is None:
                place.record = record
                self._awake.add(place)
        return record

    def __setitem__(self, queue: QueueId, record: Queue) -> None:
        place = self._places[queue] = _Place(record.id, record, None)
        self._note(queue)
        with self._awake.lock:
            self._awake.add(place)

    def install(self, changed: Mapping[QueueId, Queue | None], made: dict[QueueId, _Place]) -> None:
        """Put or remove records. `made` has places created by earlier calls for other copies."""
        for queue, record in changed.items():
            if record is None:
                if self._places.pop(queue, None) is not None:
                    self._forget(queue)
            elif queue in made:
                self._places[queue] = made[queue]
                self._note(queue)
            else:
                self[queue] = record
                made[queue] = self._places[queue]

    def __delitem__(self, queue: QueueId) -> None:
        del self._places[queue]
        self._forget(queue)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        others = cast(Mapping[object, object], other)
        if len(self) != len(others) or any(queue not in others for queue in self):
            return False
        if isinstance(other, QueueTable):
            theirs = other._places
            pairs = ((place, theirs[queue]) for queue, place in self._places.items())
            return all(a is b or self._look(a) == self._look(b) for a, b in pairs)
        return all(self._look(place) == others[queue] for queue, place in self._places.items())

    __hash__ = None  # type: ignore[assignment]

    def peek(self, queue: QueueId) -> Queue | None:
        """Return the record of a queue without keeping it as an object.

        None if missing. At most 20 us.
        """
        place = self._places.get(queue)
        return None if place is None else self._look(place)

    def _look(self, place: _Place) -> Queue:
        """Return the record of a place without keeping it as an object."""
        if (record := place.record) is None:
            with self._awake.lock:
                record = place.unpacked()
        return record

    def keys(self) -> KeysView[QueueId]:
        """Queues of the table."""
        return self._places.keys()

    def values(self) -> ValuesView[Queue]:
        """Records, each unpacked when the iteration reaches it. 20 us for a resting one."""
        return _Values(self)

    def items(self) -> ItemsView[QueueId, Queue]:
        """Queues and their records, as `values`."""
        return _Items(self)

    def looked_through(self) -> Iterator[tuple[QueueId, Queue]]:
        """As `items`."""
        before: _Place | None = None
        for queue, place in self._places.items():
            yield queue, self._look(place)
            if before is not None:  # the caller may still hold the last one
                with self._awake.lock:
                    before.forget()
            before = place

    def raws(self) -> Iterator[Any]:
        """Snapshot forms of the records. 12 us for a resting record, which keeps resting."""
        for queue, place in self._places.items():
            packed = place.packed
            known = None if packed is None else raw_of(packed, queue)
            yield _QUEUE.encode(self._look(place)) if known is None else known

    def bounds(self) -> Iterator[QueueBounds]:
        """Offsets of all queues. 0.5 us each, also for a resting record."""
        return map(self._bounds, self._places.values())

    def bounds_of(self, queue: QueueId) -> QueueBounds | None:
        """Offsets of one queue. None if it has no record."""
        place = self._places.get(queue)
        return None if place is None else self._bounds(place)

    def _bounds(self, place: _Place) -> QueueBounds:
        found = None if place.packed is None else bounds(place.packed)
        if found is None:
            record = self._look(place)
            found = record.min_offset, record.next_offset, record.generation, len(record.gaps)
        return QueueBounds(place.id, *found)

    def with_gaps(self) -> Iterator[Queue]:
        """Records with gaps, in any order. A record without gaps costs as in `bounds`."""
        return (self._look(self._places[one.id]) for one in self.bounds() if one.gaps)

    def of_topic(self, topic: str) -> list[Queue]:
        """Records of a topic's queues, in order. O(queues of the topic)."""
        return [self._look(self._places[queue]) for queue in self.names_of_topic(topic)]

    def names_of_topic(self, topic: str) -> list[QueueId]:
        """Queues of a topic, in order. O(queues of the topic).

        The first call builds an index of all queues, at about 0.2 us each, which is kept from then
        on.
        """
        return [QueueId(topic, number) for number in sorted(self._topics().get(topic, ()))]

    def topics(self) -> list[str]:
        """Topics that have queues. O(topics). The first call costs as that of `names_of_topic`."""
        return list(self._topics())

    def has_topic(self, topic: str) -> bool:
        """Whether a topic has queues. The first call costs as that of `names_of_topic`."""
        return bool(self._topics().get(topic))

    def _topics(self) -> dict[str, set[int]]:
        if self._by_topic is None:
            self._by_topic = {}
            for topic, number in self._places:
                self._by_topic.setdefault(topic, set()).add(number)
        return self._by_topic

    def _note(self, queue: QueueId) -> None:
        if self._by_topic is not None:
            self._by_topic.setdefault(queue.topic, set()).add(queue.queue_id)

    def _forget(self, queue: QueueId) -> None:
        if self._by_topic is not None:
            self._by_topic[queue.topic].discard(queue.queue_id)
            if not self._by_topic[queue.topic]:
                del self._by_topic[queue.topic]

    def copy(self) -> Self:
        """Copy the table, sharing its records. O(queues), about 10 ns each."""
        other = type(self)()
        other._places = self._places.copy()  # noqa: SLF001 - of the same class
        other._awake = self._awake  # noqa: SLF001 - the same
        return other


class _Values(ValuesView[Queue]):
    """Records of a table. Iteration keeps none as an object."""

    def __init__(self, table: QueueTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[Queue]:
        return (record for _, record in self._table.looked_through())


class _Items(ItemsView[QueueId, Queue]):
    """Queues of a table with their records, as `_Values`."""

    def __init__(self, table: QueueTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[QueueId, Queue]]:
        return self._table.looked_through()


class QueueOverlay(Overlay[QueueId, Queue]):
    """Changes to a table of queues. The copies of the table share the installed records."""

    __slots__ = ("_made",)

    def __init__(self, base: QueueTable) -> None:
        super().__init__(base)
        self._made: dict[QueueId, _Place] = {}

    def install(self, into: MutableMapping[QueueId, Queue]) -> None:
        """Apply the changes to `into`, which is the table or a copy of it."""
        assert isinstance(into, QueueTable), "the changes of a table"
        into.install(self.changed, self._made)
