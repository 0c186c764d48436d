"""Opening of a tier for writing: stores, journal, upkeep, broker's directory, start retries."""

import asyncio
import logging
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from container.journal.heartbeat import Heartbeat
from container.journal.ownership import Permit
from container.metadata.operations import Operation
from container.metadata.records import Broker
from container.names.rocketmq import parse_cluster_directory
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    JOURNAL_PREFIX,
    SNAPSHOT_PREFIX,
    made_again_name,
)
from container.tier import Tier, TierIdentity
from provider.clock import Clock, backoff_s
from provider.errors import Denied, Fenced, StoreError, Unauthorized, Unavailable
from provider.names import TEMPORARY_PREFIX, is_directory, is_regular_file
from provider.object.store import REQUEST_KINDS, RequestMeter
from provider.object_store import ObjectStore
from provider.posix.files import refuse_other_systems
from provider.stores.metered import ProviderMetrics
from provider.stores.packed_segments import PARTS_PREFIX
from provider.stores.two_stores import TwoStores
from tieredstore.config.effective import Config, refuse_linked_stores, second_location
from tieredstore.config.location import Location, TierUrl
from tieredstore.config.prices import PriceTable
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    SEPARATOR,
    commit_log_directories,
    split_paths,
)
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions
from tieredstore.lifetime import cause, running
from tieredstore.process_name import is_of_this_host, owner_name, process_words
from tieredstore.session.identity import TierMemory, refuse_other_store
from tieredstore.session.places import (
    directory_of,
    first_with_objects,
    meters_of,
    names_below,
    owned_storage,
    segments_driver,
)
from tieredstore.session.reader import know_second_store, whole_paths
from tieredstore.session.takeover import Takeover, name_successor

LOGGER = logging.getLogger("tieredstore.owner")
ResultT = TypeVar("ResultT")
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 10.0
PASSING: Final = (Unauthorized, Unavailable)
"""Errors of a storage that may pass."""


async def when_usable(
    attempt: Callable[[], Awaitable[ResultT]],
    *,
    clock: Clock,
    start_s: float,
    may_pass: Callable[[StoreError], bool] = lambda _: True,
    on_wait: Callable[[StoreError], None] = lambda _: None,
) -> ResultT:
    """Call `attempt` until the storage can be used, for at most `start_s` seconds; 0 tries once.

    A clock that is not set yet, a token that is being renewed, permissions that are not there yet
    and outages pass. The first failure is logged at once, later ones if they differ. `on_wait` is
    called with each error that is waited out. With infinite `start_s` the wait has no end.
    `may_pass` returns whether an error of `PASSING` is waited out.

    Raises:
        Unavailable: it could not be used in that time.
        Unauthorized: the storage refuses us for now, and that is not waited out.
        And what else `attempt` raises, at once.
    """
    began_s, failures, reported = clock.monotonic_s(), 0, ""
    while True:
        try:
            return await attempt()
        except PASSING as error:
            if not start_s or not may_pass(error):
                raise
            left_s = max(0.0, began_s + start_s - clock.monotonic_s())
            if error.reason != reported:
                reported = error.reason
                until = "until it answers" if math.isinf(left_s) else f"for {left_s:.0f} s"
                text = "not ready: %s; tried again %s"
                LOGGER.error(text, error, until)  # noqa: TRY400 - the sentence says it all
            if not left_s:
                reason = f"not usable for {start_s:g} s (tieredStoreStartTimeout): {error.reason}"
                raise Unavailable(reason, error.path, error.position) from error
            on_wait(error)
        failures += 1
        pause_s = backoff_s(failures, s_min=PAUSE_S_MIN, s_max=PAUSE_S_MAX)
        await clock.sleep(min(pause_s, left_s))


