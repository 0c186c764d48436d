"""From configuration to open objects: the broker's directory, its reader or owner, its hot log."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom

from prometheus_client import CollectorRegistry

from container.java.metadata import JavaMetadata, parse_java_metadata
from container.java.tier import load_java_tier
from container.metadata.operations import Operation
from container.names.rocketmq import broker_directory, parse_cluster_directory
from container.names.tier_objects import JOURNAL_PREFIX
from container.tier import Tier, TierIdentity
from container.tier_reader import FixedMetadata, TierReader
from provider.clock import Clock, SystemClock
from provider.errors import Corrupt, Denied, NotFound, Unavailable
from provider.in_place_segments import InPlaceDriver
from provider.metered import MeteredStore
from provider.names import TEMPORARY_PREFIX
from provider.object_store import ObjectStore
from provider.posix import PosixStore
from provider.probing import PROBE_PREFIX
from provider.retrying import RetryingStore
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.following.broker_hot_log import RocketMqHotLog
from tieredstore.following.directory.layout import COMMIT_LOG, CONSUME_QUEUE
from tieredstore.following.options import HotLogOptions


def directory_of(config: Config) -> Path:
    """The broker's directory in the tier.

    Raises:
        ConfigError: `tieredStoreFilePath` is not set.
    """
    return config.tier_root / broker_directory(config.cluster, config.broker)


def existing_directory(config: Config) -> Path:
    """The same, where a tier is to be read.

    Raises:
        NotFound: there is no tier at all.
        ConfigError: the tier there belongs to others; names them.
    """
    directory = directory_of(config)
    if directory.is_dir():
        return directory
    others = brokers_in(config.tier_root)
    if not others:
        raise NotFound("there is no tier in this directory", str(config.tier_root))
    known = " and ".join(f"{broker} of cluster {cluster}" for cluster, broker in others)
    cluster, broker = others[0]
    raise ConfigError(
        f"the tier in {config.tier_root} belongs to {known}, not to {config.broker} of cluster "
        f"{config.cluster}: say -D brokerClusterName={cluster} -D brokerName={broker}"
    )


def brokers_in(root: Path) -> list[tuple[str, str]]:
    """Cluster and broker of every tier below a root, in order.

    Raises:
        ConfigError: the root cannot be read.
    """
    try:
        clusters = {entry: parse_cluster_directory(entry.name) for entry in root.iterdir()}
        return sorted(
            (cluster, broker.name)
            for entry, cluster in clusters.items()
            if cluster is not None
            for broker in entry.iterdir()
            if broker.is_dir()
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{root} cannot be read: {(error.strerror or '').lower()}") from error


@asynccontextmanager
async def open_reader(
    config: Config,
    directory: Path,
    java_metadata: bytes | None,
    *,
    java_path: str = "",
    damaged: bool = False,
) -> AsyncGenerator[TierReader]:
    """A reader of the tier in `directory`: ours, or a Java one by its metadata file.

    `damaged`: take what is whole of a damaged journal, for a check.

    Raises:
        NotFound: there is no tier, or the Java metadata does not speak of this broker.
        ConfigError: the file of Java metadata is none.
        Corrupt: the metadata is damaged.
        Denied, Unavailable: the storage refuses or does not answer.
    """
    clock = SystemClock()
    files = PosixStore(directory, options=config.posix, clock=clock)
    store = RetryingStore(files, clock=clock, rng=SystemRandom())
    try:
        with _refusals_of(directory):
            if java_metadata is None:
                yield await _open_ours(store, directory, verify=config.verifies, damaged=damaged)
            else:
                parsed = _parse_java(java_metadata, java_path)
                state = await load_java_tier(
                    store, parsed, cluster=config.cluster, broker=config.broker
                )
                yield TierReader(store, FixedMetadata(state))
    finally:
        await store.close()


def _parse_java(raw: bytes, path: str) -> JavaMetadata:
    try:
        return parse_java_metadata(raw, path=path)
    except Corrupt as error:
        raise ConfigError(
            f"{path} is no tieredStoreMetadata.json, or a damaged one: at {error.position}: "
            f"{error.reason}"
        ) from error


@contextmanager
def _refusals_of(directory: Path) -> Generator[None]:
    """Name the whole path where storage refuses: what is to be mended is often above the tier."""
    try:
        yield
    except (Denied, Unavailable) as error:
        tried = "" if error.path.startswith(PROBE_PREFIX) else error.path
        error.path = str(directory / tried)
        raise


async def _open_ours(
    store: ObjectStore, directory: Path, *, verify: bool, damaged: bool
) -> TierReader:
    """Our reader; where there is no journal, say what else the directory may be."""
    try:
        return await TierReader.open(store, verify=verify)
    except Corrupt:
        if not damaged:
            raise
        return await TierReader.open_damaged(store)
    except NotFound as error:
        reason = (
            "nobody has written a journal here; a tier of RocketMQ's own store is read with "
            "--java-metadata FILE"
        )
        raise NotFound(reason, str(directory)) from error


@asynccontextmanager
async def open_owner(
    config: Config,
    directory: Path,
    *,
    clock: Clock,
    rng: Random | None = None,
    registry: CollectorRegistry | None = None,
    imported: Sequence[Operation] = (),
) -> AsyncGenerator[Tier]:
    """The tier in `directory`, taken from whoever owned it before, or begun there.

    Its journal is written only while `Tier.run` runs, which is the caller's to start. What the
    storage is asked is counted in `registry`. Files that no journal speaks of are somebody's, and
    a tier begun here would write over them: unless they are `imported`, in the moment that the
    tier becomes ours.

    Raises:
        ConfigError: there are files of a tier, and no journal.
        Refused: there is something to be imported, and the tier has queues already.
        Denied: the storage cannot keep a tier, or the tier is another broker's.
        Corrupt, Unavailable: as `Tier.own`.
    """
    if not imported:
        await asyncio.to_thread(_refuse_strange_files, directory)
    files = PosixStore(directory, options=config.posix, clock=clock)
    store = MeteredStore(files, clock=clock, registry=registry)
    try:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        with _refusals_of(directory):
            tier = await Tier.own(
                store,
                TierIdentity(config.cluster, config.broker, owner),
                segments=InPlaceDriver(
                    store, clock=clock, takeover_wait_s_max=config.tier.takeover_wait_s_max
                ),
                clock=clock,
                rng=rng or SystemRandom(),
                options=config.tier,
                journal_options=config.journal,
                upkeep_options=config.upkeep,
                imported=imported,
            )
        yield tier
    finally:
        await store.close()


def _refuse_strange_files(directory: Path) -> None:
    """Begin no tier among the segments of another one, such as RocketMQ's own.

    Files of a journal come before all others, so that a start that was interrupted leaves none of
    those. Looks at names only until the first that counts.

    Raises:
        ConfigError: there is one.
    """
    try:
        if any(map(_is_object, (directory / JOURNAL_PREFIX).glob("*"))):
            return
        found = next(filter(_is_object, directory.glob("[!@]*/**/*")), None)
    except OSError:
        return  # whatever it is, the store meets it again, and names it
    if found is not None:
        raise ConfigError(
            f"{directory} holds a tier's files, such as {found.relative_to(directory)}, and no "
            f"journal of ours: `tieredstore metadata import FILE` makes a tier ours that "
            f"RocketMQ's own store wrote; else name another directory"
        )


def _is_object(path: Path) -> bool:
    return not path.name.startswith(TEMPORARY_PREFIX) and path.is_file()


def _hot_options(config: Config, store_dir: Path) -> HotLogOptions:
    """The options for a store directory, which may be another one than the configured.

    A configured CommitLog directory inside the configured store directory is looked for at the
    same place inside `store_dir`.
    """
    commit_log = config.hot.commit_log_path
    if not commit_log or not Path(commit_log).is_relative_to(config.store_dir):
        return config.hot
    inside = Path(commit_log).relative_to(config.store_dir)
    return replace(config.hot, commit_log_path=str(store_dir / inside))


def _refuse_overlap(store_dir: Path, commit_log: str, tier_root: Path) -> None:
    """Keep the tier out of the broker's directories, which may lie apart, and the other way round.

    Raises:
        ConfigError: one lies in the other, symbolic links resolved.
    """
    tier = Path(os.path.realpath(tier_root))
    parts = (store_dir, Path(commit_log or store_dir / COMMIT_LOG), store_dir / CONSUME_QUEUE)
    for part in parts:
        store = Path(os.path.realpath(part))
        if store.is_relative_to(tier) or tier.is_relative_to(store):
            raise ConfigError(
                f"the store {part} and the tier {tier_root} lie inside one another: "
                f"give the tier a directory of its own"
            )


@asynccontextmanager
async def open_hot_log(
    config: Config, store_dir: Path, *, clock: Clock
) -> AsyncGenerator[RocketMqHotLog]:
    """A broker's store directory, to be followed.

    Raises:
        ConfigError: the tier lies in it, or it in the tier.
        NotAStore: it is none.
        Denied, Unavailable: it cannot be read.
    """
    options = _hot_options(config, store_dir)
    await asyncio.to_thread(_refuse_overlap, store_dir, options.commit_log_path, config.tier_root)
    hot = await RocketMqHotLog.open(
        store_dir,
        options=options,
        clock=clock,
        cluster=config.cluster,
        broker=config.broker,
    )
    try:
        yield hot
    finally:
        await hot.close()
