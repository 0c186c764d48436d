"""Tables of a state: keys, overlays of one transaction, tombstones by queue."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from container.metadata.records import Attempt, IndexFile, Part, Queue, Tombstone, Topic


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
