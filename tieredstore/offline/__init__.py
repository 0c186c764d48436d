"""Offline work on a tier by parallel processes: scan, audit, rebuild, tables.

    import duckdb, tieredstore.offline

    orders = tieredstore.offline.dataset("tier", "G_Orders", columns=["tags", "body"])
    duckdb.sql("SELECT tags, count(*) FROM orders GROUP BY ALL")

`scan/planning.py` divides a tier into splits, `scan/split.py` is the split of a worker, and
`scan/scanner.py` reads its messages. Needs neither Spark nor an event loop of the caller. Modules
are loaded on first use.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from tieredstore.config.sources import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from tieredstore.offline.scan.split import LogGap, Split
    from tieredstore.reader.arrow import RecordBatch, RecordBatchReader
    from tieredstore.reader.cursor import Moment


def dataset(
    where: str | os.PathLike[str] | None = None,
    topic: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    queues: int | Sequence[int] | None = None,
    since: "Moment | None" = None,
    until: "Moment | None" = None,
    on_gap: "Callable[[LogGap], None] | None" = None,
    verify_bodies: bool = False,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
) -> "RecordBatchReader":
    """Return the messages of topics as a `pyarrow.RecordBatchReader`, for DuckDB, polars or pandas.

    The call reads the metadata. Each batch reads its messages when it is requested, queue after
    queue. The reader holds one batch in memory and can be consumed once: call again for another
    query. Its columns are those of `to_arrow`, and bodies are decompressed. Unlike `to_arrow` it
    reads the logs sequentially, without ConsumeQueues, caches and a thread of its own. Use it in
    one thread.

    Args:
        where: the tier's directory or URL, as in `tieredstore.open`.
        topic: a topic, or several; None: all.
        columns: names of columns, in this order; None: all.
        queues: number of a queue of each topic, or several; None: all.
        since: messages stored at this time or later: a datetime with time zone, or Unix ms.
        until: messages stored before this time.
        on_gap: callback for bytes without a sound message, which are then skipped; None: the
            first such bytes are an error.
        verify_bodies: compare the checksum of each body, too.
        cluster: the broker's cluster; not needed where the tier has only one that fits.
        broker: the broker's name; likewise.
        conf: a RocketMQ broker's configuration file.
        settings: further keys with their values.
        java_metadata: a `tieredStoreMetadata.json`, for a tier that RocketMQ's own store wrote.

    Raises:
        ImportError: pyarrow is not installed; says how to install it.
        ValueError: there is no such column or one is named twice, or a time has no time zone, or
            `until` is not later than `since`.
        NotFound, ConfigError, NewerVersion, Corrupt, Denied, Unavailable: as `planning.splits`;
            Corrupt and Unavailable also when a batch is requested.
    """
    from tieredstore.offline.scan.planning import splits  # noqa: PLC0415 - loaded on first use

    scanner = import_job("tieredstore.offline.scan.scanner")
    schema = scanner.schema_of(columns)
    planned = splits(
        where,
        topics=[topic] if isinstance(topic, str) else topic,
        queues=[queues] if isinstance(queues, int) else queues,
        since=since,
        until=until,
        cluster=cluster,
        broker=broker,
        conf=conf,
        settings=settings,
        java_metadata=java_metadata,
    )

    def batches() -> "Iterator[RecordBatch]":
        for split in planned:
            yield from scan_split(split, columns, on_gap=on_gap, verify_bodies=verify_bodies)

    return scanner.reader_of(schema, batches())


class ExtraMissing(ImportError, ConfigError):
    """Install an extra of tieredstore, which the sentence names. Commands end with status 2."""


def import_job(name: str) -> "ModuleType":
    """A module of this package that needs Arrow, by its whole name.

    Raises:
        ExtraMissing: Arrow is not installed; names the extra.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ExtraMissing(
            "tieredstore.offline needs pyarrow: pip install 'tieredstore[arrow]'", name="pyarrow"
        ) from error


def scan_split(
    split: "Split",
    columns: Sequence[str] | None = None,
    *,
    on_gap: "Callable[[LogGap], None] | None" = None,
    verify_bodies: bool = False,
) -> "Iterator[RecordBatch]":
    """The messages of one split, with a source that is opened here; see `scanner.scan`."""
    from tieredstore.offline.scan.sources import source_of  # noqa: PLC0415 - loaded on first use

    read = source_of(split.place)
    try:
        yield from import_job("tieredstore.offline.scan.scanner").scan(
            read, split, columns, on_gap=on_gap, verify_bodies=verify_bodies
        )
    finally:
        read.close()
