"""Iceberg table of an export: schema, catalog, one commit at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple, Self

import orjson
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)
from requests.exceptions import RequestException

from container.errors import InUse
from container.names.queue_id import QueueId
from provider.errors import AlreadyExists, Corrupt, Denied, Unavailable
from provider.object.files import fsspec_errors
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.export_directory import LOCK
from tieredstore.offline.export.lease import ExportLease
from tieredstore.offline.export.options import HOUR, TOPIC, ExportOptions, Reached, named_columns
from tieredstore.offline.export.task import STORE_TIMESTAMP
from tieredstore.offline.scan.planning import TierPlan
from tieredstore.offline.scan.split import NOT_KNOWN, Seen
from tieredstore.reader.arrow_batches import ORIGIN, schema_with_origin

# pyarrow ships no types.


TOPIC_ID, TIME_ID = 1, 2
Origin = tuple[str, str] | tuple[()]
"""Cluster and broker of the rows, in a table of several; () in a table of one."""
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


def partition_spec(partition: str | None) -> PartitionSpec:
    """Return the partitioning by topic and day of the store time in UTC, or `hour`.

    Queries of these columns use it by themselves.
    """
    is_hour = partition == HOUR
    return PartitionSpec(
        PartitionField(TOPIC_ID, 1000, IdentityTransform(), "topic"),
        PartitionField(
            TIME_ID,
            1001,
            HourTransform() if is_hour else DayTransform(),
            HOUR if is_hour else "day",
        ),
    )


def iceberg_schema(columns: Sequence[str]) -> Schema:
    """The schema of a table with some columns. The first two are those of `partition_spec`.

    Columns of `ORIGIN` may be among them.
    """
    kinds = schema_with_origin(columns)
    return Schema(
        *(
            NestedField(number, kind.name, _type_of(kind.type, number))
            for number, kind in enumerate(kinds, 1)
        )
    )


_SIMPLE = {
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
    pa.int32(): IntegerType(),
}
"""Types of Iceberg by those of Arrow; all others are 64-bit numbers."""


def _type_of(kind: pa.DataType, number: int) -> IcebergType:
    if pa.types.is_list(kind):
        return ListType(_NESTED_ID + 2 * number, StringType(), element_required=False)
    if pa.types.is_map(kind):
        key, value = _NESTED_ID + 2 * number, _NESTED_ID + 2 * number + 1
        return MapType(key, StringType(), value, StringType(), value_required=False)
    if pa.types.is_timestamp(kind):
        return TimestamptzType()
    return _SIMPLE.get(kind, LongType())


def columns_with_origin(columns: Sequence[str], origin: Origin) -> list[str]:
    """Return columns of a table with those of `ORIGIN` after the columns of `partition_spec`."""
    return [*columns[:TIME_ID], *(ORIGIN if origin else ()), *columns[TIME_ID:]]


def as_table_rows(batch: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
    """Messages with the columns and types that the table has. Copies only columns that differ."""
    columns: list[pa.Array] = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            columns.append(column.cast(_TIME_US))
        elif column.type == pa.uint32():
            columns.append(column.cast(pa.int64()))
        else:
            columns.append(column)
    columns[TIME_ID:TIME_ID] = [pa.repeat(name, batch.num_rows) for name in origin]
    return pa.record_batch(columns, names=columns_with_origin(batch.schema.names, origin))


def refuse_other_columns(table: Table, name: str, partition: str | None) -> None:
    """Refuse a table whose partitioning or partition columns are not those that its export made.

    Raises:
        ConfigError: they were changed after the export began.
    """
    schema = table.schema()
    fields = [(schema.find_column_name(one.source_id), str(one.transform)) for one in
              table.spec().fields]  # fmt: skip
    if fields != [(TOPIC, "identity"), (STORE_TIMESTAMP, partition or "day")]:
        raise ConfigError(
            f"the partitioning of {name} was changed, which an export cannot follow: name another "
            f"table"
        )


STATE, COMMIT, COVERS = "tieredstore.export", "tieredstore.commit", "tieredstore.covers"
"""Keys of properties and summaries. Those of one of several brokers end with its names."""
FORMAT = 1
RETRIES = "commit.retry.num-retries"
TRIES_MAX = 16
"""Commits that are tried where others commit to the table, too (compaction of small files)."""
NAME_PARTS_MIN = 3


class TableName(NamedTuple):
    """A table, and the catalog that has it."""

    catalog: str
    identifier: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `CATALOG.NAMESPACE.TABLE`; a namespace may have several parts.

        Raises:
            ConfigError: `text` has another form.
        """
        parts = text.split(".")
        if len(parts) < NAME_PARTS_MIN or not all(parts):
            raise ConfigError(
                f"{text!r} names no table: write CATALOG.NAMESPACE.TABLE, such as lake.mq.messages"
            )
        return cls(parts[0], tuple(parts[1:]))

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.identifier))


