"""Takeover of a tier: liveness of its owner, and permission to replace it (decision 0051)."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from container.errors import Owned
from container.journal.heartbeat import (
    LOOKS_PER_LEASE,
    Lease,
    OwnerWatch,
    Seen,
    last_sign,
)
from container.journal.journal import Journal
from container.journal.reader import JournalReader
from container.metadata.records import Broker
from container.options import JournalOptions
from provider.clock import Clock, wait_at_most, within
from provider.errors import Closed, Fenced, StoreError, Unavailable
from provider.object_store import ObjectStore
from provider.posix.files import posix_errors
from provider.posix.locks import OwnerLock
from provider.stores.in_place_segments import LOCK_NAME
from tieredstore.config.effective import Config
from tieredstore.config.location import Location, TierUrl
from tieredstore.process_name import ProcessLife, ProcessName, is_of_this_host, process_words
from tieredstore.session.places import directory_of, storage_at

LOGGER = logging.getLogger("tieredstore.owner")
PROCESS_LOOK_S = 1.0
"""Seconds between two polls of an owner's process on this host."""
_OWNED_HERE: set[str] = set()
"""Names of owners, each with its nonce, as which this process owns tiers.

A place may be spelled in many ways; the journal and the signs have one text.
"""
EARLY_S_MAX = 5.0
"""Seconds for the storage to return the owner before a start reports that it waits."""
NAMING_S_MAX = 5.0
"""Seconds that a fenced owner spends on finding the new owner."""

ResultT = TypeVar("ResultT")


