"""A broker in a thread: it writes, rolls its files, and deletes old ones without asking anybody."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from tests.soak.ledger import Ledger
from tests.support.fake_broker import FakeBroker
from tests.support.patience import Patience, wait_until

TICK_S = 0.05
ROW_MESSAGES_MAX = 12
LARGE_BODY_BYTES = 150_000
KEPT_FILES = 2
"""CommitLog files that the broker keeps, the one that it writes included."""


@dataclass
class Written:
    """What the thread did so far."""

    bytes: int = 0
    files_deleted: int = 0
    files_deleted_untiered: int = 0
    """Files that went while only a pin kept messages which nobody had tiered."""


class BrokerThread:
    """Writes about `messages_per_s` messages a second to a few topics, in rows and bursts.

    A file goes when it is not one of the `KEPT_FILES` newest, and the follower has pinned it or
    has tiered all of it: a broker that deletes what no follower ever saw loses it for sure, and
    that is not what is looked at here.
    """

    def __init__(
        self,
        broker: FakeBroker,
        ledger: Ledger,
        committed: Callable[[], dict[QueueId, int]],
        *,
        messages_per_s: int,
        seed: int,
    ) -> None:
        self.broker = broker
        self.ledger = ledger
        self.written = Written()
        self.topics = ["Orders", "Payments"]
        """Topics that are written to; more may be added."""
        self.waits_for_a_follower = False
        """The oldest file must stay: it is not tiered, and nobody has pinned it."""
        self._committed = committed
        self._row_messages = max(1, int(messages_per_s * TICK_S))
        self._rng = random.Random(seed)
        self._lasts: dict[int, dict[QueueId, int]] = {}
        self._going = threading.Event()
        self._going.set()
        self._idle = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        """The thread's life, until `stop`."""
        while not self._stopped.is_set():
            if not self._going.is_set():
                self._idle.set()
                self._going.wait(TICK_S)
                continue
            started_s = time.monotonic()
            self._write(self._row_messages)
            self._delete_old_files()
            self._stopped.wait(max(0.0, started_s + TICK_S - time.monotonic()))
        self._idle.set()

    def pause(self) -> None:
        """Stop writing, and wait until the thread does."""
        self._idle.clear()
        self._going.clear()
        wait_until(
            self._idle.is_set, Patience("the writer does not pause", marks=self._bytes_written)
        )

    def _bytes_written(self) -> int:
        return self.written.bytes

    def go_on(self) -> None:
        """Write again."""
        self._going.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def newest_is_pinned(self) -> bool:
        """Whether the follower has a link to the file that is being written."""
        path = self.broker.log_path(self.broker.position)
        return path.exists() and path.stat().st_nlink > 1

    def oldest(self) -> str:
        """The oldest file, whether it is pinned, and what of it is not tiered."""
        base = self.broker.min_position
        committed = self._committed()
        untiered = {
            str(queue): (committed.get(queue, 0), last + 1)
            for queue, last in self._lasts.get(base, {}).items()
            if committed.get(queue, 0) <= last
        }
        links = self.broker.log_path(base).stat().st_nlink
        return f"{base} of [.., {self.broker.position}) has {links} links, untiered {untiered}"

    def _write(self, messages: int) -> None:
        rng = self._rng
        if rng.random() < 0.02:
            messages *= 10
        while messages > 0:
            queue = QueueId(rng.choice(self.topics), rng.randrange(3))
            count = rng.randint(1, ROW_MESSAGES_MAX)
            begin = self.broker.next_offsets.get(queue, 0)
            if rng.random() < 0.005:
                body = rng.randbytes(rng.randrange(LARGE_BODY_BYTES))
                self.broker.put(*_names(queue), body, tags="Large", keys=f"key-{begin}")
            elif rng.random() < 0.3:
                for number in range(count):
                    body = rng.randbytes(rng.randrange(400))
                    self.broker.put(*_names(queue), body, tags="TagA", keys=f"k-{begin + number}")
            else:
                bodies = [rng.randbytes(200) for _ in range(count)]
                self.broker.put_many(*_names(queue), bodies, tags=rng.choice(["", "TagB"]))
            self._enter(queue, begin)
            messages -= count

    def _enter(self, queue: QueueId, begin: int) -> None:
        """Read back what the files hold, and keep its digests."""
        records: list[memoryview] = []
        for offset in range(begin, self.broker.next_offsets[queue]):
            unit = self._unit(queue, offset)
            path = self.broker.log_path(unit.position)
            with path.open("rb") as log:
                log.seek(unit.position % self.broker.commit_log_bytes)
                records.append(memoryview(log.read(unit.size)))
            self._lasts.setdefault(int(path.name), {})[queue] = offset
            self.written.bytes += unit.size
        self.ledger.add(queue, records)

    def _unit(self, queue: QueueId, offset: int) -> ConsumeQueueUnit:
        size = self.broker.consume_queue_bytes
        file = self.broker.queue_files(queue)[-1]
        first = int(file.name) // UNIT_BYTES
        if offset < first:
            file = self.broker.queue_files(queue)[-2]
        with file.open("rb") as units:
            units.seek(offset * UNIT_BYTES % size)
            return ConsumeQueueUnit(*ConsumeQueueUnit.LAYOUT.unpack(units.read(UNIT_BYTES)))

    def _delete_old_files(self) -> None:
        broker = self.broker
        while broker.position - broker.min_position > KEPT_FILES * broker.commit_log_bytes:
            base = broker.min_position
            committed = self._committed()
            lasts = self._lasts.get(base, {})
            is_tiered = all(committed.get(queue, 0) > last for queue, last in lasts.items())
            is_pinned = broker.log_path(base).stat().st_nlink > 1
            self.waits_for_a_follower = not (is_tiered or is_pinned)
            if self.waits_for_a_follower:
                return
            broker.delete_oldest_file()
            self._lasts.pop(base, None)
            self.written.files_deleted += 1
            self.written.files_deleted_untiered += not is_tiered


def _names(queue: QueueId) -> tuple[str, int]:
    return queue.topic, queue.queue_id
