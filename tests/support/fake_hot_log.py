"""A hot log in memory, with RocketMQ's records of messages that have no topic."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.message import StoredMessage
from container.record.unit import UNIT_DTYPE, Units
from dispatcher.ports import DeletedQueue, HotQueue, HotQueueState, Wanted, WantedUnits
from dispatcher.work import Wakeup
from provider.clock import Clock
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.ranges import QueueOffset

STORE_TIMESTAMP = slice(56, 64)


def fake_record(offset: int, body: bytes, *, timestamp: int = 0, salt: int = 0) -> bytes:
    """A record of queue 0 with a physical offset of 0; another one for another `salt`."""
    message = StoredMessage.compose(
        "", 0, offset, body=body, store_timestamp=timestamp, prepared_transaction_offset=salt
    )
    return message.encode()


async def one_by_one(
    references: Callable[..., Awaitable[Units]], wanted: Iterable[WantedUnits]
) -> Sequence[Units | StoreError]:
    """`HotLog.references_of_queues` of a log that can only give those of one queue."""
    answers: list[Units | StoreError] = []
    for queue, start, messages_max in wanted:
        try:
            answers.append(await references(queue, start, messages_max=messages_max))
        except StoreError as error:
            answers.append(error)
    return answers


@dataclass
class FakeQueue:
    """One queue's messages from offset 0 on; those below `min_offset` were deleted."""

    records: list[bytes] = field(default_factory=list)
    min_offset: int = 0
    stale_min: int = 0
    """What looks take for the first message until one that takes nothing from earlier ones."""
    state: HotQueueState = HotQueueState.READY
    detail: str = ""
    damaged_offset: int | None = None
    error: StoreError | None = None
    """Answered in place of records while set."""
    deleted: DeletedQueue | None = None


class FakeHotLog:
    """What `HotLog` promises, with nothing behind it; `calls` counts requests by name."""

    def __init__(self, clock: Clock, *, batch_messages_max: int = 1 << 30) -> None:
        self.queues: dict[QueueId, FakeQueue] = {}
        self.calls: Counter[str] = Counter()
        self.released: dict[QueueId, int] = {}
        self.poll_error: StoreError | None = None
        self.look_error: StoreError | None = None
        """Raised by a look anew while set."""
        self._seen: dict[QueueId, HotQueue] = {}
        self._clock = clock
        self._alarm = Wakeup(clock)
        self._batch_messages_max = batch_messages_max
        self._salt = 0

    def append(self, queue: QueueId, *bodies: bytes) -> None:
        """Add messages, as a broker does; wakes whoever waits."""
        records = self.queues.setdefault(queue, FakeQueue()).records
        for body in bodies:
            self._salt += 1
            now_ms = self._clock.now_ms()
            records.append(fake_record(len(records), body, timestamp=now_ms, salt=self._salt))
        self._alarm.ring()

    def delete_below(self, queue: QueueId, offset: int) -> None:
        """Delete old messages, as a broker does, without asking."""
        here = self.queues[queue]
        here.min_offset = max(here.min_offset, min(offset, len(here.records)))

    def delete_queue(self, queue: QueueId) -> None:
        """The broker deletes the topic, and nothing of it is pinned."""
        here, end = self.queues[queue], QueueOffset(len(self.queues[queue].records))
        here.deleted = DeletedQueue(QueueOffset(here.min_offset), end)
        here.min_offset = end
        self._alarm.ring()

    def make_again(self, queue: QueueId, messages: int) -> None:
        """A new topic has its name, and so many messages; only those at the end and above show."""
        here = self.queues[queue]
        assert here.deleted is not None, "nothing was deleted"
        here.deleted = replace(here.deleted, is_made_again=True)
        end = max(here.deleted.end, messages)
        self.append(queue, *[b"new"] * (end - len(here.records)))

    def lose_tail(self, queue: QueueId, count: int) -> None:
        """A power failure: the newest messages never were; only while nobody has it open."""
        del self.queues[queue].records[-count:]

    def reopened(self) -> "FakeHotLog":
        """The same messages for another process: its first poll returns everything."""
        other = FakeHotLog(self._clock, batch_messages_max=self._batch_messages_max)
        other.queues, other._salt = self.queues, self._salt + 1_000_000
        return other

    async def poll(self) -> Sequence[HotQueue]:
        self.calls["poll"] += 1
        if self.poll_error is not None:
            raise self.poll_error
        changed: list[HotQueue] = []
        for name in self.queues:
            now = self._now(name)
            if self._seen.get(name) != now:
                self._seen[name] = now
                changed.append(now)
        return changed

    def _now(self, name: QueueId) -> HotQueue:
        queue = self.queues[name]
        low, high = max(queue.min_offset, queue.stale_min), len(queue.records)
        return HotQueue(
            name, QueueOffset(low), QueueOffset(high), queue.state, queue.detail, queue.deleted
        )

    async def poll_again(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        self.calls["poll_again"] += 1
        if self.look_error is not None:
            raise self.look_error
        for name in queues:
            self.queues[name].stale_min = 0
            self._seen[name] = self._now(name)
        return [self._seen[name] for name in queues]

    async def wait(self, seconds: float) -> None:
        await self._alarm.wait(seconds)

    def queue(self, queue: QueueId) -> HotQueue | None:
        return self._seen.get(queue)

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        self.calls["references"] += 1
        here = self.queues[queue]
        end = min(len(here.records), start + messages_max)
        if not here.min_offset <= start < end:
            raise OutOfRange("deleted meanwhile", str(queue), start)
        units = np.zeros(end - start, UNIT_DTYPE)
        units["size"] = [len(record) for record in here.records[start:end]]
        return units

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        return await one_by_one(self.references, wanted)

    def records(self, queue: QueueId, start: QueueOffset, references: Units) -> MessageBatch:
        """What one queue of a round answers; raises what it answers in place of a batch."""
        self.calls["records"] += 1
        here = self.queues[queue]
        if here.error is not None:
            raise here.error
        if start < here.min_offset:
            raise OutOfRange("deleted meanwhile", str(queue), start)
        end = start + min(len(references), self._batch_messages_max)
        if here.damaged_offset is not None:
            end = min(end, here.damaged_offset)
            if end <= start:
                raise Corrupt("the record is not one", str(queue), start)
        records = here.records[start:end]
        sizes = np.array([len(record) for record in records], np.int64)
        times = [int.from_bytes(record[STORE_TIMESTAMP]) for record in records]
        return MessageBatch(
            first_offset=start,
            data=np.frombuffer(bytearray(b"".join(records)), np.uint8),
            starts=np.cumsum(sizes) - sizes,
            sizes=sizes,
            tag_hashes=np.zeros(len(sizes), np.int64),
            store_timestamps=np.array(times, np.int64),
        )

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        self.calls["records_of_round"] += 1
        answers: list[MessageBatch | StoreError] = []
        for item in wanted:
            try:
                answers.append(self.records(*item))
            except StoreError as error:
                answers.append(error)
        return answers

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        assert offset >= self.released.get(queue, 0), "a release goes back"
        self.released[queue] = offset

    async def close(self) -> None:
        return None
