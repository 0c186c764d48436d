"""Who owns a tier, whether that owner lives, and whether a start may take the tier (decision 0013).

A fence takes a tier from anybody, which is what a crash needs. A process that lives should lose its
tier on purpose only, so a start asks for the lock that a living owner holds before it fences.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from container.errors import Owned
from container.journal.journal import Journal
from container.journal.options import JournalOptions
from container.journal.reader import JournalReader
from container.metadata.records import Broker
from provider.clock import Clock, wait_at_most
from provider.errors import Closed, Fenced, StoreError
from provider.in_place_segments import LOCK_NAME
from provider.object_store import ObjectStore
from provider.posix_errors import posix_errors
from provider.posix_lock import OwnerLock
from tieredstore.config.effective import Config
from tieredstore.config.location import Location
from tieredstore.places import directory_of, make_lock_directory, owner_lock_path, storage_at
from tieredstore.process_name import process_words

LOGGER = logging.getLogger("tieredstore.owner")
NAMING_S_MAX = 5.0
"""Seconds that a fenced owner takes to find out who fenced it."""

ResultT = TypeVar("ResultT")


class Takeover:
    """Permits or forbids the fence of one start, and holds the lock of its epoch afterwards."""

    def __init__(self, where: Location, lock: Path, *, take_over: bool) -> None:
        """`take_over`: take the tier from an owner that lives, too."""
        self._where = where
        self._path = lock
        self._lock = OwnerLock(str(self._path))
        self._take_over = take_over
        self.earlier = Broker("", "")
        """Whose the tier was; epoch 0 if nobody's."""
        self.earlier_lives = False
        """Whether that owner was seen to live."""

    def __repr__(self) -> str:
        return f"<Takeover of {self._where}: {self._lock!r}>"

    async def permit(self, broker: Broker) -> None:
        """`container.journal.ownership.Permit`: forbid to fence an owner that lives.

        The next epoch's lock is held before its fence is written, so that whoever reads the
        fence sees a living owner. Where two starts try the same epoch at once, both hold its lock,
        and the one that comes second sees the first. For an object store these are locks of this
        host, and a start goes on without where they cannot be had.

        Raises:
            Owned: the tier's owner lives.
            Denied, Unavailable: the lock cannot be had.
        """
        self.earlier = broker
        self.earlier_lives = bool(broker.epoch) and await self._blocking(
            lambda: self._lock.is_held(broker.epoch)
        )
        if self.earlier_lives and not self._take_over:
            raise owned_error(broker, self._where)
        if isinstance(self._where, Path):
            await self._blocking(lambda: self._lock.hold(broker.epoch + 1))
            return
        try:
            await asyncio.to_thread(self._hold_on_host, broker.epoch + 1)
        except OSError as error:
            LOGGER.warning("other owners on this host will not see this one: %s", error)

    def close(self) -> None:
        """Let the lock go. Idempotent."""
        self._lock.close()

    def _hold_on_host(self, epoch: int) -> None:
        make_lock_directory(self._path)
        self._lock.hold(epoch)

    async def _blocking(self, work: Callable[[], ResultT]) -> ResultT:
        with posix_errors(LOCK_NAME):
            return await asyncio.to_thread(work)


def owned_error(broker: Broker, where: Location) -> Owned:
    """What a start is told that may not take the tier."""
    return Owned(f"{process_words(broker.owner)} owns the tier and lives", str(where))


async def refuse_living_owner(config: Config, *, clock: Clock) -> None:
    """Forbid early what `Takeover.permit` would forbid. One lock is asked where nobody lives.

    Raises:
        Owned: the tier's owner lives.
    """
    where = directory_of(config)
    lock = OwnerLock(str(owner_lock_path(config, where)))
    try:
        if not await asyncio.to_thread(lock.is_held):
            return
        store = storage_at(config, where, clock=clock)
        try:
            broker = (await JournalReader(store, config.journal, clock=clock).load()).state.broker
        finally:
            await store.close()
        if await asyncio.to_thread(lock.is_held, broker.epoch):
            raise owned_error(broker, where)
    except Owned:
        raise
    except (OSError, StoreError):
        return  # the start meets the same, and names it


def refuse_any_owner(root: Path) -> None:
    """Refuse to make a tier in a directory whose owner lives, though its journal was moved away.

    It would go on writing files that the new journal gives to somebody else. Without a journal
    there is no epoch to ask for, so an owner of any is one, and nothing says who it is. Blocks.

    Raises:
        Owned: an owner lives.
        Denied, Unavailable: the lock cannot be asked.
    """
    with posix_errors(LOCK_NAME):
        is_held = OwnerLock(str(root / LOCK_NAME)).is_held()
    if is_held:
        raise owned_error(Broker("", ""), root)


async def watch_ownership(journal: Journal, *, clock: Clock, interval_s: float) -> None:
    """Let an idle owner learn that it was fenced; a busy one learns it at its next entry.

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
            continue  # an outage: the next look is in time


async def name_successor(
    fenced: Fenced, store: ObjectStore, options: JournalOptions, *, clock: Clock
) -> None:
    """Say in `fenced` who took the tier, if that can be read soon."""
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
