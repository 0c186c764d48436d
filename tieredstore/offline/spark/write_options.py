"""What may be said in `.option(name, value)` when messages are written. Pure but for `conf`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from provider.names import is_directory, is_there
from provider.posix.files import posix_errors
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.hot.directory import COMMIT_LOG, refuse_if_written
from tieredstore.offline.spark.options import OptionValues
from tieredstore.offline.writing.appending import StagedWrite
from tieredstore.offline.writing.ledger import DIRECTORY, STAGED, WRITE_ID

WRITE_OPTIONS: Final[Mapping[str, str]] = {
    "path": "The store directory, on the driver's machine; made if missing. Not needed where conf "
    "names it (storePathRootDir).",
    "conf": "A broker's configuration file, which is read on the driver.",
    "cluster": "The broker's cluster, where there is a tier (tieredStoreFilePath).",
    "broker": "The broker's name; likewise.",
    "staging": "A directory that all workers and the driver see under one name; default: "
    "writes/staged in the store directory, which does where all of them run on one machine.",
    "writeId": "A name of this write, at most 64 of A-Z a-z 0-9 . _ -: given again, it is finished "
    "if it was ended in the middle, and nothing is appended if it is done.",
}
"""Every option by name, with its meaning. Keys of the configuration may be given besides."""
_URL = "://"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Which store of our own; holds no secret."""

    conf: str | None
    settings: Mapping[str, str]

    def load(self) -> Config:
        """The configuration that it names; reads `conf` and the environment.

        Raises:
            ConfigError: a setting is wrong.
        """
        conf = None if self.conf is None else Path(self.conf)
        return Config.load(conf=conf, settings=self.settings)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What `df.write` was told."""

    address: StoreAddress
    staging: str | None
    write_id: str | None

    def new_run(self, config: Config) -> StagedWrite:
        """A run of this write, with a directory for its files; made by nobody yet."""
        root = self.staging or str(config.store_dir.absolute() / DIRECTORY / STAGED)
        write_id = self.write_id or uuid4().hex[:16]
        directory = Path(root, write_id, uuid4().hex)
        return StagedWrite(write_id, str(directory), is_named=self.write_id is not None)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """What the options mean.

    Raises:
        ConfigError: an option is unknown, or its value impossible; says what to write.
    """
    values = OptionValues(given, (), "", WRITE_OPTIONS)
    path, write_id = values.text("path"), values.text("writeId")
    if _URL in path:
        raise ConfigError(f"path: a store lies in a directory of the driver's machine, not {path}")
    staging = values.text("staging")
    if staging and not Path(staging).is_absolute():
        raise ConfigError(f"staging: {staging} is no whole path: workers run elsewhere")
    if write_id and not WRITE_ID.fullmatch(write_id):
        raise ConfigError(
            f"writeId: {write_id!r} is no name of at most 64 of A-Z a-z 0-9 . _ -, the first a "
            f"letter or a digit"
        )
    named = {
        "storePathRootDir": path,
        "brokerClusterName": values.text("cluster"),
        "brokerName": values.text("broker"),
    }
    settings = {**values.settings, **{name: text for name, text in named.items() if text}}
    return WriteOptions(
        StoreAddress(values.text("conf") or None, settings), staging or None, write_id or None
    )


def check_store(config: Config) -> None:
    """Refuse what is no store, and one that is in use, before anything is computed.

    Raises:
        ConfigError: no store is named, or something else lies there.
        InUse: a process writes the store.
        Denied, Unavailable: the directory cannot be looked at.
    """
    if not config.gives("storePathRootDir"):
        raise ConfigError("the store is not named: write save(DIRECTORY), or give a conf")
    root = config.store_dir
    with posix_errors(str(root)):
        if is_there(root) and not is_directory(root):
            raise ConfigError(f"path: {root} is no directory")
        is_store = config.gives("storePathCommitLog") or is_directory(root / COMMIT_LOG)
        found = {path.name for path in root.iterdir()} if is_directory(root) else set[str]()
        if not is_store and found - {DIRECTORY}:
            raise ConfigError(
                f"path: {root} holds something else than a store: name a store directory, or a new "
                f"one; a tier is written by its store (tieredStoreFilePath)"
            )
        refuse_if_written(root)
