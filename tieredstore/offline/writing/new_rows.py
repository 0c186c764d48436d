"""Columns of new messages, and the message of a row. Pure, without Arrow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from container.names.queue_id import QueueId
from container.record.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_END,
    PAIR_END,
    RECORD_CRC,
    TAGS,
    encode_properties,
    java_hash,
    split_keys,
)
from tieredstore.config.sources import ConfigError
from tieredstore.hot.encoding import MessageRefused, NewMessage, prepare
from tieredstore.hot.options import HotWriteOptions

TOPIC, BODY, QUEUE_ID = "topic", "body", "queue_id"
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    TOPIC: ("string",),
    BODY: ("binary",),
    QUEUE_ID: ("int", "bigint", "smallint", "tinyint"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
}
"""Columns with the types that each may have, the usual one first."""
REQUIRED: Final = (TOPIC, BODY)
STAMP: Final = "SPARK_WRITE"
"""The property that says of which write a message is, and the number it has there: `id/number`."""
NUMBER_DIGITS: Final = 12
"""Of the largest number of a message that has room in a record which was found to fit."""

Cell = object
"""A value of a row; None if it is null."""


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse a table that is none of messages; `columns` are its SQL types by name, in any case.

    Raises:
        ConfigError: a column lacks, is too much or there twice, or has another type; names it.
    """
    spelled: dict[str, str] = {}
    for name in columns:
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise ConfigError(f"the columns {other} and {name} are one: leave one out with select")
    columns = {name.lower(): kind for name, kind in columns.items()}
    optional = [name for name in COLUMNS if name not in REQUIRED]
    for name in REQUIRED:
        if name not in columns:
            raise ConfigError(
                f"there is no column {name}: a message has {' and '.join(REQUIRED)}, and may have "
                f"{', '.join(optional)}"
            )
    for name, kind in columns.items():
        if name not in COLUMNS:
            raise ConfigError(
                f"the column {name} is none of a message's, which are {', '.join(COLUMNS)}: leave "
                f"it out with select"
            )
        usual = COLUMNS[name][0]
        if kind not in COLUMNS[name]:
            wanted = " or ".join(COLUMNS[name])
            hint = f": write cast({name} AS {usual})" if "<" not in usual else ""
            raise ConfigError(f"the column {name} is {kind}, not {wanted}{hint}")


class StagedRow(NamedTuple):
    """A message that fits the store, but for its number and perhaps its queue."""

    topic: str
    queue_id: int | None
    """None: chosen when it is appended."""
    spread: int | None
    """Hash of the first key, for the choice of a queue; None: the queues take turns."""
    properties: bytes
    """In their stored form."""
    body: bytes


@dataclass(slots=True)
class RowChecker:
    """Makes staged rows of the rows of one part, and remembers which queues they name."""

    options: HotWriteOptions
    write_id: str
    topics: set[str] = field(default_factory=set[str])
    queues: set[QueueId] = field(default_factory=set[QueueId])
    """Queues that rows name."""

    def staged(self, row: Mapping[str, Cell]) -> StagedRow:
        """The row as it is staged; about 9 us.

        Raises:
            MessageRefused: no message can be made of it; says why.
        """
        topic, body, queue_id = row[TOPIC], row[BODY], row.get(QUEUE_ID)
        for name, value in ((TOPIC, topic), (BODY, body)):
            if value is None:
                raise MessageRefused(f"The {name} is null.")
        keys = _keys_of(row.get("keys"))
        encoded = self._properties(row, keys)
        stamp = stamp_of(self.write_id, 10**NUMBER_DIGITS - 1)
        assert isinstance(topic, str)
        assert isinstance(body, bytes)
        assert queue_id is None or isinstance(queue_id, int)
        message = NewMessage(topic, queue_id or 0, body, encoded + stamp)
        prepared = prepare(message, 0, self.options)
        self.topics.add(topic)
        if queue_id is not None:
            self.queues.add(prepared.queue)
        spread = abs(java_hash(keys[0])) if keys else None
        return StagedRow(topic, queue_id, spread, encoded, body)

    def _properties(self, row: Mapping[str, Cell], keys: list[str]) -> bytes:
        found = _map_of(row.get("properties"))
        # A checksum of the whole record, and a stamp, were those of the message that was read.
        found = {name: text for name, text in found.items() if name not in (RECORD_CRC, STAMP)}
        tags = row.get("tags")
        if tags is not None:
            found[TAGS] = str(tags)
        if keys and split_keys(found.get(KEYS, "")) != keys:  # else as it was written
            found[KEYS] = KEY_SEPARATOR.join(keys)
        try:
            return encode_properties(found)
        except ValueError as error:
            raise MessageRefused(f"The properties cannot be stored: {error}.") from error


def _keys_of(cell: Cell) -> list[str]:
    if cell is None:
        return []
    if isinstance(cell, str):
        return [key for key in cell.split(KEY_SEPARATOR) if key]
    keys: list[str] = []
    for key in cast("Iterable[str | None]", cell):
        if not key or KEY_SEPARATOR in key:
            raise MessageRefused(
                f"A key is a text without blanks, which separate keys, and not empty: {key!r}."
            )
        keys.append(key)
    return keys


def _map_of(cell: Cell) -> dict[str, str]:
    if cell is None:
        return {}
    pairs: dict[str, str] = {}
    for name, text in cast("Iterable[tuple[str, str | None]]", cell):
        if text is None:
            raise MessageRefused(f"The property {name} is null.")
        pairs[name] = text
    return pairs


def stamp_of(write_id: str, number: int) -> bytes:
    """The stamp of one message, in stored form, to be put after its other properties."""
    return f"{STAMP}{NAME_END}{write_id}/{number}{PAIR_END}".encode()


def number_in(write_id: str, properties: Mapping[str, str]) -> int | None:
    """The number that a message has in a write; None if it is of another one, or of none."""
    name, _, number = properties.get(STAMP, "").rpartition("/")
    return int(number) if name == write_id and number.isdecimal() else None


def queue_for(row: StagedRow, number: int, queues: int) -> int:
    """The queue of a message: its own, that of its first key, or each in its turn.

    By the key as RocketMQ's SelectMessageQueueByHash. The same whenever it is asked for.
    """
    if row.queue_id is not None:
        return row.queue_id
    return (number if row.spread is None else row.spread) % queues
