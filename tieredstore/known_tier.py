"""The tier that a store is known to have: another one, or an empty place, is refused.

A volume that is not mounted looks like an empty tier. One that is begun there takes messages which
the real tier then lacks, and the hot log deletes them. A store of our own keeps the identity of its
tier in its directory, a follower beside its pins, or else in a state directory of this host.
"""

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from container.metadata.records import Broker
from container.metadata.state import TierState
from container.names.tier_objects import JOURNAL_PREFIX, made_again_name
from provider.errors import NotFound
from provider.object_store import ObjectStore
from provider.posix.files import sync_directory
from tieredstore.config.effective import Config
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.log_directories import split_paths
from tieredstore.naming import has_tier
from tieredstore.places import directory_of

LOGGER = logging.getLogger("tieredstore.owner")
FILE = "tieredStore.json"
FORMAT = 1
NAME_DIGITS = 32
WORD = "--new-tier (new_tier=True)"


@dataclass(frozen=True, slots=True)
class KnownTier:
    """Identity of a tier, and where it stood when the store last used it."""

    cluster: str
    broker: str
    begun_ms: int
    """When the tier was begun, Unix ms; 0: an older program has forgotten it."""
    where: str
    epoch: int = 0
    sequence: int = 0


class TierMemory:
    """The file in which one store keeps the identity of its tier. Its plain methods block."""

    def __init__(self, path: Path, config: Config, *, subject: str) -> None:
        """`subject`: the store, for sentences."""
        self._path = path
        self._config = config
        self._subject = subject
        self._known = None if config.start.is_new_tier else self._read()

    def __repr__(self) -> str:
        return f"<TierMemory {self._path}: {self._known}>"

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
                f"broker, or say {WORD} to begin another tier for it"
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
            f"which was last seen in {known.where}: mount the right volume, or say {WORD} if this "
            f"one is to take its place"
        )

    def tell_of_copy(self, state: TierState) -> None:
        """Log where the tier is older than the store left it: it was put back from a copy."""
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
        """Write down the identity of the tier that the store has now. A failure is logged."""
        broker = state.broker
        where = str(directory_of(self._config))
        known = KnownTier(
            broker.cluster, broker.name, broker.begun_ms, where, broker.epoch, state.sequence
        )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, **asdict(known)}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
            sync_directory(str(self._path.parent))
        except OSError as error:
            LOGGER.warning(
                "the identity of the tier cannot be kept, so an empty place would not be noticed: "
                "%s: %s",
                self._path,
                (error.strerror or "").lower(),
            )
        self._known = known

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
    """Whether a tier was made of the files of an earlier one, by `rebuild` or `metadata import`.

    One request. Raises what the store does.
    """
    try:
        await store.size(made_again_name(broker.begun_ms))
    except NotFound:
        return False
    return True


def memory_of_store(config: Config, store_dir: Path) -> TierMemory:
    """The memory of a store of our own, in its directory."""
    return TierMemory(store_dir / "config" / FILE, config, subject=f"the store {store_dir}")


def _is_unreadable(where: Location) -> bool:
    """Whether a directory hides what it holds; opening the tier meets the same error."""
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
        return TierMemory(pins[0] / FILE, config, subject=subject)
    whole = f"{store_dir.resolve()}\n{directory_of(config)}"
    name = hashlib.sha256(whole.encode()).hexdigest()[:NAME_DIGITS]
    directory = _state_directory(config)
    if directory is None:
        LOGGER.debug("no state directory: set tieredStoreStatePath to keep the tier's identity")
        return None
    return TierMemory(directory / f"{name}.json", config, subject=subject)


def _state_directory(config: Config) -> Path | None:
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
