"""Unlimited history for RocketMQ on cheap storage: read a tier, or tier a broker's store.

Read a queue:

    import tieredstore

    async with tieredstore.open("tier") as tier:
        print(tier.topics())
        async for message in tier.messages("G_Orders", 0):
            print(message.offset, message.tags, message.body)

The same without `await`, in notebooks and scripts:

    with tieredstore.sync.open("tier") as tier:  # import tieredstore.sync
        for message in tier.messages("G_Orders", 0):
            print(message.offset, message.tags, message.body)

Tier what a broker wrote, then what it writes:

    async with tieredstore.follow("/var/rocketmq/store", "tier", conf="broker.conf") as follower:
        await follower.drain()
        await follower.run()

Keep messages of your own, with the same tier below:

    async with tieredstore.open_store("store", "tier", broker="broker-a") as store:
        await store.put_message(tieredstore.NewMessage("Orders", 0, b"..."))

Public names by purpose (`help(tieredstore.NAME)` documents each):

Reading      open, ReadableTier, Message, QueueSummary, Gap, QueueCursor, Finding, Boundary,
             TimeRules, TieredSegment
Fetching     TieredMessageFetcher, FetcherOptions, FetchResult, FetchStatus, FetchedMessages,
             FetcherStatistics, StoredMessage, QueryResult
Tiering      follow, Follower, DispatchStatistics, QueueStatistics, QueueState, Progress,
             TopicSummary, Loss, ScanStatistics, UpkeepStatistics
Storing      open_store, TieredMessageStore, LocalMessageStore, MessageStore, Level, NewMessage,
             Appended, GetMessageResult, MessageRefused, InUse, HotWriteOptions,
             RetentionOptions, UntieredPolicy, ReadLimits, ForwardingMessageStore, PluginContext,
             PluggedStore
Settings     Config, ConfigError
Errors       StoreError, the base of: AlreadyExists, BytesMissing, Closed, Corrupt, Denied,
             Fenced, NewerVersion, NotAStore, NotFound, OutOfRange, Owned, Refused, Unavailable
Without await: the module tieredstore.sync
Own storage: the package provider

Names that are not listed here are internal and may change. A name is loaded when it is first used.
"""

import os
from collections.abc import Mapping
from importlib import import_module

from tieredstore.layers import refuse_intruders
from tieredstore.version import VERSION

TYPE_CHECKING = False
"""As in `typing`, whose import takes 7 ms in which Ctrl-C would give a traceback."""

if TYPE_CHECKING:
    from container.check.finding import Finding
    from container.errors import BytesMissing, InUse, NewerVersion, Owned, Refused
    from container.lookup.query import QueryResult
    from container.metadata.records import Gap
    from container.queue.segments import TieredSegment
    from container.queue.time_index import Boundary, TimeRules
    from container.record.message import StoredMessage
    from container.upkeep.upkeep import UpkeepStatistics
    from dispatcher.ports import QueueState
    from dispatcher.statistics import DispatchStatistics, Progress, QueueStatistics
    from fetcher.fetcher import TieredMessageFetcher
    from fetcher.options import FetcherOptions
    from fetcher.result import FetchedMessages, FetchResult, FetchStatus
    from fetcher.statistics import FetcherStatistics
    from provider.errors import (
        AlreadyExists,
        Closed,
        Corrupt,
        Denied,
        Fenced,
        NotFound,
        OutOfRange,
        StoreError,
        Unavailable,
    )
    from tieredstore import sync
    from tieredstore.config.effective import Config
    from tieredstore.config.sources import ConfigError
    from tieredstore.follower import Follower
    from tieredstore.following.directory.layout import NotAStore
    from tieredstore.following.statistics import ScanStatistics
    from tieredstore.hot.encoding import Appended, MessageRefused, NewMessage
    from tieredstore.hot.options import HotWriteOptions
    from tieredstore.hot.options import RetentionOptions, UntieredPolicy
    from tieredstore.message import Message
    from tieredstore.metrics.summary import Loss, QueueSummary, TopicSummary
    from tieredstore.reader.cursor import QueueCursor
    from tieredstore.reader.readable_tier import ReadableTier
    from tieredstore.store.forwarding import ForwardingMessageStore
    from tieredstore.store.levels import Level
    from tieredstore.hot.options import ReadLimits
    from tieredstore.store.local import LocalMessageStore
    from tieredstore.store.plugins import PluggedStore, PluginContext
    from tieredstore.store.protocol import GetMessageResult, MessageStore
    from tieredstore.store.tiered import TieredMessageStore

