"""The changes of one transaction to one table, on top of a table that stays as it is."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Generic, TypeVar

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
