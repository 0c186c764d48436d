"""The queues of a state: their records, of which most rest in a packed form (decision 0044)."""

from collections import deque
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from threading import Lock
from typing import Any, NamedTuple, Self, cast
from weakref import ref

from container.metadata.record_codecs import RECORD_CODECS
from container.metadata.records import Queue
from container.metadata.resting_queue import Packed, bounds, pack, packed_of, raw_of, unpack
from container.metadata.tables import Overlay
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset

_QUEUE = RECORD_CODECS.of(Queue)
AWAKE_MAX = 1_000
"""Records that a table and its copies keep as objects: 7 to 40 KB each."""


class QueueBounds(NamedTuple):
    """Between which offsets a queue has messages, as its record says."""

    id: QueueId
    min_offset: QueueOffset
    next_offset: QueueOffset
    generation: int
    gaps: int
    """How many there are."""


class _Place:
    """Where one record lies, as an object or packed; shared by all tables that have this record.

    While anybody holds the record, everybody gets the same object.
    """

    __slots__ = ("__weakref__", "id", "packed", "record", "seen")

    def __init__(self, queue: QueueId, record: Queue | None, packed: Packed | None) -> None:
        self.id = queue
        self.record = record
        self.packed = packed
        self.seen: ref[Queue] | None = None
        """The record as it was unpacked last, if anybody may hold it."""

    def rest(self) -> None:
        """Keep the record in its packed form alone. The caller holds the lock."""
        record = self.record
        if record is None:
            return
        if self.packed is None:
            self.packed = pack(record)
        self.seen = ref(record)
        self.record = record = None
        self.forget()

    def forget(self) -> None:
        """Drop the reference to a record that nobody holds: 88 bytes. The caller has the lock."""
        if self.seen is not None and self.seen() is None:
            self.seen = None

    def unpacked(self) -> Queue:
        """The record. The caller holds the lock."""
        record = self.record or (None if self.seen is None else self.seen())
        if record is None:
            assert self.packed is not None, "a record rests packed"
            record = unpack(self.packed, self.id)
            self.seen = ref(record)
        return record


class _Awake:
    """The places whose records are objects, oldest first; shared by a table and its copies."""

    __slots__ = ("lock", "places")

    def __init__(self) -> None:
        self.places: deque[ref[_Place]] = deque()
        self.lock = Lock()

    def add(self, place: _Place) -> None:
        """Note that a place has an object, and let the oldest one rest. The caller has the lock."""
        self.places.append(ref(place))
        while len(self.places) > AWAKE_MAX:
            oldest = self.places.popleft()()
            if oldest is not None:  # else its record was replaced, in every table
                oldest.rest()