__all__ = [  # noqa: RUF022 - grouped by purpose
    # Reading
    "open",
    "ReadableTier",
    "Message",
    "QueueSummary",
    "Gap",
    "QueueCursor",
    "Finding",
    "Boundary",
    "TimeRules",
    "TieredSegment",
    # Fetching
    "TieredMessageFetcher",
    "FetcherOptions",
    "FetchResult",
    "FetchStatus",
    "FetchedMessages",
    "FetcherStatistics",
    "QueryResult",
    "StoredMessage",
    # Tiering
    "follow",
    "Follower",
    "DispatchStatistics",
    "QueueStatistics",
    "QueueState",
    "Progress",
    "TopicSummary",
    "Loss",
    "ScanStatistics",
    "UpkeepStatistics",
    # Storing
    "open_store",
    "TieredMessageStore",
    "LocalMessageStore",
    "MessageStore",
    "Level",
    "NewMessage",
    "Appended",
    "GetMessageResult",
    "MessageRefused",
    "InUse",
    "HotWriteOptions",
    "RetentionOptions",
    "UntieredPolicy",
    "ReadLimits",
    # Plug-ins
    "ForwardingMessageStore",
    "PluggedStore",
    "PluginContext",
    # Settings
    "Config",
    "ConfigError",
    # Errors
    "StoreError",
    "AlreadyExists",
    "BytesMissing",
    "Closed",
    "Corrupt",
    "Denied",
    "Fenced",
    "NewerVersion",
    "NotAStore",
    "NotFound",
    "OutOfRange",
    "Owned",
    "Refused",
    "Unavailable",
    # Without await
    "sync",
]

__version__ = VERSION

_HOMES: Mapping[str, tuple[str, ...]] = {
    "container.check.finding": ("Finding",),
    "container.errors": ("BytesMissing", "InUse", "NewerVersion", "Owned", "Refused"),
    "container.lookup.query": ("QueryResult",),
    "container.metadata.records": ("Gap",),
    "container.queue.segments": ("TieredSegment",),
    "container.queue.time_index": ("Boundary", "TimeRules"),
    "container.record.message": ("StoredMessage",),
    "container.upkeep.upkeep": ("UpkeepStatistics",),
    "dispatcher.ports": ("QueueState",),
    "dispatcher.statistics": ("DispatchStatistics", "Progress", "QueueStatistics"),
    "fetcher.fetcher": ("TieredMessageFetcher",),
    "fetcher.options": ("FetcherOptions",),
    "fetcher.result": ("FetchedMessages", "FetchResult", "FetchStatus"),
    "fetcher.statistics": ("FetcherStatistics",),
    "provider.errors": (
        "AlreadyExists", "Closed", "Corrupt", "Denied", "Fenced", "NotFound", "OutOfRange",
        "StoreError", "Unavailable",
    ),
    "tieredstore.config.effective": ("Config",),
    "tieredstore.config.sources": ("ConfigError",),
    "tieredstore.follower": ("Follower",),
    "tieredstore.following.directory.layout": ("NotAStore",),
    "tieredstore.following.statistics": ("ScanStatistics",),
    "tieredstore.hot.encoding": ("Appended", "MessageRefused", "NewMessage",),
    "tieredstore.hot.options": (
        "HotWriteOptions", "ReadLimits", "RetentionOptions", "UntieredPolicy",
    ),
    "tieredstore.message": ("Message",),
    "tieredstore.reader.readable_tier": ("ReadableTier",),
    "tieredstore.reader.cursor": ("QueueCursor",),
    "tieredstore.store.forwarding": ("ForwardingMessageStore",),
    "tieredstore.store.levels": ("Level",),
    "tieredstore.store.local": ("LocalMessageStore",),
    "tieredstore.store.plugins": ("PluggedStore", "PluginContext",),
    "tieredstore.store.protocol": ("GetMessageResult", "MessageStore"),
    "tieredstore.store.tiered": ("TieredMessageStore",),
    "tieredstore.metrics.summary": ("Loss", "QueueSummary", "TopicSummary"),
}  # fmt: skip
"""Modules of the public names, loaded on first use: `--help` of the command line needs none."""

refuse_intruders(os.path.dirname(__path__[0]))  # noqa: PTH120 - pathlib would come too early


if not TYPE_CHECKING:  # else a type checker would take any name for ours

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        if name == "sync":
            return import_module("tieredstore.sync")
        for module, names in _HOMES.items():
            if name in names:
                found = getattr(import_module(module), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module 'tieredstore' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})


def open(  # noqa: A001 - `tieredstore.open`, as in zarr, gzip or rasterio
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
    damaged: bool = False,
) -> "ReadableTier":
    """A reader of a broker's tier: `async with tieredstore.open("tier") as tier`.

    Reads nothing itself: entering the block reads `conf` and opens the tier, and raises what
    `ReadableTier.__aenter__` says.

    Args:
        where: the tier's directory, as a path or a `file://` URL; None: `tieredStoreFilePath` of
            `conf` or of the environment.
        cluster: the broker's cluster; not needed where the tier has only one that fits.
        broker: the broker's name; likewise.
        conf: a RocketMQ broker's configuration file, used as it is.
        settings: further keys with their values, such as
            `{"tieredStoreCrcCheckEnable": False}`; they win over `conf` and the environment.
        java_metadata: a `tieredStoreMetadata.json`, to read a tier that RocketMQ's own tiered
            store wrote.
        damaged: of a damaged journal, open the part that is whole; `damage` says where it ends.
    """
    from pathlib import Path  # noqa: PLC0415 - loaded on first use

    from tieredstore.reader.readable_tier import ReadableTier  # noqa: PLC0415 - likewise

    return ReadableTier(
        lambda: _config(where, cluster, broker, conf, settings),
        java_metadata=None if java_metadata is None else Path(java_metadata),
        damaged=damaged,
    )


