"""The configuration: every value with its origin, and the options of every layer made of them.

The only module that knows the options of all layers, and the only one that reads the environment.
"""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from container.index.options import IndexOptions
from container.names.queue_id import check_path_component
from container.names.rocketmq import broker_directory
from container.options import JournalOptions, TierOptions, UpkeepOptions
from container.record.unit import UNIT_BYTES
from dispatcher.options import DRAIN_PATIENCE_S, DispatchOptions
from fetcher.options import FetcherOptions
from provider.options import DiskCacheOptions, ObjectOptions, PosixOptions, RangeOptions
from provider.setting import Key, Kind, Value
from provider.stores.throttled import TransferLimits
from tieredstore.config.keys import BROKER_PLUG_IN, JAVA_ONLY, KEYS
from tieredstore.config.location import (
    OFFLOAD_PATH,
    Location,
    TierUrl,
    anchored,
    has_second_store,
    location_at,
    place_text,
)
from tieredstore.config.object_store import (
    OBJECT_ORIGIN,
    ObjectStorage,
    is_object_store,
    object_defaults,
    reads_objects,
    tier_place,
)
from tieredstore.config.sources import (
    ConfigError,
    Given,
    Setting,
    build,
    parse_value,
    read_defines,
    read_environment,
    read_file,
    read_settings,
    refuse_misspelt,
)
from tieredstore.following.options import HotLogOptions
from tieredstore.hot.options import HotWriteOptions, RetentionOptions

if TYPE_CHECKING:
    from tieredstore.config.prices import Limits, PriceTable


def fetcher_options(settings: Mapping[str, Setting]) -> FetcherOptions:
    """Return the options of read-ahead and its cache.

    Raises:
        ConfigError: the cache cannot hold one read.
    """
    cache, run = settings["readAheadCacheSize"], settings["readAheadMessageSizeThreshold"]
    if int(cache.value) < int(run.value):
        raise ConfigError(
            f"readAheadCacheSize ({cache.origin}) must hold one read of "
            f"readAheadMessageSizeThreshold, {run.value} bytes, not {cache.value}"
        )
    extent_bytes_max = int(settings["tieredStoreExtentMaxSize"].value)
    options = build(FetcherOptions, settings, extent_bytes_max=extent_bytes_max)
    if not reads_objects(settings):
        return options
    window = min(OBJECT_WINDOW_MESSAGES, options.run_messages_max)
    return replace(options, window_messages_min=window)


def range_options(settings: Mapping[str, Setting]) -> RangeOptions:
    """The gap is that of the fetcher: both coalesce the same ranges."""
    gap_bytes_max = int(settings["readAheadGapSize"].value)
    return build(RangeOptions, settings, gap_bytes_max=gap_bytes_max)


OBJECT_SNAPSHOT_AGE_S = 900.0
"""Seconds after which a snapshot replaces journal entries in an object store; on a directory 300.
Starting reads the entries after it: a dozen where rounds are as far apart as there."""
OBJECT_WINDOW_MESSAGES = 256
"""Messages of the first read of a group there. A request for 32 costs as much."""
OBJECT_FINISH_ENTRIES_MAX = 6
"""Of which a clean end leaves fewer, there: with the snapshot and the listings, ten requests."""


def upkeep_options(settings: Mapping[str, Setting], *, is_object: bool) -> UpkeepOptions:
    """The options; some are not settings, and differ in an object store."""
    second: dict[str, Any] = {"offloads": has_second_store(settings)}
    second["offload_place"] = place_text(settings)
    if not is_object:
        return build(UpkeepOptions, settings, **second)
    return build(
        UpkeepOptions,
        settings,
        snapshot_age_s_max=OBJECT_SNAPSHOT_AGE_S,
        finish_entries_max=OBJECT_FINISH_ENTRIES_MAX,
        **second,
    )


ELECTION_MARGIN_S = 2.0
"""Seconds for a replicated broker to agree with its controller that a replica is dropped."""
DEFAULT_ORIGIN = "default"
FOUND_ORIGIN = "the tier"
ROCKSDB = "defaultRocksDB"
RECORD_EXTRA_BYTES = 64 << 10
"""Bytes of a record besides its body: properties of at most 32,767 bytes, topic and fields."""
ROUNDS_MAX = 2
REMEMBER_S = 30.0
OBJECT_REMEMBER_S = 900.0
OBJECT_DRAIN_PATIENCE_S = 300.0
OBJECT_ROUND_QUEUES_MAX = 1 << 14
"""Queues of one round: each costs a few bytes there, and a file and syncs on a directory."""


