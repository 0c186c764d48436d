"""A message store in use: producers, groups that read at different ages, and what each must see.

What a message holds follows from its queue and its offset, so nothing has to be remembered of what
was written: memory stays flat, and every byte that a group reads is compared.
"""

import asyncio
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from fetcher.result import FetchStatus
from tieredstore.config.effective import Config
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore

TOPICS = 4
QUEUES_OF_A_TOPIC = 16
QUEUES = [
    QueueId(f"Topic{topic}", queue_id)
    for topic in range(TOPICS)
    for queue_id in range(QUEUES_OF_A_TOPIC)
]
PRODUCERS = 8
GROUPS = 20
CALLS_S = 25
"""Calls of each producer in a second; every fourth puts a batch of up to 32 messages."""
BATCH_MAX = 32
BODY_BYTES_MAX = 2_000
RECORD_BYTES_MIN = 118
"""Of a record beside its body, with the shortest key."""
SEGMENT_BYTES = 64 << 10
TOPIC_BYTES_KEPT = 1 << 19
IDLE_S = 0.05
LATENCIES_KEPT = 20_000
WAITS = {FetchStatus.OFFSET_OVERFLOW_ONE, FetchStatus.NO_MATCHED_LOGIC_QUEUE}
EXPIRED = {FetchStatus.OFFSET_TOO_SMALL}


def body_of(queue: QueueId, offset: int) -> bytes:
    """The body of one message, of a length that its offset decides."""
    begin = f"{queue.topic}/{queue.queue_id}/{offset}:".encode()
    return begin.ljust((offset * 7919) % BODY_BYTES_MAX, b"%d" % (offset % 10))


def message_of(queue: QueueId, offset: int) -> NewMessage:
    """One message."""
    properties = {"KEYS": f"key-{offset}", "TAGS": f"Tag{offset % 3}"}
    return NewMessage(queue.topic, queue.queue_id, body_of(queue, offset), properties)


def new_store(root: Path) -> TieredMessageStore:
    """A store below `root` whose files are small, and of which much expires."""
    settings = {
        "brokerClusterName": "SoakCluster",
        "brokerName": "soak-store",
        "storePathRootDir": str(root / "store"),
        "tieredStoreFilePath": str(root / "tier"),
        "tieredStoreCommitLogMaxSize": SEGMENT_BYTES,
        "tieredStoreConsumeQueueMaxSize": 2_000,
        "tieredStoreGroupCommitTimeout": 200,
        "tieredStoreOpenFilesMax": 64,
        "tieredStoreJournalSnapshotCount": 100,
        "tieredStoreJournalGraceTime": 2_000,
        "tieredStoreDeleteFileEnable": True,
        "tieredStoreDeleteFileInterval": 1_000,
        "tieredStoreTopicReservedSize": TOPIC_BYTES_KEPT,
        "tieredStoreIndexFileMaxIndexNum": 20_000,
        "readAheadCacheSize": 8 << 20,
        "readAheadMessageSizeThreshold": 1 << 20,
        "tieredStoreShutdownTimeout": 600_000,
    }
    config = Config.load(settings=settings, environment={})
    local = LocalMessageStore(
        config.store_dir,
        options=HotWriteOptions(commit_log_bytes=1 << 20, consume_queue_bytes=20_000),
        retention=RetentionOptions(reserved_s=0, disk_clean_ratio=1e-9, files_max=1000),
        trim_interval_s=1.0,
    )
    return TieredMessageStore(local, local=local, config=config)