class Spending(Collector):
    """Requests by store and kind, and their cost by a price table."""

    def __init__(self, meters: Mapping[str, RequestMeter], prices: PriceTable) -> None:
        """`meters` by the store, as metrics name it: of each that bills requests."""
        self._meters = meters
        self._prices = prices

    def collect(self) -> Iterable[Metric]:
        """The counters of now."""
        requests = CounterMetricFamily(
            "tieredstore_object_store_requests",
            "Requests to the object store, by store and the kind that it bills.",
            labels=["store", "kind"],
        )
        cost = CounterMetricFamily(
            "tieredstore_object_store_request_cost",
            "Estimated cost of those requests, in the currency of the price table.",
            labels=["store", "currency"],
        )
        for store, meter in self._meters.items():
            for kind in REQUEST_KINDS:
                requests.add_metric([store, kind], meter.requests[kind])
            cost.add_metric([store, self._prices.currency], self._prices.spent(meter))
        yield requests
        yield cost


TOOK_OVER = (
    "1 if this process took the tier by --take-over from an owner that was not known to have ended."
)


def _refuse_to_write(config: Config) -> None:
    """Refuse what no storage can change: another system, or a second store inside the first."""
    refuse_other_systems(str(directory_of(config)))
    refuse_linked_stores(config)


@asynccontextmanager
async def open_owner(
    config: Config,
    *,
    clock: Clock,
    rng: Random | None = None,
    registry: CollectorRegistry | None = None,
    imported: Sequence[Operation] = (),
    take_over: bool = False,
    memory: TierMemory | None = None,
    on_wait: Callable[[StoreError], None] = lambda _: None,
) -> AsyncGenerator[Tier]:
    """The configured broker's tier, taken over from an ended owner, or begun.

    `take_over` replaces a living owner too, which ends with `Fenced`. A process that `serves` waits
    for a storage that is away. The caller starts `Tier.run`, which writes the journal. `registry`
    counts requests. Among files without a journal a tier begins only if they are `imported`.
    `memory`: the store's known tier. `on_wait`: callback for each error that is waited out.

    Raises:
        ConfigError: there are files of a tier, and no journal; or the store has another tier; or
            the second store lies in the first.
        Refused: there is something to be imported, and the tier has queues already.
        Owned: the tier's owner lives; nothing was changed. Takes up to the lease to be found
            (`tieredStoreOwnerLease`) where that owner ran elsewhere.
        Denied: as `Tier.own`, or the second store is not this tier's, or this is not Linux.
        Corrupt, Unavailable: as `Tier.own`.
        Fenced: at the end of the block, naming who took the tier meanwhile.
    """
    directory, rng = directory_of(config), rng or SystemRandom()
    await asyncio.to_thread(_refuse_to_write, config)
    await when_usable(
        lambda: asyncio.to_thread(_refuse_place, config, memory, is_import=bool(imported)),
        clock=clock,
        start_s=config.start_s,
        on_wait=on_wait,
    )
    store = await _metered_storage(config, clock=clock, rng=rng, registry=registry)
    journal, start = config.journal, config.start
    takeover = Takeover(
        directory, store, journal, clock=clock, take_over=take_over, stands_by=start.stands_by
    )
    owner = await asyncio.to_thread(owner_name, clock, beat_s=journal.heartbeat_s, rng=rng)

    async def permit(broker: Broker) -> None:
        if memory is not None:
            await memory.refuse_other(store, broker)
        await takeover.permit(broker)

    async def own() -> Tier:
        with whole_paths(directory, second_location(config)):
            identity = TierIdentity(config.cluster, config.broker, owner)
            return await _own_tier(
                config, store, identity, clock=clock, rng=rng, imported=imported, permit=permit
            )

    try:
        tier = await when_usable(own, clock=clock, start_s=config.start_s, on_wait=on_wait)
        takeover.own(owner)
        _log_start(takeover)
        if registry is not None:
            Gauge("tieredstore_took_over", TOOK_OVER, registry=registry).set(takeover.is_forced)
        async with _showing_life(tier, store, owner, config, clock=clock, memory=memory):
            if imported:
                await store.create(made_again_name(tier.state.broker.begun_ms), [])
            with whole_paths(directory, second_location(config)):
                await know_second_store(config, store, lambda: tier.state.attempts, owns=True)
            yield tier
    finally:
        await store.close()
        takeover.close()


