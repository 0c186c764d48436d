"""Parts of a tier that depend on its location, and the wrappers around its stores."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar

from container.names.rocketmq import broker_directory, parse_cluster_directory
from container.names.tier_objects import JOURNAL_PREFIX
from provider.clock import Clock, SystemClock
from provider.disk_cache.store import DiskCachedStore
from provider.encryption.keys import Rewrapped, rewrap
from provider.encryption.store import EncryptedStore, RefuseEncryptedStore
from provider.errors import Denied, StoreError
from provider.file_segments import SegmentsDriver
from provider.object_store import AppendingStore, ObjectStore
from provider.posix.store import PosixStore
from provider.stores.in_place_segments import InPlaceDriver
from provider.stores.packed_segments import OFFLOAD_PREFIX, PackedDriver, PartName
from provider.stores.range_reads import RangeReads
from provider.stores.retrying import RetryingStore
from provider.stores.throttled import ThrottledStore
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE, TwoStores
from tieredstore.config.effective import Config, second_location
from tieredstore.config.keys import SCHEME
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.object_store import MASTER_KEYS
from tieredstore.config.sources import ConfigError, environment_name

if TYPE_CHECKING:
    from provider.object.store import FsspecStore, RequestMeter
    from provider.stores.metered import ProviderMetrics


ResultT = TypeVar("ResultT")

UPLOAD_BYTES = 64 << 20
"""Of the longest object that a round makes: so much may an attempt take, whatever it moves."""


def directory_of(config: Config) -> Location:
    """Return the location of the broker's tier.

    Raises:
        ConfigError: `tieredStoreFilePath` is not set.
    """
    return config.tier_root / broker_directory(config.cluster, config.broker)


def local_directory(location: Location) -> Path:
    """The directory at a location.

    Raises:
        ConfigError: it is in an object store.
    """
    if isinstance(location, TierUrl):
        raise ConfigError(f"the tier at {location} is in no directory: use `location`")
    return location


Layers = Callable[[str, Location, AppendingStore], AppendingStore]
"""Puts layers around a store: its name in metrics, its location, and the store."""


def _no_layers(_: str, _location: Location, store: AppendingStore) -> AppendingStore:
    return store


def storage_at(
    config: Config, location: Location, *, clock: Clock, layers: Layers = _no_layers
) -> TwoStores:
    """The storage at a location with the configured second store, unopened.

    Storage in an object store has no `append`. `layers` wrap each store directly, below its disk
    cache and its encryption, so cached bytes cost no request, no limit and no second request.

    Raises:
        ConfigError: the second store is no place, or one store lies in the other.
        Denied: nothing is installed for such URLs, or for encryption.
    """
    second = second_location(config)

    def around(which: str, where: Location, store: Any) -> AppendingStore:  # noqa: ANN401 - nothing appends to an object store
        return layers(which, where, store)

    return TwoStores(
        _one_store(config, location, JOURNAL_PREFIX, clock, partial(around, FIRST_STORE)),
        None
        if second is None
        else _one_store(config, second, OFFLOAD_PREFIX, clock, partial(around, SECOND_STORE)),
    )


def _one_store(
    config: Config,
    location: Location,
    held: str,
    clock: Clock,
    around: Callable[[Location, Any], AppendingStore],
) -> AppendingStore:
    """A storage by itself, which has objects below `held` if it has any."""
    if isinstance(location, Path):
        return around(location, PosixStore(location, options=config.posix, clock=clock))
    inner = around(location, _object_store(config, location, clock))
    store = _kept_on_disk(config, location, inner, clock)
    masters = config.storage.master_keys
    if masters is None:
        return RefuseEncryptedStore(store)
    if find_spec("cryptography") is None:
        extra = "pip install 'tieredstore[encryption]'"
        raise Denied(f"encryption needs cryptography: {extra}", "")
    return EncryptedStore(store, masters, held=held)


def _kept_on_disk(
    config: Config, location: TierUrl, store: ObjectStore, clock: Clock
) -> ObjectStore:
    """The store with the cache on disk, if one is configured: below encryption, as in storage."""
    if config.disk_cache.directory is None:
        return store
    return DiskCachedStore(
        store,
        config.disk_cache.directory,
        scope=f"{config.storage.endpoint} {location}",
        is_immutable=_is_immutable,
        clock=clock,
        options=config.disk_cache,
    )


def _is_immutable(name: str) -> bool:
    """Whether an object's name can never refer to other bytes: it has a nonce."""
    return PartName.parse(name) is not None


