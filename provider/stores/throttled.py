"""Store with limits of bytes a second in each direction, which may change at any time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from provider.clock import Clock
from provider.object_store import Append, Buffer, ForwardingStore, ObjectStore
from provider.ranges import ByteRange

BURST_S: Final = 1.0
"""Capacity of the token bucket, in seconds of the limit."""
LOOK_S: Final = 0.5
"""Longest wait before the limit is read again, in seconds."""


class TransferLimits:
    """Limits in bytes a second of each direction; 0: no limit.

    May be changed at any time, from any thread. Waiting transfers follow a new limit within
    `LOOK_S` seconds.
    """

    def __init__(self, upload_bytes_per_s: int = 0, download_bytes_per_s: int = 0) -> None:
        """Set both limits. Raise ValueError for negative numbers."""
        self.upload_bytes_per_s = upload_bytes_per_s
        self.download_bytes_per_s = download_bytes_per_s

    def __repr__(self) -> str:
        return f"<TransferLimits {self._upload} B/s up, {self._download} B/s down>"

    @property
    def upload_bytes_per_s(self) -> int:
        """Most bytes written in a second; 0: no limit."""
        return self._upload

    @upload_bytes_per_s.setter
    def upload_bytes_per_s(self, bytes_per_s: int) -> None:
        self._upload = _checked(bytes_per_s)

    @property
    def download_bytes_per_s(self) -> int:
        """Most bytes read in a second; 0: no limit."""
        return self._download

    @download_bytes_per_s.setter
    def download_bytes_per_s(self, bytes_per_s: int) -> None:
        self._download = _checked(bytes_per_s)


def _checked(bytes_per_s: int) -> int:
    if bytes_per_s < 0:
        raise ValueError(f"no transfer has {bytes_per_s} bytes a second")
    return bytes_per_s


class TokenBucket:
    """Token bucket of bytes. Tokens are added each second; each transfer takes its length.

    A transfer starts if any token is left, and may overdraw the bucket. A transfer longer than a
    second's bytes is therefore not split; the next one waits. First come, first served.
    """

    def __init__(self, clock: Clock, limit: Callable[[], int]) -> None:
        """Start with a full bucket. `limit` returns the present bytes a second; 0: no limit."""
        self._clock = clock
        self._limit = limit
        self._turn = asyncio.Lock()
        self._left_bytes = BURST_S * limit()
        self._seen_s = clock.monotonic_s()

    def __repr__(self) -> str:
        return f"<TokenBucket {self._limit()} B/s, {self._left_bytes:.0f} B left>"

    async def take(self, size_bytes: int) -> None:
        """Return when `size_bytes` may be transferred. Cancelling takes no tokens."""
        if not self._limit() and not self._turn.locked():
            return
        async with self._turn:
            while limit := self._limit():
                self._refill(limit)
                if self._left_bytes > 0:
                    break
                await self._clock.sleep(min(LOOK_S, (1.0 - self._left_bytes) / limit))
            self.owe(size_bytes)

    def owe(self, size_bytes: int) -> None:
        """Take tokens for bytes that were transferred already."""
        if limit := self._limit():
            self._refill(limit)
            self._left_bytes -= size_bytes
        else:
            self._left_bytes = 0.0  # a later limit starts without debt

    def _refill(self, limit: int) -> None:
        now_s = self._clock.monotonic_s()
        added = (now_s - self._seen_s) * limit
        self._left_bytes = min(self._left_bytes + added, BURST_S * limit)
        self._seen_s = now_s


class ThrottledStore(ForwardingStore):
    """Wrapper that applies `TransferLimits`. Nearly free without limits.

    Wrap it around a store that retries, so that a wait here counts against no deadline. Retried
    bytes are then counted once.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Clock,
        limits: TransferLimits,
        beside: "ThrottledStore | None" = None,
    ) -> None:
        """Wrap `inner`.

        Several stores may share `limits`, and each applies them separately. A store with `beside`
        shares the token buckets of that store.
        """
        super().__init__(inner)
        self._limits = limits
        self.uploads = TokenBucket(clock, lambda: limits.upload_bytes_per_s)
        """Token bucket of writes."""
        self.downloads = TokenBucket(clock, lambda: limits.download_bytes_per_s)
        """Token bucket of reads."""
        if beside is not None:
            self.uploads, self.downloads = beside.uploads, beside.downloads

    def __repr__(self) -> str:
        return f"<ThrottledStore {self._limits!r}: {self.inner!r}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`."""
        await self.uploads.take(sum(map(len, buffers)))
        await super().create(name, buffers)

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position; `AppendingStore.append`."""
        await self.uploads.take(sum(len(part) for piece in appends for part in piece.buffers))
        await super().append(appends)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        await self.downloads.take(wanted.length if wanted else 0)
        found = await super().read(name, wanted)
        if wanted is None:
            self.downloads.owe(len(found))
        return found

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        await self.downloads.take(sum(part.length for _, part in wanted))
        return await super().read_many(wanted)
