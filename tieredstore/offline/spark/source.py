"""The data source `tieredstore`, as Spark calls it. Imports PySpark; see `register`."""

from collections.abc import Iterator
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from container.errors import Expired
from provider.clock import SystemClock
from tieredstore.config.sources import ConfigError
from tieredstore.offline.spark.conversion import ToSpark, keep_what_is_loaded
from tieredstore.offline.spark.options import (
    FORMAT,
    MESSAGES,
    TableOptions,
    stream_options,
    table_named,
    table_options,
)
from tieredstore.offline.spark.stream_reader import MessageStreamReader, RefusedStream
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.planning import Part, parts_of_table
from tieredstore.offline.tables.reading import rows_of
from tieredstore.offline.tables.schemas import sql_types
from tieredstore.reader.arrow import RecordBatch

FRAME: Final = "the DataFrame or view"


class TieredStoreSource(DataSource):
    """The format `tieredstore` of `spark.read`, `spark.readStream` and `df.write`."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """All columns of the table that is asked for."""
        return sql_types(table_named(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table.

        Raises:
            ConfigError: an option is wrong, or the schema is not that of the table.
        """
        options = table_options(self.options, now_ms=SystemClock().now_ms())
        to_spark = ToSpark.of(options.table, schema)
        return TableReader(options, to_spark)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of messages as a stream. Errors of `reader` are raised when it begins.

        If they were raised here, Spark 4.3 would show an error of its own as the last line.
        """
        try:
            options = stream_options(self.options, now_ms=SystemClock().now_ms())
            return MessageStreamReader(options, ToSpark.of(MESSAGES, schema))
        except ConfigError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        """Return the writer that appends messages to a store.

        Raises:
            ConfigError, InUse: as `StoreWriter`; or an option is wrong.
        """
        # Each query of a table or a stream starts a new process that imports this module.
        from tieredstore.offline.spark.options import write_options  # noqa: PLC0415 - likewise
        from tieredstore.offline.spark.store_writer import StoreWriter  # noqa: PLC0415 - all of a store

        return StoreWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802 - Spark's
        """Nothing: a stream is written batch by batch.

        Raises:
            ConfigError: always; says how.
        """
        raise ConfigError(
            "a stream is written with foreachBatch and df.write, whose writeId names the batch"
        )


class TablePartition(InputPartition):
    """A part of a table, for one task."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.part = part


class TableReader(DataSourceReader):
    """Reads one table. Only `partitions` reads the tier's metadata.

    Spark 4.3 keeps the parts in the DataFrame, and asks for others where it pushes a filter into
    it. All scans of the DataFrame share them, so a filter must never narrow them.
    """

    def __init__(self, options: TableOptions, to_spark: ToSpark) -> None:
        self._options = options
        self._to_spark = to_spark

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each part; raises as `parts_of_table`."""
        options = self._options
        with OpenTier.at(options.address) as tier:
            parts = parts_of_table(
                tier,
                options.table,
                options.wanted,
                options.split_bytes,
                skips_damage=options.skips_damage,
            )
        return [TablePartition(part) for part in parts]

    def read(self, partition: InputPartition | None) -> Iterator[RecordBatch]:
        """The rows of a part; raises as `rows_of`. Spark gives no part where there is none."""
        if isinstance(partition, TablePartition):
            try:
                for batch in rows_of(partition.part, self._to_spark.columns):
                    yield self._to_spark.converted(batch)
            except Expired as error:
                raise Expired(f"{error.reason}, or create {FRAME} again", error.path) from error
        keep_what_is_loaded()
