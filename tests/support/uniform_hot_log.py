"""A hot log of many alike messages that are made when they are read: gigabytes cost no memory."""

from collections.abc import Collection, Sequence

import numpy as np

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.properties import tag_hash
from container.record.unit import UNIT_DTYPE, Units
from dispatcher.ports import HotQueue, HotQueueState, Wanted, WantedUnits
from dispatcher.work import Wakeup
from provider.clock import Clock
from provider.errors import StoreError
from provider.ranges import QueueOffset
from tests.support.fake_hot_log import one_by_one
from tests.support.messages import make_record

QUEUE_OFFSET, STORE_TIMESTAMP = slice(20, 28), slice(56, 64)
TAG = "TagA"


class UniformHotLog:
    """`HotLog` of queues whose records differ in queue, offset and store timestamp only."""

    def __init__(self, clock: Clock, queues: int, *, body_bytes: int, keyed: bool = True) -> None:
        self.ends = {QueueId("T", number): 0 for number in range(queues)}
        """Messages of each queue; `extend` adds some."""
        self._clock = clock
        self._alarm = Wakeup(clock)
        self._changed = set(self.ends)
        properties = {"TAGS": TAG, **({"KEYS": "a-key"} if keyed else {})}
        self._records = {
            queue: np.frombuffer(
                make_record(
                    queue.topic, queue.queue_id, 0, bytes(body_bytes), properties=properties
                ),
                np.uint8,
            )
            for queue in self.ends
        }
        self.record_bytes = len(self._records[QueueId("T", 0)])

    def extend(self, queue: QueueId, messages: int) -> None:
        """Add so many messages, as a broker does."""
        self.ends[queue] += messages
        self._changed.add(queue)
        self._alarm.ring()

    async def poll(self) -> Sequence[HotQueue]:
        changed, self._changed = self._changed, set()
        return [self._hot(queue) for queue in sorted(changed)]

    async def poll_again(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        return [self._hot(queue) for queue in queues]

    async def wait(self, seconds: float) -> None:
        await self._alarm.wait(seconds)

    def queue(self, queue: QueueId) -> HotQueue | None:
        return self._hot(queue) if queue in self.ends else None

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        units = np.zeros(min(self.ends[queue] - start, messages_max), UNIT_DTYPE)
        units["size"] = self.record_bytes
        return units

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        return await one_by_one(self.references, wanted)

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        return [self._batch(queue, start, len(units)) for queue, start, units in wanted]

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        return None

    async def close(self) -> None:
        return None

    def _hot(self, queue: QueueId) -> HotQueue:
        end = QueueOffset(self.ends[queue])
        return HotQueue(queue, QueueOffset(0), end, HotQueueState.READY, "", None)

    def _batch(self, queue: QueueId, start: QueueOffset, count: int) -> MessageBatch:
        data = np.tile(self._records[queue], (count, 1))
        offsets = np.arange(start, start + count, dtype=">i8")
        data[:, QUEUE_OFFSET] = offsets.view(np.uint8).reshape(count, 8)
        now_ms = np.full(count, self._clock.now_ms(), ">i8")
        data[:, STORE_TIMESTAMP] = now_ms.view(np.uint8).reshape(count, 8)
        sizes = np.full(count, self.record_bytes, np.int64)
        return MessageBatch(
            first_offset=start,
            data=data.reshape(-1),
            starts=np.cumsum(sizes) - sizes,
            sizes=sizes,
            tag_hashes=np.full(count, tag_hash(TAG), np.int64),
            store_timestamps=now_ms.astype(np.int64),
        )