def key_of(name: str, origin: Origin) -> str:
    """Return a key of the rows of one broker."""
    return f"{name}.{'/'.join(origin)}" if origin else name


@dataclass(frozen=True, slots=True)
class TableState:
    """State of an export of one broker, kept as a property of its table."""

    about: Mapping[str, Any]
    """Tier and options of the export, as in a ledger."""
    number: int = 0
    """Of the last commit; 0: the table is empty."""
    reached: Mapping[QueueId, Reached] = field(default_factory=dict[QueueId, Reached])
    seen: Seen = NOT_KNOWN
    """As in `PlannedRun`, of the last commit."""

    @classmethod
    def begun(cls, about: Mapping[str, Any]) -> Self:
        """Return the state of a new table, as it will be read back."""
        return cls(orjson.loads(orjson.dumps(dict(about))))

    def encoded(self, origin: Origin) -> dict[str, str]:
        """As properties."""
        rows = [[*queue, *reached] for queue, reached in sorted(self.reached.items())]
        said = {"format": FORMAT, "about": dict(self.about), "reached": rows}
        said |= self.seen.as_kept()
        return {
            key_of(STATE, origin): orjson.dumps(said).decode(),
            key_of(COMMIT, origin): str(self.number),
        }

    def behind(self, covers: Mapping[QueueId, tuple[int, int]], planned: TierPlan) -> Self:
        """Return the state after a commit that adds these queue offsets."""
        more = {
            queue: Reached(end, planned.state.queues[queue].generation)
            for queue, (_, end) in covers.items()
        }
        reached = {**self.reached, **more}
        return replace(self, number=self.number + 1, reached=reached, seen=planned.seen)


