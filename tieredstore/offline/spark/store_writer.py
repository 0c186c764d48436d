"""The writer of messages, as Spark calls it: workers stage rows, the driver appends them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tieredstore.config.sources import ConfigError
from tieredstore.offline.spark.options import WriteOptions, check_store
from tieredstore.offline.writing.appending import append_staged, discard_staged
from tieredstore.offline.writing.new_rows import check_columns
from tieredstore.offline.writing.staging import StagedPart, StagingOrder, stage
from tieredstore.reader.arrow import RecordBatch


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """Result of a task: its staged files."""

    part: StagedPart


class StoreWriter(DataSourceArrowWriter):
    """A write. It is pickled for the workers, and for the process on the driver that commits."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check everything that is known before a row is made.

        Raises:
            ConfigError: the columns are no message's, mode is overwrite, or there is no store.
            InUse: a process writes the store.
            Denied, Unavailable: the store directory cannot be read.
        """
        if overwrite:
            raise ConfigError("messages are never overwritten: write mode('append')")
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        config = options.address.load()
        check_store(config)
        self._address = options.address
        self._run = options.new_run(config)
        self._order = StagingOrder(self._run.directory, self._run.write_id, config.hot_write)

    def write(self, iterator: Iterator[RecordBatch]) -> Staged:
        """Check and stage the rows of one task; raises as `stage`."""
        task = TaskContext.get()
        assert task is not None, "Spark calls this in a task"
        return Staged(stage(iterator, self._order, task.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what all tasks staged; raises as `append_staged`."""
        parts = [message.part for message in messages if isinstance(message, Staged)]
        append_staged(self._address.load(), self._run, parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files. Files whose append has begun stay, to be finished."""
        del messages
        discard_staged(self._address.load(), self._run)
