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
from functools import partial
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING

from provider.errors import NotFound, StoreError
from tieredstore.config.sources import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from tieredstore.config.effective import Config
    from tieredstore.offline.scan.split import LogGap, Split
    from tieredstore.reader.arrow import RecordBatch, RecordBatchReader, Schema
    from tieredstore.reader.cursor import Moment

OnBrokerFailure = Callable[[str, str, Exception], None]
PATTERN = frozenset("*?[")
"""Characters that make a name of a broker a pattern."""


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
    broker: str | Sequence[str] | None = None,
    on_broker_failure: OnBrokerFailure | None = None,
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
        broker: the broker's name; likewise. A pattern, as "*", or a list of names and patterns:
            all brokers that fit, one after another, with the columns `cluster` and `broker` first.
        on_broker_failure: callback for one of several brokers that cannot be read (whole), with
            cluster, broker and error; the others are read. None: the first failure is an error.
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
    from tieredstore.config.effective import Config  # noqa: PLC0415 - loaded on first use
    from tieredstore.offline.scan.planning import splits  # noqa: PLC0415 - likewise

    times, given = {"since": since, "until": until}, {"conf": conf, "settings": settings}
    plan = partial(splits, where, **times, **given, java_metadata=java_metadata)
    scan = partial(scan_split, on_gap=on_gap, verify_bodies=verify_bodies)
    scanner = import_job("tieredstore.offline.scan.scanner")
    topics = [topic] if isinstance(topic, str) else topic
    numbers = [queues] if isinstance(queues, int) else queues
    if broker is None or (isinstance(broker, str) and not set(broker) & PATTERN):
        schema = scanner.schema_of(columns)
        planned = plan(topics=topics, queues=numbers, cluster=cluster, broker=broker)
        found = (batch for split in planned for batch in scan(split, columns))
        return scanner.reader_of(schema, found)
    schema = import_job("tieredstore.reader.arrow_batches").schema_with_origin(columns)
    brokers = _brokers(Config.named(where, cluster, None, conf, settings), broker)
    of_each = _planned(brokers, partial(_named_splits, plan, topics, numbers), on_broker_failure)
    return scanner.reader_of(schema, _batches(of_each, scan, columns, schema, on_broker_failure))


def _brokers(config: "Config", broker: str | Sequence[str]) -> "list[Config]":
    from tieredstore.session.reader import existing_tiers  # noqa: PLC0415 - loaded on first use

    return existing_tiers(config, [broker] if isinstance(broker, str) else broker)


def _named_splits(
    plan: "Callable[..., list[Split]]",
    topics: Sequence[str] | None,
    numbers: Sequence[int] | None,
    config: "Config",
) -> "list[Split] | NotFound":
    """The splits of what a broker has of topics and numbers of queues; or that it has nothing."""
    found: list[Split] = []
    absent: NotFound | None = None
    for topic, number in product(topics or [None], numbers or [None]):
        try:
            found += plan(
                topics=None if topic is None else [topic],
                queues=None if number is None else [number],
                cluster=config.cluster,
                broker=config.broker,
            )
        except NotFound as error:
            if topic is number is None:
                raise
            absent = error
    return absent if absent is not None and not found else found


def _planned(
    brokers: "Sequence[Config]",
    plan: "Callable[[Config], list[Split] | NotFound]",
    on_failure: OnBrokerFailure | None,
) -> "list[tuple[Config, list[Split]]]":
    """Plan for each broker.

    Raises:
        NotFound: no broker has what was named.
        and as `planning.splits`, without `on_failure`.
    """
    done: list[tuple[Config, list[Split]]] = []
    absent: NotFound | None = None
    for config in brokers:
        try:
            found = plan(config)
        except (StoreError, OSError) as error:
            if on_failure is None:
                raise
            on_failure(config.cluster, config.broker, error)
            continue
        if isinstance(found, NotFound):
            absent = found
        else:
            done.append((config, found))
    if absent is not None and not done:
        raise absent
    return done


def _batches(
    planned: "Sequence[tuple[Config, list[Split]]]",
    scan: "Callable[[Split, Sequence[str]], Iterator[RecordBatch]]",
    columns: Sequence[str] | None,
    schema: "Schema",
    on_failure: OnBrokerFailure | None,
) -> "Iterator[RecordBatch]":
    arrow = import_job("tieredstore.reader.arrow_batches")
    names = [name for name in columns or schema.names if name not in arrow.ORIGIN]
    for config, splits in planned:
        try:
            for split in splits:
                for batch in scan(split, names or ["queue_id"]):
                    yield arrow.with_origin(batch, schema, config.cluster, config.broker)
        except (StoreError, OSError) as error:
            if on_failure is None:
                raise
            on_failure(config.cluster, config.broker, error)


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
