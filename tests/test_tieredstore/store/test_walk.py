"""A store against a model: the visible history is the model's, whatever happened before."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TypeVar
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from container.index.options import IndexOptions
from container.names.queue_id import QueueId
from container.options import HOUR_MS, TierOptions, UpkeepOptions
from container.queue.positions import Boundary
from dispatcher.ports import HotQueue
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Corrupt, Denied, Unavailable
from provider.testing.manual_clock import ManualClock
from tests.support.hot_mutations import MUTATIONS
from tests.support.hot_store import SMALL, new_message
from tests.support.level import by_level
from tests.support.patience import Patience, until
from tests.support.tiered_world import OUTAGE, TieredWorld
from tieredstore.hot.hot_log_source import HotLogFeed
from tieredstore.hot.log.repair import open_repair
from tieredstore.hot.log.topics import TopicsFile
from tieredstore.hot.options import Flush
from tieredstore.store.cold_side import Contradiction

T = TypeVar("T")
TOPICS = ("Orders", "Refunds")
QUEUES = tuple(QueueId(topic, number) for topic in TOPICS for number in (0, 1))
LEVELS = ("NOT_IN_DISK", "NOT_IN_MEM", "FORCE")
RETENTION_HOURS = 1
TIER = TierOptions(commit_log_bytes_max=2_000, consume_queue_bytes_max=400, extent_bytes_max=1_000)
UPKEEP = UpkeepOptions(
    interval_s=0.05,
    expires=True,
    retention_hours=RETENTION_HOURS,
    expiry_interval_s=1e6,  # only when the machine says so
    grace_s=0.0,
    sealed_segments_max=1,
    manifests_per_level_max=2,
    snapshot_entries_max=10,
)
INDEX = IndexOptions(items_max=40, covered_bytes_max=5_000, age_s_max=0.2)

FILES = ("commitlog/*", "consumequeue/*/*/*", "config/*", "*")
"""Of a store directory; the last are our own files and RocketMQ's checkpoint."""

queues = st.sampled_from(QUEUES)


