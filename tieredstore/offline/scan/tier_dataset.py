"""Messages of a tier as a `pyarrow.dataset.Dataset`, into which engines push columns and filters.

DuckDB calls `scanner(columns=, filter=).to_reader()`, polars `to_batches(columns=, filter=)`.

An `Expression` of Arrow cannot be inspected, so Arrow itself decides. Each part of a log is the
fragment of a dataset, and its guarantee is what the plan knows of all its rows. Nothing is read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUntypedBaseClass=false
# pyarrow ships no types.
import pickle
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import reduce
from operator import and_
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from container.names.queue_id import QueueId
from provider.errors import StoreError
from tieredstore.config.effective import Config
from tieredstore.message import OnBrokerFailure
from tieredstore.offline.scan.planning import LogExtent, QueueLog
from tieredstore.offline.scan.split import Split
from tieredstore.reader.arrow_batches import ORIGIN, schema_of, schema_with_origin, with_origin
from tieredstore.reader.arrow_columns import SCHEMA, TIME_MS_END, TIME_MS_MIN

FORMAT: Final = ds.IpcFileFormat()
NOWHERE: Final = LocalFileSystem()
"""Format and place of fragments that are never opened."""
OFFSET, TIME = "queue_offset", "store_timestamp"
OF_EXTENTS: Final = frozenset((OFFSET, TIME))
OF_LOGS: Final = OF_EXTENTS | {"topic", "queue_id"}
FAN_OUT: Final = 16
GRAIN_BYTES: Final = 4 << 20
"""Length of the parts that are not divided further: a guarantee costs 50 us, their scan 100 times
as much."""


def columns_of(schema: pa.Schema, expressions: Iterable[pc.Expression]) -> set[str]:
    """The columns of a schema that expressions refer to, all of which it has.

    An expression does not bind to a schema without one of its columns. All columns are taken for
    an expression that cannot be pickled: it refers to columns by their numbers.
    """
    found: set[str] = set()
    for one in expressions:
        try:
            pickle.dumps(one)
        except pa.ArrowException:
            return set(schema.names)
        found |= {
            name
            for name in schema.names
            if not _binds(one, pa.schema([field for field in schema if field.name != name]))
        }
    return found


def _binds(expression: pc.Expression, schema: pa.Schema) -> bool:
    try:
        ds.Scanner.from_batches(iter(()), schema=schema, columns={"": expression})
    except pa.ArrowException:
        return False
    return True


class Pruning:
    """Selection of the logs and extents that may hold a row for which a filter is true."""

    def __init__(
        self, schema: pa.Schema, row_filter: pc.Expression, origin: Mapping[str, str]
    ) -> None:
        """`schema`: of the filter; `origin`: further columns with the value of all rows."""
        names = columns_of(schema, [row_filter])
        self._prunes_logs = not names.isdisjoint({*OF_LOGS, *origin})
        self._prunes_extents = not names.isdisjoint(OF_EXTENTS)
        known = [SCHEMA.field(name) for name in sorted(OF_LOGS)]
        fields = [*known, *(pa.field(name, pa.string()) for name in origin)]
        self._schema = pa.schema(
            [
                *schema,
                *(field for field in fields if field.name not in schema.names),
            ]
        )
        self._filter = row_filter
        self._origin = origin

    def logs(self, logs: Sequence[QueueLog]) -> Iterator[tuple[QueueLog, Sequence[LogExtent]]]:
        """Yield the logs that may hold such rows, each with its extents that may."""
        logs = [log for log in logs if log.extents]
        if self._prunes_logs:
            fitting = self._fitting((log.queue, log.extents) for log in logs)
            logs = [logs[number] for number in fitting]
        for log in logs:
            extents = self._extents(log.queue, log.extents) if self._prunes_extents else log.extents
            yield log, [*extents]

    def _extents(self, queue: QueueId, extents: Sequence[LogExtent]) -> Iterator[LogExtent]:
        """Halve and halve again, `FAN_OUT` parts at once, which leaves out long runs at once."""
        if len(extents) == 1 or sum(one.piece.length for one in extents) <= GRAIN_BYTES:
            yield from extents
            return
        step = -(-len(extents) // FAN_OUT)
        parts = [extents[first : first + step] for first in range(0, len(extents), step)]
        for number in self._fitting((queue, part) for part in parts):
            yield from self._extents(queue, parts[number])

    def _fitting(self, parts: Iterable[tuple[QueueId, Sequence[LogExtent]]]) -> list[int]:
        """Numbers of the parts that may hold such rows, in order."""
        fragments = [
            FORMAT.make_fragment(str(number), NOWHERE, self._guarantee(*part))
            for number, part in enumerate(parts)
        ]
        made = ds.FileSystemDataset(fragments, self._schema, FORMAT, NOWHERE)
        return sorted(int(one.path) for one in made.get_fragments(self._filter))

    def _guarantee(self, queue: QueueId, extents: Collection[LogExtent]) -> pc.Expression:
        """Return facts that hold for each row in some extents of a queue, at least one."""
        known = {"topic": queue.topic, "queue_id": queue.queue_id, **self._origin}
        facts = [pc.field(name) == value for name, value in known.items()]
        facts.append(pc.field(OFFSET) >= min(one.first_offset for one in extents))
        facts.append(pc.field(OFFSET) < max(one.next_offset for one in extents))
        times = [one.times_ms for one in extents if one.times_ms is not None]
        if len(times) == len(extents):
            low, high = min(first for first, _ in times), max(last for _, last in times)
            if low >= TIME_MS_MIN and high < TIME_MS_END:  # other times are null
                kind = SCHEMA.field(TIME).type
                facts.append(pc.field(TIME) >= pa.scalar(low, kind))
                facts.append(pc.field(TIME) <= pa.scalar(high, kind))
        return reduce(and_, facts)


NO_FILES: Final = "no file but a tier, which to_table, to_batches and scanner read"
"""Path of the only file that Arrow's own code sees of such a dataset; it shows in its error."""
Columns = Sequence[str] | Mapping[str, pc.Expression] | None
Read = Callable[[Split, Sequence[str]], Iterator[pa.RecordBatch]]


