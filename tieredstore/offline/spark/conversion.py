"""Arrow types that Spark's Python data source accepts, and settings of its worker processes."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

import gc
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from tieredstore.config.sources import ConfigError
from tieredstore.offline.tables.schemas import columns_of, sql_type
from tieredstore.reader.arrow import RecordBatch
from tieredstore.reader.arrow_batches import ORIGIN
from tieredstore.reader.arrow_columns import TIME_MS_END, TIME_MS_MIN

# pyarrow ships no types.


_TIME = pa.timestamp("us", tz="UTC")


class ToSpark(NamedTuple):
    """The columns that Spark asked for, `ORIGIN` among them; can be pickled."""

    columns: tuple[str, ...]
    spelled: tuple[str, ...] = ()
    """The same as the query spells them; () if no otherwise. Spark's names have any case."""

    @classmethod
    def of(cls, table: str, schema: StructType, *, of_brokers: bool = False) -> Self:
        """For the schema of a query; `of_brokers` as in `columns_of`.

        Raises:
            ConfigError: the table has no such column, or it has another type or may be null.
        """
        spelled = tuple(schema.fieldNames())
        columns = columns_of(table, spelled, of_brokers=of_brokers)
        for name, field in zip(columns, schema.fields, strict=True):
            ours, theirs = sql_type(table, name), field.dataType.simpleString()
            if theirs != ours:
                raise ConfigError(f"the column {name} of the table {table} is {ours}, not {theirs}")
            if not field.nullable:
                raise ConfigError(f"the column {name} of the table {table}: leave out NOT NULL")
        return cls(columns, spelled)

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that rows of a broker's tier need; at least one."""
        return tuple(name for name in self.columns if name not in ORIGIN) or ("queue_id",)

    def converted(self, batch: RecordBatch, origin: Sequence[str] = ()) -> RecordBatch:
        """A batch with the types that Spark wants: times in microseconds, no unsigned numbers.

        A time outside the years 1 to 9999 is null. O(rows) for times, else nothing. `origin`:
        cluster and broker of its rows, where the table is of several brokers.
        """
        names = dict(zip(ORIGIN, origin, strict=False))
        arrays = [
            pa.repeat(names[name], batch.num_rows) if name in names else _converted(batch[name])
            for name in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, list(self.spelled or self.columns))


def _converted(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        raw = column.cast(pa.int64())
        values = np.asarray(raw.fill_null(0))
        is_out = (values >= TIME_MS_END) | (values < TIME_MS_MIN)
        if is_out.any():
            raw = pa.array(np.where(is_out, 0, values), mask=is_out | np.asarray(raw.is_null()))
        return raw.cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
    return column.cast(pa.int64()) if kind == pa.uint32() else column


@cache
def keep_what_is_loaded() -> None:
    """At the end of a worker's first task: leave all that is loaded out of later collections.

    Spark collects garbage in a worker after each task. Where numpy, Arrow, pandas and this package
    are loaded, that looks at some 300,000 objects, which never are garbage, and takes 35 ms.
    """
    if TaskContext.get() is not None:  # else this is no worker
        gc.collect()
        gc.freeze()
