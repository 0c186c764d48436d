"""Claims: who wants the tier says so, and a busy owner stands back (decision 0032).

A taker needs several requests from reading the newest number to its fence, a busy owner creates an
entry every two. On a store with latency the taker would be too late each time. So once it was too
late it posts a claim beside the boundaries, which an owner lists after each entry anyway. The owner
stands back for a while, once for each claim; by then the fence is there, or the taker has died. A
taker that is slower claims again after each pause, and the owner's next pause is twice as long.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from container.journal.frame import NONCE_BYTES
from container.journal.options import RandomSource
from container.names.tier_objects import ClaimName
from provider.clock import Clock, wait_at_most
from provider.errors import Denied, Unavailable
from provider.object_store import ObjectStore

DOUBLINGS_MAX = 3
"""The longest pause of an owner is so many doublings of the first one."""


class Claims:
    """What one taker posts."""

    def __init__(
        self, store: ObjectStore, owner: str, *, clock: Clock, rng: RandomSource, pause_s: float
    ) -> None:
        """`owner`: the taker, for people; the content of the claim. `pause_s`: an owner's pause."""
        self._store = store
        self._owner = owner
        self._clock = clock
        self._rng = rng
        self._pause_s = pause_s
        self._made: list[ClaimName] = []
        self._posted: tuple[int, float] = (0, 0.0)
        """Epoch and monotonic time of the last claim."""

    async def make(self, epoch: int) -> bool:
        """Announce a fence of this epoch, unless an owner still pauses for the last claim of it.

        Each race that is lost after that pause makes another claim. One request, or none; returns
        whether a claim was made. One whose outcome is unknown is followed by another.
        """
        posted, since_s = self._posted
        now_s = self._clock.monotonic_s()
        if posted == epoch and now_s - since_s < self._pause_s:
            return False
        claim = ClaimName(epoch, self._rng.randbytes(NONCE_BYTES).hex())
        self._made.append(claim)
        with suppress(Unavailable):
            await self._store.create(str(claim), [f"{self._owner}\n".encode()])
            self._posted = epoch, self._clock.monotonic_s()
        return True

    async def withdraw(self) -> None:
        """Delete what was announced; what stays means nothing to an owner of that epoch."""
        if self._made:
            with suppress(Unavailable, Denied):
                await self._store.delete([str(one) for one in self._made])


class StandingBack:
    """What an owner of one epoch does about claims."""

    def __init__(self, epoch: int, *, clock: Clock, seconds_max: float) -> None:
        self._epoch = epoch
        self._clock = clock
        self._seconds_max = seconds_max
        self._seen: set[ClaimName] = set()
        self.is_due = False
        """Whether somebody has claimed the tier since."""
        self.count = 0
        """How often it stood back."""

    def note(self, claims: Collection[ClaimName]) -> None:
        """These were posted when an entry of ours landed. Only newer epochs matter, each once."""
        new = {one for one in claims if one.epoch > self._epoch} - self._seen
        self._seen |= new
        self.is_due = self.is_due or bool(new)

    async def wait(self, closing: asyncio.Event) -> None:
        """Stand back, twice as long for each further claim; less long if we close anyway."""
        self.is_due = False
        self.count += 1
        doublings = min(len(self._seen) - 1, DOUBLINGS_MAX)
        await wait_at_most(self._clock, self._seconds_max * 2**doublings, closing.wait())