class ColumnNames(NamedTuple):
    """The columns of a dataset."""

    schema: pa.Schema
    named: Mapping[str, str]
    """Each as `scanner.scan` names it, except those of `ORIGIN`."""

    @classmethod
    def of(cls, columns: Sequence[str] | None, *, of_brokers: bool) -> Self:
        """Return some columns of messages; None: all.

        Raises:
            ValueError: as `schema_of`; or a property has the name of a column of `ORIGIN`.
        """
        schema = schema_with_origin(columns) if of_brokers else schema_of(columns)
        names = schema.names if columns is None else columns
        named = dict(zip(schema.names, names, strict=True))
        taken = [name for name in ORIGIN if of_brokers and named.get(name, name) != name]
        if taken:
            raise ValueError(
                f"{taken[0]!r} is a column of every message: the property needs another name"
            )
        return cls(schema, named)


class BrokerLogs(NamedTuple):
    """The planned logs of one broker."""

    origin: Mapping[str, str]
    """Values of `ORIGIN`; empty if the dataset lacks these columns."""
    logs: Sequence[QueueLog]

    @classmethod
    def of(cls, config: Config | None, logs: Sequence[QueueLog]) -> Self:
        """Return the logs of a broker; None: of the only one, whose name is in no column."""
        names = () if config is None else (config.cluster, config.broker)
        return cls(dict(zip(ORIGIN, names, strict=False)), logs)


class TierDataset(ds.FileSystemDataset):
    """The messages that a tier had when it was planned. Each scan reads them.

    A scan decodes the columns that it needs, and reads the extents that can have rows of its
    filter. It holds one batch. Several scans may run at once. What Arrow's own code does without
    `scanner` (`sort_by`, `join`, fragments, a union of datasets) raises `FileNotFoundError`.
    """

    def __init__(
        self,
        columns: ColumnNames,
        brokers: Sequence[BrokerLogs],
        read: Read,
        on_failure: OnBrokerFailure | None = None,
        *,
        row_filter: pc.Expression | None = None,
    ) -> None:
        """Take what was planned.

        Args:
            columns: those of the rows.
            brokers: what is read, in this order.
            read: reads columns of a split.
            on_failure: as `on_broker_failure` of `tieredstore.offline.dataset`.
            row_filter: each row passes it.
        """
        # A null pointer in Arrow's code would end the process.
        nothing = [FORMAT.make_fragment(NO_FILES, NOWHERE)]
        super().__init__(nothing, columns.schema, FORMAT, NOWHERE)
        self._planned = columns, brokers, read, on_failure
        self._filter = row_filter

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        batch_size: int | None = None,
        **options: object,
    ) -> "TierScanner":
        """Return a scan of some columns of the rows that pass a filter. Reads nothing yet.

        `options`: those of `pyarrow.dataset.Dataset.scanner`, without effect.

        Raises:
            ValueError: `batch_size`, in rows, is not positive.
            pyarrow.ArrowInvalid: there is no such column, or the filter has another type.
        """
        del options
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is a number of rows, at least 1, not {batch_size}")
        return TierScanner(self, columns, _both(self._filter, filter), batch_size)

    def filter(self, expression: pc.Expression) -> "TierDataset":
        """Return a dataset of the rows that pass a filter, too."""
        return TierDataset(*self._planned, row_filter=_both(self._filter, expression))

    def read_all(self) -> pa.Table:
        """All rows, as `to_table`."""
        return self.to_table()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """All rows in batches."""
        return self.scanner().to_batches()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy reads the same plan, in another process too."""
        return _again, (self._planned, self._filter)

    def read(
        self, names: Sequence[str], row_filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Columns of all rows that may pass a filter, and perhaps others. Further rows may come.

        Raises:
            Corrupt, Expired, BytesMissing, NotFound, Unavailable, Denied: as `scanner.scan`.
        """
        (schema, named), brokers, read, on_failure = self._planned
        made = pa.schema([schema.field(name) for name in names])
        for origin, logs in brokers:
            wanted = [named[name] for name in names if name not in origin] or ["queue_id"]
            try:
                for split in _splits(schema, origin, logs, row_filter):
                    for batch in read(split, wanted):
                        yield with_origin(batch, made, **origin) if origin and names else batch
            except (StoreError, OSError) as error:
                if on_failure is None or not origin:
                    raise
                on_failure(origin["cluster"], origin["broker"], error)


