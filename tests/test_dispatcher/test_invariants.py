"""`check` finds each invariant broken, and a queue tells its table of every change."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from container.names.queue_id import QueueId
from dispatcher.error_policy import Reaction
from dispatcher.ports import QueueState
from dispatcher.queue_progress import QueueProgress
from dispatcher.queue_table import QueueTable
from provider.ranges import QueueOffset
from tests.support.dispatch_world import World

A = QueueId("Orders", 0)


async def waiting_world() -> tuple[World, QueueProgress]:
    """A world with one queue that is READY and has three messages to commit."""
    world = World(batch_age_s_max=100.0)
    world.hot.append(A, b"0")
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, b"1", b"2", b"3")
    async with world.running():
        await world.pass_time(1.0)
    queue = world.dispatcher._work.table[A]
    assert (queue.state, len(queue.references)) == (QueueState.READY, 3)
    world.dispatcher.check()
    return world, queue


def set_dispatch_offset_back(world: World, queue: QueueProgress) -> None:
    queue.dispatch_offset = QueueOffset(queue.dispatch_offset - 1)


def lose_the_claim(world: World, queue: QueueProgress) -> None:
    queue.claim(1 << 20)
    queue.claimed = None


def keep_references_of_a_halted_queue(world: World, queue: QueueProgress) -> None:
    queue.state = QueueState.STOPPED


def lose_a_failed_range(world: World, queue: QueueProgress) -> None:
    queue.claim(1 << 20)
    queue.react(Reaction.RETRY, "injected", 0.0)
    queue.references.take(1, int(queue.references.sizes()[0]))


def miscount_bytes(world: World, queue: QueueProgress) -> None:
    queue.references.bytes += 1


def miscount_references(world: World, queue: QueueProgress) -> None:
    world.dispatcher._work.table.count.kept += 1


def change_silently(world: World, queue: QueueProgress) -> None:
    queue.references.clear()


def fail_silently(world: World, queue: QueueProgress) -> None:
    world.dispatcher.statistics()
    queue.setback = replace(queue.setback, failures=1)


def forget_that_it_waits(world: World, queue: QueueProgress) -> None:
    world.dispatcher.statistics()
    world.dispatcher._work.table.descriptions._restless.clear()


def commit_behind_its_back(world: World, queue: QueueProgress) -> None:
    world.tier.queues[A].next_offset += 1


def publish_more_than_was_claimed(world: World, queue: QueueProgress) -> None:
    queue.claim(1 << 20)
    world.tier.queues[A].next_offset += 4


def claim_without_a_worker(world: World, queue: QueueProgress) -> None:
    queue.claim(1 << 20)
    world.dispatcher._serving = True


def take_too_much(world: World, queue: QueueProgress) -> None:
    queue.claim(1 << 20)
    world.dispatcher._work.counters.begin(world.options.bytes_in_flight_max + 1)


@pytest.mark.parametrize(
    ("broken_by", "invariant"),
    [
        (set_dispatch_offset_back, "I1"),
        (lose_the_claim, "I2"),
        (keep_references_of_a_halted_queue, "I3"),
        (miscount_bytes, "I3"),
        (lose_a_failed_range, "I4"),
        (miscount_references, "Q1"),
        (change_silently, "Q2"),
        (fail_silently, "C1"),
        (forget_that_it_waits, "C2"),
        (commit_behind_its_back, "D1"),
        (publish_more_than_was_claimed, "D2"),
        (claim_without_a_worker, "D3"),
        (take_too_much, "D4"),
    ],
)
async def test_a_broken_invariant_is_found(
    broken_by: Callable[[World, QueueProgress], None], invariant: str
) -> None:
    world, queue = await waiting_world()
    broken_by(world, queue)
    with pytest.raises(AssertionError, match=f"^{invariant}: "):
        world.dispatcher.check()


async def test_tests_assert_the_invariants_of_a_queue_after_every_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, queue = await waiting_world()
    set_dispatch_offset_back(world, queue)
    with pytest.raises(AssertionError, match=r"^I1: "):
        queue.retry_now(0.0)
    monkeypatch.setattr(QueueTable, "checks_every_change", False)  # as everybody else has it
    queue.retry_now(0.0)


async def test_every_change_of_a_queue_reaches_its_table() -> None:
    world, queue = await waiting_world()
    table = world.dispatcher._work.table
    assert queue.claim(1 << 20).end == 4
    table.check()
    queue.give_back(QueueOffset(queue.commit_offset + 1))
    table.check()
    queue.react(Reaction.RETRY, "injected", 5.0)
    table.check()
    queue.retry_now(5.0)
    table.check()
    queue.claim(1 << 20)
    queue.landed(6.0)
    table.check()
    queue.unsettle()
    table.check()
    assert table.next_to_open(6.0, queues_max=2)[0] == [queue]
    queue.mark_opening(opening=True)
    table.check()
    assert table.next_to_open(6.0, queues_max=2)[0] == []
    queue.contradict(QueueState.STOPPED, "injected", tier_next=queue.commit_offset, heals_at=None)
    queue.mark_opening(opening=False)
    table.check()
    assert table.next_to_open(6.0, queues_max=2)[0] == []
