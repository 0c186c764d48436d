"""The tables of a state: which records each holds, and under which key."""

from dataclasses import dataclass
from typing import Final

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
