"""Identity of a store and its tier: names, and refusal of another or an empty place."""

import errno
import hashlib
import json
import logging
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from os.path import samestat
from pathlib import Path

from container.metadata.records import Broker
from container.metadata.state import TierState
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    JOURNAL_PREFIX,
    SNAPSHOT_PREFIX,
    made_again_name,
)
from dispatcher.topic_filter import TopicFilter
from provider.errors import NotFound
from provider.object_store import ObjectStore
from provider.posix.files import posix_errors, sync_directory
from tieredstore.config.effective import Config, Setting
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import TOPICS, StoreNames, read_store_names, split_paths
from tieredstore.hot.log.directory import IDENTITY, StoreIdentity, read_identity, write_identity
from tieredstore.session.places import directory_of, first_with_objects, names_below

METADATA = (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX)
"""A place with an object below one of these has a tier."""
BROKER, CLUSTER = "brokerName", "brokerClusterName"
SWITCH = "tieredStoreNameCheckEnable"
QUEUES = "consumequeue"
TOPICS_SAID_MAX = 3


def refuse_other_store(config: Config, store_dir: Path) -> None:
    """Refuse a store of another broker or cluster. Blocks for a file and listings.

    A store may lack its names: brokers whose topics never changed write no such file, and brokers
    with their configuration in RocksDB have none. Such a store is accepted, unless store and tier
    both have topics and none in common.

    Raises:
        ConfigError: none of the names that the store has is the configured one, or it has no name
            and nothing of what the tier has.
    """
    if not config.checks_names:
        return
    names, source = names_of(store_dir)
    for key, found in ((BROKER, names.brokers), (CLUSTER, names.clusters)):
        setting = config.settings[key]
        if found and setting.value not in found:
            raise ConfigError(
                f"the store {store_dir} is {_whose(names)} by its {source}, but {key} is "
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


def names_of(store_dir: Path) -> tuple[StoreNames, str]:
    """The names that a store has, and the file that has them. Blocks."""
    names = read_store_names(store_dir)
    identity = None if names.brokers else read_identity(store_dir)
    if identity is None:
        return names, TOPICS
    return StoreNames((identity.broker,), (identity.cluster,)), str(IDENTITY)


def _refuse_stranger(config: Config, store_dir: Path) -> None:
    tier = directory_of(config)
    excludes = TopicFilter(config.cluster, config.broker).excludes
    if isinstance(tier, TierUrl):
        return  # queues share its objects, so names do not show its topics
    tiered = {
        name for name in _directories_in(config, tier) if name[0] != "@" and not excludes(name)
    }
    stored = {name for name in _directories_in(config, store_dir / QUEUES) if not excludes(name)}
    if tiered and stored and tiered.isdisjoint(stored):
        raise ConfigError(
            f"the store {store_dir} has no broker name and none of the tier's topics: "
            f"it has {_some(stored)}, and {tier} has {_some(tiered)}: name the store of that "
            f"broker, or set {SWITCH}=false if this one is its"
        )


def refuse_unnamed(config: Config, store_dir: Path) -> None:
    """Refuse to begin a tier under the host's name. An existing tier of that name is continued.

    Raises:
        ConfigError: `brokerName` is not set, and there is no such tier. Names the broker of the
            store, if the store has its name.
    """
    if config.gives(BROKER) or has_tier(config, directory_of(config)):
        return
    names, _ = names_of(store_dir)
    raise ConfigError(
        f"brokerName is not set, and no tier is begun under the host's name ({config.broker}): "
        f"give the broker's configuration with --conf, or use {_say(names)}"
        f"{', as the store does' if names.brokers else ''} (in a program, broker=...)"
    )


def _directories_in(config: Config, directory: Path) -> set[str]:
    try:
        return set(names_below(config, directory))
    except ConfigError:
        return set()  # an unreadable directory is opened next, and then named


def _some(topics: Collection[str]) -> str:
    """`A, B, C and 5 more`."""
    more = len(topics) - TOPICS_SAID_MAX
    listed = ", ".join(sorted(topics)[:TOPICS_SAID_MAX])
    return f"{listed} and {more} more" if more > 0 else listed


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
    named = [
        *([_listed(names.brokers)] if names.brokers else []),
        *([f"cluster {_listed(names.clusters)}"] if names.clusters else []),
    ]
    return f"that of {' of '.join(named)}"


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


def _say(names: StoreNames) -> str:
    """The definitions that a user is to give."""
    broker = names.brokers[0] if len(names.brokers) == 1 else "NAME"
    cluster = f" -D {CLUSTER}={names.clusters[0]}" if len(names.clusters) == 1 else ""
    return f"-D {BROKER}={broker}{cluster}"


LOGGER = logging.getLogger("tieredstore.owner")
FILE = "tieredStore.json"
FORMAT = 1
NAME_DIGITS = 32
WORD = "--new-tier (new_tier=True)"


@dataclass(frozen=True, slots=True)
class KnownTier:
    """Identity of a tier, and its state when the store last used it."""

    cluster: str
    broker: str
    begun_ms: int
    """Creation time of the tier, Unix ms; 0 if an older version dropped it."""
    where: str
    epoch: int = 0
    sequence: int = 0


class TierMemory:
    """The file in which one store keeps the identity of its tier. Its plain methods block."""

    def __init__(self, path: Path, config: Config, *, subject: str, is_in_store: bool) -> None:
        """`subject`: the store, for sentences. `is_in_store`: whether the file is in the store."""
        self._path = path
        self._is_in_store = is_in_store
        self._config = config
        self._subject = subject
        self._known = None if config.start.is_new_tier else self._read()
        self._directory = path.parent.parent
        self._identity = self._stat() if is_in_store else None
        self._writing = threading.Lock()
        """A caller that is cancelled leaves its thread behind."""
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<TierMemory {self._path}: {self._known}>"

    @property
    def has_tier(self) -> bool:
        """Whether the store is known to have a tier."""
        return self._known is not None

    def refuse_empty(self) -> None:
        """Refuse the tier of another broker, and a place without a tier.

        Raises:
            ConfigError: the store has another tier, or the configured place is empty.
        """
        known, config = self._known, self._config
        if known is None:
            return
        where = directory_of(config)
        if (known.cluster, known.broker) != (config.cluster, config.broker):
            raise ConfigError(
                f"{self._subject} is tiered as {known.broker} of cluster {known.cluster} (in "
                f"{known.where}), not as {config.broker} of cluster {config.cluster}: name that "
                f"broker, or use {WORD} to begin another tier for it"
            )
        if not has_tier(config, where) and not _is_unreadable(where):
            raise ConfigError(
                f"there is no tier in {where}, and {self._subject} has one, last seen in "
                f"{known.where}: mount that volume or bring the tier back; if it is lost for good, "
                f"begin a new one with {WORD}"
            )

    async def refuse_other(self, store: ObjectStore, broker: Broker) -> None:
        """Refuse a tier that is not the one of the store. One request, none where it is that.

        A tier that `rebuild` or `metadata import` made of the files of an earlier one is accepted.

        Raises:
            ConfigError: it is another one.
            Denied, Unavailable: the storage refuses, or does not answer.
        """
        known = self._known
        if known is None or not (known.begun_ms and broker.begun_ms):
            return
        if known.begun_ms == broker.begun_ms or await _is_made_again(store, broker):
            return
        raise ConfigError(
            f"the tier in {directory_of(self._config)} is another one than {self._subject} has, "
            f"which was last seen in {known.where}: mount the right volume, or use {WORD} if this "
            f"one is to replace it"
        )

    def tell_of_copy(self, state: TierState) -> None:
        """Log a tier that is older than its last state in the store: restored from a copy."""
        known = self._known
        if known is None or known.begun_ms != state.broker.begun_ms:
            return
        if state.sequence <= known.sequence or state.broker.epoch <= known.epoch:
            LOGGER.warning(
                "the tier was put back from a copy: it ended at entry %d of owner %d when this "
                "store last used it; what the copy lacks is tiered again where the store still has "
                "it, and is a gap elsewhere",
                known.sequence,
                known.epoch,
            )

    def keep(self, state: TierState) -> None:
        """Write down the identity of the tier that the store has now. A failure is logged.

        `state`: the owner's own, which goes on.
        """
        with self._writing:
            self._keep(state)

    def _keep(self, state: TierState) -> None:
        broker = state.broker
        where = str(directory_of(self._config))
        known = KnownTier(
            broker.cluster, broker.name, broker.begun_ms, where, broker.epoch, state.sequence
        )
        try:
            # a store that was moved away could not be moved back to a directory that exists
            self._path.parent.mkdir(parents=not self._is_in_store, exist_ok=True)
            self._refuse_moved()
            draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, **asdict(known)}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
            sync_directory(str(self._path.parent))
        except OSError as error:
            if not self._is_failing:
                LOGGER.warning(
                    "the identity of the tier cannot be kept, so an empty place would not be "
                    "noticed: %s: %s",
                    self._path,
                    (error.strerror or "").lower(),
                )
            self._is_failing = True
        else:
            self._is_failing = False
        self._known = known

    def _stat(self) -> os.stat_result | None:
        """The directory of the store; None if it is unknown."""
        try:
            return self._directory.stat()
        except OSError:
            return None

    def _refuse_moved(self) -> None:
        now = self._stat()
        if self._identity and now and not samestat(now, self._identity):
            raise OSError(errno.ESTALE, "the directory is that of another store")

    def _read(self) -> KnownTier | None:
        try:
            fields = json.loads(self._path.read_text(encoding="utf-8"))
            return KnownTier(
                str(fields["cluster"]),
                str(fields["broker"]),
                int(fields["begun_ms"]),
                str(fields["where"]),
                int(fields.get("epoch", 0)),
                int(fields.get("sequence", 0)),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOGGER.warning("%s cannot be read, so the tier is not compared: %s", self._path, error)
            return None


async def _is_made_again(store: ObjectStore, broker: Broker) -> bool:
    """Whether `rebuild` or `metadata import` made a tier of the files of an earlier one.

    One request. Raises as the store.
    """
    try:
        await store.size(made_again_name(broker.begun_ms))
    except NotFound:
        return False
    return True


def memory_of_store(config: Config, store_dir: Path) -> TierMemory:
    """The memory of a store of our own, in its directory."""
    path = store_dir / "config" / FILE
    return TierMemory(path, config, subject=f"the store {store_dir}", is_in_store=True)


def _is_unreadable(where: Location) -> bool:
    """Whether a directory cannot be listed. Opening the tier meets the same error."""
    if isinstance(where, TierUrl):
        return False
    try:
        any((where / JOURNAL_PREFIX).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False


def memory_of_follower(config: Config, store_dir: Path) -> TierMemory | None:
    """The memory of a follower: beside its pins, or one file for each store and place of a tier.

    None for a user without a home directory, where no other place is named.
    """
    subject = f"the store {store_dir}"
    pins = split_paths(config.hot.pin_path)
    if pins:
        return TierMemory(pins[0] / FILE, config, subject=subject, is_in_store=False)
    whole = f"{store_dir.resolve()}\n{directory_of(config)}"
    name = hashlib.sha256(whole.encode()).hexdigest()[:NAME_DIGITS]
    directory = state_directory(config)
    if directory is None:
        LOGGER.warning(
            "the identity of the tier cannot be kept, so an empty place would not be noticed: this "
            "user has no home directory: set tieredStoreStatePath or tieredStorePinPath"
        )
        return None
    return TierMemory(directory / f"{name}.json", config, subject=subject, is_in_store=False)


def state_directory(config: Config) -> Path | None:
    """`tieredStoreStatePath`, or the user's own directory; None without a home directory."""
    given = str(config.settings["tieredStoreStatePath"].value)
    if given:
        return Path(given)
    if systemd := os.environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(systemd)
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(home).expanduser() / "tieredstore"
    except RuntimeError:
        return None