@dataclass(frozen=True, slots=True)
class StartWords:
    """Explicit words of one start; no configuration file has them."""

    stands_by: bool = False
    """Wait for the end of a living owner, then take over."""
    is_new_tier: bool = False
    """Use another or an empty tier than the store remembers."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that is configured; nothing is opened by it."""

    settings: Mapping[str, Setting]
    """By key, in the order of the shipped file."""
    java_only: Sequence[Given]
    """Keys of the Java tiered store that were given and change nothing here."""
    foreign: Sequence[Given]
    """Keys that were given and are the broker's own, or a plug-in's."""
    tier: TierOptions
    journal: JournalOptions
    upkeep: UpkeepOptions
    posix: PosixOptions
    objects: ObjectOptions
    storage: ObjectStorage
    """Endpoint and credentials of an object store."""
    dispatch: DispatchOptions
    hot: HotLogOptions
    fetcher: FetcherOptions
    ranges: RangeOptions
    disk_cache: DiskCacheOptions
    index: IndexOptions
    limits: TransferLimits = field(default_factory=TransferLimits, compare=False)
    """Bytes a second to and from an object store: the part that may change while it is used."""
    serves: bool = False
    """Whether the process runs until it is stopped, and so waits for its storage."""
    start: StartWords = StartWords()

    @classmethod
    def load(
        cls,
        *,
        conf: Path | None = None,
        defines: Iterable[str] = (),
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        anchors: bool = False,
    ) -> Self:
        """Read a file, the environment, `key=value` definitions and `settings`; later ones win.

        `environment` None means the process's own. Reads the file; blocks for that long.
        `anchors`: relative directories are those of the present working directory.

        Raises:
            ConfigError: a key is misspelt, a value impossible, or two do not work together.
        """
        if environment is None:
            environment = os.environ
        given = [
            *(read_file(conf) if conf is not None else ()),
            *read_environment(environment),
            *read_defines(defines),
            *read_settings(settings or {}),
        ]
        for pair in given:
            refuse_misspelt(pair)
        if anchors:
            given = [replace(pair, text=anchored(pair.name, pair.text)) for pair in given]
        last = {pair.name: pair for pair in given}
        effective = {name: _setting(key, last.get(name)) for name, key in KEYS.items()}
        is_object = is_object_store(effective)
        effective |= object_defaults(effective, DEFAULT_ORIGIN)
        effective |= _pins_of_plug_in(effective)
        for name in ("brokerClusterName", "brokerName"):
            reason = check_path_component(str(effective[name].value))
            if reason is not None:
                raise ConfigError(f"{name} ({effective[name].origin}) is part of a path: {reason}")
        objects = build(ObjectOptions, effective)
        disk_cache = build(DiskCacheOptions, effective)
        storage = ObjectStorage.of(effective, environment)
        keeps_extents = disk_cache.directory is not None and storage.sends_plain
        dispatch = _dispatch(effective, is_object=is_object)
        return cls(
            settings=effective,
            java_only=[pair for name, pair in last.items() if name in JAVA_ONLY],
            foreign=[p for name, p in last.items() if name not in KEYS and name not in JAVA_ONLY],
            tier=_tier(effective),
            journal=build(JournalOptions, effective),
            upkeep=upkeep_options(effective, is_object=is_object),
            posix=build(PosixOptions, effective),
            objects=objects,
            storage=storage,
            dispatch=dispatch,
            hot=_hot(effective, dispatch),
            fetcher=replace(fetcher_options(effective), keeps_extents=keeps_extents),
            ranges=range_options(effective),
            disk_cache=disk_cache,
            index=build(IndexOptions, effective),
            limits=TransferLimits(objects.upload_bytes_per_s_max, objects.download_bytes_per_s_max),
        )

    @classmethod
    def named(
        cls,
        where: str | os.PathLike[str] | None,
        cluster: str | None,
        broker: str | None,
        conf: str | os.PathLike[str] | None,
        settings: Mapping[str, object] | None,
    ) -> Self:
        """Load what arguments describe. They win over `settings`. Errors as `load`."""
        arguments = {
            "tieredStoreFilePath": None if where is None else os.fspath(where),
            "brokerClusterName": cluster,
            "brokerName": broker,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        path = None if conf is None else Path(conf)
        return cls.load(conf=path, settings={**(settings or {}), **given}, anchors=True)

    @property
    def cluster(self) -> str:
        """`brokerClusterName`."""
        return str(self.settings["brokerClusterName"].value)

    @property
    def broker(self) -> str:
        """`brokerName`."""
        return str(self.settings["brokerName"].value)

    @property
    def keeps_index(self) -> bool:
        """`messageIndexEnable`: keys of tiered messages are kept in index files."""
        return bool(self.settings["messageIndexEnable"].value)

    @property
    def level(self) -> str:
        """`tieredStorageLevel`, as a name."""
        return str(self.settings["tieredStorageLevel"].value)

    @property
    def has_tiering_process(self) -> bool:
        """`tieredStoreProcess`: whether a process of its own tiers the messages of our store."""
        return self.settings["tieredStoreProcess"].value == "own"

    @property
    def store_dir(self) -> Path:
        """`storePathRootDir`."""
        return Path(str(self.settings["storePathRootDir"].value))

    @property
    def plug_ins(self) -> Sequence[str]:
        """`messageStorePlugIn`: names of stores around the hot log, the outermost first."""
        return _plug_ins(self.settings)

    @property
    def hot_write(self) -> HotWriteOptions:
        """Options for writing our own hot log; see `own_store.write_options` for errors."""
        from tieredstore.config.own_store import write_options  # noqa: PLC0415 - readers need none

        return write_options(self.settings)

    @property
    def retention(self) -> RetentionOptions:
        """Retention of our own hot log; see `own_store.retention_options` for errors."""
        from tieredstore.config.own_store import retention_options  # noqa: PLC0415 - likewise

        return retention_options(self.settings)

    @property
    def checks_names(self) -> bool:
        """`tieredStoreNameCheckEnable`: compare the store's own names with the configured ones."""
        return bool(self.settings["tieredStoreNameCheckEnable"].value)

    @property
    def verifies_extents(self) -> bool:
        """`tieredStoreExtentCheckEnable`: compare the checksums of extents when reading."""
        return bool(self.settings["tieredStoreExtentCheckEnable"].value)

    @property
    def metrics_host(self) -> str:
        """`tieredStoreMetricsHost`."""
        return str(self.settings["tieredStoreMetricsHost"].value)

    @property
    def metrics_port(self) -> int:
        """`tieredStoreMetricsPort`; 0 for none."""
        return int(self.settings["tieredStoreMetricsPort"].value)

    @property
    def owner_check_s(self) -> float:
        """`tieredStoreOwnerCheckInterval` in seconds; 0: the journal is not polled."""
        return int(self.settings["tieredStoreOwnerCheckInterval"].value) / 1000

    @property
    def tier_root(self) -> Location:
        """`tieredStoreFilePath`, or what `objectStoreBucket` names.

        Raises:
            ConfigError: neither was given, both were and differ, or it names no place.
        """
        value = tier_place(self.settings)
        if not value:
            raise ConfigError(
                "tieredStoreFilePath is not set: give --tier PLACE or the setting in the file of "
                "--conf (in a program, the argument `where`)"
            )
        return location_at(value)

    def serving(self) -> "Config":
        """The same configuration, for a process that runs until it is stopped."""
        return replace(self, serves=True)

    @property
    def start_s(self) -> float:
        """Longest wait for the storage at the start, in seconds; `tieredStoreStartTimeout`."""
        return int(self.settings["tieredStoreStartTimeout"].value) / 1000 if self.serves else 0.0

    @property
    def remember_s(self) -> float:
        """Interval at which it is written down how far a log without queues was tiered."""
        return OBJECT_REMEMBER_S if self.in_object_store else REMEMBER_S

    @property
    def drain_patience_s(self) -> float:
        """Seconds that a drain waits for progress; in an object store a round is a long upload."""
        return OBJECT_DRAIN_PATIENCE_S if self.in_object_store else DRAIN_PATIENCE_S

    @property
    def in_object_store(self) -> bool:
        """Whether the tier is in an object store, as far as it was named at all."""
        return is_object_store(self.settings)

    def of_broker(self, cluster: str, broker: str) -> Self:
        """The same configuration for a broker that was found in the tier."""
        found = {"brokerClusterName": cluster, "brokerName": broker}
        settings = {
            name: replace(one, value=found[name], origin=FOUND_ORIGIN) if name in found else one
            for name, one in self.settings.items()
        }
        return replace(self, settings=settings)

    def gives(self, name: str) -> bool:
        """Whether a key was given by any source, so its value is not the default."""
        return self.settings[name].origin not in {DEFAULT_ORIGIN, OBJECT_ORIGIN}

    @property
    def prices(self) -> "PriceTable":
        """Prices of the object store, of `objectStorePriceTable`. Blocks.

        Raises:
            ConfigError: the table cannot be read.
        """
        from tieredstore.config.prices import PriceTable  # noqa: PLC0415 - directories need none

        return PriceTable.read(str(self.settings["objectStorePriceTable"].value))

    @property
    def request_limits(self) -> "Limits":
        """The settings that decide how many requests an object store gets."""
        from tieredstore.config.prices import Limits  # noqa: PLC0415 - likewise

        return Limits(
            round_age_s=self.dispatch.batch_age_s_max,
            round_bytes=self.dispatch.round_bytes_due or self.dispatch.round_bytes_max,
            snapshot_age_s=self.upkeep.snapshot_age_s_max,
            owner_check_s=self.owner_check_s,
            heartbeat_s=self.journal.heartbeat_s,
            upload_bytes_per_s=self.limits.upload_bytes_per_s,
            download_bytes_per_s=self.limits.download_bytes_per_s,
            offload_object_bytes=self.upkeep.repack_bytes_max,
            merge_fan=self.upkeep.merge_fan,
            segment_age_s=self.tier.rolling_age_hours * 3600.0,
        )

    @property
    def memory_bytes_max(self) -> int:
        """Bytes that all layers together may hold; each options class has its own formula."""
        layers = (self.dispatch, self.hot, self.fetcher)
        storage = self.posix.memory_bytes_max
        if self.in_object_store:  # an upload may need its bytes once more, in one buffer
            storage = self.dispatch.bytes_in_flight_max
        second = str(self.settings[OFFLOAD_PATH].value or "")
        has_second = bool(second) and isinstance(location_at(second), TierUrl)
        caches = self.in_object_store + has_second
        storage += caches * self.disk_cache.memory_bytes_max
        index = self.index.memory_bytes_max if self.keeps_index else 0
        return index + storage + sum(layer.memory_bytes_max for layer in layers)


def machine(key: Key) -> Value:
    """The default of a key; of some it is the machine's."""
    if key.name == "brokerName":
        return socket.gethostname() or "DEFAULT_BROKER"
    if key.name == "storePathRootDir":
        try:
            return str(Path("~/store").expanduser())
        except RuntimeError:  # no HOME, and no entry for this user
            return "store"
    return key.default


def _setting(key: Key, given: Given | None) -> Setting:
    if given is None or (given.text == "" and key.kind is Kind.TEXT):
        return Setting(key, machine(key), DEFAULT_ORIGIN)
    return Setting(key, parse_value(key, given), given.origin)


def _plug_ins(settings: Mapping[str, Setting]) -> list[str]:
    names = str(settings["messageStorePlugIn"].value).split(",")
    return [name.strip() for name in names if name.strip()]


def _pins_of_plug_in(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return pins beside the store of a broker with our plug-in, unless they are configured.

    Its consumers wait for what the broker deletes before it is tiered. Pins keep that.
    """
    pins, store = settings["tieredStorePinPath"], settings["storePathRootDir"]
    is_decided = pins.origin != DEFAULT_ORIGIN or store.origin == DEFAULT_ORIGIN
    if is_decided or BROKER_PLUG_IN not in _plug_ins(settings):
        return {}
    beside = f"{Path(str(store.value))}-pins"
    return {pins.key.name: replace(pins, value=beside, origin="messageStorePlugIn")}


def _tier(settings: Mapping[str, Setting]) -> TierOptions:
    setting = settings["tieredStoreConsumeQueueMaxSize"]
    size = int(setting.value)
    if size % UNIT_BYTES:
        raise ConfigError(
            f"tieredStoreConsumeQueueMaxSize ({setting.origin}) must be a multiple of "
            f"{UNIT_BYTES}, the bytes of one message in a ConsumeQueue, not {size}: write "
            f"{size - size % UNIT_BYTES}"
        )
    return build(TierOptions, settings)


def _dispatch(settings: Mapping[str, Setting], *, is_object: bool) -> DispatchOptions:
    """Return two concurrent rounds if two batches fit in flight, else one.

    In an object store one request takes the bytes of all queues. So a round takes all that wait,
    and is full at the size of a request.
    """
    flight, batch = settings["tieredStoreBytesInFlight"], settings["tieredStoreGroupCommitSize"]
    rounds = min(ROUNDS_MAX, int(flight.value) // int(batch.value))
    if not rounds:
        raise ConfigError(
            f"tieredStoreBytesInFlight ({flight.origin}) must hold one batch of "
            f"tieredStoreGroupCommitSize, {batch.value} bytes, not {flight.value}"
        )
    others: dict[str, object] = {"rounds_max": rounds, "first_at_once": not is_object}
    if is_object:
        others |= {
            "boarding_share": 0.0,
            "round_bytes_due": int(batch.value),
            "round_queues_max": OBJECT_ROUND_QUEUES_MAX,
        }
    poll_s = int(settings["tieredStorePollInterval"].value) / 1000
    others["poll_s_max"] = max(DispatchOptions().poll_s_max, poll_s)
    others["message_bytes_max"] = int(settings["maxMessageSize"].value) + RECORD_EXTRA_BYTES
    options = build(DispatchOptions, settings, **others)
    waits = bool(settings["tieredStoreGroupCommit"].value)
    return options if waits else replace(options, batch_age_s_max=0.0)


def _unconfirmed_s(settings: Mapping[str, Setting]) -> float:
    """Seconds after which a replicated broker's message is safe without an acknowledgement."""
    if settings["allAckInSyncStateSet"].value and not settings["readUnCommitted"].value:
        return 0.0
    keys = ("haMaxTimeSlaveNotCatchup", "checkSyncStateSetPeriod")
    return sum(int(settings[key].value) for key in keys) / 1000 + ELECTION_MARGIN_S


def _hot(settings: Mapping[str, Setting], dispatch: DispatchOptions) -> HotLogOptions:
    """Memory is kept from one round to the next as far as the dispatcher's rounds go."""
    replicated = settings["enableControllerMode"].value or settings["duplicationEnable"].value
    defaults = HotLogOptions()
    return build(
        HotLogOptions,
        settings,
        queues_in_rocksdb=settings["storeType"].value == ROCKSDB,
        replicated=bool(replicated),
        unconfirmed_s_max=_unconfirmed_s(settings),
        round_bytes_max=min(defaults.round_bytes_max, dispatch.bytes_in_flight_max),
        buffer_bytes_max=max(
            defaults.buffer_bytes_max, min(defaults.round_bytes_max, dispatch.round_bytes_max)
        ),
    )


def second_location(config: Config) -> Location | None:
    """Return the location of the second store of the configured broker; None without one.

    Raises:
        ConfigError: the setting is no location, or one of the two stores contains the other.
    """
    setting = config.settings[OFFLOAD_PATH]
    if not setting.value:
        return None
    place, first = location_at(str(setting.value)), config.tier_root
    _refuse_overlap(setting, place, first)
    return place / broker_directory(config.cluster, config.broker)


def refuse_linked_stores(config: Config) -> None:
    """Refuse two directories of which one contains the other, links resolved. Blocks.

    Raises:
        ConfigError: one contains the other, or the second store is no location.
    """
    setting = config.settings[OFFLOAD_PATH]
    if not setting.value:
        return
    both = [location_at(str(setting.value)), config.tier_root]
    place, other = (Path(os.path.realpath(one)) if isinstance(one, Path) else one for one in both)
    _refuse_overlap(setting, place, other)


def _refuse_overlap(setting: Setting, place: Location, first: Location) -> None:
    if _overlap(place, first):
        raise ConfigError(
            f"{OFFLOAD_PATH} ({setting.origin}) and tieredStoreFilePath lie inside one another: "
            f"give the second store a place of its own"
        )


def _overlap(one: Location, other: Location) -> bool:
    if isinstance(one, TierUrl) and isinstance(other, TierUrl):
        places = [f"{place}/" for place in (one, other)]
        return places[0].startswith(places[1]) or places[1].startswith(places[0])
    if isinstance(one, Path) and isinstance(other, Path):
        paths = [Path(os.path.normpath(path)) for path in (one, other)]  # no link is followed
        return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])
    return False