def follow(
    store_dir: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    take_over: bool = False,
    standby: bool = False,
    new_tier: bool = False,
) -> "Follower":
    """Follow a broker's store: `async with tieredstore.follow("store", "tier") as follower`.

    Entering the block reads `conf`, opens the store and takes over the tier of an owner that ended.
    `Follower.drain` and `Follower.run` then tier. The broker may run. Nothing is written into its
    directory.

    Args:
        store_dir: the broker's `storePathRootDir`.
        where: the tier's directory, made if missing; as in `open`.
        cluster: the broker's cluster, a part of the tier's paths; None: `brokerClusterName`.
        broker: the broker's name, likewise; None: `brokerName`, by default the host's name.
        conf: the broker's configuration file, used as it is.
        settings: further keys with their values; they win over `conf` and the environment.
        take_over: take the tier from an owner that lives, too, which then ends with `Fenced`;
            otherwise `Owned` is raised.
        standby: wait while another process owns the tier, and take over when it ends.
        new_tier: use another tier than was remembered for this store, or begin an empty one.
    """
    from dataclasses import replace  # noqa: PLC0415 - loaded on first use
    from pathlib import Path  # noqa: PLC0415 - likewise

    from tieredstore.config.effective import StartWords  # noqa: PLC0415 - likewise
    from tieredstore.follower import Follower  # noqa: PLC0415 - likewise

    return Follower(
        lambda: replace(
            _config(where, cluster, broker, conf, settings), start=StartWords(standby, new_tier)
        ),
        Path(store_dir),
        take_over=take_over,
    )


def open_store(
    directory: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    level: "Level | str | int | None" = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    hot: "HotWriteOptions | None" = None,
    retention: "RetentionOptions | None" = None,
    limits: "ReadLimits | None" = None,
    take_over: bool = False,
    new_tier: bool = False,
) -> "TieredMessageStore | PluggedStore":
    """A message store with a cold tier: `async with tieredstore.open_store("store", "tier", ...)`.

    Entering the block reads nothing but what it opens: the hot log in `directory`, then the tier,
    and raises what `TieredMessageStore.__aenter__` says. Without a tier, use `LocalMessageStore`.
    Plug-ins that `messageStorePlugIn` names are imported by this call, and are a part of the store.

    Args:
        directory: the hot log, in RocketMQ's local format; made if missing.
        where: the tier's directory, made if missing; as in `open`.
        cluster: a part of the tier's paths; None: `brokerClusterName`.
        broker: likewise; None: `brokerName`, which must be given somewhere to begin a tier.
        level: what is read from the tier; None: `tieredStorageLevel`.
        conf: a broker's configuration file, used as it is; read by this call.
        settings: further keys with their values; they win over `conf` and the environment.
        hot: how the hot log is written: sizes of files, syncs, limits; None: as configured, such as
            by `mappedFileSizeCommitLog`.
        retention: how long the hot log keeps what the tier has; None: as configured.
        limits: how much one read of the hot log returns; None: as configured.
        take_over: take the tier from an owner that lives, too.
        new_tier: use another tier than the store remembers, or begin an empty one.

    Raises:
        ConfigError: a setting is wrong, or a plug-in fails.
        ValueError: there is no such level.
    """
    from dataclasses import replace  # noqa: PLC0415 - loaded on first use

    from provider.clock import SystemClock  # noqa: PLC0415 - likewise
    from tieredstore.config.effective import StartWords  # noqa: PLC0415 - likewise
    from tieredstore.store.configured import plan_store  # noqa: PLC0415 - likewise
    from tieredstore.store.levels import Level  # noqa: PLC0415 - likewise
    from tieredstore.store.plugins import PluggedStore, tiering_of  # noqa: PLC0415 - likewise

    given = {"storePathRootDir": os.fspath(directory), **(settings or {})}
    context, layers = plan_store(
        replace(
            _config(where, cluster, broker, conf, given), start=StartWords(is_new_tier=new_tier)
        ),
        clock=SystemClock(),
        take_over=take_over,
        level=None if level is None else Level.of(level),
        hot=hot,
        retention=retention,
        limits=limits,
    )
    tiered = tiering_of(context, layers)
    return tiered if len(layers.plug_ins) == 1 else PluggedStore(context, layers)


def _config(
    where: str | os.PathLike[str] | None,
    cluster: str | None,
    broker: str | None,
    conf: str | os.PathLike[str] | None,
    settings: Mapping[str, object] | None,
) -> "Config":
    """The configuration that arguments describe; they win over `settings`. Reads `conf`."""
    from pathlib import Path  # noqa: PLC0415 - loaded on first use

    from tieredstore.config.effective import Config  # noqa: PLC0415 - likewise

    arguments = {
        "tieredStoreFilePath": None if where is None else os.fspath(where),
        "brokerClusterName": cluster,
        "brokerName": broker,
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    path = None if conf is None else Path(conf)
    return Config.load(conf=path, settings={**(settings or {}), **given})