class _TableFiles:
    """`LeaseFiles` below the location of a table, which Iceberg's own files share.

    Of two creators at once both may succeed; the table takes the commit of one.
    """

    def __init__(self, table: Table) -> None:
        self._io = table.io
        self._root = table.location().rstrip("/")

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with (
            fsspec_errors(path),
            suppress(FileNotFoundError),
            self._io.new_input(path).open() as file,
        ):
            return bytes(file.read())
        return None

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with fsspec_errors(path), self._io.new_output(path).create(overwrite=True) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> None:
        if self.read(name) is not None:
            raise AlreadyExists("the name is taken", self._path(name))
        self.write(name, content)

    def remove(self, name: str) -> None:
        path = self._path(name)
        with fsspec_errors(path), suppress(FileNotFoundError):
            self._io.delete(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class ExportTable:
    """A table by its name. Each call asks the catalog again, and leaves no connection open."""

    def __init__(self, name: TableName, origin: Origin = ()) -> None:
        self.name = name
        self.origin: Origin = origin

    def __repr__(self) -> str:
        return f"<ExportTable {self.name}>"

    def loaded(self) -> Table | None:
        """The table as it is now; None if there is none.

        Raises:
            ConfigError: the catalog is not configured, or needs what is not installed.
            Denied, Unavailable: it refuses, or does not answer.
        """
        with _opened(self.name) as catalog:
            return _found(catalog, self.name)

    def state(self) -> TableState | None:
        """Return the state of the export; None if it was not begun.

        Raises:
            ConfigError: no export made the table, it was rolled back, or a newer version wrote it.
            Corrupt: its property is damaged.
            and as `loaded`.
        """
        table = self.loaded()
        return None if table is None else state_of(table, self.name, self.origin)

    def about_others(self) -> Mapping[str, Any] | None:
        """As `TableState.about`, of another broker of the table; None: it has none.

        Raises:
            as `state`.
        """
        table = self.loaded()
        return None if table is None else _about_others(table, self.name)

    def lease(self) -> ExportLease:
        """Return the lease of a follower of this broker. Reads the catalog.

        Raises:
            Unavailable: the table was dropped meanwhile.
            and as `loaded`.
        """
        return ExportLease(self._files(), key_of(LOCK, self.origin), str(self.name))

    def is_leased(self) -> bool:
        """Whether a follower of this broker has the lease, or died with it. Raises as `lease`."""
        return self._files().read(key_of(LOCK, self.origin)) is not None

    def _files(self) -> _TableFiles:
        table = self.loaded()
        if table is None:
            raise Unavailable("the table was dropped meanwhile", str(self.name))
        return _TableFiles(table)

    def create(self, columns: Sequence[str], state: TableState) -> None:
        """Create the table without messages, and its namespace if that is missing.

        A table of other brokers gets the state of this one.

        Raises:
            InUse: another process created it meanwhile, for this broker or with other options.
            Unavailable: others commit without end.
            and as `loaded`.
        """
        with _opened(self.name) as catalog:
            catalog.create_namespace_if_not_exists(self.name.identifier[:-1])
            try:
                catalog.create_table(  # pyright: ignore[reportUnknownMemberType]
                    self.name.identifier,
                    iceberg_schema(columns_with_origin(columns, self.origin)),
                    partition_spec=partition_spec(state.about["options"].get("partition")),
                    properties=state.encoded(self.origin),
                )
            except TableAlreadyExistsError:
                self._join(catalog, state)

    def _join(self, catalog: Catalog, state: TableState) -> None:
        """Add the state of this broker to a table of others; raises as `create`.

        Commits of others are let through first.
        """
        for _ in range(TRIES_MAX):
            table = _found(catalog, self.name)
            if table is None or state_of(table, self.name, self.origin) is not None:
                raise _met(self.name)
            others = _about_others(table, self.name)
            if others is None or ExportOptions.kept(others) != ExportOptions.kept(state.about):
                raise _met(self.name)
            try:
                with table.transaction() as change:
                    change.set_properties(state.encoded(self.origin))
            except CommitFailedException:
                continue
            return
        raise _always_changed(self.name)

    def commit(
        self,
        files: Sequence[DataFile],
        *,
        before: TableState,
        after: TableState,
        covers: Mapping[QueueId, tuple[int, int]],
    ) -> None:
        """Add files and say what they have, in one snapshot. Nothing is changed if it fails.

        Commits of others that do not export (compaction) are let through first.

        Raises:
            InUse: another process has exported meanwhile.
            Unavailable: the outcome is unknown; the next run finds out. Or others commit without
                end.
            and as `state`.
        """
        rows = {str(queue): span for queue, span in sorted(covers.items())}
        summary = {
            key_of(COMMIT, self.origin): str(after.number),
            key_of(COVERS, self.origin): orjson.dumps(rows).decode(),
        }
        for _ in range(TRIES_MAX):
            with _opened(self.name) as catalog:
                table = _found(catalog, self.name)
                if table is None or state_of(table, self.name, self.origin) != before:
                    raise _met(self.name)
                # Tried again by itself, it would add the same messages after a rival's. The
                # setting is this object's alone: a commit says only what it changes.
                settings = {**table.metadata.properties, RETRIES: "0"}
                table.metadata = table.metadata.model_copy(update={"properties": settings})
                try:
                    with table.transaction() as change:
                        change.set_properties(after.encoded(self.origin))
                        with change.update_snapshot(summary).fast_append() as added:
                            for file in files:
                                added.append_data_file(file)
                except CommitFailedException:
                    continue
                return
        raise _always_changed(self.name)


def state_of(table: Table, name: TableName, origin: Origin = ()) -> TableState | None:
    """Parse the state of an export; None: the table is of other brokers.

    Raises:
        ConfigError: no such export made the table, it was rolled back, or a newer version wrote it.
        Corrupt: its property is damaged.
    """
    if key_of(STATE, origin) in table.properties:
        return _parsed(table, name, key_of("", origin))
    of_several = any(key.startswith(f"{STATE}.") for key in table.properties)
    if origin and of_several:
        return None
    if not origin and of_several:
        raise ConfigError(f"{name} holds an export of several brokers: name them by --broker")
    if STATE in table.properties:
        raise ConfigError(f"{name} holds an export of one broker: name another table for several")
    raise ConfigError(f"{name} was not made by an export: name another table")


def _about_others(table: Table, name: TableName) -> Mapping[str, Any] | None:
    """Return the result of `ExportTable.about_others` for a loaded table."""
    found = (key.removeprefix(STATE) for key in table.properties if key.startswith(f"{STATE}."))
    suffix = next(found, None)
    return None if suffix is None else _parsed(table, name, suffix).about


def _parsed(table: Table, name: TableName, suffix: str) -> TableState:
    raw = table.properties[STATE + suffix]
    try:
        found: Any = orjson.loads(raw)
        if found["format"] != FORMAT:
            raise ConfigError(
                f"{name} holds an export of format {found['format']}: install a newer tieredstore"
            )
        reached = {QueueId(row[0], row[1]): Reached(*row[2:]) for row in found["reached"]}
        number, seen = int(table.properties[COMMIT + suffix]), Seen.kept(found)
        state = TableState(found["about"], number, reached, seen)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{STATE} of the table is damaged: {error}", str(name), 0) from error
    _refuse_rolled_back(table, state, name, COMMIT + suffix)
    refuse_other_columns(table, str(name), state.about["options"].get("partition"))
    return state


def _refuse_rolled_back(table: Table, state: TableState, name: TableName, key: str) -> None:
    """Refuse a table whose snapshot is older than that of its property: messages are missing."""
    snapshot, number = table.current_snapshot(), 0
    by_id = {one.snapshot_id: one for one in table.snapshots()}
    while snapshot is not None:
        said = (snapshot.summary.additional_properties if snapshot.summary else {}).get(key)
        if said is not None:
            number = int(said)
            break
        if snapshot.parent_snapshot_id is None:
            break
        snapshot = by_id.get(snapshot.parent_snapshot_id)
        if snapshot is None:
            return  # it expired, which takes no row away
    if number != state.number:
        raise ConfigError(
            f"{name} is at commit {number} of its export, which has made {state.number}: the table "
            f"was rolled back, so roll it forward again or name another table"
        )


def _met(name: TableName) -> InUse:
    return InUse("another process has written this export meanwhile: try again", str(name))


def _always_changed(name: TableName) -> Unavailable:
    return Unavailable("others change the table all the time", str(name))


def _found(catalog: Catalog, name: TableName) -> Table | None:
    try:
        return catalog.load_table(name.identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


@contextmanager
def _opened(name: TableName) -> Generator[Catalog]:
    """The catalog, as pyiceberg's own configuration says; its errors as ours."""
    where = str(name)
    try:
        with closing(load_catalog(name.catalog)) as catalog:
            yield catalog
    except ConfigError:
        raise
    except CommitStateUnknownException as error:
        raise Unavailable(
            "the catalog did not say whether the snapshot is there, and the next run looks", where
        ) from error
    except (UnauthorizedError, ForbiddenError) as error:
        raise Denied(f"the catalog refuses: {_sentence(error)}", where) from error
    except (RESTError, RequestException) as error:
        raise Unavailable(f"the catalog does not answer: {_sentence(error)}", where) from error
    except (NotInstalledError, ModuleNotFoundError, ValueError) as error:
        raise ConfigError(f"catalog {name.catalog}: {_sentence(error)}") from error
    except Exception as error:
        # Those of a SQL database come from a package that need not be there.
        if type(error).__module__.partition(".")[0] != "sqlalchemy":
            raise
        raise Unavailable(f"the catalog does not answer: {_sentence(error)}", where) from error


def _sentence(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
