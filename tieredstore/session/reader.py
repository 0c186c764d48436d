"""Opening a tier for reading: configuration, broker, location, reader."""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from container.check.metadata import refuse_other_second_store, register_at_second_store
from container.journal.frame import NONCE_BYTES
from container.metadata.objects import home_of, place_of
from container.metadata.records import Attempt
from container.names.queue_id import QueueId
from container.names.rocketmq import parse_cluster_directory
from container.names.tier_objects import JOURNAL_PREFIX
from container.tier_view import FixedMetadata, TierReader
from provider.clock import SystemClock
from provider.errors import Corrupt, Denied, NotFound, Unavailable
from provider.names import is_directory, is_there
from provider.object_store import ObjectStore
from provider.stores.in_place_segments import LOCK_NAME
from provider.stores.packed_segments import OFFLOAD_PREFIX
from provider.stores.two_stores import TwoStores, is_offloaded
from provider.stores.verified import PROBE_PREFIX, VerifiedStore
from tieredstore.config.effective import Config, second_location
from tieredstore.config.location import OFFLOAD_PATH, Location, TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.session.places import brokers_in, directory_of, reading_storage

if TYPE_CHECKING:
    from container.java.metadata import JavaMetadata, KnownOffsets
    from provider.stores.metered import ProviderMetrics

AS_OPTIONS = "-D brokerClusterName={cluster} -D brokerName={broker}"
"""Options of the command line that name a broker."""
AS_ARGUMENTS = "cluster={cluster!r}, broker={broker!r}"
"""Arguments of the library that name a broker."""


def existing_tier(config: Config, naming: str = AS_OPTIONS) -> Config:
    """The configuration of the broker that is to be read, found in the tier.

    Cluster and broker that were not given are taken from the tier if it has only one that fits.
    Blocks for two levels of a listing; in an object store, none where both were given.

    Args:
        config: what was configured.
        naming: how the caller's user names a broker; `{cluster}` and `{broker}` are filled in.

    Raises:
        NotFound: there is no tier.
        ConfigError: the tier has none of the names given, or several that fit; lists them.
    """
    root = config.tier_root
    if _is_known(config):
        return config
    found = brokers_in(config)
    if not found:
        raise NotFound(no_tier(root), str(root))
    fitting = [
        (cluster, broker)
        for cluster, broker in found
        if (cluster == config.cluster or not config.gives("brokerClusterName"))
        and (broker == config.broker or not config.gives("brokerName"))
    ]
    if len(fitting) == 1:
        return config.of_broker(*fitting[0])
    cluster, broker = (fitting or found)[0]
    say = naming.format(cluster=cluster, broker=broker)
    listed = _listed(fitting or found)
    if fitting:
        raise ConfigError(f"the tier in {root} belongs to {listed}: name one, such as {say}")
    wanted = [
        *([config.broker] if config.gives("brokerName") else []),
        *([f"cluster {config.cluster}"] if config.gives("brokerClusterName") else []),
    ]
    raise ConfigError(
        f"the tier in {root} belongs to {listed}, not to {' of '.join(wanted)}: set {say}"
    )


def existing_tiers(config: Config, patterns: Sequence[str]) -> list[Config]:
    """The configurations of the brokers whose names fit one of the patterns, in order of names.

    Patterns are those of file names (`fnmatch`): `*`, `broker-?`. A cluster that was given must
    fit, too. Blocks for two levels of a listing.

    Raises:
        NotFound: there is no tier.
        ConfigError: a pattern fits no broker; lists the brokers.
    """
    found = brokers_in(config)
    if not found:
        raise NotFound(no_tier(config.tier_root), str(config.tier_root))
    fitting = [
        (cluster, broker)
        for cluster, broker in found
        if cluster == config.cluster or not config.gives("brokerClusterName")
    ]
    for pattern in patterns:
        if not any(fnmatchcase(broker, pattern) for _, broker in fitting):
            raise ConfigError(
                f"no broker of the tier in {config.tier_root} fits {pattern!r}: it has "
                f"{_listed(fitting or found)}"
            )
    return [
        config.of_broker(cluster, broker)
        for cluster, broker in fitting
        if any(fnmatchcase(broker, pattern) for pattern in patterns)
    ]


def _listed(brokers: Sequence[tuple[str, str]]) -> str:
    return " and ".join(f"{broker} of cluster {cluster}" for cluster, broker in brokers)


def _is_known(config: Config) -> bool:
    """Whether the tier of the configured broker is there, or nothing else can be meant."""
    where = directory_of(config)
    if isinstance(where, TierUrl):
        return config.gives("brokerClusterName") and config.gives("brokerName")
    try:
        return is_directory(where)
    except OSError:
        return False  # `brokers_in` meets the same error, and names it


def no_tier(root: Location) -> str:
    """Why nothing was found below a root."""
    if isinstance(root, TierUrl):
        parts, kind = root.place.split("/")[1:][-2:], "place"
    elif is_directory(root):
        parts, kind = [root.parent.name, root.name], "directory"
    else:
        return "there is no tier: no such directory"
    if any(map(parse_cluster_directory, parts)):
        return f"there is no tier in this {kind}, which is a part of one: give the one above"
    return f"there is no tier in this {kind}"


