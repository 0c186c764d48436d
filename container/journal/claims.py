"""Claims: who wants the tier says so, and a busy owner stands back (decision 0032).

A taker needs several requests from reading the newest number to its fence, a busy owner creates an
entry every two. On a store with latency the taker would be too late each time. So once it was too
late it posts a claim beside the boundaries, which an owner lists after each entry anyway. The owner
stands back for a while, once for each claim; by then the fence is there, or the taker has died.
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


class Claims:
    """What one taker posts."""

    def __init__(self, store: ObjectStore, owner: str, *, rng: RandomSource) -> None:
        """`owner`: who it is, for people; the content of the claim."""
        self._store = store
        self._owner = owner
        self._rng = rng
        self._made: list[ClaimName] = []
        self._posted = 0

    async def make(self, epoch: int) -> None:
        """Announce a fence of this epoch, once. One request, and none where it stands already.

        One whose outcome is unknown is followed by another: the next race that is lost makes it.
        """
        if self._posted == epoch:
            return
        claim = ClaimName(epoch, self._rng.randbytes(NONCE_BYTES).hex())
        self._made.append(claim)
        with suppress(Unavailable):
            await self._store.create(str(claim), [f"{self._owner}\n".encode()])
            self._posted = epoch

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
        """Stand back; less long if we close anyway."""
        self.is_due = False
        self.count += 1
        await wait_at_most(self._clock, self._seconds_max, closing.wait())
