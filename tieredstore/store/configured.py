"""Construction of the configured store: hot log, plug-ins and tier."""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from dispatcher.topic_filter import own_topics
from provider.clock import Clock, SystemClock
from tieredstore.config.effective import ROCKSDB, Config, StartWords
from tieredstore.config.sources import ConfigError, build
from tieredstore.hot.options import HotWriteOptions, ReadLimits, RetentionOptions
from tieredstore.store.cold_side import continue_unowned
from tieredstore.store.levels import Level
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.plugins import (
    OURS,
    PluggedStore,
    PluginContext,
    StoreLayers,
    build_layers,
    tiering_of,
)
from tieredstore.store.tiered import TieredMessageStore


def read_limits(config: Config) -> ReadLimits:
    """Return the limits of one read of the hot log."""
    return build(ReadLimits, config.settings)


def plan_store(
    config: Config,
    *,
    clock: Clock,
    take_over: bool = False,
    tiers: bool = True,
    level: Level | None = None,
    continues: bool = True,
    hot: HotWriteOptions | None = None,
    retention: RetentionOptions | None = None,
    limits: ReadLimits | None = None,
) -> tuple[PluginContext, StoreLayers]:
    """Build the store that `config` describes. Opens nothing. Imports plug-ins, which blocks.

    Args:
        config: names at least the store directory.
        clock: source of the time of all layers.
        take_over: take the tier over from a living owner.
        tiers: False leaves out the store that tiers, so that no tier is needed.
        level: level of reads from the tier; None: as configured, like the arguments below.
        continues: False leaves queues that end in the hot log below the tier as they are.
        hot: options of writing the hot log.
        retention: retention of tiered messages in the hot log.
        limits: limits of one read of the hot log.

    Raises:
        ConfigError: the store is not named, a setting is wrong, or a plug-in fails.
    """
    if not config.gives("storePathRootDir"):
        raise ConfigError(
            "the store is not named: give storePathRootDir in the file given to --conf, or with "
            "-D storePathRootDir=DIRECTORY"
        )
    _refuse_what_is_only_read(config)
    retention = retention or config.retention
    local = LocalMessageStore(
        config.store_dir,
        options=hot or config.hot_write,
        retention=retention,
        limits=limits or read_limits(config),
        trim_interval_s=retention.interval_s,
        clock=clock,
    )
    local.refuse_topics(own_topics(config.cluster, config.broker))
    if not tiers and not set(OURS).isdisjoint(config.plug_ins):
        local.hold_back(lambda _: 0)  # the tier's backlog is unknown
    context = PluginContext(config, local, clock, take_over, level, continues)
    names = [name for name in config.plug_ins if tiers or name not in OURS]
    layers = build_layers(context, names)
    if layers.tiered is None and continues and config.gives("tieredStoreFilePath"):
        local.before_use(partial(continue_unowned, config, clock))
    return context, layers


def _refuse_what_is_only_read(config: Config) -> None:
    """Refuse settings of broker stores that can be followed but are not written here.

    Raises:
        ConfigError: names the setting.
    """
    settings = config.settings
    if settings["enableDLegerCommitLog"].value:
        raise ConfigError("enableDLegerCommitLog: our own hot log writes no DLedger")
    if settings["storeType"].value == ROCKSDB:
        raise ConfigError(
            f"storeType={ROCKSDB}: our own hot log writes its ConsumeQueues as files; leave the "
            f"key out, and name an empty directory or one with such files"
        )


def open_store(
    directory: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    level: Level | str | int | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    hot: HotWriteOptions | None = None,
    retention: RetentionOptions | None = None,
    limits: ReadLimits | None = None,
    take_over: bool = False,
    new_tier: bool = False,
    durable: bool = False,
    process: Literal["inline", "own"] | None = None,
) -> TieredMessageStore | PluggedStore:
    """A message store with a cold tier: `async with tieredstore.open_store("store", "tier", ...)`.

    An append returns before the disk has the message: a power failure may take the last 500 ms, a
    crash of the process nothing. With `durable=True` it returns once the disk has it.

    Entering the block reads nothing but what it opens: the hot log in `directory`, then the tier,
    with the errors of `TieredMessageStore.__aenter__`. Without a tier, use `LocalMessageStore`.
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
        durable: sync each append before it returns, many callers by one sync (SYNC_FLUSH, some
            1 ms); False: as `hot` or `flushDiskType` says, ASYNC_FLUSH by default.
        process: "own": a process of its own tiers, so that appends and reads do not wait for it;
            "inline": this one; None: `tieredStoreProcess`, by default "inline".

    Raises:
        ConfigError: a setting is wrong, or a plug-in fails.
        ValueError: there is no such level.
    """
    given = {"storePathRootDir": os.fspath(directory), **(settings or {})}
    if process is not None:
        given["tieredStoreProcess"] = process
    if durable:
        given["flushDiskType"] = "SYNC_FLUSH"
        hot = None if hot is None else replace(hot, flush="SYNC_FLUSH")
    context, layers = plan_store(
        replace(
            Config.named(where, cluster, broker, conf, given),
            start=StartWords(is_new_tier=new_tier),
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
