"""The tombstones of a state, and which of them are of one queue's own files."""

from collections.abc import Iterable, Mapping
from typing import Self

from container.metadata.overlay import Overlay
from container.metadata.records import Tombstone


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