def read_bytes(path: Path) -> bytes:
    """A small file that the user named. Blocks.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {(error.strerror or '').lower()}") from error


@asynccontextmanager
async def open_reader(
    config: Config,
    java_metadata: bytes | None = None,
    *,
    java_path: str = "",
    damaged: bool = False,
    metrics: "ProviderMetrics | None" = None,
) -> AsyncGenerator[TierReader]:
    """A reader of the configured broker's tier: ours, or a Java one by its metadata file.

    `damaged`: of a damaged journal, take the part that is whole, so that it can be checked.
    `metrics`: count the requests; None: they are not counted.

    Raises:
        NotFound: there is no tier, or the Java metadata does not name this broker.
        ConfigError: the file of Java metadata is no such file.
        Corrupt: the metadata is damaged.
        Denied, Unavailable: the storage refuses or does not answer.
    """
    directory = directory_of(config)
    clock = SystemClock()
    store = reading_storage(config, directory, clock=clock, metrics=metrics)
    try:
        with whole_paths(directory, second_location(config)):
            if java_metadata is None:
                reader = await _open_ours(
                    store, directory, verify=config.verifies_extents, damaged=damaged
                )
                await know_second_store(config, store, lambda: reader.state.attempts)
                yield reader
            else:
                from container.java.tier import load_java_tier  # noqa: PLC0415 - few tiers are Java's

                parsed = _parse_java(java_metadata, java_path)
                java = await load_java_tier(
                    store, parsed, cluster=config.cluster, broker=config.broker
                )
                yield TierReader(store, FixedMetadata(java.state), queue_damage=java.damage)
    finally:
        await store.close()


def known_offsets(config: Config, raw: bytes, path: str) -> "dict[QueueId, KnownOffsets]":
    """Parse the offsets and gaps of the configured broker's queues from a metadata export.

    `raw` is the content of the file `path`. Queues of other brokers are left out.

    Raises:
        ConfigError: the file is no metadata export.
    """
    offsets = _parse_java(raw, path).all_offsets()
    return {key.queue: one for key, one in offsets.items() if key.broker_name == config.broker}


def _parse_java(raw: bytes, path: str) -> "JavaMetadata":
    from container.java.metadata import parse_java_metadata  # noqa: PLC0415 - likewise

    try:
        return parse_java_metadata(raw, path=path)
    except Corrupt as error:
        raise ConfigError(
            f"{path} is no tieredStoreMetadata.json, or a damaged one: at {error.position}: "
            f"{error.reason}"
        ) from error


async def know_second_store(
    config: Config,
    stores: TwoStores,
    attempts: Callable[[], Mapping[str, Attempt]],
    *,
    owns: bool = False,
) -> None:
    """Refuse a second store of another tier; see `refuse_other_second_store`.

    A store that does not answer is not refused, because the first store can be read: it is verified
    before its first read, write or deletion. The same holds for a reader that was opened before
    the first offload.

    Args:
        config: has the place of the second store.
        stores: both; the second one is verified before its first call from now on.
        attempts: those of the tier's present state.
        owns: an owner also refuses a place with a tier, whose owner would find foreign objects
            there; an owner verifies offloaded segments by itself.

    Raises:
        Denied: it is another one, or refuses us, or a tier lies in it.
        Corrupt, NewerVersion: the answer is unknown.
    """
    stores.recorded_place = place_of(attempts())
    if stores.second is None:
        return
    nonce, where = SystemRandom().randbytes(NONCE_BYTES).hex(), str(directory_of(config))

    async def is_ours(second: ObjectStore) -> bool:
        both, known = TwoStores(stores.inner, second), attempts()
        try:
            await refuse_other_second_store(both, known, config.upkeep.offload_place)
        except (Denied, Unavailable) as error:
            if not is_offloaded(error.path):  # such as its data keys
                error.path = OFFLOAD_PREFIX
            raise
        if owns and not place_of(known) and await second.list(JOURNAL_PREFIX):
            raise Denied(
                f"a tier lies in {second_location(config)}: give the second store "
                f"({OFFLOAD_PATH}) a place of its own",
                OFFLOAD_PREFIX,
            )
        if owns and place_of(known):
            await register_at_second_store(
                both, home_of(known), nonce, where=where, is_new=config.start.is_new_tier
            )
        return owns or bool(place_of(known))

    stores.second = verified = VerifiedStore(stores.second, is_ours, prefix=OFFLOAD_PREFIX)
    with suppress(Unavailable):
        await verified.verify()


@contextmanager
def whole_paths(directory: Location, second: Location | None = None) -> Generator[None]:
    """Name the whole path if the storage refuses: the cause is often a directory above the tier.

    `second`: location of the offloaded objects.
    """
    try:
        yield
    except (Denied, Unavailable) as error:
        tried = "" if PROBE_PREFIX in error.path else error.path
        where = second if second is not None and is_offloaded(error.path) else directory
        error.path = str(where / tried)
        raise


async def _open_ours(
    store: ObjectStore, directory: Location, *, verify: bool, damaged: bool
) -> TierReader:
    """Open a reader of our journal. Without one the error suggests what the directory may be."""
    try:
        return await TierReader.open(store, verify=verify, damaged=damaged)
    except NotFound as error:
        raise no_journal_error(directory) from error


def no_journal_error(directory: Location) -> NotFound:
    """Return the error of a place without a journal; it depends on the files there."""
    if isinstance(directory, TierUrl):
        reason = "there is no journal here, so there is no tier of this broker"
    elif is_there(directory / LOCK_NAME):
        reason = (
            "the journal of this tier is gone: bring its @journal back from a backup, or "
            "`tieredstore metadata import` a file that `metadata export` wrote, or make it "
            "from the messages (`tieredstore rebuild --metadata`)"
        )
    else:
        reason = (
            "there is no journal here; a tier of RocketMQ's own store is read with its "
            "metadata file (--java-metadata FILE, java_metadata=FILE); other commands need "
            "`tieredstore metadata import FILE` before, which takes it over"
        )
    return NotFound(reason, str(directory))
