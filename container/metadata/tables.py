"""Tables of a state: keys, overlays of one transaction, tombstones by queue."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from container.metadata.records import Attempt, IndexFile, Part, Queue, Tombstone, Topic


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a state: the type of its records, and which of their fields is the key."""

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
    """A table with changes that are not in it yet; None marks a record that is removed."""

    __slots__ = ("_base", "changed")

    def __init__(self, base: Mapping[Key, Record]) -> None:
        self._base = base
        self.changed: dict[Key, Record | None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no record and no change. O(1)."""
        return not self._base and not self.changed

    def get(self, key: Key) -> Record | None:
        """The record as it will be; None where there will be none."""
        if key in self.changed:
            return self.changed[key]
        return self._base.get(key)

    def records(self) -> Iterator[Record]:
        """The records that will be there. O(records)."""
        yield from (record for key, record in self._base.items() if key not in self.changed)
        yield from (record for record in self.changed.values() if record is not None)

    def any(self, wanted: Callable[[Record], bool]) -> bool:
        """Whether some record will be `wanted`. O(records)."""
        return any(map(wanted, self.records()))

    def found(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """The records that will be there and are `wanted`. O(records)."""
        return list(filter(wanted, self.records()))

    def put(self, key: Key, record: Record) -> None:
        """Add or replace a record."""
        self.changed[key] = record

    def drop(self, key: Key) -> None:
        """Remove a record; nothing happens where there is none."""
        self.changed[key] = None

    def install(self, into: MutableMapping[Key, Record]) -> None:
        """Make the changes in `into`."""
        for key, record in self.changed.items():
            if record is None:
                into.pop(key, None)
            else:
                into[key] = record


def directory_of(object_name: str) -> str:
    """The queue's directory that a segment's name begins with; anything else for other names."""
    return object_name.rsplit("/", 2)[0]


class TombstoneTable(dict[str, Tombstone]):
    """Tombstones by object name. Found by directory in O(tombstones in it).

    The index is made when it is first asked for, in O(tombstones), and kept from then on. A copy
    makes its own. Changed by item alone.
    """

    __slots__ = ("_by_directory",)

    def __init__(self, tombstones: Mapping[str, Tombstone] | None = None) -> None:
        super().__init__(tombstones or {})
        self._by_directory: dict[str, set[str]] | None = None

    def in_directory(self, directory: str) -> Iterable[str]:
        """Names of the objects with a tombstone whose `directory_of` this is, in no order."""
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
        """Remove a tombstone and return it; the default if there is none."""
        known = self.get(name, default)
        if name in self:
            del self[name]
        return known

    def copy(self) -> Self:
        """Another table of the same tombstones. O(tombstones), about 10 ns each."""
        return type(self)(self)


class TombstoneOverlay(Overlay[str, Tombstone]):
    """The changes to a table of tombstones."""

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
        """Whether an object in a queue's directory will have one. O(tombstones in it)."""
        known = self._table.in_directory(directory)
        added = self._added.get(directory, ())
        return any(self.get(name) is not None for some in (known, added) for name in some)
