"""What is put around the two stores of a tier, around each by itself, by what its place needs.

So a request that fails is repeated by one layer, whichever store it is of, and counts as that
store's. Bytes a second are those of both together.
"""

from collections.abc import Callable, Mapping
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

from provider.clock import Clock
from provider.object_store import AppendingStore, ObjectStore
from provider.stores.range_reads import RangeReads
from provider.stores.retrying import RetryingStore
from provider.stores.throttled import ThrottledStore
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE, TwoStores
from tieredstore.config.effective import Config
from tieredstore.config.location import Location, TierUrl
from tieredstore.places import storage_at

if TYPE_CHECKING:
    from provider.object.store import RequestMeter
    from provider.stores.metered import ProviderMetrics


def reading_storage(config: Config, location: Location, *, clock: Clock) -> TwoStores:
    """The stores of one who reads: calls are repeated, and reads suit a store far away.

    Raises: as `storage_at`.
    """
    far = _far(config, clock)
    rng = SystemRandom()

    def layers(_: str, where: Location, store: AppendingStore) -> AppendingStore:
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
    """What the object stores among the two count, by their names in metrics."""
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
    """The counters of the object store at the bottom; None where there is none."""
    found = _layer_with("meter", store)
    return None if found is None else found.meter


def _layer_with(attribute: str, store: ObjectStore | None) -> Any:  # noqa: ANN401 - some layer
    """The outermost layer of a store that has an attribute; None where none has."""
    found: Any = store
    while found is not None and not hasattr(found, attribute):
        found = getattr(found, "inner", None)
    return found


def _far(config: Config, clock: Clock) -> Callable[[Location, AppendingStore], AppendingStore]:
    """What keeps an object store to the bytes a second of `Config.limits`, and suits its reads.

    It belongs around what repeats calls: no deadline counts a wait for a limit, and of several
    ranges each is repeated alone. Near ranges are read together, long ones in parallel. The time
    of a second request begins after the wait for a limit.
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
