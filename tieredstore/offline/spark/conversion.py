"""From our Arrow types to those that Spark takes from a Python data source."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from tieredstore.config.sources import ConfigError
from tieredstore.offline.tables.schemas import columns_of, sql_type
from tieredstore.reading.arrow import RecordBatch

_TIME = pa.timestamp("us", tz="UTC")
_MS_MAX = (2**63 - 1) // 1000
"""Milliseconds from 1970 that fit in microseconds."""


class ToSpark(NamedTuple):
    """The columns that Spark asked for; can be pickled."""

    columns: tuple[str, ...]

    @classmethod
    def of(cls, table: str, schema: StructType) -> Self:
        """For the schema of a query.

        Raises:
            ConfigError: the table has no such column, or it has another type or may be null.
        """
        columns = columns_of(table, schema.fieldNames())
        for name, field in zip(columns, schema.fields, strict=True):
            ours, theirs = sql_type(table, name), field.dataType.simpleString()
            if theirs != ours:
                raise ConfigError(f"the column {name} of the table {table} is {ours}, not {theirs}")
            if not field.nullable:
                raise ConfigError(f"the column {name} of the table {table}: leave out NOT NULL")
        return cls(columns)

    def converted(self, batch: RecordBatch) -> RecordBatch:
        """A batch with the types that Spark wants: times in microseconds, no unsigned numbers.

        A time that no microsecond of 64 bits can say is null. O(rows) for times, else nothing.
        """
        arrays = [_converted(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(arrays, list(self.columns))


def _converted(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        raw = column.cast(pa.int64())
        values = np.asarray(raw.fill_null(0))
        is_out = (values > _MS_MAX) | (values < -_MS_MAX)  # not abs: of -2^63 it is negative
        if is_out.any():
            raw = pa.array(np.where(is_out, 0, values), mask=is_out | np.asarray(raw.is_null()))
        return raw.cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
    return column.cast(pa.int64()) if kind == pa.uint32() else column