def segments_driver(
    config: Config, location: Location, store: AppendingStore, *, clock: Clock, rng: Random
) -> SegmentsDriver:
    """Return the driver of segments: in place, or packed into shared parts (decision 0007)."""
    if isinstance(location, TierUrl):
        return PackedDriver(store, rng=rng)
    wait_s = config.tier.takeover_wait_s_max
    return InPlaceDriver(store, clock=clock, takeover_wait_s_max=wait_s)


def names_below(config: Config, location: Location) -> list[str]:
    """Names of directories in a location, or of what has objects below it; [] if it is not there.

    Blocks; in an object store it runs an event loop of its own, so call it in a thread.

    Raises:
        ConfigError: the directory cannot be read.
        Denied, Unavailable: the object store refuses or does not answer.
    """
    if isinstance(location, TierUrl):

        async def names(store: "FsspecStore") -> list[str]:
            return list(await store.directories())

        return asyncio.run(asked_store(config, location, names))
    try:
        return sorted(entry.name for entry in os.scandir(location) if entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise ConfigError(f"{location} cannot be read: {reason}") from error


def first_with_objects(config: Config, location: TierUrl, names: Sequence[str]) -> str | None:
    """The first of these names of a location below which there is an object. One request each.

    `names_below` may have others: some services keep a directory when its last object goes.
    Blocks, as `names_below`, and raises what that does.
    """

    async def first(store: "FsspecStore") -> str | None:
        for name in names:
            if await store.holds(f"{name}/"):
                return name
        return None

    return asyncio.run(asked_store(config, location, first)) if names else None


async def asked_store(
    config: Config, location: TierUrl, question: Callable[["FsspecStore"], Awaitable[ResultT]]
) -> ResultT:
    """The answer of an object store to a question; errors name whole paths.

    Raises:
        Denied: nothing is installed for such URLs.
        And what `question` raises.
    """
    store = _object_store(config, location, SystemClock())
    try:
        return await question(store)
    except StoreError as error:
        error.path = str(location / error.path)
        raise
    finally:
        await store.close()


def brokers_in(config: Config) -> list[tuple[str, str]]:
    """Cluster and broker of every tier below the root, in order. Blocks, as `names_below`.

    Raises:
        ConfigError: the root cannot be read.
        Denied, Unavailable: as `names_below`.
    """
    root = config.tier_root
    clusters = {name: parse_cluster_directory(name) for name in names_below(config, root)}
    return sorted(
        (cluster, broker)
        for name, cluster in clusters.items()
        if cluster is not None
        for broker in names_below(config, root / name)
    )


async def rewrap_keys(
    config: Config, locations: Sequence[TierUrl], *, dry_run: bool = False
) -> Sequence[tuple[TierUrl, Rewrapped]]:
    """Wrap the data keys of encrypted places under the first master key; `rewrap`.

    Whatever cannot be done at one is found before anything is changed at any.

    Raises:
        ConfigError: no master key is configured.
        Denied, Corrupt, Unavailable: as `rewrap`; the path is the whole one.
    """
    masters = config.storage.master_keys
    if masters is None:
        variable = environment_name(MASTER_KEYS)
        raise ConfigError(f"set {variable} to the new master key and the old ones, in this order")

    async def tried(store: "FsspecStore") -> Sequence[Rewrapped]:
        return await rewrap(store, masters, dry_run=True)

    async def done(store: "FsspecStore") -> Sequence[Rewrapped]:
        return await rewrap(store, masters)

    found: list[tuple[TierUrl, Rewrapped]] = []
    for work in (tried,) if dry_run else (tried, done):
        found = [(one, key) for one in locations for key in await asked_store(config, one, work)]
    return found


def _object_store(config: Config, location: TierUrl, clock: Clock) -> "FsspecStore":
    from provider.object.store import open_object_store  # noqa: PLC0415 - fsspec is not small

    is_s3 = str(location).startswith(f"{SCHEME}://")
    storage: Mapping[str, Any] = s3_options(config) if is_s3 else {}
    return open_object_store(str(location), options=config.objects, clock=clock, storage=storage)


def s3_options(config: Config) -> Mapping[str, Any]:
    """Return the arguments of `provider.s3.S3Options` for the file system of `s3://`."""
    storage, objects = config.storage, config.objects
    key, secret = storage.access_key, storage.secret_key
    longest_s = objects.deadline_s(UPLOAD_BYTES)
    return {
        "endpoint": storage.endpoint,
        "region": storage.region,
        "allow_http": storage.allow_http,
        "server_side_encryption": storage.encryption,
        "kms_key_id": storage.kms_key_id,
        "virtual_hosted": storage.virtual_hosted,
        "requester_pays": storage.requester_pays,
        "upload_checksum": storage.upload_checksum,
        "ca_bundle": storage.ca_bundle,
        "proxy": storage.proxy,
        "connections_max": objects.requests_max + objects.uploads_max,
        "attempt_s_max": longest_s,
        "total_s_max": longest_s,
        "credentials": StaticCredentials(key, secret) if key else None,
    }


class StaticCredentials:
    """A key and its secret, as a client of S3 asks for them. Its text has neither."""

    def __init__(self, access_key: str, secret_key: str) -> None:
        self._found = {
            "access_key_id": access_key,
            "secret_access_key": secret_key,
            "expires_at": None,
        }

    def __repr__(self) -> str:
        return "<StaticCredentials>"

    def __call__(self) -> Mapping[str, str | None]:
        """Return the credentials, as obstore calls a credential provider."""
        return self._found


def reading_storage(
    config: Config,
    location: Location,
    *,
    clock: Clock,
    metrics: "ProviderMetrics | None" = None,
) -> TwoStores:
    """Return the stores of a reader: calls are retried, and reads are planned for a distant store.

    `metrics`: count the calls; None: they are not counted.

    Raises: as `storage_at`.
    """
    far = _far(config, clock)
    rng = SystemRandom()

    def layers(which: str, where: Location, store: AppendingStore) -> AppendingStore:
        if metrics is not None:
            from provider.stores.metered import MeteredStore  # noqa: PLC0415 - as below

            store = MeteredStore(store, clock=clock, metrics=metrics, store=which)
        return far(where, RetryingStore(store, clock=clock, rng=rng))

    return storage_at(config, location, clock=clock, layers=layers)


def job_storage(config: Config, location: Location, *, clock: Clock) -> TwoStores:
    """The stores of a job, which reads ahead by itself: calls are repeated.

    Raises: as `storage_at`.
    """
    rng = SystemRandom()

    def layers(_: str, where: Location, store: AppendingStore) -> AppendingStore:
        del where
        return RetryingStore(store, clock=clock, rng=rng)

    return storage_at(config, location, clock=clock, layers=layers)


def owned_storage(
    config: Config, location: Location, *, clock: Clock, rng: Random, metrics: "ProviderMetrics"
) -> TwoStores:
    """The stores of an owner: counted, and in an object store calls are repeated.

    Raises: as `storage_at`.
    """
    from provider.stores.metered import MeteredStore  # noqa: PLC0415 - readers need no Prometheus

    far = _far(config, clock)

    def layers(which: str, where: Location, store: AppendingStore) -> AppendingStore:
        metered = MeteredStore(store, clock=clock, metrics=metrics, store=which)
        if isinstance(where, TierUrl):
            return far(where, RetryingStore(metered, clock=clock, rng=rng))
        return metered

    return storage_at(config, location, clock=clock, layers=layers)


def meters_of(stores: TwoStores) -> "Mapping[str, RequestMeter]":
    """Return the request meters of the object stores, by their names in metrics."""
    found = {FIRST_STORE: _meter_of(stores.inner), SECOND_STORE: _meter_of(stores.second)}
    return {name: meter for name, meter in found.items() if meter is not None}


def unbound_stores(stores: ObjectStore) -> list[str]:
    """Names of the stores that may have encrypted objects of the older form, of those used yet."""
    if not isinstance(stores, TwoStores):
        return []
    rings = {
        FIRST_STORE: _layer_with("ring", stores.inner),
        SECOND_STORE: _layer_with("ring", stores.second),
    }
    return [
        name
        for name, found in rings.items()
        if found is not None and found.ring.older and found.ring.reads_older
    ]


def _meter_of(store: ObjectStore | None) -> "RequestMeter | None":
    """Return the counters of the object store at the bottom; None without one."""
    found = _layer_with("meter", store)
    return None if found is None else found.meter


def _layer_with(attribute: str, store: ObjectStore | None) -> Any:  # noqa: ANN401 - some layer
    """Return the outermost layer of a store with an attribute; None if no layer has it."""
    found: Any = store
    while found is not None and not hasattr(found, attribute):
        found = getattr(found, "inner", None)
    return found


def _far(config: Config, clock: Clock) -> Callable[[Location, AppendingStore], AppendingStore]:
    """Return a wrapper that throttles an object store to `Config.limits` and plans its reads.

    It belongs around the layer that retries: waits for a limit count toward no deadline, and each
    of several ranges is retried alone. Near ranges are coalesced, long ones are read in parallel.
    The delay of a second request begins after the wait for a limit.
    """
    throttled: ThrottledStore | None = None

    def around(where: Location, store: AppendingStore) -> AppendingStore:
        nonlocal throttled
        if not isinstance(where, TierUrl):
            return store
        throttled = ThrottledStore(store, clock=clock, limits=config.limits, beside=throttled)
        return RangeReads(
            throttled,
            clock=clock,
            options=config.ranges,
            ranges_of=store,
            turn=throttled.downloads.take,
        )

    return around
