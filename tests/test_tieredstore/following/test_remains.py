"""What waits of deleted queues is read from pinned files, whatever happens in between."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState
from dispatcher.topic_filter import TopicFilter
from provider.ranges import QueueOffset
from tests.support.fake_broker import FakeBroker
from tieredstore.following.hot_log import StoreScan
from tieredstore.following.options import HotLogOptions

A0, B0 = QueueId("A", 0), QueueId("B", 0)
QUEUES = [A0, B0]


class NothingIsLost(RuleBasedStateMachine):
    """Each message that a look showed stays readable until it is released, with its own record.

    Queues are deleted and made again, the broker deletes its files, and the process starts anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory()
        root = Path(self._directory.name)
        self.broker = FakeBroker(root / "store", commit_log_bytes=2048, consume_queue_bytes=100)
        self.now_s = 0.0
        self.places: dict[QueueId, list[int]] = {queue: [] for queue in QUEUES}
        """Where each message of the queue lies that has the name now."""
        self.waiting: dict[QueueId, list[int]] = {}
        """Where the messages lie of a deleted queue of which something waits, as far as shown."""
        self.shown: dict[QueueId, list[int]] = {queue: [] for queue in QUEUES}
        """Those of the queue that the last look showed."""
        self.released: dict[QueueId, int] = dict.fromkeys(QUEUES, 0)
        self.log_seen = 0
        """Where the CommitLog ended in the last look."""
        self.broker.put("C", 0)
        self.scan = self._open()
        self.look()

    def _open(self) -> StoreScan:
        pins = str(self.broker.directory.parent / "pins")
        options = HotLogOptions(pin_path=pins, scan_s_min=0.0)
        return StoreScan(self.broker.directory, options, TopicFilter("C", "b"))

    @rule(queue=st.sampled_from(QUEUES), messages=st.integers(1, 9), length=st.integers(0, 300))
    def write(self, queue: QueueId, messages: int, length: int) -> None:
        for _ in range(messages):
            offset = self.broker.put(queue.topic, queue.queue_id, bytes(length))
            unit = self.broker.unit(queue.topic, queue.queue_id, offset)
            self.places[queue].append(unit.position)

    @rule(queue=st.sampled_from(QUEUES))
    def delete(self, queue: QueueId) -> None:
        """Of queues that were looked at since they were made: others come and go unseen."""
        is_known = self.shown[queue] and self.shown[queue] == self.places[queue]
        if is_known and queue not in self.waiting:
            self.broker.delete_topics(queue.topic)
            self.waiting[queue] = self.places[queue]
            self.places[queue] = []

    @rule()
    def delete_records(self) -> None:
        """Of files that a look saw: no pin can keep what comes and goes unseen."""
        if self.broker.min_position + self.broker.commit_log_bytes <= self.log_seen:
            self.broker.delete_oldest_file()

    @rule()
    def look(self) -> None:
        for _ in range(2):  # what grew is seen in the first, and its directories in the second
            self.now_s += 100.0
            self.scan.poll(self.now_s)
            self.scan.check()
        self.log_seen = self.broker.position
        for queue in QUEUES:
            seen = self.scan.queues.get(queue)
            if seen is None:
                assert not self.waiting.get(queue), queue
                continue
            if queue in self.waiting and self.released[queue] >= len(self.waiting[queue]):
                del self.waiting[queue]
            self.shown[queue] = list(self.waiting.get(queue) or self.places[queue])
            assert seen.state is HotQueueState.READY, seen
            if self.released[queue] < len(self.shown[queue]):
                assert seen.min_offset <= self.released[queue], seen
                assert seen.max_offset == len(self.shown[queue]), seen

    @rule(queue=st.sampled_from(QUEUES), share=st.floats(0, 1))
    def read(self, queue: QueueId, share: float) -> None:
        """All that waits; and a part of it is tiered."""
        self.look()
        seen, at = self.scan.queues.get(queue), self.released[queue]
        if seen is None:
            return
        low = at = max(at, seen.min_offset)
        while at < seen.max_offset:
            units = self.scan.references(queue, QueueOffset(at), 4)
            places = units["position"].tolist()
            assert places == self.shown[queue][at : at + len(places)], (queue, at)
            at += len(places)
        self.released[queue] = low + int(share * (at - low))
        self.scan.release(queue, QueueOffset(self.released[queue]))

    @rule()
    def restart(self) -> None:
        self.look()
        self.scan.close()
        self.scan = self._open()
        self.look()
        for queue in QUEUES:
            self.scan.release(queue, QueueOffset(self.released[queue]))

    def teardown(self) -> None:
        self.scan.close()
        self._directory.cleanup()


TestNothingIsLost = NothingIsLost.TestCase
TestNothingIsLost.settings = settings(max_examples=20, stateful_step_count=25)
