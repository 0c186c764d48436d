"""How far below its ConsumeQueue files a queue can be read: floors that are kept over looks."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from container.names.queue_id import QueueId
from provider.ranges import QueueOffset
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker
from tieredstore.following.directory.layout import scan_run
from tieredstore.following.log.commit_log import CommitLogFiles, CommitLogTable, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.pinned_units import Floors, QueueNeed, first_needed

A0, B0 = QueueId("A", 0), QueueId("B", 0)

__all__ = ["broker"]  # a fixture


def table_now(broker: FakeBroker) -> CommitLogTable:
    return table_of(scan_run(broker.directory / "commitlog"), {})


@pytest.fixture
def files() -> Iterator[MappedFiles]:
    files = MappedFiles(8, 1 << 20)
    yield files
    files.close()


def test_a_file_that_grew_after_units_were_rebuilt_from_it_is_walked_again(
    broker: FakeBroker, files: MappedFiles
) -> None:
    broker.put_many("A", 0, [bytes(150)] * 3)
    floors = Floors(CommitLogFiles(files, table_now(broker)))
    assert floors.below({A0: (2, broker.unit("A", 0, 2).position)}) == {A0: 0}
    broker.put_many("A", 0, [bytes(150)] * 5)
    assert floors.below({A0: (7, broker.unit("A", 0, 7).position)}) == {A0: 0}
    assert len(floors.units(A0, QueueOffset(0), 7)) == 7


def test_a_file_that_grew_full_is_walked_again_when_units_above_it_went(
    broker: FakeBroker, files: MappedFiles
) -> None:
    """Else its last messages would be a gap, though the file is there."""
    broker.put_many("A", 0, [bytes(150)] * 3)
    log = CommitLogFiles(files, table_now(broker))
    floors = Floors(log)
    assert floors.below({A0: (2, broker.unit("A", 0, 2).position)}) == {A0: 0}
    broker.put_many("A", 0, [bytes(150)] * 50)
    log.table = table_now(broker)
    assert floors.below({A0: (52, broker.unit("A", 0, 52).position)}) == {A0: 0}


class FloorsBesideFresh(RuleBasedStateMachine):
    """Floors that are kept over looks find what others find that walk every file anew."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory()
        self.broker = FakeBroker(Path(self._directory.name), commit_log_bytes=2000)
        self.files = MappedFiles(8, 1 << 20)
        self.log = CommitLogFiles(self.files, table_now(self.broker))
        self.floors = Floors(self.log)
        self.firsts = {A0: 0, B0: 0}
        """The first offset of each queue's files."""

    @rule(queue=st.sampled_from([A0, B0]), messages=st.integers(1, 12))
    def write(self, queue: QueueId, messages: int) -> None:
        self.broker.put_many(queue.topic, queue.queue_id, [bytes(150)] * messages)

    @rule(queue=st.sampled_from([A0, B0]), messages=st.integers(1, 12))
    def delete_units(self, queue: QueueId, messages: int) -> None:
        end = self.broker.next_offsets.get(queue, 0)
        self.firsts[queue] = max(self.firsts[queue], min(self.firsts[queue] + messages, end - 1))

    @rule()
    def delete_records(self) -> None:
        broker = self.broker
        if broker.position - broker.min_position > 4 * broker.commit_log_bytes:
            broker.delete_oldest_file()

    @rule()
    def look(self) -> None:
        self.log.table = table_now(self.broker)
        units = {
            queue: (first, self.broker.unit(queue.topic, queue.queue_id, first))
            for queue, first in self.firsts.items()
            if first
        }
        low = self.log.table.min_position
        ends = {
            queue: (first, unit.position)
            for queue, (first, unit) in units.items()
            if unit.position > low
        }
        if ends:
            assert self.floors.below(ends) == Floors(self.log).below(ends)
            self.floors.check()

    def teardown(self) -> None:
        self.files.close()
        self._directory.cleanup()


TestFloorsBesideFresh = FloorsBesideFresh.TestCase


DONE = QueueNeed(is_known=True, has_end=True, end_position=900, next_position=None)
BEHIND = QueueNeed(is_known=True, has_end=True, end_position=900, next_position=300)
DAMAGED = QueueNeed(is_known=True, has_end=False, end_position=200, next_position=None)
NEVER_READ = QueueNeed(is_known=True, has_end=False, end_position=0, next_position=None)
UNREADABLE = QueueNeed(is_known=True, has_end=True, end_position=900, next_position=0)
NEW = QueueNeed(is_known=False, has_end=False, end_position=0, next_position=None)


@pytest.mark.parametrize(
    ("needs", "low"),
    [
        ([], 500),
        ([DONE], 500),
        ([DONE, BEHIND], 300),
        ([BEHIND, DAMAGED, DONE], 200),
        ([DONE, NEVER_READ], 0),
        ([DONE, UNREADABLE], 0),
        ([BEHIND, NEW], 0),
    ],
)
def test_the_first_byte_that_a_queue_may_need(needs: list[QueueNeed], low: int) -> None:
    assert first_needed(needs, 500) == low
    assert first_needed(reversed(needs), 500) == low


def test_nothing_is_released_beyond_what_all_queues_were_looked_for_in() -> None:
    assert first_needed([DONE], 100) == 100
    assert first_needed([DONE], -4096) == -4096
