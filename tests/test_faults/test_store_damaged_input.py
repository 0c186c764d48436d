"""A broker's directory in every kind of disorder, through the follower into a tier on disk.

The queue that is concerned stops with a sentence or gets a gap; the others are complete and go
on; nothing hangs, and nothing is raised that is not documented. Messages of the queue `Victim/0`
fill one CommitLog file and part of another, so that damage to that file is nobody else's.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit
from container.tier import Tier, TierIdentity
from container.tier_view import TierReader
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from dispatcher.ports import HALTED, QueueState
from dispatcher.statistics import DispatchStatistics
from provider.clock import SystemClock
from provider.posix.store import PosixStore
from provider.stores.in_place_segments import InPlaceDriver
from tests.support.fake_broker import FakeBroker
from tests.support.followed import CheckedHotLog
from tests.support.store_reader import findings, queue_contents
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions

VICTIM = QueueId("Victim", 0)
GOOD = [QueueId("Good", 0), QueueId("Good", 1), QueueId("Other", 0)]
FILE_BYTES = 8192
HANGS_AFTER_S = 20.0


@dataclass
class World:
    """A store with three good queues and a victim, whose messages fill the second file."""

    root: Path
    broker: FakeBroker
    pins: bool = False
    lives: int = 0
    after: Callable[[], object] | None = None
    """Done to the directory while a dispatcher has tiered all, before more is tiered."""

    @property
    def victim_file(self) -> Path:
        return self.broker.log_path(FILE_BYTES)

    @property
    def victim_units(self) -> Path:
        return self.broker.queue_files(VICTIM)[1]

    def write(self, queue: QueueId, count: int = 1) -> None:
        for _ in range(count):
            self.broker.put(queue.topic, queue.queue_id, bytes(300), tags="TagA")

    def fill_file(self, *queues: QueueId) -> None:
        """Write to the queues in turn until the CommitLog file is nearly full."""
        base = self.broker.position // FILE_BYTES
        turn = 0
        while self.broker.position // FILE_BYTES == base:
            self.write(queues[turn % len(queues)])
            turn += 1

    async def tier(self) -> DispatchStatistics:
        """One life: tier what there is; then change the directory, write more, and tier again."""
        self.lives += 1
        async with asyncio.timeout(HANGS_AFTER_S):
            store, clock = PosixStore(self.root / "tier"), SystemClock()
            hot = await CheckedHotLog.open(
                self.broker.directory,
                options=HotLogOptions(
                    poll_s_max=0.01,
                    scan_s_min=0.0,
                    scan_s_max=0.2,  # else the slower a machine, the later what went is missed
                    settle_s_max=0.05,
                    pin_path=str(self.root / "pins") if self.pins else "",
                ),
                clock=clock,
                cluster="Cluster",
                broker="broker-a",
            )
            try:
                return await self._tier(store, hot, clock)
            finally:
                await hot.close()
                await store.close()

    async def _tier(
        self, store: PosixStore, hot: RocketMqHotLog, clock: SystemClock
    ) -> DispatchStatistics:
        tier = await Tier.own(
            store,
            TierIdentity("Cluster", "broker-a", f"life {self.lives}"),
            segments=InPlaceDriver(store, clock=clock, takeover_wait_s_max=0),
            clock=clock,
            rng=Random(self.lives),
        )
        options = DispatchOptions(batch_messages_max=8, poll_s_max=0.02, backoff_s_max=0.5)
        dispatcher = TieredDispatcher(hot, tier, options=options, clock=clock)
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(tier.run())
            result = await dispatcher.drain(patience_s=5.0)
            if self.after is not None:
                self.after()
                for queue in GOOD:
                    self.write(queue, 3)
                hot.poll_all()  # as a follower does before it drains
                result = await dispatcher.drain(patience_s=5.0)
            await dispatcher.close()
            await tier.close()
            worker.cancel()
        return result

    async def published(self, queue: QueueId) -> tuple[int, int, tuple[Gap, ...]]:
        """Messages, next offset, and gaps of a queue in the tier."""
        store = PosixStore(self.root / "tier")
        try:
            reader = await TierReader.open(store, verify=True)
            if reader.queue(queue) is None:
                return 0, 0, ()
            seen = await queue_contents(reader, queue)
            return len(seen.offsets), seen.record.next_offset, seen.record.gaps
        finally:
            await store.close()

    async def assert_good_ones_are_complete(self) -> None:
        for queue in GOOD:
            written = self.broker.next_offsets[queue]
            assert await self.published(queue) == (written, written, ()), queue
        store = PosixStore(self.root / "tier")
        try:
            assert await findings(store) == []
        finally:
            await store.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=FILE_BYTES, consume_queue_bytes=200)
    world = World(tmp_path, broker)
    for queue in [*GOOD, VICTIM] * 4:
        world.write(queue)
    world.fill_file(VICTIM)  # the rest of the first file
    world.fill_file(VICTIM)  # the second file
    world.fill_file(*GOOD)
    world.fill_file(*GOOD, VICTIM)
    assert len(broker.queue_files(VICTIM)) >= 3
    return world


def victim(result: DispatchStatistics) -> tuple[QueueState, str, int]:
    (one,) = (queue for queue in result.queues if queue.queue == VICTIM)
    return one.state, one.reason, one.commit_offset


def flip(path: Path, at: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0xFF for byte in old))


def first_in_file(world: World) -> tuple[int, ConsumeQueueUnit]:
    """The first message of the victim that lies wholly in the second file."""
    for offset in range(world.broker.next_offsets[VICTIM]):
        unit = world.broker.unit("Victim", 0, offset)
        if unit.position >= FILE_BYTES:
            return offset, unit
    raise AssertionError("the victim has nothing there")


def in_record(at: int, count: int = 1) -> Callable[[World], None]:
    """Damage bytes of the victim's fourth record in its file."""

    def damage(world: World) -> None:
        offset, _ = first_in_file(world)
        unit = world.broker.unit("Victim", 0, offset + 3)
        flip(world.broker.log_path(unit.position), unit.position % FILE_BYTES + at, count)

    return damage