@asynccontextmanager
async def running_owner(
    config: Config,
    *,
    clock: Clock,
    take_over: bool = False,
    imported: Sequence[Operation] = (),
    has_upkeep: bool = True,
) -> AsyncGenerator[Tier]:
    """The tier of `open_owner`, running. The end of the block closes it.

    Without upkeep, nothing but the block changes the tier. Raises as `open_owner`.
    """
    async with open_owner(config, clock=clock, take_over=take_over, imported=imported) as tier:
        runs = tier if has_upkeep else tier.journal
        async with running([runs.run]):
            try:
                yield tier
            finally:
                await runs.close()


def _refuse_place(config: Config, memory: TierMemory | None, *, is_import: bool) -> None:
    if not is_import:
        refuse_foreign_files(config, directory_of(config))
    if memory is not None:
        memory.refuse_empty()


async def _own_tier(
    config: Config,
    store: TwoStores,
    identity: TierIdentity,
    *,
    clock: Clock,
    rng: Random,
    imported: Sequence[Operation],
    permit: Permit,
) -> Tier:
    return await Tier.own(
        store,
        identity,
        segments=segments_driver(config, directory_of(config), store, clock=clock, rng=rng),
        clock=clock,
        rng=rng,
        options=config.tier,
        journal_options=config.journal,
        upkeep_options=config.upkeep,
        imported=imported,
        permit=permit,
        index=config.index if config.keeps_index else None,
    )


async def _metered_storage(
    config: Config, *, clock: Clock, rng: Random, registry: CollectorRegistry | None
) -> TwoStores:
    metrics = ProviderMetrics(registry or CollectorRegistry())
    store = owned_storage(config, directory_of(config), clock=clock, rng=rng, metrics=metrics)
    if registry is not None and (meters := meters_of(store)):
        prices = await asyncio.to_thread(lambda: config.prices)
        registry.register(Spending(meters, prices))
    return store


@asynccontextmanager
async def _showing_life(
    tier: Tier,
    store: ObjectStore,
    owner: str,
    config: Config,
    *,
    clock: Clock,
    memory: TierMemory | None,
) -> AsyncGenerator[None]:
    """Show signs of life while the block runs, and the sign of a clean end after the journal's."""
    interval_s = config.journal.heartbeat_s
    heartbeat = Heartbeat(tier.journal, store, owner, clock=clock, interval_s=interval_s)
    if memory is not None:
        memory.tell_of_copy(tier.state)
        await asyncio.to_thread(memory.keep, tier.state)

    async def know_entries() -> None:
        """Write down new entries at each interval, for an owner that is killed."""
        known = tier.state.sequence
        while memory is not None and not tier.journal.is_over:
            await clock.sleep(interval_s)
            if tier.state.sequence != known:
                known = tier.state.sequence
                await asyncio.to_thread(memory.keep, tier.state)

    try:
        async with running([heartbeat.begin, heartbeat.run, know_entries]):
            yield
    except Exception as error:
        if isinstance(fenced := cause(error), Fenced):
            await name_successor(fenced, store, config.journal, clock=clock)
        raise
    finally:
        await tier.journal.close()
        await heartbeat.end()
        if memory is not None and not tier.journal.is_fenced:
            await asyncio.to_thread(memory.keep, tier.state)


def _log_start(takeover: Takeover) -> None:
    """Log the owner that a fence may have replaced. A dead owner of this host is not logged."""
    earlier = takeover.earlier
    if takeover.earlier_lives:
        LOGGER.warning("the tier was taken over from %s", process_words(earlier.owner))
    elif earlier.epoch and not is_of_this_host(earlier.owner):
        LOGGER.info(
            "the tier was last owned by %s; if that still runs, it ends now",
            process_words(earlier.owner),
        )