class Takeover:
    """Permits or forbids the fence of one start, and holds the lock of its epoch afterwards.

    The evidence about an earlier owner: in a directory the lock of its epoch; its process, where
    that ran on this host, in this boot and PID namespace; its sign of a clean end; its signs of
    life within the lease (`OwnerWatch`).
    """

    def __init__(
        self,
        where: Location,
        store: ObjectStore,
        options: JournalOptions,
        *,
        clock: Clock,
        take_over: bool,
        stands_by: bool = False,
    ) -> None:
        """`take_over`: take the tier from a living owner too. `stands_by`: wait for its end."""
        self._where = where
        self._store = store
        self._lease_s = options.lease_s
        self._clock = clock
        self._lock = OwnerLock(str(where / LOCK_NAME)) if isinstance(where, Path) else None
        self._take_over = take_over
        self._stands_by = stands_by
        self._watch: tuple[int, OwnerWatch] | None = None
        self._silent_epoch = 0
        """Epoch of an owner whose lease passed without a sign of life."""
        self._has_ended = False
        self._owned = ""
        self.earlier = Broker("", "")
        """The previous owner of the tier; epoch 0 if it had none."""
        self.earlier_lives = False
        """Whether that owner was seen to live."""
        self.is_forced = False
        """Whether the tier was taken with `take_over` from an owner not known to have ended."""

    def __repr__(self) -> str:
        return f"<Takeover of {self._where}: {self._lock!r}>"

    async def permit(self, broker: Broker) -> None:
        """`container.journal.ownership.Permit`: forbid to fence an owner that lives.

        In a directory the lock of the next epoch is held before its fence is written, so a reader
        of the fence sees a living owner. If two starts try the same epoch at once, both hold its
        lock, and the second one sees the first. In an object store the second one sees the process
        of the first, or waits for its signs of life.

        Raises:
            Owned: the tier's owner lives.
            Denied, Unavailable: the lock or the signs cannot be had.
        """
        self.earlier = broker
        if broker.epoch:
            evidence = await asyncio.to_thread(self._evidence, broker)
            self.earlier_lives = evidence == ProcessLife.LIVES
            if not self._take_over:
                await self._refuse_living(broker, evidence)
            elif evidence != ProcessLife.GONE:
                self.is_forced = not await self._is_known_ended(broker)
                self.earlier_lives &= self.is_forced
        if self._lock is not None:
            await self._blocking(partial(self._lock.hold, broker.epoch + 1))

    def own(self, owner: str) -> None:
        """Note that this process owns a tier as `owner` now."""
        self._owned = owner
        _OWNED_HERE.add(owner)

    def close(self) -> None:
        """Let the lock go. Idempotent."""
        _OWNED_HERE.discard(self._owned)
        if self._lock is not None:
            self._lock.close()

    def _evidence(self, broker: Broker) -> ProcessLife:
        """Return the evidence of the lock and of the process table, without waiting. Blocks."""
        if self._lock is not None:
            with posix_errors(LOCK_NAME):
                if self._lock.is_held(broker.epoch):
                    return ProcessLife.LIVES
        life = process_life(self._where, broker.owner)
        if self._lock is not None and life == ProcessLife.LIVES:
            return ProcessLife.UNKNOWN  # it closed the tier, or the lock was removed: signs decide
        return life

    async def _refuse_living(self, broker: Broker, evidence: ProcessLife) -> None:
        """Return once the owner is known to have ended, or its lease has passed.

        Raises:
            Owned: it lives, and this start does not stand by.
        """
        if evidence == ProcessLife.GONE:
            return
        watch = self._watch_of(broker)
        seen = await watch.look()
        if seen in {Seen.ENDED, Seen.REPLACED}:
            self.earlier_lives = False  # a program that closed the tier may run on
            return
        if (evidence == ProcessLife.LIVES or seen == Seen.ALIVE) and not self._stands_by:
            raise owned_error(broker, self._where)
        # The fence of an owner that was silent finds what it wrote before, and is tried again.
        if seen == Seen.ALIVE or self._silent_epoch != broker.epoch:
            await self._wait_for_lease(broker, watch)
            self._silent_epoch = broker.epoch

    def _watch_of(self, broker: Broker) -> OwnerWatch:
        if self._watch is None or self._watch[0] != broker.epoch:
            self._watch = broker.epoch, OwnerWatch(self._store, broker.epoch, broker.owner)
        return self._watch[1]

    async def _is_known_ended(self, broker: Broker) -> bool:
        """Whether the owner left the sign of a clean end. One read for each owner that is met."""
        if self._watch is None or self._watch[0] != broker.epoch:
            with suppress(StoreError):
                self._has_ended = await self._watch_of(broker).has_ended()
        return self._has_ended

    async def _wait_for_lease(self, broker: Broker, watch: OwnerWatch) -> None:
        said = ProcessName.parse(broker.owner)
        beats_s = said.beat_s * LOOKS_PER_LEASE if said is not None else 0.0
        lease = Lease(max(self._lease_s, beats_s), self._clock.monotonic_s())
        self._tell_of_wait(broker, lease)
        looked_for_s = 0.0  # of a slow storage: it is a part of the interval
        while True:
            await self._sleep(broker, max(lease.interval_s - looked_for_s, lease.interval_s / 4))
            begun_s = self._clock.monotonic_s()
            evidence = await asyncio.to_thread(self._evidence, broker)
            if evidence == ProcessLife.GONE:
                return
            try:
                seen = await watch.look()
            except Unavailable:  # no answer, so no time of silence
                if not self._stands_by:
                    raise
                lease.renew(self._clock.monotonic_s())
                looked_for_s = 0.0
                continue
            now_s = self._clock.monotonic_s()
            looked_for_s = now_s - begun_s
            if seen in {Seen.ENDED, Seen.REPLACED}:
                return
            if seen == Seen.ALIVE:
                if not self._stands_by:
                    raise owned_error(broker, self._where)
                lease.renew(now_s)
            elif lease.pass_time(now_s):
                return

    async def _sleep(self, broker: Broker, seconds: float) -> None:
        """Wait for the next poll; shorter if the owner's process ended meanwhile."""
        until_s = self._clock.monotonic_s() + seconds
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            await self._clock.sleep(min(left_s, PROCESS_LOOK_S))
            if await asyncio.to_thread(self._evidence, broker) == ProcessLife.GONE:
                return

    def _tell_of_wait(self, broker: Broker, lease: Lease) -> None:
        words, seconds = process_words(broker.owner), lease.interval_s * LOOKS_PER_LEASE
        if self._stands_by:
            LOGGER.info(
                "standing by: %s owns the tier; this process takes over when it ends, or shows no "
                "sign of life for %g s",
                words,
                seconds,
            )
        else:
            LOGGER.info(
                "%s owned the tier last, and left no sign of a clean end: waiting %g s for a sign "
                "of life (--take-over does not wait)",
                words,
                seconds,
            )

    async def _blocking(self, work: Callable[[], ResultT]) -> ResultT:
        with posix_errors(LOCK_NAME):
            return await asyncio.to_thread(work)


def process_life(where: Location, owner: str) -> ProcessLife:
    """Whether the process that owned a tier runs and still has the tier. Blocks a little.

    A process that runs may have closed the tier; of this one that is known.
    """
    said = ProcessName.parse(owner)
    if said is None:  # no process of ours is named so
        return ProcessLife.GONE
    if owner in _OWNED_HERE:
        return ProcessLife.LIVES
    if said.is_ours:
        return ProcessLife.GONE
    if said.is_detailed or said.beat_s:  # without details only its signs tell
        return said.life()
    # A program before decision 0051: it shows no signs, and holds the lock of a directory.
    if isinstance(where, Path) or (is_of_this_host(owner) and not _runs(said.pid)):
        return ProcessLife.GONE
    return ProcessLife.UNKNOWN


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def owned_error(broker: Broker, where: Location) -> Owned:
    """The refusal of a start that must not replace a living owner."""
    return Owned(f"{process_words(broker.owner)} owns the tier and lives", str(where))