class JumpingClock(SystemClock):
    """The machine's clock, whose wall time a test sets forward and back."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@dataclass
class QueueModel:
    """The messages of one queue that can be read."""

    first: int
    numbers: list[int] = field(default_factory=list[int])
    stored_ms: list[int] = field(default_factory=list[int])
    may_begin: int = 0
    """Messages below have expired in the tier, and are visible for as long as the hot log has
    them."""

    @property
    def end(self) -> int:
        return self.first + len(self.numbers)

    def begin_at(self, first: int) -> None:
        assert self.first <= first <= max(self.first, self.may_begin), f"{first} of {self}"
        gone = first - self.first
        self.first, self.numbers, self.stored_ms = (
            first, self.numbers[gone:], self.stored_ms[gone:],
        )  # fmt: skip


class History(RuleBasedStateMachine):
    """Puts, reads at every level, keys, commits, expiry, deleted topics, restarts and crashes,
    also in outages, lost disks, older copies, damaged and missing files, clock jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model: dict[QueueId, QueueModel] = {}
        self.begins: dict[QueueId, int] = {}
        """Where queues of deleted topics go on."""
        self.clock = JumpingClock()
        self.began_ms = self.clock.now_ms()
        self.number = self.stores = 0
        self.opened: dict[QueueId, int] = {}
        """Where the tier ended when the store was opened."""
        self.has_jumped = self.is_out = self.was_repaired = False
        self.refused: list[str] = []
        """Why damaged stores were not opened."""
        self.copy: Path | None = None
        """An older copy of the store directory that may be put back."""

    @initialize(flush=st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]))
    def open(self, flush: Flush, flush_interval_s: float = 0.5) -> None:
        options = replace(SMALL, flush=flush, flush_interval_s=flush_interval_s)
        self.world = TieredWorld(
            self.directory / "0",
            self.clock,
            options=options,
            tier_options=TIER,
            upkeep=UPKEEP,
            index=INDEX,
        )
        self.reopen()

    def run(self, work: Coroutine[None, None, T]) -> T:
        return self.runner.run(work)

    def body(self, queue: QueueId, number: int) -> bytes:
        return new_message(number, topic=queue.topic, queue_id=queue.queue_id).body

    def looked_at(self, queue: QueueId) -> QueueModel | None:
        """The model of a queue, with the first offset that the store says."""
        there = self.model.get(queue)
        if there is not None:
            there.begin_at(self.run(self.store.min_offset(*queue)))
        return there

    @rule(queue=queues, count=st.integers(1, 40))
    def put(self, queue: QueueId, count: int) -> None:
        numbers = range(self.number, self.number + count)
        messages = [new_message(n, topic=queue.topic, queue_id=queue.queue_id) for n in numbers]
        self.number += count
        there = self.model.setdefault(queue, QueueModel(self.begins.get(queue, 0)))
        places = self.run(self.store.put_messages(messages))
        for number, place in enumerate(places):
            assert place.queue_offset == there.end + number
        there.numbers += numbers
        there.stored_ms += [place.store_timestamp for place in places]

    @rule(
        queue=queues,
        share=st.floats(-0.05, 1.05),
        messages_max=st.integers(1, 50),
        level=st.sampled_from(LEVELS),
    )
    def read(self, queue: QueueId, share: float, messages_max: int, level: str) -> None:
        self.run(self.store.set_level(level))
        there = self.looked_at(queue)
        first, end = (there.first, there.end) if there else (0, 0)
        offset = first + round(share * (end - first))
        try:
            found = self.run(self.store.get_message("g", *queue, offset, messages_max=messages_max))
        except Unavailable:
            assert self.is_out
            assert not self.run(self.store.is_in_store(*queue, offset))
            return
        if there is None:
            assert found.status is FetchStatus.NO_MATCHED_LOGIC_QUEUE
            return
        assert (found.min_offset, found.max_offset) == (first, end)
        following = found.next_offset
        if first <= offset < end:
            assert found.status is FetchStatus.FOUND
            assert 0 < len(found.messages) <= messages_max
            assert following == offset + len(found.messages)
            numbers = there.numbers[offset - first : following - first]
            assert [m.body for m in found.messages] == [self.body(queue, n) for n in numbers]
            assert [m.queue_offset for m in found.messages] == list(range(offset, following))
        elif offset < first:
            assert (found.status, following) == (FetchStatus.OFFSET_TOO_SMALL, first)
        elif offset == end:
            assert (found.status, following) == (FetchStatus.OFFSET_OVERFLOW_ONE, offset)
        else:
            assert (found.status, following) == (FetchStatus.OFFSET_OVERFLOW_BADLY, end)

    @precondition(lambda self: not self.is_out and self.number)
    @rule(
        topic=st.sampled_from(TOPICS),
        share=st.floats(0, 1),
        later_ms=st.sampled_from([-1000 * HOUR_MS, 0, 1]),
        level=st.sampled_from(("DISABLE", *LEVELS)),
    )
    def query(self, topic: str, share: float, later_ms: int, level: str) -> None:
        """Of a time that begins long before, at or after the message, whatever the clock said."""
        self.run(self.store.set_level(level))
        number = round(share * (self.number - 1))
        stored = [
            there.stored_ms[there.numbers.index(number)]
            for there in self.model.values()
            if number in there.numbers
        ]
        begin_ms = max([self.clock.now_ms() - HOUR_MS, *stored][-1] + later_ms, 0)
        asked = self.store.query_message(topic, f"key-{number}", begin_ms=begin_ms)
        found = self.run(asked)
        wanted: list[tuple[int, int]] = []
        for queue in QUEUES:
            there = self.model.get(queue) if queue.topic == topic else None
            if there is None or number not in there.numbers:
                continue
            at = there.numbers.index(number)
            first = self.run(self.store.min_offset(*queue))
            if there.stored_ms[at] >= begin_ms and there.first + at >= first:
                wanted.append((queue.queue_id, there.first + at))
        assert [(m.queue_id, m.queue_offset) for m in found.messages] == wanted
        self.run(self.store.set_level("NOT_IN_DISK"))

    @precondition(lambda self: not self.is_out)
    @rule(queue=queues, boundary=st.sampled_from(list(Boundary)))
    def find_by_time(self, queue: QueueId, boundary: Boundary) -> None:
        there = self.looked_at(queue)
        if there is None or not there.numbers or self.has_jumped:
            return
        find = self.store.offset_by_time
        assert self.run(find(*queue, self.began_ms - 1, boundary)) == there.first
        end = there.end if boundary is Boundary.LOWER else there.end - 1
        assert self.run(find(*queue, self.clock.now_ms() + 1000, boundary)) == end

    @precondition(lambda self: not self.is_out)
    @rule()
    def commit(self) -> None:
        self.run(self.store.set_level("NOT_IN_DISK"))
        self.run(self.world.commit(self.store))
        for queue in QUEUES:
            there = self.model.get(queue)
            end = 0 if there is None else there.end
            assert self.run(self.store.commit_offset(*queue)) == end

    @rule()
    def trim(self) -> None:
        self.run(self.world.local.trim())

    @precondition(lambda self: not self.is_out)
    @rule()
    def expire(self) -> None:
        """Of the tier goes what is old, in whole segments; the hot log's own goes when it may."""
        self.copy = None  # it has what is expired
        expired = self.run(self.world.expire(self.store))
        moment_ms = self.clock.now_ms() - RETENTION_HOURS * HOUR_MS
        for queue, there in self.model.items():
            begin, before = expired.get(queue, 0), max(there.first, there.may_begin)
            there.may_begin = max(there.may_begin, begin)
            gone = there.stored_ms[before - there.first : max(before, begin) - there.first]
            assert all(stored_ms <= moment_ms for stored_ms in gone), (queue, moment_ms, gone)

    @precondition(lambda self: not self.is_out)
    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.run(self.store.delete_topics([topic]))
        self.deleted(topic)

    @precondition(lambda self: not self.is_out)
    @rule(retained=st.sampled_from([(), ("Orders",), TOPICS]))
    def clean_unused_topics(self, retained: tuple[str, ...]) -> None:
        there = sorted({queue.topic for queue in self.model} - set(retained))
        assert self.run(self.store.clean_unused_topics(retained)) == there
        for topic in there:
            self.deleted(topic)

    @precondition(lambda self: not self.is_out)
    @rule(topic=st.sampled_from(TOPICS), ends=st.sampled_from(["cancelled", "crash", "waits"]))
    def delete_topic_in_an_outage(self, topic: str, ends: str) -> None:
        """The call waits for the tier; whatever ends it, calling it again ends the deletion."""
        self.run(self.store.set_level("NOT_IN_DISK"))
        self.world.tier_store.faults = OUTAGE

        async def delete() -> None:
            deleting = asyncio.create_task(self.store.delete_topics([topic]))
            gone = Patience("the hot log does not delete it")
            await until(lambda: deleting.done() or topic not in self.world.local.topics(), gone)
            if ends == "waits":
                self.world.tier_store.faults = ()
                with suppress(Unavailable):  # a read of the tier that had begun
                    await deleting
            else:
                deleting.cancel()
                await asyncio.wait([deleting])
                self.world.tier_store.faults = ()

        self.run(delete())
        if ends == "crash":
            self.crash()
        self.run(self.store.delete_topics([topic]))
        self.deleted(topic)

    def deleted(self, topic: str) -> None:
        self.copy = None  # it has the topic
        for queue in [queue for queue in self.model if queue.topic == topic]:
            self.begins[queue] = self.model.pop(queue).end
        assert topic not in self.store.topics()

    @rule()
    def disable_and_enable(self) -> None:
        self.run(self.store.set_level("DISABLE"))
        for queue, there in self.model.items():
            end = self.run(self.world.local.max_offset(*queue))
            assert self.run(self.store.max_offset(*queue)) == end == there.end
            first = self.run(self.world.local.min_offset(*queue))
            assert self.run(self.store.min_offset(*queue)) == first
        self.run(self.store.set_level("NOT_IN_DISK"))

    @rule(is_out=st.booleans())
    def break_or_mend_the_tier(self, is_out: bool) -> None:  # noqa: FBT001 - drawn
        self.is_out = is_out
        self.world.tier_store.faults = OUTAGE if is_out else ()

    @rule(hours=st.integers(-100, 100))
    def jump(self, hours: int) -> None:
        self.clock.ahead_ms = hours * HOUR_MS
        self.has_jumped = True

    @precondition(lambda self: not self.is_out)
    @rule()
    def restart(self) -> None:
        self.run(self.store.__aexit__(None, None, None))
        self.reopen()

    @precondition(lambda self: not self.is_out)
    @rule()
    def crash(self) -> None:
        """The next store finds the files as they are while this one is open."""
        self.end_by_a_crash()
        self.reopen()

    def end_by_a_crash(self) -> None:
        self.stores += 1
        copy = self.directory / str(self.stores)
        self.run(self.store.set_level("DISABLE"))  # else it goes on tiering while it is copied
        shutil.copytree(self.world.root, copy)
        self.run(self.store.__aexit__(None, None, None))
        self.world.root = copy

    @precondition(lambda self: not self.is_out)
    @rule(queue=queues, count=st.integers(1, 40), is_crash=st.booleans())
    def start_in_an_outage(self, queue: QueueId, count: int, is_crash: bool) -> None:  # noqa: FBT001
        """The hot log takes puts and serves what it has, unless it is empty or a copy."""
        self.run(self.store.set_level("DISABLE"))  # what waits for the tier goes on waiting
        is_new = self.world.local.log.is_new
        if is_crash:
            self.end_by_a_crash()
        else:
            self.run(self.store.__aexit__(None, None, None))
        self.world.tier_store.faults = OUTAGE
        if is_new or is_crash:  # its files are copied
            with pytest.raises(Unavailable):
                self.reopen()
            self.world.tier_store.faults = ()
            self.reopen()
            return
        self.reopen()
        assert self.store.awaited is not None
        self.put(queue, count)
        for one, there in self.model.items():
            first = max(there.first, self.run(self.world.local.min_offset(*one)))
            bodies = [self.body(one, number) for number in there.numbers[first - there.first :]]
            walked: list[bytes] = []
            try:
                self.run(self.walk(walked, one, there, first))
            except Unavailable:
                self.refuse_lost(one, first + len(walked))
                bodies = bodies[: len(walked)]
            assert walked == bodies
        self.world.tier_store.faults = ()
        answered = Patience("the tier is not opened")
        self.run(until(lambda: self.store.cold is not None, answered))
        self.note_tier_ends()

    def refuse_lost(self, queue: QueueId, offset: int) -> None:
        """Only what a repair took out of the hot log waits for the tier."""
        assert self.was_repaired, "no file was damaged"
        found = self.run(self.world.local.get_message("g", *queue, offset)).messages
        assert not found or found[0].queue_offset > offset

    @rule()
    def keep_copy(self) -> None:
        """Copy the directory of the store that is open, as a backup or a snapshot does."""
        self.run(self.store.set_level("DISABLE"))  # else it goes on while it is copied
        self.stores += 1
        self.copy = self.directory / str(self.stores)
        shutil.copytree(self.world.root, self.copy)
        self.run(self.store.set_level("NOT_IN_DISK"))

    @precondition(lambda self: not self.is_out)
    @rule(way=st.sampled_from(["directory", "CommitLog", "copy", "copy without ConsumeQueues"]))
    def lose_the_disk(self, way: str) -> None:
        """The tier has all messages: none is lost, and no offset is given twice."""
        if way.startswith("copy") and self.copy is None:
            return
        self.commit()
        self.run(self.store.__aexit__(None, None, None))
        self.stores += 1
        lost, self.world.root = self.world.root, self.directory / str(self.stores)
        if way == "CommitLog":
            shutil.copytree(lost, self.world.root, ignore=shutil.ignore_patterns("commitlog"))
        elif self.copy is not None and way != "directory":
            left_out = () if way == "copy" else ("consumequeue",)
            shutil.copytree(self.copy, self.world.root, ignore=shutil.ignore_patterns(*left_out))
        else:
            self.begins.clear()  # config/deletedQueues.json had them
        self.reopen()

    @precondition(lambda self: not self.is_out)
    @rule(
        pattern=st.sampled_from(FILES),
        harm=st.sampled_from(sorted(set(MUTATIONS) - {"other"})),
        seed=st.integers(0, 1 << 32),
    )
    def damage_a_file(self, pattern: str, harm: str, seed: int) -> None:
        """The tier has all messages: each is read, before and after a repair."""
        self.commit()
        self.run(self.store.__aexit__(None, None, None))
        files = sorted(path for path in self.world.root.glob(pattern) if path.is_file())
        if files:
            rng = Random(seed)
            MUTATIONS[harm](rng.choice(files), rng)
        try:
            self.reopen_damaged()
        except (Corrupt, Denied) as error:  # a short file may be one of another length
            self.refused.append(str(error))
        else:
            self.read_all()
            self.run(self.store.__aexit__(None, None, None))
        self.repair()
        self.reopen_damaged()
        self.read_all()

    def reopen_damaged(self) -> None:
        """Open the store, or begin a new hot log if bytes differ that no checksum covers."""
        try:
            self.reopen()
        except Contradiction as error:
            self.refused.append(str(error))
            self.stores += 1
            self.world.root = self.directory / str(self.stores)
            self.begins.clear()  # config/deletedQueues.json had them
            self.reopen()

    def repair(self) -> None:
        """Do what the sentences of a damaged hot log say."""
        self.was_repaired = True
        topics = self.world.root / "config" / "topics.json"
        try:
            TopicsFile(topics)
        except Corrupt:
            backup = topics.with_name("topics.json.bak")
            topics.unlink()
            if backup.exists():  # not after a first write
                shutil.copy(backup, topics)
            try:
                TopicsFile(topics)
            except Corrupt:  # an earlier damage was that of the backup
                topics.unlink()
        with open_repair(self.world.root, self.world.options, ManualClock()) as one:
            one.carry_out(one.look())

    def read_all(self) -> None:
        for level in LEVELS:
            self.run(self.store.set_level(level))
            for queue in QUEUES:
                there = self.looked_at(queue)
                numbers = there.numbers if there else []
                walked = self.run(self.walked(queue, there))
                assert walked == [self.body(queue, number) for number in numbers]
        self.run(self.store.set_level("NOT_IN_DISK"))

    def reopen(self) -> None:
        self.store = self.world.store()
        self.run(self.store.__aenter__())
        self.note_tier_ends()

    def note_tier_ends(self) -> None:
        self.opened = {queue: self.run(self.store.commit_offset(*queue)) for queue in QUEUES}

    @invariant()
    def the_tier_has_nothing_that_a_power_failure_takes_from_the_hot_log(self) -> None:
        if not hasattr(self, "store"):
            return
        for queue in self.model:
            durable = self.world.local.log.durable_offset(queue)
            tiered = self.run(self.store.commit_offset(*queue))
            assert tiered <= max(durable, self.opened[queue]), queue

    def teardown(self) -> None:
        cures = ("repair --hot-log", "restore it from a", "move the hot log away")
        assert all(any(cure in sentence for cure in cures) for sentence in self.refused)
        if hasattr(self, "store"):
            self.world.tier_store.faults = ()
            self.read_all()
            assert self.store.topics().keys() == {queue.topic for queue in self.model}
            self.run(self.store.__aexit__(None, None, None))
            assert self.run(self.world.findings()) == []
        self.runner.close()
        shutil.rmtree(self.directory)

    async def walked(self, queue: QueueId, there: QueueModel | None) -> list[bytes]:
        bodies: list[bytes] = []
        if there is not None:
            await self.walk(bodies, queue, there, there.first)
        return bodies

    async def walk(
        self, bodies: list[bytes], queue: QueueId, there: QueueModel, first: int
    ) -> None:
        """Add the bodies from `first` on to the end. `bodies` has those before a failure."""
        if first < there.end:
            async for message in self.store.messages("g", *queue, first):
                bodies.append(message.body)
                if message.queue_offset + 1 == there.end:
                    break


@pytest.mark.slow
@pytest.mark.scales
def test_the_visible_history_is_the_models() -> None:
    """Slow, for stores are opened and closed on a disk: some 0.5 s a run of 25 steps."""
    examples = by_level(quick=8, full=12, nightly=400)
    run_state_machine_as_test(
        History, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None)
    )


@pytest.mark.parametrize("is_fed_early", [False, True])
def test_a_tier_that_is_fed_before_the_sync_is_caught(is_fed_early: bool) -> None:  # noqa: FBT001
    def all_of_it(_: HotLogFeed, seen: HotQueue) -> HotQueue:
        return seen

    history = History()
    history.open("ASYNC_FLUSH", flush_interval_s=3600)
    with patch.object(HotLogFeed, "_durable", all_of_it if is_fed_early else HotLogFeed._durable):
        history.put(QUEUES[0], 5)
        cold = history.store.cold
        assert cold is not None
        cold.feed.poll_all()
        history.run(cold.dispatcher.drain())
        verify = history.the_tier_has_nothing_that_a_power_failure_takes_from_the_hot_log
        if is_fed_early:
            with pytest.raises(AssertionError, match="Orders"):
                verify()
        else:
            verify()
    history.teardown()
