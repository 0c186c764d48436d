"""Tiers of programs that did not count parts: counted on load, or by their owner."""

from dataclasses import replace

import orjson
import pytest

from container.journal.frame import Frame, FrameKind
from container.metadata.codec import decode_state, state_pieces
from container.metadata.operations import CountParts
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.queue.truncate import cut_queue
from container.tier import Tier
from provider.ranges import QueueOffset
from tests.support.messages import TOPIC
from tests.support.owned_tier import OwnedWorld
from tests.support.owned_tier import put as put_any

QUEUES = [QueueId(TOPIC, number) for number in range(3)]
TIER = TierOptions(commit_log_bytes_max=2_000, consume_queue_bytes_max=200, cut_grace_hours=0)
UPKEEP = UpkeepOptions(interval_s=1.0, snapshot_entries_max=3, grace_s=5.0, sealed_segments_max=1)


async def put(tier: Tier, count: int) -> None:
    await put_any(tier, count, *QUEUES, body_bytes=60)


def payload_of(state: TierState) -> dict[str, object]:
    return orjson.loads(b"".join(state_pieces(state)))


def loaded(payload: dict[str, object]) -> TierState:
    return decode_state(orjson.dumps(payload), path="p")


def strip_counts(world: OwnedWorld) -> int:
    """Make every snapshot one of a program that did not count; how many there were."""
    stripped = 0
    for name, raw in world.memory._shared.objects.items():
        if not name.startswith("@snapshot/"):
            continue
        frame = Frame.decode(raw, FrameKind.SNAPSHOT, path=name)
        payload = orjson.loads(frame.payload)
        stripped += bool(payload.pop("parts_counted_at", None))
        payload.pop("parts", None)
        changed = replace(frame, payload=orjson.dumps(payload))
        world.memory._shared.objects[name] = bytearray(changed.encode())
    return stripped


@pytest.mark.parametrize("with_manifests", [False, True])
async def test_the_owner_counts_what_an_older_program_left(*, with_manifests: bool) -> None:
    world = OwnedWorld(TIER, UPKEEP, packed=True)
    keeps = replace(UPKEEP, sealed_segments_max=1 if with_manifests else 1_000)
    async with world.owned(keeps) as first:
        for _ in range(20):
            await put(first, 6)
        await world.pass_time(30.0)
        await first.close()
        assert any(queue.manifests for queue in first.state.queues.values()) == with_manifests
        before = first.state.parts
    assert strip_counts(world) > 0
    async with world.owned(keeps) as second:
        assert second.state.parts_counted != with_manifests
        await put(second, 6)
        await world.pass_time(30.0)
        assert second.state.parts_counted
        assert before.keys() <= second.state.parts.keys() | second.state.tombstones.keys()
        await second.delete_topic(TOPIC)
        await world.pass_time(60.0)
        assert await world.names("@parts/") == set()
        assert second.upkeep.statistics().last_error == ""


async def test_counts_that_an_older_program_carried_along_are_not_believed() -> None:
    world = OwnedWorld(TIER, replace(UPKEEP, sealed_segments_max=1_000), packed=True)
    async with world.owned() as tier:
        await put(tier, 3)
        await put(tier, 3)
        payload = payload_of(tier.state)
        assert loaded(payload) == tier.state
        carried = {**payload, "parts": [], "parts_counted_at": tier.state.sequence - 1}
        assert loaded(carried).parts == tier.state.parts
        assert loaded(carried).parts_counted


async def test_an_older_programs_cut_of_manifests_ends_the_counting() -> None:
    world = OwnedWorld(TIER, UPKEEP, packed=True)
    async with world.owned() as tier:
        for _ in range(20):
            await put(tier, 6)
        await world.pass_time(30.0)
        container = tier.container(QUEUES[0])
        assert container is not None
        cut = await cut_queue(container, world.memory, QueueOffset(1), now_ms=1)
        said = tier._cut_operation(cut, "by an older program", ())
        state = tier.state.copy()
        state.apply([replace(said, release=None)])
        assert not state.parts_counted
        state.apply([CountParts(())])
        assert state.parts_counted
        state = tier.state.copy()
        state.apply([said])
        assert state.parts_counted
        state.check()