class QueueTable(MutableMapping[QueueId, Queue]):
    """The records by queue, in the order in which the queues came.

    `AWAKE_MAX` records at most are kept as objects: those that were put or got last. All others
    rest packed, and are made again when they are wanted. Iterating makes them one at a time and
    keeps none. Asking for a record from several threads is safe, changing the table is not.

    A record is the same object for everybody as long as anybody holds it, in all copies of a table:
    so `is` tells whether a queue was changed since.
    """

    __slots__ = ("_awake", "_by_topic", "_places")

    def __init__(self, records: Iterable[Queue] = ()) -> None:
        """A table of these records, all of which rest."""
        self._places: dict[QueueId, _Place] = {}
        self._awake = _Awake()
        self._by_topic: dict[str, set[int]] | None = None
        for record in records:
            self._places[record.id] = _Place(record.id, None, pack(record))

    def add_raws(self, raws: Iterable[object]) -> None:
        """Add records as a snapshot has them, which all rest. 17 us each.

        Raises `DecodeError` or `NewerVersion` for what is no record.
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
        """The record in a place, which is kept as an object from now on. 20 us."""
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
        """Put or remove records. `made` has what earlier calls for other copies have made."""
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
        """The record of a queue, which stays as it is; None if there is none. 20 us at most."""
        place = self._places.get(queue)
        return None if place is None else self._look(place)

    def _look(self, place: _Place) -> Queue:
        """The record in a place, which stays as it is."""
        if (record := place.record) is None:
            with self._awake.lock:
                record = place.unpacked()
        return record

    def keys(self) -> KeysView[QueueId]:
        """The queues."""
        return self._places.keys()

    def values(self) -> ValuesView[Queue]:
        """The records, each made as it is reached. 20 us for one that rests."""
        return _Values(self)

    def items(self) -> ItemsView[QueueId, Queue]:
        """The queues and their records, as `values`."""
        return _Items(self)

    def looked_through(self) -> Iterator[tuple[QueueId, Queue]]:
        """As `items`."""
        before: _Place | None = None
        for queue, place in self._places.items():
            yield queue, self._look(place)
            if before is not None:  # the one that was looked at last may still be held
                with self._awake.lock:
                    before.forget()
            before = place

    def raws(self) -> Iterator[Any]:
        """What a snapshot says of the records. 12 us for one that rests; it stays so."""
        for queue, place in self._places.items():
            packed = place.packed
            known = None if packed is None else raw_of(packed, queue)
            yield _QUEUE.encode(self._look(place)) if known is None else known

    def bounds(self) -> Iterator[QueueBounds]:
        """What the records say of the queues' offsets. 0.5 us each, whether or not it rests."""
        return map(self._bounds, self._places.values())

    def bounds_of(self, queue: QueueId) -> QueueBounds | None:
        """What the record of one queue says; None if there is none."""
        place = self._places.get(queue)
        return None if place is None else self._bounds(place)

    def _bounds(self, place: _Place) -> QueueBounds:
        found = None if place.packed is None else bounds(place.packed)
        if found is None:
            record = self._look(place)
            found = record.min_offset, record.next_offset, record.generation, len(record.gaps)
        return QueueBounds(place.id, *found)

    def with_gaps(self) -> Iterator[Queue]:
        """The records that have gaps, in any order. As `bounds` for those that have none."""
        return (self._look(self._places[one.id]) for one in self.bounds() if one.gaps)

    def of_topic(self, topic: str) -> list[Queue]:
        """The records of a topic's queues, in order. O(queues of the topic)."""
        return [self._look(self._places[queue]) for queue in self.names_of_topic(topic)]

    def names_of_topic(self, topic: str) -> list[QueueId]:
        """A topic's queues, in order. O(queues of the topic).

        The first call makes an index of all queues, about 0.2 us each, which is kept from then on.
        """
        return [QueueId(topic, number) for number in sorted(self._topics().get(topic, ()))]

    def topics(self) -> list[str]:
        """The topics that have queues. O(topics); the first call as of `names_of_topic`."""
        return list(self._topics())

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
        """Another table of the same records. O(queues), about 10 ns each."""
        other = type(self)()
        other._places = self._places.copy()  # noqa: SLF001 - of the same class
        other._awake = self._awake  # noqa: SLF001 - the same
        return other


class _Values(ValuesView[Queue]):
    """The records of a table; none is kept as an object for having been looked at."""

    def __init__(self, table: QueueTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[Queue]:
        return (record for _, record in self._table.looked_through())


class _Items(ItemsView[QueueId, Queue]):
    """The queues of a table with their records, as `_Values`."""

    def __init__(self, table: QueueTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[QueueId, Queue]]:
        return self._table.looked_through()


class QueueOverlay(Overlay[QueueId, Queue]):
    """The changes to a table of queues, whose copies share the records that are installed."""

    __slots__ = ("_made",)

    def __init__(self, base: QueueTable) -> None:
        super().__init__(base)
        self._made: dict[QueueId, _Place] = {}

    def install(self, into: MutableMapping[QueueId, Queue]) -> None:
        """Make the changes in `into`, which is a table or a copy of it."""
        assert isinstance(into, QueueTable), "the changes of a table"
        into.install(self.changed, self._made)
