"""Construction of the configured store: hot log, plug-ins and tier."""

from functools import partial

from dispatcher.topic_filter import own_topics
from provider.clock import Clock
from tieredstore.config.building import build
from tieredstore.config.effective import ROCKSDB, Config
from tieredstore.config.sources import ConfigError
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.store.cold_side import continue_unowned
from tieredstore.store.levels import Level
from tieredstore.hot.options import ReadLimits
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.plugins import OURS, PluginContext, StoreLayers, build_layers


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