def _again(planned: tuple[Any, ...], row_filter: pc.Expression | None) -> TierDataset:
    return TierDataset(*planned, row_filter=row_filter)


def _both(one: pc.Expression | None, two: pc.Expression | None) -> pc.Expression | None:
    return one if two is None else two if one is None else one & two


def _splits(
    schema: pa.Schema,
    origin: Mapping[str, str],
    logs: Sequence[QueueLog],
    row_filter: pc.Expression | None,
) -> Iterator[Split]:
    """The splits of a broker that may hold rows of a filter, in order."""
    kept = (
        ((log, log.extents) for log in logs)
        if row_filter is None
        else Pruning(schema, row_filter, origin).logs(logs)
    )
    for log, extents in kept:
        yield from log.splits_of(extents)


class TierScanner:
    """A scan with the methods of `pyarrow.dataset.Scanner`. Each call reads the tier again."""

    def __init__(
        self,
        dataset: TierDataset,
        columns: Columns,
        row_filter: pc.Expression | None,
        batch_size: int | None,
    ) -> None:
        """Compare columns and filter with the schema.

        Raises:
            pyarrow.ArrowInvalid: as `TierDataset.scanner`.
        """
        self.dataset_schema: pa.Schema = dataset.schema
        names = self.dataset_schema.names
        self.projected_schema: pa.Schema = ds.Scanner.from_batches(
            iter(()), schema=self.dataset_schema, columns=columns, filter=row_filter
        ).projected_schema
        self._columns = names if columns is None else columns
        self._dataset, self._filter, self._batch_size = dataset, row_filter, batch_size
        made = [*columns.values()] if isinstance(columns, Mapping) else []
        needed = columns_of(
            self.dataset_schema, [*made, *([] if row_filter is None else [row_filter])]
        )
        needed.update(() if isinstance(self._columns, Mapping) else self._columns)
        cheap = ["queue_id"] if "queue_id" in names else names[:1]
        self._needed = [name for name in names if name in needed] or cheap

    def to_batches(self) -> Generator[pa.RecordBatch]:
        """The rows in batches, in the order of the logs; raises as `TierDataset.read`."""
        for batch in self._dataset.read(self._needed, self._filter):
            for one in self._projected(batch):
                step = self._batch_size or max(1, one.num_rows)
                for first in range(0, one.num_rows, step):
                    yield one.slice(first, step)

    def _projected(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The wanted rows and columns. A scanner of all batches at once would read far ahead."""
        if self._filter is None and not isinstance(self._columns, Mapping):
            return [batch.select(self._columns)]
        return (
            ds.Scanner.from_batches(
                [batch],
                schema=batch.schema,
                columns=self._columns,
                filter=self._filter,
                use_threads=False,
            )
            .to_table()
            .to_batches()
        )

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a reader, which is consumed once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        found: list[pa.RecordBatch] = []
        with closing(self.to_batches()) as batches:
            while num_rows > 0 and (batch := next(batches, None)) is not None:
                found.append(batch.slice(0, num_rows))
                num_rows -= len(found[-1])
        return pa.Table.from_batches(found, self.projected_schema)

    def take(self, indices: pa.Array) -> pa.Table:
        """The rows with these numbers. Holds all rows."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """The number of rows. Decodes what the filter needs."""
        scan = TierScanner(self._dataset, [], self._filter, None)
        return sum(batch.num_rows for batch in scan.to_batches())