async def refuse_living_owner(config: Config, *, clock: Clock) -> None:
    """Forbid early what `Takeover.permit` would forbid, as far as that is known without waiting.

    One lock is asked in a directory, one listing and one read in an object store, which has
    `EARLY_S_MAX` to answer: nothing says why a start takes long before this has ended.

    Raises:
        Owned: the tier's owner lives.
    """
    if config.start.stands_by:
        return
    where = directory_of(config)
    store = storage_at(config, where, clock=clock)
    try:
        looking = living_owner(store, where, config.journal, clock=clock)
        broker = await within(clock, EARLY_S_MAX, looking)
    except (OSError, StoreError):  # TimeoutError, too
        return  # the start meets the same, and names it
    finally:
        await store.close()
    if broker is not None:
        raise owned_error(broker, where)


async def living_owner(
    store: ObjectStore, where: Location, options: JournalOptions, *, clock: Clock
) -> Broker | None:
    """The owner of a tier whose process is known to live; None if that is not known.

    Raises:
        OSError, StoreError: the lock, the signs or the journal cannot be read.
    """
    if isinstance(where, TierUrl):
        sign = await last_sign(store)
        if sign is None or sign[0].number is None:
            return None
        (epoch, _), owner = sign
        life = await asyncio.to_thread(process_life, where, owner)
        return Broker("", "", epoch, owner) if life == ProcessLife.LIVES else None
    lock = OwnerLock(str(where / LOCK_NAME))
    if not await asyncio.to_thread(lock.is_held):
        return None
    broker = (await JournalReader(store, options, clock=clock).load()).state.broker
    return broker if await asyncio.to_thread(lock.is_held, broker.epoch) else None


async def sign_of_life(
    store: ObjectStore, where: Location, options: JournalOptions, *, clock: Clock
) -> Broker | None:
    """The owner of a tier whose journal cannot be read, if it lives; takes up to the lease.

    Raises:
        Denied, Unavailable: the signs cannot be read.
    """
    sign = await last_sign(store)
    if sign is None or sign[0].number is None:
        return None
    (epoch, _), owner = sign
    broker = Broker("", "", epoch, owner)
    takeover = Takeover(where, store, options, clock=clock, take_over=False)
    try:
        await takeover.permit(broker)
    except Owned:
        return broker
    finally:
        takeover.close()
    return None


def refuse_any_owner(root: Path) -> None:
    """Refuse to create a tier in a directory whose owner lives, though its journal was moved away.

    That owner would continue to write files that the new journal gives to another owner. Without a
    journal the epoch is unknown, so the lock of any epoch counts, and the owner has no name.
    Blocks.

    Raises:
        Owned: an owner lives.
        Denied, Unavailable: the lock cannot be examined.
    """
    with posix_errors(LOCK_NAME):
        is_held = OwnerLock(str(root / LOCK_NAME)).is_held()
    if is_held:
        raise owned_error(Broker("", ""), root)


async def watch_ownership(journal: Journal, *, clock: Clock, interval_s: float) -> None:
    """Poll for a fence while the owner is idle. A busy owner meets the fence at its next entry.

    One listing each `interval_s` in which no entry was written; 0 s: never looks. Returns once the
    journal is over: `Journal.run` raises why.
    """
    entries = journal.statistics().entries
    while interval_s and not journal.is_over:
        await clock.sleep(interval_s)
        before, entries = entries, journal.statistics().entries
        if entries != before:
            continue
        try:
            await journal.verify_owner()
        except (Fenced, Closed):
            return
        except StoreError:
            continue  # an outage: the next poll is in time


async def name_successor(
    fenced: Fenced, store: ObjectStore, options: JournalOptions, *, clock: Clock
) -> None:
    """Name the new owner in `fenced`, if it can be read soon."""
    broker: Broker | None = None

    async def find() -> None:
        nonlocal broker
        try:
            broker = (await JournalReader(store, options, clock=clock).load()).state.broker
        except StoreError:
            return

    await wait_at_most(clock, NAMING_S_MAX, find())
    if broker is not None:
        fenced.reason = f"{process_words(broker.owner)} took this tier over"
