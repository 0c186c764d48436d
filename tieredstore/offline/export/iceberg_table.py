"""Iceberg table of an export: schema, catalog, one commit at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
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
from pyiceberg.transforms import DayTransform, IdentityTransform
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
from provider.errors import Corrupt, Denied, Unavailable
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.options import TOPIC, ExportOptions, Reached, named_columns
from tieredstore.offline.export.task import STORE_TIMESTAMP
from tieredstore.offline.scan.planning import TierPlan
from tieredstore.offline.scan.scanner import schema_of
from tieredstore.offline.scan.split import NOT_KNOWN, Seen

# pyarrow ships no types.


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
        ConfigError: they were changed after the export began.
    """
    schema = table.schema()
    fields = [(schema.find_column_name(one.source_id), str(one.transform)) for one in
              table.spec().fields]  # fmt: skip
    if fields != [(TOPIC, "identity"), (STORE_TIMESTAMP, "day")]:
        raise ConfigError(
            f"the partitioning of {name} was changed, which an export cannot follow: name another "
            f"table"
        )


STATE, COMMIT, COVERS = "tieredstore.export", "tieredstore.commit", "tieredstore.covers"
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


@dataclass(frozen=True, slots=True)
class TableState:
    """State of an export, kept as a property of its table."""

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

    def encoded(self) -> dict[str, str]:
        """As properties."""
        rows = [[*queue, *reached] for queue, reached in sorted(self.reached.items())]
        said = {"format": FORMAT, "about": dict(self.about), "reached": rows}
        said |= self.seen.as_kept()
        return {STATE: orjson.dumps(said).decode(), COMMIT: str(self.number)}

    def behind(self, covers: Mapping[QueueId, tuple[int, int]], planned: TierPlan) -> Self:
        """Return the state after a commit that adds these queue offsets."""
        more = {
            queue: Reached(end, planned.state.queues[queue].generation)
            for queue, (_, end) in covers.items()
        }
        reached = {**self.reached, **more}
        return replace(self, number=self.number + 1, reached=reached, seen=planned.seen)


class ExportTable:
    """A table by its name. Each call asks the catalog again, and leaves no connection open."""

    def __init__(self, name: TableName) -> None:
        self.name = name

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
        """Return the state of the export; None if there is no table.

        Raises:
            ConfigError: no export made the table, it was rolled back, or a newer version wrote it.
            Corrupt: its property is damaged.
            and as `loaded`.
        """
        table = self.loaded()
        return None if table is None else state_of(table, self.name)

    def create(self, columns: Sequence[str], state: TableState) -> None:
        """Create the table without messages, and its namespace if that is missing.

        Raises:
            InUse: another process created it meanwhile.
            and as `loaded`.
        """
        with _opened(self.name) as catalog:
            catalog.create_namespace_if_not_exists(self.name.identifier[:-1])
            try:
                catalog.create_table(  # pyright: ignore[reportUnknownMemberType]
                    self.name.identifier,
                    iceberg_schema(columns),
                    partition_spec=SPEC,
                    properties=state.encoded(),
                )
            except TableAlreadyExistsError as error:
                raise _met(self.name) from error

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
        summary = {COMMIT: str(after.number), COVERS: orjson.dumps(rows).decode()}
        for _ in range(TRIES_MAX):
            with _opened(self.name) as catalog:
                table = _found(catalog, self.name)
                if table is None or state_of(table, self.name) != before:
                    raise _met(self.name)
                # Tried again by itself, it would add the same messages after a rival's. The
                # setting is this object's alone: a commit says only what it changes.
                settings = {**table.metadata.properties, RETRIES: "0"}
                table.metadata = table.metadata.model_copy(update={"properties": settings})
                try:
                    with table.transaction() as change:
                        change.set_properties(after.encoded())
                        with change.update_snapshot(summary).fast_append() as added:
                            for file in files:
                                added.append_data_file(file)
                except CommitFailedException:
                    continue
                return
        raise Unavailable("others change the table all the time", str(self.name))


def state_of(table: Table, name: TableName) -> TableState:
    """Parse the state of an export from the property of its table.

    Raises:
        ConfigError: no export made the table, it was rolled back, or a newer version wrote it.
        Corrupt: its property is damaged.
    """
    raw = table.properties.get(STATE)
    if raw is None:
        raise ConfigError(f"{name} was not made by an export: name another table")
    try:
        found: Any = orjson.loads(raw)
        if found["format"] != FORMAT:
            raise ConfigError(
                f"{name} holds an export of format {found['format']}: install a newer tieredstore"
            )
        reached = {QueueId(row[0], row[1]): Reached(*row[2:]) for row in found["reached"]}
        number, seen = int(table.properties[COMMIT]), Seen.kept(found)
        state = TableState(found["about"], number, reached, seen)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{STATE} of the table is damaged: {error}", str(name), 0) from error
    _refuse_rolled_back(table, state, name)
    refuse_other_columns(table, str(name))
    return state


def _refuse_rolled_back(table: Table, state: TableState, name: TableName) -> None:
    """Refuse a table whose snapshot is older than that of its property: messages are missing."""
    snapshot, number = table.current_snapshot(), 0
    while snapshot is not None:
        said = (snapshot.summary.additional_properties if snapshot.summary else {}).get(COMMIT)
        if said is not None:
            number = int(said)
            break
        if snapshot.parent_snapshot_id is None:
            break
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        if snapshot is None:
            return  # it expired, which takes no row away
    if number != state.number:
        raise ConfigError(
            f"{name} is at commit {number} of its export, which has made {state.number}: the table "
            f"was rolled back, so roll it forward again or name another table"
        )


def _met(name: TableName) -> InUse:
    return InUse("another process has written this export meanwhile: try again", str(name))


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
