"""A store against a model: the visible history is the model's, whatever happened before."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from container.queue.time_boundary import Boundary
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Unavailable
from tests.support.hot_store import SMALL, new_message
from tests.support.tiered_world import OUTAGE, TieredWorld
from tieredstore.hot.options import Flush

T = TypeVar("T")
QUEUES = (0, 1, 2)
LEVELS = ("NOT_IN_DISK", "NOT_IN_MEM", "FORCE")


class JumpingClock(SystemClock):
    """The machine's clock, whose wall time a test sets forward and back."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class History(RuleBasedStateMachine):
    """Puts, reads at every level, commits, deletions, restarts, crashes, outages, clock jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model: dict[int, list[bytes]] = {queue: [] for queue in QUEUES}
        self.clock = JumpingClock()
        self.began_ms = self.clock.now_ms()
        self.number = self.stores = 0
        self.has_jumped = self.is_out = False

    @initialize(flush=st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]))
    def open(self, flush: Flush) -> None:
        options = replace(SMALL, flush=flush)
        self.world = TieredWorld(self.directory / "0", self.clock, options=options)
        self.store = self.world.store()
        self.run(self.store.__aenter__())

    def run(self, work: Coroutine[None, None, T]) -> T:
        return self.runner.run(work)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 40))
    def put(self, queue: int, count: int) -> None:
        messages = [new_message(self.number + n, queue_id=queue) for n in range(count)]
        self.number += count
        for number, place in enumerate(self.run(self.store.put_messages(messages))):
            assert place.queue_offset == len(self.model[queue]) + number
        self.model[queue] += [message.body for message in messages]

    @rule(
        queue=st.sampled_from(QUEUES),
        share=st.floats(-0.05, 1.05),
        messages_max=st.integers(1, 50),
        level=st.sampled_from(LEVELS),
    )
    def read(self, queue: int, share: float, messages_max: int, level: str) -> None:
        there = self.model[queue]
        offset = round(share * len(there))
        self.run(self.store.set_level(level))
        try:
            found = self.run(
                self.store.get_message("g", "Orders", queue, offset, messages_max=messages_max)
            )
        except Unavailable:
            assert self.is_out
            assert not self.run(self.store.is_in_store("Orders", queue, offset))
            return
        if not there:
            assert found.status is FetchStatus.NO_MATCHED_LOGIC_QUEUE
            return
        assert (found.min_offset, found.max_offset) == (0, len(there))
        if 0 <= offset < len(there):
            assert found.status is FetchStatus.FOUND
            assert 0 < len(found.messages) <= messages_max
            assert found.next_offset == offset + len(found.messages)
            assert [m.body for m in found.messages] == there[offset : found.next_offset]
            assert [m.queue_offset for m in found.messages] == list(
                range(offset, found.next_offset)
            )
        elif offset < 0:
            assert (found.status, found.next_offset) == (FetchStatus.OFFSET_TOO_SMALL, 0)
        elif offset == len(there):
            assert (found.status, found.next_offset) == (FetchStatus.OFFSET_OVERFLOW_ONE, offset)
        else:
            assert found.status is FetchStatus.OFFSET_OVERFLOW_BADLY
            assert found.next_offset == len(there)

    @precondition(lambda self: not self.is_out)
    @rule(queue=st.sampled_from(QUEUES), boundary=st.sampled_from(list(Boundary)))
    def find_by_time(self, queue: int, boundary: Boundary) -> None:
        there = self.model[queue]
        if not there or self.has_jumped:
            return
        find = self.store.offset_by_time
        assert self.run(find("Orders", queue, self.began_ms - 1, boundary)) == 0
        end = len(there) if boundary is Boundary.LOWER else len(there) - 1
        assert self.run(find("Orders", queue, self.clock.now_ms() + 1000, boundary)) == end

    @precondition(lambda self: not self.is_out)
    @rule()
    def commit(self) -> None:
        self.run(self.store.set_level("NOT_IN_DISK"))
        self.run(self.world.commit(self.store))
        for queue, there in self.model.items():
            assert self.run(self.store.commit_offset("Orders", queue)) == len(there)

    @rule()
    def trim(self) -> None:
        self.run(self.world.local.trim())

    @rule()
    def disable_and_enable(self) -> None:
        self.run(self.store.set_level("DISABLE"))
        for queue, there in self.model.items():
            first = self.run(self.world.local.min_offset("Orders", queue))
            assert self.run(self.store.min_offset("Orders", queue)) == first
            assert self.run(self.store.max_offset("Orders", queue)) == len(there)
        self.run(self.store.set_level("NOT_IN_DISK"))

    @rule(is_out=st.booleans())
    def break_or_mend_the_tier(self, is_out: bool) -> None:  # noqa: FBT001 - drawn
        self.is_out = is_out
        self.world.tier_store.faults = OUTAGE if is_out else ()

    @rule(hours=st.integers(-100, 100))
    def jump(self, hours: int) -> None:
        self.clock.ahead_ms = hours * 3_600_000
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
        self.stores += 1
        copy = self.directory / str(self.stores)
        self.run(self.store.set_level("DISABLE"))  # else it goes on tiering while it is copied
        shutil.copytree(self.world.root, copy)
        self.run(self.store.__aexit__(None, None, None))
        self.world.root = copy
        self.reopen()

    def reopen(self) -> None:
        self.store = self.world.store()
        self.run(self.store.__aenter__())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.world.tier_store.faults = ()
            for level in LEVELS:
                self.run(self.store.set_level(level))
                for queue, there in self.model.items():
                    assert self.run(self.walked(queue, len(there))) == there
            self.run(self.store.__aexit__(None, None, None))
        self.runner.close()
        shutil.rmtree(self.directory)

    async def walked(self, queue: int, end: int) -> list[bytes]:
        bodies: list[bytes] = []
        if end:
            async for message in self.store.messages("g", "Orders", queue):
                bodies.append(message.body)
                if message.queue_offset + 1 == end:
                    break
        return bodies


@pytest.mark.slow
def test_the_visible_history_is_the_models() -> None:
    """Slow, for stores are opened and closed on a disk: some 0.5 s a run of 25 steps."""
    run_state_machine_as_test(
        History, settings=settings(max_examples=8, stateful_step_count=25, deadline=None)
    )
