"""Pruning: the logs and extents of a plan that may hold rows of a filter.

An `Expression` of Arrow cannot be inspected, so Arrow itself decides. Each part of a log is the
fragment of a dataset, and its guarantee is what the plan knows of all its rows. Nothing is read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from container.names.queue_id import QueueId
from tieredstore.offline.scan.planning import LogExtent, QueueLog
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
