"""Each verb of a store at each level, while one of hot log and tier is damaged, away or incomplete.

A verb answers from the side that can be read, or raises, or reports that it is incomplete.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from container.index.options import IndexOptions
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.queue.positions import Boundary
from container.record.message import StoredMessage
from fetcher.result import FetchStatus
from provider.errors import StoreError, Unavailable
from provider.ranges import QueueOffset
from tests.support.hot_store import SMALL, new_message
from tests.support.tiered_world import GREEDY, OUTAGE, FrozenClock, TieredWorld
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.hot.options import RetentionOptions
from tieredstore.lifetime import running
from tieredstore.store.tiered import TieredMessageStore

LEVELS = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")
QUEUE = QueueId("Orders", 0)
MESSAGES, TIERED = 60, 40
BOTH, HOT_ALONE, TIER_ALONE = 35, 50, 5
"""Offsets of messages that hot log and tier have, or one of both alone."""
GAP = range(20, 30)
KEEP = RetentionOptions()
TIER = TierOptions(commit_log_bytes_max=2_000, consume_queue_bytes_max=400)
UNITS_OF_FILE = SMALL.consume_queue_bytes // 20


@dataclass
class World:
    """One queue of a store, with what of it can be read."""

    store: TieredMessageStore
    tiered: TieredWorld
    places: list[Appended]
    hot: set[int] = field(default_factory=set[int])
    """Offsets that the hot log can read."""
    cold: set[int] = field(default_factory=set[int])
    """Offsets that the tier can read."""
    unreadable_hot: set[int] = field(default_factory=set[int])
    """Offsets that lie in the hot log and cannot be read."""
    unreadable_cold: set[int] = field(default_factory=set[int])
    undo: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    every: int = 7
    """Distance of the offsets from which batches and iterations begin."""

    @property
    def is_tier_read(self) -> bool:
        return self.store.level.name != "DISABLE"

    @property
    def sound(self) -> set[int]:
        """Offsets that a verb must answer for."""
        return self.hot | self.cold if self.is_tier_read else self.hot

    @property
    def all(self) -> list[int]:
        """Offsets that no verb may pass over."""
        there = self.hot | self.unreadable_hot
        if self.is_tier_read:
            there = there | self.cold | self.unreadable_cold
        return sorted(there)

    def lose_hot(self, *offsets: int) -> None:
        self.hot -= set(offsets)
        self.unreadable_hot |= set(offsets)

    def lose_cold(self, *offsets: int) -> None:
        self.cold -= set(offsets)
        self.unreadable_cold |= set(offsets)

    async def tier_all(self, end: int) -> None:
        await self.tiered.commit(self.store)
        assert await self.store.commit_offset(*QUEUE) == end

    async def measure(self) -> None:
        """Note what both sides have."""
        first = await self.tiered.local.min_offset(*QUEUE)
        self.hot = set(range(first, len(self.places)))
        assert self.store.cold is not None
        span = self.store.cold.span(QUEUE)
        assert span is not None
        self.cold = {at for at in range(span.first, span.end) if span.has(at)}


def message(number: int) -> NewMessage:
    return new_message(number, body_bytes=60)


async def put(world: World, end: int) -> None:
    """Put messages 10 ms apart, until there are `end`."""
    clock = world.tiered.clock
    assert isinstance(clock, FrozenClock)
    while len(world.places) < end:
        clock.ahead_ms += 10
        world.places.append(await world.store.put_message(message(len(world.places))))


@asynccontextmanager
async def world_of(
    root: Path, retention: RetentionOptions = GREEDY, **more: Any
) -> AsyncGenerator[World]:
    tiered = TieredWorld(
        root / "store",
        FrozenClock(),
        retention=retention,
        tier_options=TIER,
        index=IndexOptions(),
        **more,
    )
    async with tiered.store() as store:
        world = World(store, tiered, [])
        try:
            yield world
        finally:
            tiered.tier_store.faults = ()
            for undo in reversed(world.undo):
                undo()


@asynccontextmanager
async def overlapping(root: Path) -> AsyncGenerator[World]:
    """The oldest messages in the tier alone, the newest in the hot log alone."""
    async with world_of(root) as world:
        await put(world, TIERED)
        await world.tier_all(TIERED)
        await world.tiered.local.trim()
        cold = world.store.cold
        assert cold is not None
        cold.pause()
        await put(world, MESSAGES)
        await world.measure()
        assert TIER_ALONE not in world.hot
        assert {BOTH, HOT_ALONE} <= world.hot
        with patch.object(cold, "resume"):  # nothing more is tiered, whatever the level
            yield world


@asynccontextmanager
async def sound(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        yield world


def write_hot(world: World, path: str, position: int, data: bytes) -> None:
    with (world.tiered.root / path).open("r+b") as file:
        file.seek(position)
        file.write(data)


def damage_hot(world: World, offset: int) -> None:
    base, at = divmod(world.places[offset].position, SMALL.commit_log_bytes)
    base *= SMALL.commit_log_bytes
    write_hot(world, f"commitlog/{base:020d}", at + 20, b"\xff" * 8)
    world.lose_hot(offset)


@asynccontextmanager
async def hot_damaged(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        for offset in (BOTH, HOT_ALONE):
            damage_hot(world, offset)
        yield world


@asynccontextmanager
async def hot_units_zero(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        for offset in (BOTH, HOT_ALONE):
            base, at = divmod(offset * 20, SMALL.consume_queue_bytes)
            base *= SMALL.consume_queue_bytes
            write_hot(world, f"consumequeue/Orders/0/{base:020d}", at, bytes(20))
            world.lose_hot(offset)
        yield world


def move_away(world: World, path: str) -> None:
    """Take a file away until the world ends. All of it is durable: a later sync would fail."""
    appender = world.tiered.local.log._appender
    appender.flush_queues()
    file = world.tiered.root / path
    aside = file.with_name("aside-" + file.name)
    file.rename(aside)
    world.undo.append(lambda: aside.rename(file))
    appender.log._reads.close()
    appender.queues._reads.close()


@asynccontextmanager
async def hot_deleted_amid(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        for offset in (BOTH, HOT_ALONE):  # in two files
            base = world.places[offset].position // SMALL.commit_log_bytes * SMALL.commit_log_bytes
            move_away(world, f"commitlog/{base:020d}")
            within = range(base, base + SMALL.commit_log_bytes)
            world.lose_hot(*(n for n in world.hot if world.places[n].position in within))
        yield world


@asynccontextmanager
async def hot_units_deleted_amid(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        for offset in (BOTH, HOT_ALONE - UNITS_OF_FILE):
            first = offset // UNITS_OF_FILE * UNITS_OF_FILE
            move_away(world, f"consumequeue/Orders/0/{first * 20:020d}")
            world.lose_hot(*world.hot.intersection(range(first, first + UNITS_OF_FILE)))
        yield world


@asynccontextmanager
async def tier_away(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        world.tiered.tier_store.faults = OUTAGE
        world.lose_cold(*world.cold)
        yield world


@asynccontextmanager
async def tier_away_beside_a_whole_log(root: Path) -> AsyncGenerator[World]:
    """Nothing is in the tier alone: each verb answers for all messages."""
    async with world_of(root, KEEP) as world:
        await put(world, MESSAGES)
        await world.tier_all(MESSAGES)
        await world.measure()
        assert world.hot == world.cold
        world.tiered.tier_store.faults = OUTAGE
        world.lose_cold(*world.cold)
        yield world


@asynccontextmanager
async def tier_away_at_start(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        tiered, places, alone = world.tiered, world.places, world.cold - world.hot
    tiered.tier_store.faults = OUTAGE
    async with tiered.store() as store:
        assert isinstance(store.awaited, Unavailable)
        world = World(store, tiered, places)
        world.hot = set(range(min(await tiered.local.min_offset(*QUEUE), MESSAGES), MESSAGES))
        assert world.hot.isdisjoint(alone)
        world.lose_cold(*alone)
        yield world
        assert store.cold is None


@asynccontextmanager
async def tier_damaged(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        objects = world.tiered.memory._shared.objects
        for offset in (BOTH, TIER_ALONE):
            body = bytes(message(offset).body)
            (held,) = [
                held for name, held in objects.items() if "COMMIT_LOG" in name and body in held
            ]
            at = held.find(body)
            world.undo.append(partial(held.__setitem__, slice(None), bytes(held)))
            held[at - 68 : at + 2] = b"\xff" * 70  # queue offset, times, first bytes of the body
            world.lose_cold(offset)
        yield world


@asynccontextmanager
async def tier_begins_later(root: Path) -> AsyncGenerator[World]:
    upkeep = UpkeepOptions(expires=True, grace_s=0.0)
    async with world_of(root, KEEP, upkeep=upkeep) as world:
        await put(world, 20)
        await world.tier_all(20)
        clock = world.tiered.clock
        assert isinstance(clock, FrozenClock)
        clock.ahead_ms += 80 * 3_600_000
        await put(world, MESSAGES)
        await world.tier_all(MESSAGES)
        assert 0 < (await world.tiered.expire(world.store))[QUEUE] <= 20
        await world.measure()
        assert min(world.hot) == 0 < min(world.cold)
        yield world


@asynccontextmanager
async def gap(root: Path) -> AsyncGenerator[World]:
    """The hot log has the messages of a gap of the tier."""
    async with world_of(root, KEEP) as world:
        await put(world, GAP.start)
        await world.tier_all(GAP.start)
    tiered, places = world.tiered, world.places
    async with tiered.store("DISABLE") as store:
        world = World(store, tiered, places)
        await put(world, TIERED)
    async with tiered.own() as tier, running([tier.run]):
        start, end = QueueOffset(GAP.start), QueueOffset(GAP.stop)
        await tier.record_gap(QUEUE, start, end, "lost by the test")
        await tier.close()
    async with tiered.store() as store:
        world = World(store, tiered, places)
        await put(world, MESSAGES)
        await world.tier_all(MESSAGES)
        await world.measure()
        assert set(range(MESSAGES)) - world.cold == set(GAP)
        yield world


@asynccontextmanager
async def queue_stopped(root: Path) -> AsyncGenerator[World]:
    async with overlapping(root) as world:
        damage_hot(world, HOT_ALONE)
        await world.tiered.local.log.flush()
        cold = world.store.cold
        assert cold is not None
        cold.feed.poll_all()
        (halted,) = (await cold.dispatcher.drain()).halted
        assert TIERED <= halted.commit_offset <= HOT_ALONE
        damaged = world.unreadable_hot
        await world.measure()
        world.hot -= damaged
        yield world


async def get(world: World) -> None:
    """Each single message; batches and a subscription from where something changes."""
    numbers = world.all
    starts = changes(world)
    for offset in numbers:
        for count, tag in ((1, None), (7, None), (40, None), (9, "Tag1")):
            if count > 1 and offset not in starts:
                continue
            try:
                result = await world.store.get_message(
                    "g", *QUEUE, offset, messages_max=count, subscription=tag
                )
            except StoreError:
                assert offset not in world.sound, f"{offset} can be read"
                continue
            if result.status in {FetchStatus.OFFSET_FOUND_NULL, FetchStatus.MESSAGE_WAS_REMOVING}:
                assert offset not in world.sound, f"{offset} can be read"
                continue
            passed = [at for at in numbers if offset <= at < result.next_offset]
            expects = [at for at in passed if tag is None or f"Tag{at % 3}" == tag]
            check_messages(world, result.messages, expects)
            assert result.status in {FetchStatus.FOUND, FetchStatus.NO_MATCHED_MESSAGE}
            assert result.next_offset > offset


def check_messages(world: World, messages: Sequence[StoredMessage], offsets: list[int]) -> None:
    assert [one.queue_offset for one in messages] == offsets
    assert all(one.body == message(one.queue_offset).body for one in messages)


async def store_time(world: World) -> None:
    for offset in world.all:
        try:
            found = await world.store.message_store_time(*QUEUE, offset)
        except StoreError:
            assert offset not in world.sound, f"{offset} can be read"
        else:
            assert found == world.places[offset].store_timestamp


def some_of(world: World) -> list[int]:
    """Every seventh offset, both ends, and those that are damaged."""
    numbers = world.all
    return [at for at in numbers if not at % 7 or at in {BOTH, HOT_ALONE, numbers[0], numbers[-1]}]


def changes(world: World) -> list[int]:
    """Every seventh offset, or every one, and both ends of each run on the same sides alike."""
    sets = world.hot, world.cold, world.unreadable_hot, world.unreadable_cold

    def sides(offset: int) -> list[bool]:
        return [offset in one for one in sets]

    return [
        at
        for at in world.all
        if not at % world.every or sides(at - 1) != sides(at) or sides(at) != sides(at + 1)
    ]


async def offset_by_time(world: World) -> None:
    numbers = world.all
    for offset in some_of(world):
        for late_ms in (-1, 0, 1):
            moment_ms = world.places[offset].store_timestamp + late_ms
            for boundary in Boundary:
                expects = expected_by_time(world, moment_ms, boundary)
                try:
                    found = await world.store.offset_by_time(*QUEUE, moment_ms, boundary)
                except StoreError:
                    assert world.sound != set(numbers), "every message can be read"
                else:
                    assert found == expects, (offset, late_ms, boundary)


def expected_by_time(world: World, moment_ms: int, boundary: Boundary) -> int:
    times = {at: world.places[at].store_timestamp for at in world.all}
    if boundary is Boundary.LOWER:
        return min((at for at, time in times.items() if time >= moment_ms), default=MESSAGES)
    return max((at for at, time in times.items() if time <= moment_ms), default=min(times))


async def ends(world: World) -> None:
    """What no other verb leaves different: one world for all of them."""
    await minimum(world)
    await maximum(world)
    await wait(world)


async def minimum(world: World) -> None:
    try:
        assert await world.store.min_offset(*QUEUE) == world.all[0]
    except StoreError:
        assert world.all[0] not in world.sound, "it can be read"
    if world.all[0] in world.sound:
        first = world.places[world.all[0]].store_timestamp
        assert await world.store.earliest_message_time(*QUEUE) == first


async def maximum(world: World) -> None:
    assert await world.store.max_offset(*QUEUE) == MESSAGES == world.all[-1] + 1


async def query(world: World) -> None:
    for offset in some_of(world):
        for begin_ms in (0, world.places[offset].store_timestamp):
            result = await world.store.query_message("Orders", f"key-{offset}", begin_ms=begin_ms)
            found = [one.queue_offset for one in result.messages]
            if offset in world.sound:
                assert found == [offset]
                has_all = world.cold | world.unreadable_cold <= world.hot
                assert has_all or world.is_tier_read or not result.is_complete
            else:
                assert (found, result.is_complete) == ([], False)


async def wait(world: World) -> None:
    for offset in range(MESSAGES):
        assert await world.store.wait_for_message(*QUEUE, offset, 0.0)
    assert not await world.store.wait_for_message(*QUEUE, MESSAGES, 0.0)


async def iterate(world: World) -> None:
    numbers = world.all
    for start in (0, *changes(world)):
        expects = [at for at in numbers if at >= start]
        seen: list[StoredMessage] = []
        reader = world.store.messages("g", *QUEUE, start)
        try:
            while len(seen) < len(expects):
                seen.append(await anext(reader))
        except StoreError:
            assert expects[len(seen)] not in world.sound, f"{expects[len(seen)]} can be read"
        finally:
            await reader.aclose()
        check_messages(world, seen, expects[: len(seen)])


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("verb", [get, store_time, offset_by_time, ends, query, iterate])
@pytest.mark.parametrize(
    "condition",
    [
        sound,
        hot_damaged,
        hot_units_zero,
        hot_deleted_amid,
        hot_units_deleted_amid,
        tier_away,
        tier_away_beside_a_whole_log,
        tier_away_at_start,
        tier_damaged,
        tier_begins_later,
        gap,
        queue_stopped,
    ],
)
async def test_no_verb_passes_over_a_message_that_one_side_has(
    condition: Callable[[Path], AbstractAsyncContextManager[World]],
    verb: Callable[[World], Awaitable[None]],
    tmp_path: Path,
    every: int,
) -> None:
    async with condition(tmp_path) as world:
        world.every = every
        for level in LEVELS:
            await world.store.set_level(level)
            try:
                await verb(world)
            except (AssertionError, StoreError) as error:
                error.add_note(f"at level {level}")
                raise


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_query_at_disable_does_not_claim_what_the_tier_alone_may_have(
    tmp_path: Path, *, is_away: bool
) -> None:
    async with overlapping(tmp_path) as world:
        tiered = world.tiered
        assert world.cold - world.hot
    tiered.tier_store.faults = OUTAGE if is_away else ()
    for level in ("NOT_IN_DISK", "DISABLE"):
        async with tiered.store(level) as store:
            await store.set_level("DISABLE")
            result = await store.query_message("Orders", f"key-{TIER_ALONE}")
            assert (result.messages, result.is_complete) == ([], False)
            assert result.unsearched == len(world.cold - world.hot) or store.awaited
