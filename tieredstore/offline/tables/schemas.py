"""The columns of each table, as Arrow has them and as a SQL engine does."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import pyarrow as pa

from tieredstore.config.sources import ConfigError
from tieredstore.reader.arrow_batches import ORIGIN
from tieredstore.reader.arrow_columns import SCHEMA

MESSAGES, UNITS, KEYS, SEGMENTS, GAPS = "messages", "units", "keys", "segments", "gaps"
_TIME = pa.timestamp("ms", tz="UTC")

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    MESSAGES: SCHEMA,
    UNITS: pa.schema([
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("position", pa.int64()),
        ("size", pa.int32()),
        ("tags_code", pa.int64()),
    ]),
    KEYS: pa.schema([
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("key_hash", pa.int32()),
        ("position", pa.int64()),
        ("size", pa.int32()),
        ("store_timestamp", _TIME),
        ("index_file", pa.string()),
    ]),
    SEGMENTS: pa.schema([
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("type", pa.string()),
        ("base_offset", pa.int64()),
        ("size", pa.int64()),
        ("state", pa.string()),
        ("sealed", pa.bool_()),
        ("begin_timestamp", _TIME),
        ("end_timestamp", _TIME),
        ("extents", pa.int64()),
        ("path", pa.string()),
    ]),
    GAPS: pa.schema([
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("reason", pa.string()),
        ("found_timestamp", _TIME),
    ]),
}  # fmt: skip
"""Tables by name. Times of `keys` are as exact as index files have them: a second."""


def columns_of(
    table: str, names: Sequence[str] | None, *, of_brokers: bool = False
) -> tuple[str, ...]:
    """Columns of a table that are wanted, in the order given; None: all. Names have any case.

    `of_brokers`: the table is of several brokers; its first columns are `ORIGIN`.

    Raises:
        ConfigError: there is no such table or column, which names the nearest; or one is named
            twice, or none is.
    """
    if table not in SCHEMAS:
        near = get_close_matches(table.lower(), SCHEMAS, 1) or SCHEMAS
        raise ConfigError(f"there is no table {table!r}: write {' or '.join(near)}")
    known: Sequence[str] = [*(ORIGIN if of_brokers else ()), *SCHEMAS[table].names]
    if isinstance(names, str):
        raise ConfigError(f"columns are a list of names: write [{names!r}]")
    if names is not None and not names:
        raise ConfigError(f"no column is named: the table {table} has {', '.join(known)}")
    if names is None:
        return tuple(known)
    found: list[str] = []
    for name in names:
        column = name.lower()
        if column not in known:
            near = get_close_matches(column, known, 1) or known
            raise ConfigError(
                f"the table {table} has no column {name!r}: did you mean {' or '.join(near)}?"
            )
        if column in found:
            raise ConfigError(f"the column {name!r} of the table {table} is named twice")
        found.append(column)
    return tuple(found)


def sql_types(table: str, names: Sequence[str] | None = None, *, of_brokers: bool = False) -> str:
    """The columns in the words of Spark SQL, such as `topic string, queue_id int`."""
    columns = columns_of(table, names, of_brokers=of_brokers)
    return ", ".join(f"{name} {sql_type(table, name)}" for name in columns)


def sql_type(table: str, column: str) -> str:
    """The type of one column in the words of Spark SQL."""
    return _sql_type(pa.string() if column in ORIGIN else SCHEMAS[table].field(column).type)


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map<{_sql_type(kind.key_type)},{_sql_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    return _SQL_TYPES[kind]


_SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint32(): "bigint",
    _TIME: "timestamp",
}
