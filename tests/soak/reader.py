"""Readers that follow every queue of a tier from its beginning, and believe nothing."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

import numpy as np

from container.names.queue_id import QueueId
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchedMessages, FetchStatus
from provider.errors import Corrupt, StoreError, Unavailable
from provider.options import PosixOptions
from provider.posix.store import PosixStore
from provider.testing.faulty import Fault, FaultyObjectStore
from tests.soak.ledger import Ledger, digest_of
from tests.support.patience import Patience, until

REFRESH_S = 0.2
IDLE_S = 0.05
FAILURES_MAX = 500
"""Failures in a row that a reader takes before it gives up."""
OPEN_TRIES_MAX = 50
FILES_OPEN_MAX = 32
BUFFER_BYTES_MAX = 2 << 20
"""Memory that a store keeps for its next reads; more would fill slowly, and hide a leak."""
LATE_MESSAGES_MAX = 10_000
"""Messages that the ledger may enter before one that is in the tier already."""
CACHE_BYTES_MAX = 8 << 20
NOTHING_NEW = {
    FetchStatus.OFFSET_OVERFLOW_ONE,
    FetchStatus.NO_MATCHED_LOGIC_QUEUE,
    FetchStatus.NO_MESSAGE_IN_QUEUE,
}
FAULTS = (
    Fault("refused", probability=0.01),
    Fault("lost_reply", probability=0.01),
    Fault("delayed", probability=0.01, delay_s=0.02),
)
FLIPS = Fault("bit_flip", probability=0.003)
"""Only for tiers that verify what they read: nobody else can notice all of them."""
_OFFSET = Struct(">q")


@dataclass
class Reader:
    """One consumer group that reads every queue, each message once and in order."""

    name: str
    ledger: Ledger
    rng: random.Random
    offsets: dict[QueueId, int] = field(default_factory=dict)
    """Where it reads on."""
    messages: int = 0
    passes: int = 0
    """How often it began anew."""
    failures: int = 0
    failures_in_a_row: int = 0

    def begin_again(self) -> None:
        """Read everything once more."""
        self.offsets.clear()
        self.passes += 1

    def behind(self) -> dict[QueueId, tuple[int, int]]:
        """Where it is and where the queue ends, of each queue that it has not finished."""
        ends = self.ledger.ends().items()
        places = {queue: (self.offsets.get(queue, 0), end) for queue, end in ends}
        return {queue: place for queue, place in places.items() if place[0] != place[1]}

    async def read(self, fetcher: TieredMessageFetcher, queue: QueueId) -> int:
        """One fetch; how many messages it gave."""
        at = self.offsets.get(queue, 0)
        try:
            result = await fetcher.get_message(
                self.name, queue.topic, queue.queue_id, at, messages_max=self.rng.randint(1, 700)
            )
        except (Unavailable, Corrupt) as error:
            self.failures += 1
            self.failures_in_a_row += 1
            if self.failures_in_a_row > FAILURES_MAX:
                raise AssertionError(f"{self.name} gives up at {at} of {queue}") from error
            return 0
        self.failures_in_a_row = 0
        if result.status in NOTHING_NEW:
            return 0
        assert result.status is FetchStatus.FOUND, (
            f"{self.name} at {at} of {queue} got {result.status.name}, next {result.next_offset}, "
            f"queue [{result.min_offset}, {result.max_offset})"
        )
        await self._verify(queue, at, result.messages)
        assert result.next_offset == at + len(result.messages), f"{self.name}: {queue} at {at}"
        self.offsets[queue] = result.next_offset
        self.messages += len(result.messages)
        return len(result.messages)

    async def _verify(self, queue: QueueId, at: int, messages: FetchedMessages) -> None:
        end = at + len(messages)
        otherwise, begin = f"{queue} has {end}, more than was written", self.ledger.messages

        def is_entered() -> bool:
            """The broker writes a row and enters it at once, before the next."""
            assert self.ledger.messages - begin < LATE_MESSAGES_MAX, otherwise
            return self.ledger.end(queue) >= end

        await until(is_entered, Patience(otherwise, marks=self.ledger.ends))
        found: list[int] = []
        for number, record in enumerate(messages):
            offset = _OFFSET.unpack_from(record, 20)[0]
            assert offset == at + number, (
                f"{self.name} read offset {offset} of {queue}, expected {at + number}"
            )
            found.append(digest_of(record))
        wrong = np.flatnonzero(np.array(found, np.uint32) != self.ledger.expected(queue, at, end))
        assert len(wrong) == 0, (
            f"{self.name}: offset {at + int(wrong[0])} of {queue} is not what was written "
            f"({len(wrong)} of {len(found)} differ)"
        )


@dataclass
class ReadingProcess:
    """What one process of readers has: a tier of its own over storage that fails, and a cache."""

    readers: list[Reader]
    store: FaultyObjectStore
    tier: TierReader
    fetcher: TieredMessageFetcher
    refreshes_failed: int = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Serve all readers until `is_over`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh(is_over))
            for reader in self.readers:
                group.create_task(self._read(reader, is_over))

    async def _refresh(self, is_over: Callable[[], bool]) -> None:
        failures = 0
        while not is_over():
            try:
                await self.tier.refresh()
                failures = 0
            except (Unavailable, Corrupt) as error:
                failures += 1
                self.refreshes_failed += 1
                if failures > FAILURES_MAX:
                    raise AssertionError("the metadata cannot be read") from error
            await asyncio.sleep(REFRESH_S)

    async def _read(self, reader: Reader, is_over: Callable[[], bool]) -> None:
        while not is_over():
            got = 0
            for queue in list(self.tier.state.queues):
                got += await reader.read(self.fetcher, queue)
            await asyncio.sleep(0 if got else IDLE_S)


@contextlib.asynccontextmanager
async def reading(
    directory: Path, readers: list[Reader], *, verify: bool, seed: int
) -> AsyncGenerator[ReadingProcess]:
    """Open what one process of readers needs, and close it."""
    posix = PosixOptions(files_open_max=FILES_OPEN_MAX, buffer_bytes_max=BUFFER_BYTES_MAX)
    inner = PosixStore(directory, options=posix)
    faults = (*FAULTS, FLIPS) if verify else FAULTS
    store = FaultyObjectStore(inner, rng=random.Random(seed), faults=faults)
    options = FetcherOptions(cache_bytes_max=CACHE_BYTES_MAX, bytes_in_flight_max=8 << 20)
    try:
        tier = await opened(store, verify=verify)
        async with TieredMessageFetcher(tier, options=options) as fetcher:
            yield ReadingProcess(readers, store, tier, fetcher)
    finally:
        await store.close()


async def opened(store: FaultyObjectStore, *, verify: bool) -> TierReader:
    """The tier, in as many tries as it takes."""
    for _ in range(OPEN_TRIES_MAX - 1):
        with contextlib.suppress(StoreError):
            return await TierReader.open(store, verify=verify)
        await asyncio.sleep(REFRESH_S)
    return await TierReader.open(store, verify=verify)