@dataclass
class Ends:
    """What was acknowledged: the offset after the last message of each queue, and the bytes."""

    offsets: dict[QueueId, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    topic_bytes: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def messages(self) -> int:
        """Of all queues."""
        return sum(self.offsets.values())


class Producer:
    """Puts messages into queues that are its own, one call after the other."""

    def __init__(self, store: TieredMessageStore, number: int, ends: Ends) -> None:
        self._store = store
        self._queues = QUEUES[number::PRODUCERS]
        self._rng = random.Random(number)
        self._ends = ends
        self.put_s: deque[float] = deque(maxlen=LATENCIES_KEPT)
        """Seconds of the latest calls of `put_message`."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Put messages at an even pace until `is_over`."""
        call = 0
        while not is_over():
            call += 1
            queue = self._rng.choice(self._queues)
            await self._put(queue, self._rng.randint(2, BATCH_MAX) if call % 4 == 0 else 1)
            await asyncio.sleep(self._rng.uniform(0, 2 / CALLS_S))

    async def _put(self, queue: QueueId, count: int) -> None:
        start = self._ends.offsets[queue]
        messages = [message_of(queue, start + number) for number in range(count)]
        if count == 1:
            started_s = time.perf_counter()
            appended = [await self._store.put_message(messages[0])]
            self.put_s.append(time.perf_counter() - started_s)
        else:
            appended = await self._store.put_messages(messages)
        offsets = [one.queue_offset for one in appended]
        assert offsets == list(range(start, start + count)), f"{queue}: {offsets} after {start}"
        self._ends.offsets[queue] = start + count
        sizes = sum(one.size for one in appended)
        known = self._ends.topic_bytes.get(queue.topic, 0)
        self._ends.topic_bytes[queue.topic] = known + sizes


@dataclass
class Group:
    """A consumer group: each message once, in order, or expired; never a hole."""

    name: str
    store: TieredMessageStore
    ends: Ends
    rng: random.Random
    offsets: dict[QueueId, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    messages: int = 0
    expired: int = 0
    passes: int = 1

    def begin_again(self, share: float) -> None:
        """Read on at this share of each queue: 0 is its first message, 1 its end."""
        self.offsets = {queue: int(end * share) for queue, end in self.ends.offsets.items()}
        self.passes += 1

    def behind(self) -> int:
        """Messages that were acknowledged, and that it has not seen."""
        return sum(end - self.offsets[queue] for queue, end in self.ends.offsets.items())

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Read every queue until `is_over`."""
        while not is_over():
            got = 0
            for queue in QUEUES:
                if self.offsets[queue] < self.ends.offsets[queue]:
                    got += await self.read(queue)
            await asyncio.sleep(0 if got else IDLE_S)

    async def read(self, queue: QueueId) -> int:
        """One call; how far it came."""
        at = self.offsets[queue]
        result = await self.store.get_message(
            self.name, *queue, at, messages_max=self.rng.randint(1, 64)
        )
        where = f"{self.name} at {at} of {queue}: {result.status.name}, next {result.next_offset}"
        where += f", [{result.min_offset}, {result.max_offset})"
        if result.status in EXPIRED:
            assert at < result.next_offset == result.min_offset, where
            self.expired += result.next_offset - at
        elif result.status is FetchStatus.FOUND:
            for offset, message in enumerate(result.messages, at):
                self._verify(queue, offset, message)
            assert result.next_offset == at + len(result.messages) > at, where
            self.messages += len(result.messages)
        else:
            assert result.status in WAITS, where
            assert result.next_offset == at, where
            assert self.ends.offsets[queue] == at, f"{where}: an acknowledged one is not there"
        self.offsets[queue] = result.next_offset
        return result.next_offset - at

    def _verify(self, queue: QueueId, offset: int, message: StoredMessage) -> None:
        assert message.queue_offset == offset, f"{self.name}: {message.queue_offset} at {offset}"
        assert (message.topic, message.queue_id) == queue, f"{self.name}: {message!r} in {queue}"
        assert message.body == body_of(queue, offset), f"{self.name}: {queue} {offset} differs"


async def assert_no_more_expired_than_may(store: TieredMessageStore, ends: Ends) -> None:
    """Of each topic, the bytes that are to be kept are there, but for one segment."""
    least = {}
    for queue, end in ends.offsets.items():
        first = await store.min_offset(*queue)
        assert first <= end, f"{queue} begins at {first}, and ends at {end}"
        bodies = sum(len(body_of(queue, offset)) for offset in range(first, end))
        kept = bodies + RECORD_BYTES_MIN * (end - first)
        least[queue.topic] = least.get(queue.topic, 0) + kept
    for topic, kept in least.items():
        wanted = min(TOPIC_BYTES_KEPT, ends.topic_bytes.get(topic, 0))
        least_kept = wanted - SEGMENT_BYTES - BODY_BYTES_MAX  # a whole segment goes
        assert kept >= least_kept, f"{topic}: of {wanted} bytes {kept} are there"


def p99_us(producers: list[Producer]) -> float:
    """Of the latest calls of `put_message`, microseconds."""
    seconds = [second for producer in producers for second in producer.put_s]
    return 1e6 * statistics.quantiles(seconds, n=100)[98]
