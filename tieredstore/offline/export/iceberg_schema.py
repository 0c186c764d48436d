"""How columns of messages are those of an Iceberg table, and how the table is partitioned."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
from collections.abc import Sequence
from datetime import date

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.options import TOPIC, ExportOptions, named_columns
from tieredstore.offline.export.task import STORE_TIMESTAMP
from tieredstore.offline.scanner import schema_of

TOPIC_ID, TIME_ID = 1, 2
SPEC = PartitionSpec(
    PartitionField(TOPIC_ID, 1000, IdentityTransform(), "topic"),
    PartitionField(TIME_ID, 1001, DayTransform(), "day"),
)
"""By topic and day of the store time in UTC, which queries of that column use by themselves."""
_NESTED_ID = 1_000
"""Above every column's; the catalog gives all of them new ones."""
_EPOCH = date(1970, 1, 1)
_TIME_US = pa.timestamp("us", tz="UTC")


def table_columns(options: ExportOptions) -> tuple[str, ...]:
    """The columns of an export's table: the topic and the store time are always there.

    Raises:
        ConfigError: as `named_columns`.
    """
    names = named_columns(options)
    return (TOPIC, STORE_TIMESTAMP, *(n for n in names if n not in {TOPIC, STORE_TIMESTAMP}))


def iceberg_schema(columns: Sequence[str]) -> Schema:
    """The schema of a table with some columns, of which the first two are those of `SPEC`."""
    kinds = schema_of(columns)
    return Schema(
        *(
            NestedField(number, name, _type_of(kinds.field(name).type, number))
            for number, name in enumerate(columns, 1)
        )
    )


def _type_of(kind: pa.DataType, number: int) -> IcebergType:
    if pa.types.is_list(kind):
        return ListType(_NESTED_ID + 2 * number, StringType(), element_required=False)
    if pa.types.is_map(kind):
        key, value = _NESTED_ID + 2 * number, _NESTED_ID + 2 * number + 1
        return MapType(key, StringType(), value, StringType(), value_required=False)
    if pa.types.is_timestamp(kind):
        return TimestamptzType()
    if pa.types.is_binary(kind):
        return BinaryType()
    if pa.types.is_string(kind):
        return StringType()
    return IntegerType() if kind == pa.int32() else LongType()


def as_table_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages with the types that the table has. Copies only columns that differ."""
    columns: list[pa.Array] = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            columns.append(column.cast(_TIME_US))
        elif column.type == pa.uint32():
            columns.append(column.cast(pa.int64()))
        else:
            columns.append(column)
    return pa.record_batch(columns, names=batch.schema.names)


def refuse_other_columns(table: Table, name: str) -> None:
    """Refuse a table whose partitioning or partition columns are not those that an export makes.

    Raises:
        ConfigError: somebody changed them.
    """
    schema = table.schema()
    fields = [(schema.find_column_name(one.source_id), str(one.transform)) for one in
              table.spec().fields]  # fmt: skip
    if fields != [(TOPIC, "identity"), (STORE_TIMESTAMP, "day")]:
        raise ConfigError(
            f"the partitioning of {name} was changed, which an export cannot follow: name another "
            f"table"
        )
