"""Heartbeats of an owner, and their observation by standby processes (decision 0051).

Journal entries are signs of life of an owner. While it writes none, it creates an object
`@owner/<epoch>-<number>` at intervals and deletes the previous one. A clean end leaves
`@owner/<epoch>-ended`. These signs decide no conflict: the fence of the journal does.
"""

from contextlib import suppress
from enum import Enum

from container.journal.frame import Frame, FrameKind
from container.journal.journal import Journal
from container.names.tier_objects import (
    JOURNAL_PREFIX,
    OWNER_PREFIX,
    EntryName,
    SignName,
    parse_name,
)
from provider.clock import Clock, wait_at_most
from provider.errors import AlreadyExists, Corrupt, NotFound, StoreError
from provider.object_store import ObjectStore

RETRIES_PER_INTERVAL = 6
"""Retries of a failed sign within one interval."""
END_S_MAX = 5.0
"""Limit, in seconds, for the sign of a clean end."""
LOOKS_PER_LEASE = 3
"""Polls of an observer within one lease."""
NAME_BYTES_MAX = 4096
SIGNS_MAX = 16
"""Signs that an owner deletes at once. Where deletions fail, older ones stay for a later owner."""


class Heartbeat:
    """Signs of life of one owner while its journal is open."""

    def __init__(
        self, journal: Journal, store: ObjectStore, owner: str, *, clock: Clock, interval_s: float
    ) -> None:
        """`owner` is the content of each sign, the same text as in the fence."""
        self._journal = journal
        self._store = store
        self._owner = owner
        self._clock = clock
        self._interval_s = interval_s
        self._number = 0
        self._made: list[SignName] = []
        self._shown_s = clock.monotonic_s()
        """Monotonic time of the last sign, entries included, in seconds."""
        journal.subscribe(lambda _: self._note())

    def __repr__(self) -> str:
        return f"<Heartbeat of {self._journal!r}: {self._number} signs>"

    async def run(self) -> None:
        """Create one sign now, then one whenever the journal was quiet for the interval.

        One create and one delete each. None while entries are written. Failures are retried.
        Returns once the journal is over.
        """
        is_due = True
        while not self._journal.is_over:
            wait_s = 0.0 if is_due else self._shown_s + self._interval_s - self._clock.monotonic_s()
            if wait_s > 0:
                await self._clock.sleep(wait_s)
                continue
            is_due = False
            if not await self._show():
                await self._clock.sleep(self._interval_s / RETRIES_PER_INTERVAL)

    async def begin(self) -> None:
        """Delete the signs of other owners. One listing, and one delete if there are any.

        Signs of this epoch and of higher ones belong to a journal that was lost or replaced by a
        backup.
        """
        with suppress(StoreError):
            signs = await _signs(self._store)
            old = [str(one) for one in signs if one not in self._made]
            if old:
                await self._store.delete(old)

    async def end(self) -> None:
        """Leave the sign of a clean end, within `END_S_MAX`. Does nothing after a takeover."""
        if not self._journal.is_fenced:
            await wait_at_most(self._clock, END_S_MAX, self._end())

    async def _end(self) -> None:
        with suppress(StoreError):
            await self._create(SignName(self._journal.epoch, None))
            await self._delete_all()

    async def _show(self) -> bool:
        """Create the next sign and delete the previous ones. Return whether it was created."""
        before = self._made = self._made[-SIGNS_MAX:]
        self._number += 1
        name = SignName(self._journal.epoch, self._number)
        self._made = [*before, name]  # also where the outcome stays unknown
        try:
            await self._create(name)
        except StoreError:
            return False
        self._note()
        with suppress(StoreError):
            await self._store.delete([str(one) for one in before])
            self._made = [one for one in self._made if one not in before]
        return True

    async def _create(self, name: SignName) -> None:
        with suppress(AlreadyExists):  # the reply of an earlier attempt was lost
            await self._store.create(str(name), [f"{self._owner}\n".encode()])

    async def _delete_all(self) -> None:
        if self._made:
            await self._store.delete([str(one) for one in self._made])

    def _note(self) -> None:
        self._shown_s = self._clock.monotonic_s()


class Seen(Enum):
    """Result of one poll of an observer."""

    NOTHING = "nothing"
    """No sign of life since the last poll, or the first poll."""
    ALIVE = "alive"
    ENDED = "ended"
    """The owner has closed the tier."""
    REPLACED = "replaced"
    """A newer owner has the tier."""