def with_unit(change: Callable[[World, ConsumeQueueUnit], bytes]) -> Callable[[World], None]:
    """Replace the victim's fourth unit of its file."""

    def damage(world: World) -> None:
        offset, _ = first_in_file(world)
        raw = change(world, world.broker.unit("Victim", 0, offset + 3))
        world.broker._write_queue(VICTIM, offset + 3, raw)

    return damage


def unit(position: int, size: int, tags: int = 0) -> bytes:
    return ConsumeQueueUnit(position, size, tags).encode()


def other_record(world: World) -> bytes:
    return world.broker.unit("Good", 0, 2).encode()


DAMAGES: dict[str, Callable[[World], object]] = {
    "the log file is cut in half": lambda w: os.truncate(w.victim_file, FILE_BYTES // 2),
    "the log file is cut to a few bytes": lambda w: os.truncate(w.victim_file, 5),
    "the log file is empty": lambda w: os.truncate(w.victim_file, 0),
    "the log file is missing": lambda w: w.victim_file.unlink(),
    "the log file is zeros": lambda w: w.victim_file.write_bytes(bytes(FILE_BYTES)),
    "the log file is noise": lambda w: w.victim_file.write_bytes(Random(1).randbytes(FILE_BYTES)),
    "the unit file is cut in half": lambda w: os.truncate(w.victim_units, 100),
    "the unit file is cut in a unit": lambda w: os.truncate(w.victim_units, 107),
    "the unit file is noise": lambda w: w.victim_units.write_bytes(Random(2).randbytes(200)),
    "a unit is zero": with_unit(lambda w, u: bytes(20)),
    "a unit is torn": with_unit(lambda w, u: unit(u.position, u.size)[:10] + bytes(10)),
    "a unit's size is too large": with_unit(lambda w, u: unit(u.position, u.size + 1)),
    "a unit's size is too small": with_unit(lambda w, u: unit(u.position, u.size - 1)),
    "a unit's size is zero": with_unit(lambda w, u: unit(u.position, 0)),
    "a unit's size is negative": with_unit(lambda w, u: unit(u.position, -1)),
    "a unit's size is huge": with_unit(lambda w, u: unit(u.position, 2**31 - 1)),
    "a unit points nowhere": with_unit(lambda w, u: unit(2**62, u.size)),
    "a unit points before the log": with_unit(lambda w, u: unit(-1, u.size)),
    "a unit points at another queue's record": with_unit(lambda w, u: other_record(w)),
    "a unit points into a record": with_unit(lambda w, u: unit(u.position + 4, u.size)),
    "a record's size is wrong": in_record(3),
    "a record's size is huge": in_record(0, 4),
    "a record's magic is wrong": in_record(4, 4),
    "a record's queue is wrong": in_record(15),
    "a record's offset is wrong": in_record(27),
    "a record's position is wrong": in_record(35),
    "a record's flags are wrong": in_record(36, 4),
    "a record's body length is wrong": in_record(84, 4),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda name: name.replace(" ", "-"))
async def test_a_damaged_queue_stops_with_a_sentence_and_the_others_are_complete(
    damage: str, world: World
) -> None:
    DAMAGES[damage](world)
    result = await world.tier()
    await world.assert_good_ones_are_complete()
    state, reason, commit_offset = victim(result)
    messages, next_offset, gaps = await world.published(VICTIM)
    assert next_offset == commit_offset
    if commit_offset == world.broker.next_offsets[VICTIM]:
        assert gaps, "it is whole, though it is not"
        assert all(gap.reason for gap in gaps)
    else:
        assert state in HALTED, (state, reason, commit_offset)
        assert len(reason) > 20, reason
    assert messages < world.broker.next_offsets[VICTIM]
    again = await world.tier()  # a restart says the same
    assert victim(again)[2] == commit_offset
    await world.assert_good_ones_are_complete()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda name: name.replace(" ", "-"))
