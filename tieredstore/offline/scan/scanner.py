"""Messages of a tier as Arrow record batches, read by any process that has the tier's place.

    for split in splits("tier", 128 << 20, topics=["G_Orders"]):  # planning.py; can be pickled
        with closing(source_of(split.place)) as read:             # in the worker; sources.py
            for batch in scan(read, split, ["queue_offset", "body"]):
                ...

Plain Python over numpy and Arrow: no Spark, no event loop, no metadata. A scan reads the bytes of
its split once, in order, and follows the chain of records in it; ConsumeQueues are not needed.
The columns are those of `to_arrow` (`reader/arrow_columns.py`), made by the same code.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
# pyarrow ships no types.
from collections.abc import Iterator, Sequence

import pyarrow as pa

from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.scan.log_scan import FoundRecords, LogScan, OnExpired, OnGap
from tieredstore.offline.scan.split import LogGap, ScanReport, Split
from tieredstore.reader.arrow_batches import batches_of_records, schema_of

__all__ = ["scan", "schema_of"]


def scan(
    read: ByteSource,
    split: Split,
    columns: Sequence[str] | None = None,
    *,
    on_gap: OnGap | None = None,
    on_expired: OnExpired | None = None,
    verify_bodies: bool = False,
    keeps_missing: bool = False,
    report: ScanReport | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages that start in a split, in order of their position, as record batches.

    Memory is flat: a window of 4 MiB (or the longest record), one batch, and what decompressed
    bodies of it take, 32 MiB at once. Every batch is a copy and may be kept.

    Args:
        read: where the bytes are: `sources.source_of(split.place)`.
        split: which records; made by `planning.splits`, or by hand.
        columns: names of `SCHEMA`, in this order; None: all. Fewer are faster.
        on_gap: is called with bytes in which no sound record is, and the scan continues after them;
            None: the first gap is an error. Bytes that are not in the storage are no gap.
        on_expired: is called where messages of the split were trimmed, truncated or deleted after
            it was planned, and the scan continues with the oldest that is left; None: an error.
        verify_bodies: compare the checksum of each body, too; one that differs is a gap. It costs
            0.15 us a message and 50 ns per KiB.
        keeps_missing: published bytes that the storage lacks are a gap (`LogGap.is_missing`), too.
        report: is filled while the scan runs: how many records, gaps, and where it met its
            neighbours (`split.where_not_met` proves that a set of splits lost nothing).

    Raises:
        ValueError: there is no such column; names the nearest.
        Corrupt: there is a gap, or a body that cannot be decompressed, and no `on_gap`.
        Expired: messages of the split left the tier, and there is no `on_expired`.
        BytesMissing: published bytes are not in the storage; path names the object.
        NotFound: this process sees no tier at the split's place.
        Unavailable: the storage does not answer: try again.
        Denied: the storage refuses.
    """
    schema = schema_of(columns)
    found_by = LogScan(
        read,
        split,
        report=report,
        on_gap=on_gap,
        on_expired=on_expired,
        verify_bodies=verify_bodies,
        keeps_missing=keeps_missing,
    )
    for found in found_by:
        yield from _batches(found, split, schema, on_gap)


def _batches(
    found: FoundRecords, split: Split, schema: pa.Schema, on_gap: OnGap | None
) -> Iterator[pa.RecordBatch]:
    def report(offset: int, error: Corrupt) -> None:
        row = int((found.columns.headers["queue_offset"] == offset).argmax())
        place, size = int(found.positions[row]), int(found.sizes[row])
        assert on_gap is not None, "else the error is raised"
        on_gap(LogGap(split.queue, place, size, error.reason, offset - 1, offset + 1))

    path = f"{split.queue}/COMMIT_LOG"
    on_damage = None if on_gap is None else report
    yield from batches_of_records(found.raw, found.columns, schema, path=path, on_damage=on_damage)
