"""Topics that the broker deletes on their way into a tier on disk: no message is lost unsaid."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import tieredstore
from container.metadata.records import MADE_AGAIN_REASON, TOPIC_DELETED_REASON
from container.names.queue_id import QueueId
from dispatcher.statistics import DispatchStatistics
from tests.support.fake_broker import FakeBroker
from tieredstore.following.queues import poll_schedule

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop

REASONS = {TOPIC_DELETED_REASON: "deleted", MADE_AGAIN_REASON: "made again"}
DRAINS_MAX = 200
TOPICS, QUEUES = 31, 10


@pytest.fixture(autouse=True)
def looks_at_all_queues_at_every_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_schedule, "SHARE_AT_REST", 1.0)


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path / "store", commit_log_bytes=1 << 18, consume_queue_bytes=400)


@asynccontextmanager
async def follow(broker: FakeBroker, *, has_pins: bool) -> AsyncGenerator[tieredstore.Follower]:
    root = broker.directory.parent
    settings: dict[str, object] = {"tieredStoreScanInterval": 0, "tieredStorePollInterval": 1}
    if has_pins:
        settings["tieredStorePinPath"] = str(root / "pins")
    opened = tieredstore.follow(broker.directory, root / "tier", broker="b", settings=settings)
    async with opened as follower:
        yield follower


def put(broker: FakeBroker, queues: list[QueueId], life: str, count: int) -> None:
    """Messages that say which queue of that name they are of, and their offset."""
    for topic, queue_id in queues:
        first = broker.next_offsets.get(QueueId(topic, queue_id), 0)
        bodies = [f"{life} {first + number}".encode() for number in range(count)]
        broker.put_many(topic, queue_id, bodies)


async def contents(tier: tieredstore.ReadableTier, queue: QueueId) -> tuple[list[str], list[str]]:
    """The queue's messages as ranges of offsets of each life, and its gaps."""
    runs: list[tuple[str, int, int]] = []
    async for message in tier.messages(*queue):
        life, offset = message.body.decode().split()
        assert int(offset) == message.offset
        if runs and runs[-1][0] == life and runs[-1][2] == message.offset:
            runs[-1] = (life, runs[-1][1], message.offset + 1)
        else:
            runs.append((life, message.offset, message.offset + 1))
    gaps = [f"{REASONS[gap.reason]} {gap.start}-{gap.end}" for gap in tier.queue(*queue).gaps]
    return [f"{life} {start}-{end}" for life, start, end in runs], gaps


async def drained_until(
    follower: tieredstore.Follower, is_so: Callable[[DispatchStatistics], bool]
) -> None:
    """Every drain polls at least once."""
    for _ in range(DRAINS_MAX):
        if is_so(await follower.drain()):
            return
    raise AssertionError(f"not so after {DRAINS_MAX} polls")


@pytest.mark.slow
@pytest.mark.parametrize("has_pins", [False, True])
async def test_topics_that_are_deleted_while_queues_are_opened_and_a_drain_is_under_way(
    broker: FakeBroker, *, has_pins: bool
) -> None:
    names = [f"T{number:02}" for number in range(TOPICS)]
    deleted = [QueueId(name, number) for name in names[1:] for number in range(QUEUES)]
    kept = [QueueId(names[0], number) for number in range(QUEUES)]
    put(broker, [*deleted, *kept], "old", 3)
    is_under_way = asyncio.Event()

    async def delete() -> None:
        await is_under_way.wait()
        for start in range(1, TOPICS, 5):
            await asyncio.to_thread(broker.delete_topics, *names[start : start + 5])

    async with follow(broker, has_pins=has_pins) as follower:
        async with asyncio.TaskGroup() as group:
            group.create_task(delete())
            statistics = await follower.drain(on_progress=lambda _: is_under_way.set())
        assert (statistics.behind, list(statistics.halted)) == (0, [])
        assert not (await follower.drain()).halted
        lost = sum(loss.messages for loss in follower.losses())
    gaps_found = 0
    async with tieredstore.open(broker.directory.parent / "tier") as tier:
        assert [finding async for finding in tier.check()] == []
        for queue in kept:
            assert await contents(tier, queue) == (["old 0-3"], [])
        for queue in deleted:
            messages, gaps = await contents(tier, queue)
            end = tier.queue(*queue).messages
            assert messages == ([f"old 0-{end}"] if end else [])
            assert gaps == ([f"deleted {end}-3"] if end < 3 else [])
            gaps_found += 3 - end
    assert gaps_found == lost
    assert not (has_pins and lost)


@pytest.mark.parametrize("has_pins", [False, True])
@pytest.mark.parametrize("count", [4, 5, 30])
async def test_a_topic_that_is_made_again_goes_on_above_a_gap_also_after_a_restart(
    broker: FakeBroker, count: int, *, has_pins: bool
) -> None:
    again, other = QueueId("A", 0), QueueId("B", 0)
    put(broker, [again, other], "old", 5)
    async with follow(broker, has_pins=has_pins) as follower:
        await follower.drain()
        broker.delete_topics("A")
        put(broker, [again], "new", count)
        await drained_until(follower, lambda _: bool(follower.losses()))
        (loss,) = follower.losses()
        assert (loss.gap.start, loss.gap.end, loss.gap.reason) == (5, 6, MADE_AGAIN_REASON)
        await drained_until(follower, lambda now: now.behind == 0)
        (passed_over,) = (one.lost for one in follower.topics() if one.topic == "A")
        assert passed_over == min(count, 6), "no message that never existed"
    async with follow(broker, has_pins=has_pins) as follower:
        statistics = await follower.drain()
        assert list(statistics.halted) == []
        put(broker, [again, other], "new", 10)
        await drained_until(follower, lambda now: now.messages == 10 + min(10, count + 10 - 6))
        assert follower.losses() == []
    async with tieredstore.open(broker.directory.parent / "tier") as tier:
        assert [finding async for finding in tier.check()] == []
        wanted = ["old 0-5", f"new 6-{count + 10}"], ["made again 5-6"]
        assert await contents(tier, again) == wanted
        queue = tier.queue(*again)
        assert (queue.lost, queue.messages) == (1, queue.max_offset - 1)


async def test_a_topic_that_is_made_again_while_nobody_looks_stops_and_names_the_repair(
    broker: FakeBroker,
) -> None:
    """From outside it looks like a store that was restored, or another one of that name."""
    again = QueueId("A", 0)
    put(broker, [again], "old", 5)
    async with follow(broker, has_pins=False) as follower:
        await follower.drain()
    broker.delete_topics("A")
    put(broker, [again], "new", 3)
    async with follow(broker, has_pins=False) as follower:
        (halted,) = (await follower.drain()).halted
    assert halted.queue == again
    assert "tieredstore repair A 0 --cut-to-hot" in halted.reason
