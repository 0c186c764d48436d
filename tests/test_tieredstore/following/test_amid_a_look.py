"""A topic that is deleted and made again amid one look: between two reads of one decision."""

from collections.abc import Callable
from typing import Any

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import DeletedQueue, HotQueue
from provider.errors import NotFound
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs, poll_later
from tests.support.pinned import follow_pinned, read
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.queues import deletions
from tieredstore.following.queues.tail import ConsumeQueueTail

A0 = QueueId("A", 0)
Logs = list[RocketMqHotLog]

__all__ = ["broker", "clock", "logs"]  # fixtures


def around_once(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    *,
    before: Callable[[], object],
    after: Callable[[], object] = lambda: None,
) -> Callable[[], bool]:
    """Act before and after the next call of a function; returns whether that was done."""
    call = getattr(owner, name)
    acts = [before, after]

    def called(*args: Any, **more: Any) -> Any:
        if not acts:
            return call(*args, **more)
        first, second = acts
        acts.clear()
        first()
        try:
            return call(*args, **more)
        finally:
            second()

    monkeypatch.setattr(owner, name, called)
    return lambda: not acts


async def test_a_queue_that_goes_while_it_is_compared_is_not_the_one_that_was_deleted(
    broker: FakeBroker, clock: ManualClock, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first unit was read, and is gone when it is to be compared with the old end."""
    broker.put_many("A", 0, [b"old"] * 20)
    broker.put("B", 0)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.delete_topics("A")
    await poll_later(log, clock)
    broker.put_many("A", 0, [b"new"] * 5)
    was_done = around_once(
        monkeypatch,
        deletions,
        "is_made_again",
        before=lambda: broker.delete_topics("A"),
        after=lambda: broker.put_many("A", 0, [b"newer"] * 3),
    )
    for _ in range(4):
        await poll_later(log, clock)  # asserts that no end goes back
    assert was_done()
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(20), is_made_again=True)
    assert (told.min_offset, told.max_offset) == (20, 20)


async def test_what_waits_is_told_while_the_queue_behind_it_cannot_be_looked_at(
    broker: FakeBroker, clock: ManualClock, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CommitLog file of its first record went after the look at the log."""
    broker.put_many("A", 0, [b"old"] * 20)
    log = await follow_pinned(broker, clock, logs)
    await poll_later(log, clock)
    broker.delete_topics("A")
    await poll_later(log, clock)
    broker.put_many("A", 0, [b"new"] * 25)

    def fail() -> None:
        raise NotFound("it went", "commitlog")

    was_done = around_once(monkeypatch, deletions, "names_message", before=fail)
    for _ in range(2):
        await poll_later(log, clock)  # asserts that no end goes back
    assert was_done()
    assert log.queue(A0) == HotQueue(A0, QueueOffset(0), QueueOffset(20))
    await poll_later(log, clock)
    broker.delete_topics("A")  # it was looked at meanwhile, so that it has its turn
    for _ in range(2):
        await poll_later(log, clock)
    await log.release(A0, QueueOffset(20))
    for _ in range(2):
        await poll_later(log, clock)
    assert [body for _, body, _ in await read(log, A0, 20)] == [b"new"] * 5


@pytest.mark.parametrize("messages", [3, 40])
async def test_the_place_of_a_queues_end_is_not_taken_from_another_queue(
    broker: FakeBroker,
    clock: ManualClock,
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    messages: int,
) -> None:
    """That place is what tells one queue of a name from the next."""
    broker.put_many("A", 0, [b"old"] * 10)
    log = await follow(broker, clock, logs, files_mapped_max=1)
    await log.poll()
    broker.put_many("A", 0, [b"old"] * 5)

    def make_again() -> None:
        broker.delete_topics("A")
        broker.put_many("A", 0, [b"new"] * messages)

    was_done = around_once(monkeypatch, ConsumeQueueTail, "_end_position_of", before=make_again)
    for _ in range(4):
        await poll_later(log, clock)
    assert was_done()
    told = log.queue(A0)
    assert told is not None
    assert told.deleted is not None
    assert told.deleted.is_made_again
    assert 10 <= told.deleted.end <= 15
    broker.put_many("A", 0, [b"new"] * (50 - messages))
    for _ in range(3):
        await poll_later(log, clock)
    found = [body for _, body, _ in await read(log, A0, told.deleted.end)]
    assert found == [b"new"] * (50 - told.deleted.end)
