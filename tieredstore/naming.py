"""Whose store is tiered, and under which name: two mistakes that no later command could mend.

Messages of another broker in a tier cannot be taken out of it, and a tier that is begun under a
name that nobody chose is a full copy that nobody looks for.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from container.names.tier_objects import BOUNDARY_PREFIX, JOURNAL_PREFIX, SNAPSHOT_PREFIX
from dispatcher.topic_filter import TopicFilter
from provider.posix.files import posix_errors
from tieredstore.config.effective import Config, Setting
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.topic_table import TOPICS, StoreNames, read_store_names
from tieredstore.hot.identity import IDENTITY, StoreIdentity, read_identity, write_identity
from tieredstore.places import directory_of, first_with_objects, names_below

METADATA = (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX)
"""A place with an object below one of these has a tier."""
BROKER, CLUSTER = "brokerName", "brokerClusterName"
SWITCH = "tieredStoreNameCheckEnable"
QUEUES = "consumequeue"
TOPICS_SAID_MAX = 3


def refuse_other_store(config: Config, store_dir: Path) -> None:
    """Refuse a store that says it is another broker's or cluster's. Blocks for a file and listings.

    A store may say nothing: brokers whose topics never changed write no such file, and brokers that
    keep their configuration in RocksDB have none. It is accepted unless the tier and it have
    topics, and none in common.

    Raises:
        ConfigError: none of the names that the store has is the configured one, or it has no name
            and nothing of what the tier has.
    """
    if not config.checks_names:
        return
    names, source = _names_of(store_dir)
    for key, found in ((BROKER, names.brokers), (CLUSTER, names.clusters)):
        setting = config.settings[key]
        if found and setting.value not in found:
            raise ConfigError(
                f"the store {store_dir} is {_whose(names)}, as its {source} says, but {key} is "
                f"{setting.value} ({_origin(config, setting)}): name the store of that broker, or "
                f"the broker of this store with --conf or {_say(names)}; "
                f"{SWITCH}=false switches this check off"
            )
    if not names.brokers:
        _refuse_stranger(config, store_dir)


def remember_store(config: Config, store_dir: Path) -> None:
    """Have a store of our own remember its broker. Blocks; the caller writes the store.

    Raises:
        Unavailable, Denied: it cannot be written.
    """
    identity = StoreIdentity(
        config.cluster, config.broker, has_tier=config.gives("tieredStoreFilePath")
    )
    with posix_errors(str(store_dir)):
        write_identity(store_dir, identity)


def _names_of(store_dir: Path) -> tuple[StoreNames, str]:
    """The names that a store has, and the file that has them."""
    names = read_store_names(store_dir)
    identity = None if names.brokers else read_identity(store_dir)
    if identity is None:
        return names, TOPICS
    return StoreNames((identity.broker,), (identity.cluster,)), str(IDENTITY)


def _refuse_stranger(config: Config, store_dir: Path) -> None:
    tier = directory_of(config)
    excludes = TopicFilter(config.cluster, config.broker).excludes
    if isinstance(tier, TierUrl):
        return  # queues share its objects, so that no names tell which topics it has
    tiered = {
        name for name in _directories_in(config, tier) if name[0] != "@" and not excludes(name)
    }
    stored = {name for name in _directories_in(config, store_dir / QUEUES) if not excludes(name)}
    if tiered and stored and tiered.isdisjoint(stored):
        raise ConfigError(
            f"the store {store_dir} does not say whose it is, and has none of the tier's topics: "
            f"it has {_some(stored)}, and {tier} has {_some(tiered)}: name the store of that "
            f"broker, or say {SWITCH}=false if this one is its"
        )


def refuse_unnamed(config: Config, store_dir: Path) -> None:
    """Begin no tier under the host's name, which nobody gave; one that is there goes on.

    Raises:
        ConfigError: says what the store's broker is called, if the store says it.
    """
    if config.gives(BROKER) or has_tier(config, directory_of(config)):
        return
    names, _ = _names_of(store_dir)
    raise ConfigError(
        f"brokerName is not set, and no tier is begun under the host's name ({config.broker}): "
        f"give the broker's configuration with --conf, or say {_say(names)}"
        f"{', as the store does' if names.brokers else ''} (in a program, broker=...)"
    )


def _directories_in(config: Config, directory: Path) -> set[str]:
    try:
        return set(names_below(config, directory))
    except ConfigError:
        return set()  # what cannot be looked at is opened next, and then named


def _some(topics: Collection[str]) -> str:
    """`A, B, C and 5 more`."""
    more = len(topics) - TOPICS_SAID_MAX
    said = ", ".join(sorted(topics)[:TOPICS_SAID_MAX])
    return f"{said} and {more} more" if more > 0 else said


def has_tier(config: Config, where: Location) -> bool:
    """Whether a place has a tier of ours, even one that lost its journal or its snapshots.

    False where a directory cannot be read. Blocks.
    """
    if isinstance(where, TierUrl):
        return first_with_objects(config, where, [one.rstrip("/") for one in METADATA]) is not None
    for prefix in METADATA:
        try:
            if any((where / prefix).iterdir()):
                return True
        except OSError:
            continue  # opening the tier meets the same error, and names it
    return False


def _origin(config: Config, setting: Setting) -> str:
    if config.gives(setting.key.name):
        return setting.origin
    return "the host's name" if setting.key.name == BROKER else setting.origin


def _whose(names: StoreNames) -> str:
    """`golden-a of cluster GoldenCluster`."""
    said = [
        *([_listed(names.brokers)] if names.brokers else []),
        *([f"cluster {_listed(names.clusters)}"] if names.clusters else []),
    ]
    return f"that of {' of '.join(said)}"


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


def _say(names: StoreNames) -> str:
    """The definitions that a user is to give."""
    broker = names.brokers[0] if len(names.brokers) == 1 else "NAME"
    cluster = f" -D {CLUSTER}={names.clusters[0]}" if len(names.clusters) == 1 else ""
    return f"-D {BROKER}={broker}{cluster}"
