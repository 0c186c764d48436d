"""Queries that wait for nothing answer as those that do, also where something is damaged."""

import random
from collections.abc import Sequence

import pytest

from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import END_OF_TIME_MS, KeyQuery, LookupLimits, QueryResult
from container.names.queue_id import QueueId
from container.names.tier_objects import INDEX_PREFIX
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from container.tier_view import TierReader
from provider.object_store import Buffer, ForwardingStore, ObjectStore
from provider.ranges import ByteRange, QueueOffset
from provider.testing.memory import MemoryStore
from tests.support.messages import FIRST_STORE_TIMESTAMP, TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put

OTHER = QueueId(TOPIC, 1)
LIMITS = LookupLimits(scan_bytes_max=1 << 20)


class CountedReads(MemoryStore):
    """Counts the reads that are awaited."""

    awaited = 0

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        self.awaited += 1
        return await super().read_many(wanted)


def world(*, packed: bool = False) -> OwnedWorld:
    options = TierOptions(
        cut_grace_hours=0, commit_log_bytes_max=4_000, consume_queue_bytes_max=1_000
    )
    upkeep = UpkeepOptions(
        interval_s=1.0, grace_s=0.0, sealed_segments_max=1, manifests_per_level_max=2
    )
    index = IndexOptions(items_max=60, merge_growth=1000.0, finish_items_min=1)
    over = OwnedWorld(options, upkeep, packed=packed, index=index)
    over.memory = CountedReads()
    return over


async def filled(over: OwnedWorld) -> None:
    """Index files, manifests, a truncation, and other messages in its place; a clean end."""
    async with over.owned() as tier:
        for _ in range(6):
            await put(tier, 20, QUEUE, OTHER)
            await over.pass_time(2)
        await tier.cut_queue(OTHER, QueueOffset(70), "test")
        await put(tier, 9, OTHER, body_bytes=33)
        await over.pass_time(5)
        await tier.close()
    over.kill_all()


def queries(rng: random.Random, count: int) -> list[KeyQuery]:
    """Keys that are there and not, within all times and some, with and without a limit."""
    found: list[KeyQuery] = []
    for _ in range(count):
        begin_ms, end_ms = 0, END_OF_TIME_MS
        if rng.random() < 0.5:
            begin_ms = FIRST_STORE_TIMESTAMP + rng.randint(-50, 150)
            end_ms = begin_ms + rng.choice([0, 10, 1000])
        key = f"key-{rng.randint(0, 130)}"
        limit = rng.choice([1, 2, 9])
        found.append(KeyQuery(TOPIC, key, limit, begin_ms, end_ms, rng.random() < 0.5))
    return found


def text_of(result: QueryResult) -> str:
    places = [(one.queue_id, one.queue_offset, one.size) for one in result.messages]
    return f"{places} {result.is_complete} {result.unsearched} {result.damage}"


async def compared(
    store: ObjectStore, some: Sequence[KeyQuery], owner: Tier | None = None
) -> list[str]:
    """Ask at once, and with a store that cannot; the answers are the same."""
    unsealed = () if owner is None else owner.unsealed
    texts: list[str] = []
    at_once, awaited = [await TierReader.open(one) for one in (store, ForwardingStore(store))]
    assert awaited.read_now is None
    for query in some:
        answers = [
            text_of(await find_messages(reader, query, unsealed=unsealed, limits=LIMITS))
            for reader in (at_once, awaited)
        ]
        assert answers[0] == answers[1], query
        texts.append(answers[0])
    return texts


@pytest.mark.parametrize("packed", [False, True])
async def test_answers_are_those_of_awaited_reads(*, packed: bool) -> None:
    over = world(packed=packed)
    await filled(over)
    texts = await compared(over.memory, queries(random.Random(1), 300))
    assert len(set(texts)) > 50
    reader = await TierReader.open(over.memory)
    await find_messages(reader, KeyQuery(TOPIC, "key-3", 9), limits=LIMITS)  # reads a manifest
    assert isinstance(over.memory, CountedReads)
    over.memory.awaited = 0
    whole = [one for one in queries(random.Random(2), 200) if int(one.key[4:]) < 70]
    for query in whole:
        await find_messages(reader, query, limits=LIMITS)
    assert over.memory.awaited == 0
    for query in queries(random.Random(3), 50):
        await find_messages(reader, query, limits=LIMITS)
    assert over.memory.awaited > 0, "items of truncated messages are looked at again"


async def test_keys_in_memory_are_found_at_once() -> None:
    over = world()
    async with over.owned() as tier:
        await put(tier, 70, QUEUE)
        await over.pass_time(2)
        await put(tier, 9, QUEUE, OTHER)
        assert len(tier.state.index_files) == 1
        asked = [KeyQuery(TOPIC, f"key-{number}", 9) for number in range(80)]
        await compared(over.memory, asked, tier)
        assert isinstance(over.memory, CountedReads)
        reader = await TierReader.open(over.memory)
        over.memory.awaited = 0
        found = await find_messages(reader, asked[75], unsealed=tier.unsealed)
        assert [one.queue_offset for one in found.messages] == [75]
        assert over.memory.awaited == 0


@pytest.mark.parametrize("seed", range(4))
async def test_damage_is_reported_as_by_awaited_reads(seed: int) -> None:
    rng = random.Random(seed)
    over = world(packed=seed % 2 == 1)
    await filled(over)
    objects = over.memory._shared.objects
    sound = {name: bytes(raw) for name, raw in objects.items()}
    damaged = [name for name in objects if name.startswith((INDEX_PREFIX, TOPIC, "@parts/"))]
    for name in rng.sample(damaged, len(damaged) // 2):
        if rng.random() < 0.2:
            del objects[name]
            continue
        raw = objects[name]
        for _ in range(max(1, len(raw) // 400)):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    texts = await compared(over.memory, queries(rng, 150))
    assert any("Corrupt" in text for text in texts)
    assert any("[] " not in text and "True" in text for text in texts)
    objects.update((name, bytearray(raw)) for name, raw in sound.items())
