"""Records that say a wrong queue or offset, and files that are missing, where the log is all."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState
from dispatcher.topic_filter import TopicFilter
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, follow, poll_later
from tests.support.log_alone import A0, A1, B0, broker, clock, ends, logs, resumed, rocks, state
from tests.support.without_queues import hide_queues
from tieredstore.following.hot_log import RocketMqHotLog, StoreScan
from tieredstore.following.options import HotLogOptions

__all__ = ["broker", "clock", "logs", "rocks"]
QUEUES = [QueueId("A", number) for number in range(3)]
QUEUE_ID_AT, QUEUE_OFFSET_AT = 12, 20


def fill(broker: FakeBroker, start: int, end: int) -> None:
    """Messages `[start, end)` of two queues, one after the other."""
    for number in range(start, end):
        broker.put("A", 0, b"a%d" % number)
        broker.put("A", 1, b"b%d" % number)


def put_offset(broker: FakeBroker, offset: int, said: int) -> None:
    place = broker.unit("A", 0, offset).position + QUEUE_OFFSET_AT
    broker.damage(place, said.to_bytes(8, "big"))


@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("said", [0, 3, 7, 12, 1 << 40])
async def test_a_damaged_offset_holds_its_queue_at_its_message(
    rocks: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    said: int,
    *,
    is_followed: bool,
) -> None:
    """It neither ends the queue nor begins another one; and a later start says the same."""
    fill(rocks, 0, 8)
    log = await follow(rocks, clock, logs)
    if is_followed:
        await log.poll()
    fill(rocks, 8, 9)
    put_offset(rocks, 8, said)
    for end in (9, 10, 11, 12):
        fill(rocks, rocks.next_offsets[A0], end)
        await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.min_offset, seen.max_offset, seen.state) == (0, 8, HotQueueState.DAMAGED)
    assert "none of the offsets from 8 on" in seen.detail
    assert seen.deleted is None
    (finding,) = [one for one in log.statistics.findings if "is damaged" in one]
    assert f"says that it is the message of A/0 at offset {said}" in finding
    assert (ends(log, A1), state(log, A1)) == ((0, 12), HotQueueState.READY)
    await log.release(A0, QueueOffset(8))
    await log.release(A1, QueueOffset(12))
    again = await resumed(rocks, clock, logs, await log.remembered())
    assert (ends(again, A0)[1], state(again, A0)) == (8, HotQueueState.DAMAGED)


@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("offset", [0, 1, 5, 12])
async def test_a_damaged_queue_id_stops_no_other_queue(
    rocks: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    offset: int,
    *,
    is_followed: bool,
) -> None:
    """The record of A/1 that says A/0 comes where A/0 has come to 10."""
    for number in range(10):
        rocks.put("A", 0, b"a%d" % number)
    rocks.next_offsets[A1] = offset
    log = await follow(rocks, clock, logs)
    if is_followed:
        await log.poll()
    rocks.put("A", 1, b"lost")
    rocks.damage(rocks.unit("A", 1, offset).position + QUEUE_ID_AT, bytes(4))
    await poll_later(log, clock)
    for number in (10, 11):
        rocks.put("A", 0, b"a%d" % number)
        await poll_later(log, clock)
    assert (ends(log, A0), state(log, A0)) == ((0, 12), HotQueueState.READY)
    assert await bodies(log, A0, 0, 12) == 12
    (finding,) = [one for one in log.statistics.findings if "is damaged" in one]
    assert f"at offset {offset}, where the queue had come to 10 and went on at 10" in finding


async def test_a_record_that_falls_back_is_named_until_the_next_tells(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(rocks, 0, 8)
    log = await follow(rocks, clock, logs)
    await log.poll()
    rocks.next_offsets[A0] = 5
    rocks.put("A", 0)
    await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.max_offset, seen.state) == (8, HotQueueState.DAMAGED)
    assert "the queue's next record tells" in seen.detail
    rocks.put("A", 0)
    await poll_later(log, clock)
    assert "lost messages; what follows is compared" in getattr(log.queue(A0), "detail", "")


async def test_a_queue_is_made_again_at_its_second_message(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """One at offset 0 may be damaged; and as none of it would be tiered, nothing waits."""
    fill(rocks, 0, 3)
    log = await follow(rocks, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(3))
    rocks.next_offsets[A0] = 0
    for end in range(1, 6):
        rocks.put("A", 0, b"again%d" % end)
        await poll_later(log, clock)
        seen = log.queue(A0)
        assert seen is not None
        assert seen.state is HotQueueState.READY
        assert (seen.deleted is None) == (end == 1)
    await poll_later(log, clock)
    assert ends(log, A0) == (3, 5)
    assert await bodies(log, A0, 3, 5) == 2


async def test_one_message_behind_a_hole_is_readable_once_the_hole_is_deleted(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(3):
        rocks.put("A", 0, bytes(100))
    bad = rocks.unit("A", 0, 2)
    while rocks.position < rocks.commit_log_bytes:
        rocks.put("B", 0, bytes(300))
    rocks.damage(bad.position + 84, b"\x7f\xff\xff\xff")
    rocks.put("A", 0)
    rocks.put("B", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    assert (ends(log, A0), state(log, A0)) == ((0, 2), HotQueueState.DAMAGED)
    rocks.log_path(0).unlink()
    await poll_later(log, clock)
    assert (ends(log, A0), state(log, A0)) == ((3, 4), HotQueueState.READY)
    assert await bodies(log, A0, 3, 4) == 1


@pytest.mark.parametrize("messages", [1, 2])
async def test_what_is_deleted_before_it_is_read_is_a_gap_and_no_damage(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], messages: int
) -> None:
    fill(rocks, 0, 3)
    log = await follow(rocks, clock, logs)
    await log.poll()
    while rocks.position < 2 * rocks.commit_log_bytes:
        fill(rocks, rocks.next_offsets[A0], rocks.next_offsets[A0] + 1)
    first = rocks.next_offsets[A0]
    fill(rocks, first, first + messages)
    places = [rocks.unit("A", 0, number).position for number in range(first + messages)]
    rocks.delete_oldest_file()
    low = next(n for n, place in enumerate(places) if place >= rocks.min_position)
    for _ in range(2):
        await poll_later(log, clock)
    assert (ends(log, A0), state(log, A0)) == ((low, first + messages), HotQueueState.READY)


async def test_what_a_missing_file_held_is_read_by_a_start_after_it_is_back(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], tmp_path: Path
) -> None:
    """Also of queues of which nothing shows that they had a message there."""
    rocks.put("A", 0)
    for _ in range(20):
        rocks.put("B", 0, bytes(300))
    rocks.put("A", 0, b"in the missing file")
    place = rocks.unit("A", 0, 1).position
    for _ in range(40):
        rocks.put("B", 0, bytes(300))
    path = rocks.log_path(place)
    path.rename(tmp_path / "away")
    log = await follow(rocks, clock, logs)
    await log.poll()
    assert any("is missing amid" in finding for finding in log.statistics.findings)
    await log.release(A0, QueueOffset(1))
    await log.release(B0, QueueOffset(ends(log, B0)[1]))
    said = await log.remembered()
    assert said is not None
    (tmp_path / "away").rename(path)
    await poll_later(log, clock)
    assert any("is back amid" in finding for finding in log.statistics.findings)
    again = await resumed(rocks, clock, logs, await log.remembered())
    assert ends(again, A0)[1] == 2
    assert ends(again, B0)[1] == 60
    assert state(again, B0) is HotQueueState.READY


async def test_a_hole_is_let_go_once_the_broker_deletes_files_behind_it(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """Else every start would read a longer part of the log."""
    for _ in range(60):
        rocks.put("B", 0, bytes(300))
    rocks.log_path(5000).unlink()
    log = await follow(rocks, clock, logs)
    await log.poll()
    rocks.log_path(0).unlink()
    await poll_later(log, clock)
    await log.release(B0, QueueOffset(60))
    said = await log.remembered()
    assert said is not None
    assert said.position == rocks.position


class KeptBesideFresh(RuleBasedStateMachine):
    """A store that is followed over many looks shows what one look at all of it shows.

    Not of a queue that begins amid damaged records: a look that begins there cannot tell. Nor if
    two damaged records in a row agree.
    """

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory()
        self.broker = FakeBroker(Path(self._directory.name) / "store", commit_log_bytes=2048)
        hide_queues(self.broker.directory)
        self.now_s = 0.0
        self.kept = self._open()
        self.places: dict[QueueId, list[int]] = {queue: [] for queue in QUEUES}
        """Where each message lies."""
        self.unread: list[int] = []
        self.damaged: set[int] = set()
        self.released: dict[QueueId, int] = {}
        self.write_in_turn(3)
        self._look(self.kept)
        self.unread.clear()

    def _open(self) -> StoreScan:
        options = HotLogOptions(queues_in_rocksdb=True)
        return StoreScan(self.broker.directory, options, TopicFilter("C", "b"))

    def _look(self, scan: StoreScan) -> None:
        self.now_s += 2.0
        scan.poll(self.now_s)
        scan.check()

    @rule(queue=st.sampled_from(QUEUES), messages=st.integers(1, 5), length=st.integers(0, 300))
    def write(self, queue: QueueId, messages: int, length: int) -> None:
        for _ in range(messages):
            offset = self.broker.put(queue.topic, queue.queue_id, bytes(length))
            place = self.broker.unit(queue.topic, queue.queue_id, offset).position
            self.places[queue].append(place)
            self.unread.append(place)

    @rule(messages=st.integers(1, 3))
    def write_in_turn(self, messages: int) -> None:
        for _ in range(messages):
            for queue in QUEUES:
                self.write(queue, 1, 10)

    def _damageable(self) -> list[int]:
        """What was not read yet, and has two sound messages of each queue before it."""
        last = max(self.damaged, default=-1)
        sound = [[place for place in places if place > last] for places in self.places.values()]
        if any(len(places) < 3 for places in sound):
            return []
        return [place for place in self.unread if place > max(places[1] for places in sound)]

    @precondition(lambda self: self._damageable())
    @rule(data=st.data(), field=st.sampled_from([QUEUE_ID_AT, QUEUE_OFFSET_AT]))
    def damage(self, data: st.DataObject, field: int) -> None:
        place = data.draw(st.sampled_from(self._damageable()))
        if field == QUEUE_ID_AT:
            self.broker.damage(place + field, data.draw(st.integers(0, 2)).to_bytes(4, "big"))
        else:
            said = data.draw(st.sampled_from([1, 2, 7, (1 << 40) + place]))
            self.broker.damage(place + field, said.to_bytes(8, "big"))
        self.damaged.add(place)

    @rule()
    def delete_records(self) -> None:
        broker = self.broker
        if broker.position - broker.min_position > 4 * broker.commit_log_bytes:
            broker.delete_oldest_file()

    @rule(queue=st.sampled_from(QUEUES), share=st.floats(0, 1))
    def release(self, queue: QueueId, share: float) -> None:
        seen = self.kept.queues.get(queue)
        if seen is not None:
            offset = int(seen.min_offset + share * (seen.max_offset - seen.min_offset))
            self.released[queue] = max(offset, self.released.get(queue, 0))
            self.kept.release(queue, QueueOffset(offset))

    @rule()
    def look(self) -> None:
        self._look(self.kept)
        self.unread.clear()
        fresh = self._open()
        self._look(fresh)
        for queue in QUEUES:
            if not self._begins_with_damage(queue):
                assert self._shown(self.kept, queue) == self._shown(fresh, queue), queue
        fresh.close()

    @rule()
    def restart(self) -> None:
        """What waits and what is damaged is known at once, from what was remembered."""
        self._look(self.kept)
        self.unread.clear()
        again = self._open()
        said = self.kept.remembered()
        assert said is not None
        again.resume(said)
        self._look(again)
        for queue, seen in self.kept.queues.items():
            waits = max(seen.min_offset, self.released.get(queue, 0)) < seen.max_offset
            if queue in self.places and waits and not self._begins_with_damage(queue):
                assert self._shown(again, queue)[1:] == self._shown(self.kept, queue)[1:], queue
        again.close()

    def _begins_with_damage(self, queue: QueueId) -> bool:
        low = self.broker.min_position
        second = [*[place for place in self.places[queue] if place >= low], low, low][1]
        return any(low <= place <= second for place in self.damaged)

    def _shown(self, scan: StoreScan, queue: QueueId) -> tuple[int, int, HotQueueState]:
        seen = scan.queues.get(queue)
        is_ready = seen is None or seen.state is HotQueueState.READY
        if seen is None or (is_ready and seen.min_offset == seen.max_offset):
            return 0, 0, HotQueueState.READY  # nothing of it is left, or was there
        return seen.min_offset, seen.max_offset, seen.state

    def teardown(self) -> None:
        self.kept.close()
        self._directory.cleanup()


TestKeptBesideFresh = KeptBesideFresh.TestCase
