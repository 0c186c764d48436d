"""Writer of one numbered entry: creates it and settles the outcome."""

from dataclasses import dataclass
from enum import Enum

from container.journal.reader import JournalReader
from container.names.tier_objects import ClaimName, EntryName
from container.options import JournalOptions
from provider.clock import Clock, RandomSource, backoff_s
from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import Buffer, ObjectStore

HELD_UP_AFTER = 3
"""Failed attempts in a row at an entry that count as an outage."""


class Outcome(Enum):
    """Outcome of writing an entry."""

    LANDED = "landed"
    """The journal has it, and this owner wrote it."""
    TAKEN = "taken"
    """Another entry has the number."""
    STALE = "stale"
    """The number is at or below the boundary: other owners continued the journal long ago."""


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of writing an entry, and the bytes under its number."""

    outcome: Outcome
    found: Buffer
    claims: frozenset[ClaimName] = frozenset()
    """Claims on the tier at that time."""


class EntryWriter:
    """Writes entries, one at a time.

    After a store error the outcome is unknown. The writer then reads the object under the number,
    and sends the same bytes again unless another entry is there. Only a reply of the store ends the
    retries. Cancelling `write` leaves the outcome unknown too; calling it again with the same bytes
    settles it.
    """

    def __init__(
        self, store: ObjectStore, *, clock: Clock, rng: RandomSource, options: JournalOptions
    ) -> None:
        self._store = store
        self._reader = JournalReader(store, options, clock=clock)
        self._clock = clock
        self._rng = rng
        self._options = options
        self.last_error: StoreError | None = None
        """Error that leaves the entry in flight unsettled. None if no entry is."""
        self.retries = 0
        """Number of entries read or sent again."""
        self.failures = 0
        """Failed attempts in a row at the entry in flight."""

    @property
    def trouble(self) -> StoreError | None:
        """Error that holds the entry in flight up; None before `HELD_UP_AFTER` attempts failed."""
        return self.last_error if self.failures >= HELD_UP_AFTER else None

    async def write(self, name: EntryName, raw: bytes) -> Written:
        """Create the entry and determine its outcome. Two requests if none fails.

        Each retry costs two more, one of which verifies that the previous entry still exists.

        An outcome counts only together with a boundary that was listed after the create: a number
        at or below the boundary was deleted, so a second create of it proves nothing.

        Raises:
            Closed: the store was closed during the call. The outcome is unknown.
        """
        self.failures = 0
        suspect = False
        while True:
            try:
                if suspect:
                    await self._check_predecessor(name)
                found = await self._read_or_none(name) if suspect else None
                suspect = True
                if found is None or bytes(found) == raw:
                    # Ours may be visible before it is durable: only a create proves it (P9).
                    found = await self._create(name, raw)
                if found is not None:
                    posted = await self._reader.posted()
                    ours = bytes(found) == raw
                    self.last_error, self.failures = None, 0
                    if posted.boundary >= name.sequence:
                        return Written(Outcome.STALE, found)
                    outcome = Outcome.LANDED if ours else Outcome.TAKEN
                    return Written(outcome, found, posted.claims)
            except (Unavailable, Denied) as error:
                self.last_error = error
            self.retries += 1
            self.failures += 1
            await self._clock.sleep(self._backoff_s(self.failures))

    async def _check_predecessor(self, name: EntryName) -> None:
        """Raise if the last entry is gone: no reader could reach an entry after it.

        Called only after a failure: a call on a directory that was moved, removed or replaced
        fails. One request, two if the entry is gone.

        Raises:
            Unavailable: the entry is gone, and truncation did not delete it.
        """
        before = EntryName(name.sequence - 1)
        if before.sequence == 0:
            return
        try:
            await self._store.size(str(before))
        except NotFound as error:
            if await self._reader.boundary() < before.sequence:
                raise Unavailable(
                    "the journal's last entry is not there any more; put its directory back as it "
                    "was and it goes on",
                    str(before),
                ) from error

    async def _create(self, name: EntryName, raw: bytes) -> Buffer | None:
        """Create the object and return the bytes under its number. None if deleted since."""
        try:
            await self._store.create(str(name), [raw])
        except AlreadyExists:
            return await self._read_or_none(name)
        return raw

    async def _read_or_none(self, name: EntryName) -> Buffer | None:
        try:
            return await self._store.read(str(name))
        except NotFound:
            return None

    def _backoff_s(self, failures: int) -> float:
        options = self._options
        longest_s = backoff_s(failures, s_min=options.retry_s_min, s_max=options.retry_s_max)
        return longest_s * (0.5 + self._rng.random() / 2)
