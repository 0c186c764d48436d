"""Offline work on a tier by parallel processes: scan, audit, rebuild, tables.

    import duckdb, tieredstore.offline

    orders = tieredstore.offline.dataset("tier", "G_Orders")
    duckdb.sql("SELECT tags, count(*) FROM orders GROUP BY ALL")

`scan/planning.py` divides a tier into splits, `scan/split.py` is the split of a worker, and
`scan/scanner.py` reads its messages. Needs neither Spark nor an event loop of the caller. Modules
are loaded on first use.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from provider.errors import NotFound, StoreError
from tieredstore.config.sources import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from tieredstore.config.effective import Config
    from tieredstore.message import OnBrokerFailure
    from tieredstore.offline.scan.planning import QueueLog
    from tieredstore.offline.scan.split import LogGap, Split
    from tieredstore.reader.arrow import Dataset, RecordBatch
    from tieredstore.reader.cursor import Moment

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
    on_broker_failure: "OnBrokerFailure | None" = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
) -> "Dataset":
    """Return the messages of topics as a `pyarrow.dataset.Dataset`, for DuckDB, polars or pyarrow.

    It has the messages that are published at the call, which reads the metadata. A scan reads them
    queue after queue and holds one batch. It decodes the columns of its query alone, and leaves out
    what a filter on topic, queue, offset, store time, cluster or broker excludes. Any number of
    scans may run at once, each in one thread at a time. The columns are those of `to_arrow`, but
    logs are read sequentially, without ConsumeQueues and caches.

    Args:
        where: the tier's directory or URL, as in `tieredstore.open`.
        topic: a topic, or several; None: all.
        columns: names of the dataset's columns, in this order; None: all.
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
            those of `scanner.scan` also when a batch is requested.
    """
    from tieredstore.config.effective import Config  # noqa: PLC0415 - loaded on first use

    made = import_job("tieredstore.offline.scan.tier_dataset")
    several = _patterns(broker)
    names = made.ColumnNames.of(columns, of_brokers=several is not None)
    name = broker if isinstance(broker, str) and several is None else None
    config = Config.named(where, cluster, name, conf, settings)
    logs = partial(
        _logs, topic, queues, since=since, until=until, java_metadata=java_metadata,
        may_lack=several is not None,
    )  # fmt: skip
    if several is None:
        brokers = [made.BrokerLogs.of(None, logs(config))]
    else:
        has_names = topic is not None or queues is not None
        planned = _planned(config, several, logs, on_broker_failure, has_names=has_names)
        brokers = [made.BrokerLogs.of(*one) for one in planned]
    read = partial(scan_split, on_gap=on_gap, verify_bodies=verify_bodies)
    return made.TierDataset(names, brokers, read, on_broker_failure)


def _logs(
    topic: str | Sequence[str] | None,
    queues: int | Sequence[int] | None,
    config: "Config",
    *,
    since: "Moment | None",
    until: "Moment | None",
    java_metadata: str | os.PathLike[str] | None,
    may_lack: bool,
) -> "Sequence[QueueLog]":
    from tieredstore.offline.scan.planning import plan, selected  # noqa: PLC0415 - loaded on first use

    java = None if java_metadata is None else Path(java_metadata)
    topics = [topic] if isinstance(topic, str) else topic
    numbers = [queues] if isinstance(queues, int) else queues
    selection = selected(topics, numbers, since, until)
    return plan(config, selection, java_metadata=java, may_lack=may_lack).logs


def _patterns(broker: str | Sequence[str] | None) -> Sequence[str] | None:
    """The patterns of several brokers; None if one is meant."""
    if isinstance(broker, str):
        return [broker] if set(broker) & PATTERN else None
    return broker


def _planned(
    config: "Config",
    patterns: Sequence[str],
    plan: "Callable[[Config], Sequence[QueueLog]]",
    on_failure: "OnBrokerFailure | None",
    *,
    has_names: bool,
) -> "list[tuple[Config, Sequence[QueueLog]]]":
    """Plan for each broker that fits. `has_names`: it need not have the named topics and queues.

    Raises:
        NotFound: no broker has what was named.
        and as `planning.splits`, without `on_failure`.
    """
    from tieredstore.session.reader import existing_tiers  # noqa: PLC0415 - loaded on first use

    done: list[tuple[Config, Sequence[QueueLog]]] = []
    absent: NotFound | None = None
    for broker in existing_tiers(config, patterns):
        try:
            done.append((broker, plan(broker)))
        except (StoreError, OSError) as error:
            if isinstance(error, NotFound) and has_names:
                absent = error
                continue
            if on_failure is None:
                raise
            on_failure(broker.cluster, broker.broker, error)
    if absent is not None and not done:
        raise absent
    return done


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
