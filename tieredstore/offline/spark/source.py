"""The data source `tieredstore` and its writer, as Spark calls them. See `register`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from container.errors import Expired
from container.names.queue_id import QueueId
from provider.clock import SystemClock
from provider.errors import NotFound
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.planning import TierAddress
from tieredstore.offline.scan.split import Seen
from tieredstore.offline.spark import PLANS_AGAIN
from tieredstore.offline.spark.conversion import ToSpark, keep_what_is_loaded
from tieredstore.offline.spark.options import (
    FORMAT,
    MESSAGES,
    OF_PUSHED,
    TableOptions,
    WriteOptions,
    brokers_named,
    check_store,
    stream_options,
    table_named,
    table_options,
)
from tieredstore.offline.spark.stream_reader import MessageStreamReader, RefusedStream
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.planning import (
    BrokersPlan,
    Part,
    TablePlan,
    parts_of_table,
    rows_seen,
)
from tieredstore.offline.tables.reading import has_changed, rows_of
from tieredstore.offline.tables.schemas import sql_types
from tieredstore.offline.writing.appending import append_staged, discard_staged
from tieredstore.offline.writing.new_rows import check_columns
from tieredstore.offline.writing.staging import StagedPart, StagingOrder, stage
from tieredstore.reader.arrow import RecordBatch

QUERY_ID: Final = "spark.sql.execution.query.id"
FRAME: Final = "the DataFrame or view"
AGAIN: Final = (
    "the tier has changed since; read by tiers.messages or tiers.table, or with WHERE queue_id IS "
    "NOT NULL, so that each query is planned, or create it again"
)


class TieredStoreSource(DataSource):
    """The format `tieredstore` of `spark.read`, `spark.readStream` and `df.write`."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """All columns of the table that is asked for."""
        brokers = brokers_named(self.options)
        return sql_types(table_named(self.options), of_brokers=bool(brokers))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table.

        Raises:
            ConfigError: an option is wrong, or the schema is not that of the table.
        """
        options = table_options(self.options, now_ms=SystemClock().now_ms())
        to_spark = ToSpark.of(options.table, schema, of_brokers=bool(options.brokers))
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
        from tieredstore.offline.spark.source import StoreWriter  # noqa: PLC0415 - all of a store

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

    def __init__(self, part: Part | None, origin: tuple[str, ...]) -> None:
        """`part`: None where the broker's table is empty; `origin` as in `ToSpark.converted`."""
        super().__init__(part)
        self.part = part
        self.origin = origin
        self.plan: TablePlan | None = None
        """Of the first one of a broker alone, which every query reads."""


class TableReader(DataSourceReader):
    """Reads one table, of one or several brokers.

    Only `partitions` reads metadata, and a task of a kept plan.

    Spark 4.3 keeps the parts in the DataFrame, and asks for others where it pushes a filter into
    it. All scans of the DataFrame share them, so a filter must never narrow them. A query that
    began after its plan is refused where the tier has other rows by now.
    """

    def __init__(self, options: TableOptions, to_spark: ToSpark) -> None:
        self._options = options
        self._to_spark = to_spark

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each part; raises as `parts_of_table` and `existing_tiers`.

        The first broker that cannot be read is an error.
        """
        options, one = self._options, self._options.address
        made: list[TablePartition] = []
        queues: set[QueueId] = set()
        addresses = one.of_brokers(options.brokers) if options.brokers else [one]
        for address in addresses:
            made += self._partitions_of(address, queues)
        plan = made[0].plan
        if options.brokers and plan is not None:
            given = one.for_workers(plan.place)
            made[0].plan = replace(plan, brokers=BrokersPlan(given, options.brokers, addresses))
        if options.brokers and (text := options.wanted.absence(queues)):
            raise NotFound(text, options.address.where or "")
        return [*made]

    def _partitions_of(self, address: TierAddress, queues: set[QueueId]) -> list[TablePartition]:
        """The partitions of one broker, at least one. Adds the tier's queues to `queues`."""
        options, now_ms = self._options, SystemClock().now_ms()
        table, wanted, is_one = options.table, options.wanted, not options.brokers
        with OpenTier.at(address) as tier:
            parts = parts_of_table(
                tier,
                table,
                wanted,
                options.split_bytes,
                skips_damage=options.skips_damage,
                may_lack=not is_one,
            )
            state, place = tier.state(), tier.place
        queues.update(state.queues)
        origin = () if is_one else (address.cluster or "", address.broker or "")
        made = [TablePartition(part, origin) for part in parts or [None]]
        if address.java_metadata is None and options.kept_plan != "use":
            rows = rows_seen(state, table, wanted)
            made[0].plan = TablePlan(now_ms, table, wanted, place, Seen.of(state), rows)
        return made

    def read(self, partition: InputPartition | None) -> Iterator[RecordBatch]:
        """The rows of a part; raises as `rows_of`, and `Expired` where the plan is too old."""
        if isinstance(partition, TablePartition):
            plan, part = partition.plan, partition.part
            if (
                plan is not None
                and (self._options.kept_plan != OF_PUSHED or _property(PLANS_AGAIN) != "true")
                and _query_began_ms() > plan.planned_ms
                and has_changed(plan)
            ):
                raise Expired(
                    f"{FRAME} was planned before this query: {AGAIN}", plan.place.location
                )
            try:
                for batch in rows_of(part, self._to_spark.read) if part is not None else ():
                    yield self._to_spark.converted(batch, partition.origin)
            except Expired as error:
                raise Expired(f"{error.reason}, or create {FRAME} again", error.path) from error
        keep_what_is_loaded()


def _property(name: str) -> str | None:
    """A property of this task's query: Spark gives it the settings of the session."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(name)


def _query_began_ms() -> int:
    """Time at which this task's query was made, or begun again, by the driver's clock, Unix ms.

    0 if that is not known. Spark 4.3 has the time in the query's id, a UUID of version 7.
    """
    text = _property(QUERY_ID)
    found = UUID(text) if text else None
    return found.int >> 80 if found is not None and found.version == 7 else 0  # noqa: PLR2004 - RFC 9562


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
