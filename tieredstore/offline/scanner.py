"""Messages of a tier as Arrow record batches, read by any process that has the tier's place.

    for split in splits("tier", 128 << 20, topics=["G_Orders"]):  # planning.py; can be pickled
        with closing(source_of(split.place)) as read:             # in the worker; sources.py
            for batch in scan(read, split, ["queue_offset", "body"]):
                ...

Plain Python over numpy and Arrow: no Spark, no event loop, no metadata. A scan reads the bytes of
its split once, in order, and follows the chain of records in it; ConsumeQueues are not needed.
The columns are those of `to_arrow` (`reading/arrow_columns.py`), made by the same code.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
# pyarrow ships no types.
from collections.abc import Iterator, Sequence

import pyarrow as pa

from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.log_scan import FoundRecords, LogScan, OnGap
from tieredstore.offline.split import LogGap, ScanReport, Split
from tieredstore.reading.arrow_batches import batches_of_records, reader_of, schema_of

__all__ = ["reader_of", "scan", "schema_of"]


def scan(
    read: ByteSource,
    split: Split,
    columns: Sequence[str] | None = None,
    *,
    on_gap: OnGap | None = None,
    verify_bodies: bool = False,
    report: ScanReport | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages that start in a split, in order of their position, as record batches.

    Memory is flat: a window of 4 MiB (or the longest record), one batch, and what decompressed
    bodies of it take, 32 MiB at once. Every batch is a copy and may be kept.

    Args:
        read: where the bytes are: `sources.source_of(split.place)`.
        split: which records; made by `planning.splits`, or by hand.
        columns: names of `SCHEMA`, in this order; None: all. Fewer are faster.
        on_gap: is told of bytes in which no sound record is, and the scan goes on behind them;
            None: the first gap is an error.
        verify_bodies: compare the checksum of each body, too; one that differs is a gap. It costs
            0.15 us a message and 50 ns per KiB.
        report: is filled while the scan runs: how many records, gaps, and where it met its
            neighbours (`split.where_not_met` proves that a set of splits lost nothing).

    Raises:
        ValueError: there is no such column; names the nearest.
        Corrupt: there is a gap, or a body that cannot be decompressed, and no `on_gap`.
        Unavailable: the storage does not answer: try again.
        Denied: the storage refuses.
    """
    schema = schema_of(columns)
    found_by = LogScan(read, split, report=report, on_gap=on_gap, verify_bodies=verify_bodies)
    for found in found_by:
        yield from _batches(found, split, schema, on_gap)


def _batches(
    found: FoundRecords, split: Split, schema: pa.Schema, on_gap: OnGap | None
) -> Iterator[pa.RecordBatch]:
    def told(offset: int, error: Corrupt) -> None:
        row = int((found.columns.headers["queue_offset"] == offset).argmax())
        place, size = int(found.positions[row]), int(found.sizes[row])
        assert on_gap is not None, "else the error is raised"
        on_gap(LogGap(split.queue, place, size, error.reason, offset - 1, offset + 1))

    path = f"{split.queue}/COMMIT_LOG"
    on_damage = None if on_gap is None else told
    yield from batches_of_records(found.raw, found.columns, schema, path=path, on_damage=on_damage)