class OwnerWatch:
    """Signs of life of the owner of one epoch, as seen by one observer."""

    def __init__(self, store: ObjectStore, epoch: int, owner: str) -> None:
        """`owner`: its text in the fence. A journal that was put back may have an epoch again."""
        self._store = store
        self._epoch = epoch
        self._owner = owner
        self._known: set[SignName] = set()
        self._sequence = -1

    def __repr__(self) -> str:
        return f"<OwnerWatch of epoch {self._epoch}>"

    async def look(self) -> Seen:
        """Poll for signs since the last poll. Two listings, and one read of a new entry or an end.

        Raises:
            Denied, Unavailable: as the store.
        """
        signs = await _signs(self._store)
        ours = [one for one in signs if one.epoch == self._epoch]
        if SignName(self._epoch, None) in ours and await self.has_ended():
            return Seen.ENDED
        is_first = self._sequence < 0
        is_new = not self._known.issuperset(ours)
        self._known.update(ours)
        entry = await self._newest_entry()
        if entry == Seen.REPLACED or (entry == Seen.ALIVE and not is_first):
            return entry
        return Seen.ALIVE if is_new and not is_first else Seen.NOTHING

    async def has_ended(self) -> bool:
        """Whether the owner has left the sign of a clean end. One read.

        Raises:
            Denied, Unavailable: as the store.
        """
        try:
            return await _owner_in(self._store, SignName(self._epoch, None)) == self._owner
        except NotFound:  # deleted by a newer owner, whose entry shows it
            return False

    async def _newest_entry(self) -> Seen:
        after = str(EntryName(self._sequence)) if self._sequence > 0 else ""
        listed = await self._store.list(JOURNAL_PREFIX, after=after)
        names = [name for one in listed if isinstance(name := parse_name(one.name), EntryName)]
        if not names:
            self._sequence = max(self._sequence, 0)
            return Seen.NOTHING
        newest = max(names)
        self._sequence = newest.sequence
        try:
            raw = await self._store.read(str(newest))
            epoch = Frame.decode(raw, FrameKind.ENTRY, path=str(newest)).epoch
        except (NotFound, Corrupt):  # deleted by an owner, or damaged: its writer was alive
            return Seen.ALIVE
        return Seen.REPLACED if epoch > self._epoch else Seen.ALIVE


class Lease:
    """Time that an owner may stay silent, by the observer's monotonic clock.

    A pause of the observer counts as one polling interval: the owner may have been suspended too.
    """

    def __init__(self, lease_s: float, now_s: float) -> None:
        self.interval_s = lease_s / LOOKS_PER_LEASE
        self._left_s = lease_s
        self._lease_s = lease_s
        self._looked_s = now_s

    def renew(self, now_s: float) -> None:
        """Restart the lease after a sign of life."""
        self._left_s, self._looked_s = self._lease_s, now_s

    def pass_time(self, now_s: float) -> bool:
        """Count the time until a poll without a sign. Return whether the lease has expired."""
        self._left_s -= min(now_s - self._looked_s, self.interval_s)
        self._looked_s = now_s
        return self._left_s <= 0


async def last_sign(store: ObjectStore) -> tuple[SignName, str] | None:
    """Return the newest sign of the newest owner, and the owner's text. One listing and one read.

    Raises:
        Denied, Unavailable: as the store.
    """
    signs = await _signs(store)
    if not signs:
        return None
    newest = max(signs, key=lambda one: (one.epoch, one.number is None, one.number or 0))
    try:
        return newest, await _owner_in(store, newest)
    except NotFound:  # replaced since the listing
        return newest, ""


async def last_moment_ms(store: ObjectStore) -> int | None:
    """Return the time of the newest journal entry or sign, Unix ms by the storage. Two listings.

    None if the store lists no times or there is neither.

    Raises:
        Denied, Unavailable: as the store.
    """
    listed = [*await store.list(OWNER_PREFIX), *await store.list(JOURNAL_PREFIX)]
    return max((one.modified_ms or 0 for one in listed), default=0) or None


async def _owner_in(store: ObjectStore, sign: SignName) -> str:
    raw = await store.read(str(sign))
    return bytes(raw[:NAME_BYTES_MAX]).decode(errors="replace").strip()


async def _signs(store: ObjectStore) -> list[SignName]:
    listed = await store.list(OWNER_PREFIX)
    return [sign for one in listed if (sign := SignName.parse(one.name)) is not None]