async def test_damage_under_a_running_store_leaves_the_others_alone(
    damage: str, world: World
) -> None:
    world.after = lambda: DAMAGES[damage](world)
    whole = world.broker.next_offsets[VICTIM]
    result = await world.tier()
    await world.assert_good_ones_are_complete()
    assert victim(result)[2] == whole
    assert await world.published(VICTIM) == (whole, whole, ())


@pytest.mark.parametrize("cut_bytes", [20, 100, 500, 3000, FILE_BYTES + 100])
async def test_a_log_that_is_shorter_than_its_units_say_is_tiered_to_its_end(
    cut_bytes: int, world: World
) -> None:
    world.broker.crash(cut_bytes)
    result = await world.tier()
    waiting = 0
    for queue in (*GOOD, VICTIM):
        messages, next_offset, gaps = await world.published(queue)
        whole = [
            offset
            for offset in range(world.broker.next_offsets[queue])
            if (u := world.broker.unit(queue.topic, queue.queue_id, offset)).position + u.size
            <= world.broker.position
        ]
        assert (messages, next_offset, gaps) == (len(whole), len(whole), ())
        waiting += world.broker.next_offsets[queue] - len(whole)
    assert waiting > 0
    assert result.behind == waiting == sum(one.waiting for one in result.queues)


@pytest.mark.parametrize("pins", [False, True])
async def test_files_that_went_while_nobody_followed_are_one_gap(
    world: World, *, pins: bool
) -> None:
    world.pins = pins

    def delete_what_is_new() -> None:
        for _ in range(3):
            world.write(VICTIM, 30)
        while world.broker.min_position + FILE_BYTES < world.broker.position:
            world.broker.delete_oldest_file()

    await world.tier()
    delete_what_is_new()
    result = await world.tier()
    messages, next_offset, gaps = await world.published(VICTIM)
    assert next_offset == world.broker.next_offsets[VICTIM]
    assert len(gaps) == 1
    assert gaps[0].reason
    assert messages == next_offset - (gaps[0].end - gaps[0].start)
    assert result.gaps >= 1
    await world.assert_good_ones_are_complete()


UNSAFE_TOPICS = [
    "@journal", "@lock", "@tmp-1", "..a\\..\\b", "tab\there", "line\nbreak",
    "\x7f", "...", "a:b", " ", "\u3000", "漢" * 85, "x" * 255, os.fsdecode(b"\xff\xfe"),
]  # fmt: skip
ODD_QUEUES = ["x", "-1", "007", "99999999999", "1.5", "\uff10", "", " 1", "+1", "0x1", "4294967296"]


@pytest.mark.parametrize("topic", UNSAFE_TOPICS, ids=ascii)
async def test_a_topic_of_any_name_is_tiered_or_refused_and_harms_nobody(
    topic: str, world: World
) -> None:
    shutil.copytree(
        world.broker.directory / "consumequeue" / "Good",
        world.broker.directory / "consumequeue" / topic,
    )
    result = await world.tier()
    await world.assert_good_ones_are_complete()
    strangers = [one for one in result.queues if one.queue not in {*GOOD, VICTIM}]
    assert strangers, "nothing is said about it"
    for one in strangers:  # its units point at records of another topic
        assert one.commit_offset == 0
        assert one.state in HALTED or one.behind == one.waiting, one


@pytest.mark.parametrize("name", [name for name in ODD_QUEUES if name], ids=ascii)
async def test_a_queue_directory_that_is_no_number_is_left_out(name: str, world: World) -> None:
    parent = world.broker.directory / "consumequeue" / "Good"
    shutil.copytree(parent / "0", parent / name)
    result = await world.tier()
    await world.assert_good_ones_are_complete()
    assert {one.queue for one in result.queues} == {*GOOD, VICTIM}


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def to_itself(path: Path) -> None:
    path.symlink_to(path.parent)


THINGS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "loop": loop,
    "dangling": dangling,
    "to-itself": to_itself,
    "directory": Path.mkdir,
    "empty-file": Path.touch,
    "text-file": lambda path: path.write_text("not what it should be\n"),
}
PLACES = {
    "topic": "consumequeue/Thing",
    "queue": "consumequeue/Good/3",
    "next unit file": "consumequeue/Victim/0/00000000000000000800",
    "only unit file": "consumequeue/Good/4/00000000000000000000",
    "batch queues": "batchconsumequeue",
    "rocksdb": "consumequeue_rocksdb",
    "topics.json": "config/topics.json",
    "checkpoint": "checkpoint",
    "next log file": "commitlog/00000000000000040960",
    "far log file": "commitlog/00000000000000819200",
    "stranger": "something",
}


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("place", PLACES, ids=lambda name: name.replace(" ", "-"))
async def test_a_thing_that_is_not_what_it_should_be_stops_nobody_else(
    place: str, thing: str, world: World
) -> None:
    path = world.broker.directory / PLACES[place]
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    THINGS[thing](path)
    result = await world.tier()
    await world.assert_good_ones_are_complete()
    whole = world.broker.next_offsets[VICTIM]
    assert victim(result)[2] == whole
