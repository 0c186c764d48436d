"""Readers beside rival owners: they sleep over deletions and go on with what they held.

A reader that sleeps for less than the grace time gets its bytes. One that sleeps longer gets its
bytes, or an error that says that they are gone; never other bytes.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from random import Random

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from container.tier_view import FixedMetadata, TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchStatus
from provider.clock import Clock
from provider.errors import Corrupt, NotFound, OutOfRange, StoreError
from tests.support.fake_hot_log import FakeHotLog
from tests.support.simulated_stores import SimulatedStores
from tests.support.store_reader import assert_follows, queue_contents

NAPS_S = (0.05, 0.3, 1.0, 2.5)
NEARLY = 0.9
"""Of the grace time: such a sleeper gets its bytes."""
GROUPS = ("first", "second")
GONE = (NotFound, OutOfRange)
"""What a reader may be told of bytes that it held a record of for too long."""


class SleepyReaders:
    """Readers of one tier, and a fetcher with a cache that stays open over all owners."""

    def __init__(
        self,
        memory: SimulatedStores,
        hot: FakeHotLog,
        *,
        clock: Clock,
        rng: Random,
        grace_s: float,
        deleted: Collection[str],
        names_come_again: bool,
    ) -> None:
        """`deleted`: topics that somebody was told to delete; their objects may go at once.

        `names_come_again`: then another file may have the name, which checksums tell.
        """
        self._verdicts = (*GONE, Corrupt) if names_come_again else GONE
        self._memory = memory
        self._hot = hot
        self._clock = clock
        self._rng = rng
        self._grace_s = grace_s
        self._deleted = deleted
        self._fetcher: TieredMessageFetcher | None = None
        self.counts: Counter[str] = Counter()
        self.histories = 0
        """How often the tier was put back from a copy."""

    async def hold(self) -> None:
        """Take the records, sleep, and read all that they say."""
        store = self._memory.another_client()
        nap_s = self._rng.choice([*NAPS_S, *3 * [NEARLY * self._grace_s]])
        try:
            newest = await TierReader.open(store)
        except NotFound:
            return
        held = TierReader(store, FixedMetadata(newest.state.copy()), verify=True)
        history = self.histories
        await asyncio.sleep(nap_s)
        for queue in sorted(held.state.queues):
            verdict: StoreError | None = None
            try:
                seen = await queue_contents(held, queue)
            except self._verdicts as error:
                verdict = error
            else:
                assert_follows(seen, self._hot.queues[queue])
            was_due = nap_s >= self._grace_s or queue.topic in self._deleted
            was_due |= self.histories != history
            assert was_due or verdict is None, f"{queue} is gone after {nap_s} s: {verdict!r}"
            self.counts["held" if verdict is None else "held too long"] += 1

    async def fetch(self) -> None:
        """Read a few messages of a queue, as consumers do, from a place that may have expired."""
        if self._fetcher is None:
            try:
                reader = await TierReader.open(self._memory.another_client())
            except NotFound:
                return
            options = FetcherOptions(run_messages_max=4, window_messages_min=2, prefetches_max=1)
            self._fetcher = TieredMessageFetcher(reader, options=options, clock=self._clock)
            await self._fetcher.__aenter__()
        queue = self._rng.choice(sorted(self._hot.queues))
        offset = self._rng.randint(0, len(self._hot.queues[queue].records))
        for _ in range(3):
            try:
                found = await self._fetcher.get_message(
                    self._rng.choice(GROUPS), queue.topic, queue.queue_id, offset, messages_max=4
                )
            except Corrupt:
                raise
            except StoreError:
                self.counts["fetched in vain"] += 1
                return
            self._compare(queue, offset, [bytes(one) for one in found.messages])
            self.counts["fetched"] += len(found.messages)
            if found.status is not FetchStatus.FOUND and found.next_offset == offset:
                return
            offset = found.next_offset

    def _compare(self, queue: QueueId, offset: int, records: list[bytes]) -> None:
        hot = self._hot.queues[queue].records
        at = offset
        for record in records:
            message = StoredMessage.decode(record, path=str(queue), position=0)
            assert message.queue_offset >= at, f"{queue} from {offset}: {message.queue_offset}"
            at = message.queue_offset + 1
            written = hot[message.queue_offset]
            same = record[:28] == written[:28] and record[36:] == written[36:]
            assert same, f"offset {message.queue_offset} of {queue} is another message"

    async def close(self) -> None:
        """Stop the fetcher."""
        if self._fetcher is not None:
            await self._fetcher.close()