def refuse_foreign_files(config: Config, directory: Location) -> None:
    """Begin no tier among the segments of another one, such as RocketMQ's own.

    An owner writes its journal first, so an interrupted start leaves no segments without one.
    Reads names only, until the first file that decides.

    Raises:
        ConfigError: there are segments, and no journal.
        Denied: a file is in the way.
    """
    ours = (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX)
    if isinstance(directory, TierUrl):
        names = names_below(config, directory)
        parts = PARTS_PREFIX.rstrip("/")
        foreign = [name for name in names if name == parts or not name.startswith("@")]
        known = [name for prefix in ours if (name := prefix.rstrip("/")) in names]
        if foreign and first_with_objects(config, directory, known) is None:
            found = first_with_objects(config, directory, foreign)
            if found is not None:
                raise ConfigError(_foreign_text(directory, found))
        return
    try:
        if any(_is_object(path) for prefix in ours for path in _files_in(directory / prefix)):
            return  # whole or not, which reading it shows
        found = next(filter(_is_object, directory.glob("[!@]*/**/*")), None)
    except NotADirectoryError as error:
        raise Denied("a file stands where a directory is needed", str(directory)) from error
    except OSError:
        return  # the store meets the same error, and names it
    if found is not None:
        raise ConfigError(_foreign_text(directory, str(found.relative_to(directory))))


def _foreign_text(where: Location, found: str) -> str:
    return (
        f"{where} holds a tier's files, such as {found}, and no journal of ours: if that is lost, "
        f"bring @journal back from a backup, or make it again (`tieredstore rebuild --metadata`); "
        f"`tieredstore metadata import FILE` makes a tier ours "
        f"that RocketMQ's own store wrote, or that was exported; else name another place"
    )


def _files_in(directory: Path) -> list[Path]:
    """List a directory; empty if it does not exist. Unlike `glob`, a refusal is an error.

    Raises:
        OSError: the directory cannot be listed.
    """
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _is_object(path: Path) -> bool:
    return not path.name.startswith(TEMPORARY_PREFIX) and is_regular_file(path)


def hot_options(config: Config, store_dir: Path) -> HotLogOptions:
    """The options for a store directory, which may differ from the configured one.

    Configured CommitLog directories inside the configured store directory are taken from the same
    places inside `store_dir`.
    """

    def moved(text: str) -> str:
        inside = [
            store_dir / path.relative_to(config.store_dir)
            if path.is_relative_to(config.store_dir)
            else path
            for path in split_paths(text)
        ]
        return SEPARATOR.join(map(str, inside))

    return replace(
        config.hot,
        commit_log_path=moved(config.hot.commit_log_path),
        read_only_commit_log_paths=moved(config.hot.read_only_commit_log_paths),
    )


def refuse_overlap(store_dir: Path, options: HotLogOptions, tier_root: Location) -> None:
    """Keep the tier out of the broker's directories, and those out of the tier.

    Raises:
        ConfigError: one lies in the other, symbolic links resolved; or the tier would be begun in
            the directory of another store.
    """
    if isinstance(tier_root, TierUrl):
        return
    tier = Path(os.path.realpath(tier_root))
    logs = commit_log_directories(store_dir, options)
    for part in (store_dir, *logs, store_dir / CONSUME_QUEUE):
        store = Path(os.path.realpath(part))
        if store.is_relative_to(tier) or tier.is_relative_to(store):
            raise ConfigError(
                f"the store {part} and the tier {tier_root} lie inside one another: "
                f"give the tier a directory of its own"
            )
    if is_directory(tier / COMMIT_LOG) and not any(
        parse_cluster_directory(path.name) for path in tier.iterdir()
    ):
        raise ConfigError(
            f"the tier {tier_root} (tieredStoreFilePath) is the directory of another store: "
            f"give the tier a directory of its own"
        )


@asynccontextmanager
async def open_hot_log(
    config: Config, store_dir: Path, *, clock: Clock
) -> AsyncGenerator[RocketMqHotLog]:
    """A broker's store directory, opened to be followed; never written.

    Raises:
        ConfigError: the store and the tier lie inside one another, or the store is another
            broker's.
        NotAStore: the directory is no RocketMQ store.
        Denied, Unavailable: the directory cannot be read.
    """
    options = await asyncio.to_thread(hot_options, config, store_dir)
    await asyncio.to_thread(refuse_overlap, store_dir, options, config.tier_root)
    hot = await RocketMqHotLog.open(
        store_dir,
        options=options,
        clock=clock,
        cluster=config.cluster,
        broker=config.broker,
    )
    try:
        await asyncio.to_thread(refuse_other_store, config, store_dir)
        yield hot
    finally:
        await hot.close()
