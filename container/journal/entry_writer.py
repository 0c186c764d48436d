"""Writes one numbered entry and settles whether it is ours."""

from dataclasses import dataclass
from enum import Enum

from container.journal.options import JournalOptions, RandomSource
from container.journal.reader import JournalReader
from container.names.tier_objects import ClaimName, EntryName
from provider.clock import Clock, backoff_s
from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.object_store import Buffer, ObjectStore


class Outcome(Enum):
    """What became of an entry."""

    LANDED = "landed"
    """It is in the journal, and is ours."""
    TAKEN = "taken"
    """The number belongs to another entry."""
    STALE = "stale"
    """The number lies at or below the boundary: other owners continued the journal long ago."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of an entry, and what lies under its number."""

    outcome: Outcome
    found: Buffer
    claims: frozenset[ClaimName] = frozenset()
    """Who claimed the tier by then."""


class EntryWriter:
    """Writes entries, one at a time.

    An error of the store leaves the outcome unknown: the writer then reads what lies under the
    number, and sends the same bytes again unless another entry is there. Only an answer ends that.
    Cancelling `write` leaves the outcome unknown too; calling it again with the same bytes
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
        """Why the entry in flight is not settled yet; None otherwise."""
        self.retries = 0
        """How often an entry was read or sent again."""

    async def write(self, name: EntryName, raw: bytes) -> Written:
        """Create the entry and find out what became of it. Two requests where nothing fails.

        A try after a failure costs two more, of which one makes sure that the entry before it is
        still there.

        An outcome is only believed together with a boundary that was listed after the create:
        a number at or below it was deleted, so that a second create of it means nothing.

        Raises:
            Closed: the store was closed under us; the outcome is unknown.
        """
        failures = 0
        suspect = False
        while True:
            try:
                if suspect:
                    await self._check_predecessor(name)
                found = await self._read_or_none(name) if suspect else None
                suspect = True
                if found is None or bytes(found) == raw:
                    # Ours may be seen before it is durable: only a create vouches for it (P9).
                    found = await self._create(name, raw)
                if found is not None:
                    posted = await self._reader.posted()
                    ours = bytes(found) == raw
                    self.last_error = None
                    if posted.boundary >= name.sequence:
                        return Written(Outcome.STALE, found)
                    outcome = Outcome.LANDED if ours else Outcome.TAKEN
                    return Written(outcome, found, posted.claims)
            except (Unavailable, Denied) as error:
                self.last_error = error
            self.retries += 1
            await self._clock.sleep(self._backoff_s(failures))
            failures += 1

    async def _check_predecessor(self, name: EntryName) -> None:
        """Continue no journal whose last entry is gone: no reader would come as far as ours.

        Asked after a failure only: a directory that was moved, removed or replaced while it was in
        use fails the call that meets it. One request, two where the entry is gone.

        Raises:
            Unavailable: it is gone, and was not deleted by truncation.
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
        """What lies under the number after a create; None if that was deleted again meanwhile."""
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
        longest_s = backoff_s(failures + 1, s_min=options.retry_s_min, s_max=options.retry_s_max)
        return longest_s * (0.5 + self._rng.random() / 2)
