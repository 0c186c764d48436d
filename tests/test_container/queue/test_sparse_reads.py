"""Records of many queues read together are those that each queue gives alone."""

from random import Random

import pytest

from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.queue.point_reads import READ_BYTES_MAX
from container.tier import Tier
from provider.ranges import QueueOffset
from provider.stores.packed_segments import PARTS_PREFIX
from provider.testing.faulty import Fault
from tests.support.messages import TOPIC
from tests.support.owned_tier import OwnedWorld, put

QUEUES = [QueueId(TOPIC, number) for number in range(6)]
SMALL = TierOptions(
    commit_log_bytes_max=20_000, consume_queue_bytes_max=4_000, extent_bytes_max=1_000
)
TIDY = UpkeepOptions(snapshot_entries_max=2, sealed_segments_max=1, interval_s=1.0)
BYTES_MAX = 1 << 20

Offsets = dict[QueueId, list[QueueOffset]]
Records = dict[QueueId, list[bytes | None]]


async def together(tier: Tier, offsets: Offsets, *, bytes_max: int = BYTES_MAX) -> Records:
    found: Records = {}
    async for some in tier.messages_of_queues(offsets, bytes_max=bytes_max):
        sizes = [len(one) for records in some.values() for one in records if one is not None]
        assert sum(sizes) <= bytes_max
        assert not some.keys() & found.keys()
        found.update((queue, list(records)) for queue, records in some.items())
    return found


async def alone(tier: Tier, offsets: Offsets) -> Records:
    return {
        queue: list(await tier.messages_at(queue, wanted, bytes_max=BYTES_MAX))
        for queue, wanted in offsets.items()
    }


def chosen(tier: Tier, rng: Random) -> Offsets:
    """Some offsets of some queues, none in a gap."""
    offsets: Offsets = {}
    for queue in rng.sample(QUEUES, rng.randrange(1, len(QUEUES) + 1)):
        record = tier.queue(queue)
        assert record is not None
        gaps = {n for gap in record.gaps for n in range(gap.start, gap.end)}
        held = [n for n in range(record.next_offset) if n not in gaps]
        offsets[queue] = [QueueOffset(n) for n in sorted(rng.sample(held, rng.randrange(1, 15)))]
    return offsets


@pytest.mark.parametrize("packed", [False, True])
async def test_each_queue_has_what_it_has_alone_over_segments_gaps_and_manifests(
    *, packed: bool
) -> None:
    world = OwnedWorld(SMALL, TIDY, packed=packed)
    async with world.owned() as tier:
        for number in range(8):
            await put(tier, 60, *QUEUES)
            if number == 4:
                end = QueueOffset(5 * 60)
                await tier.record_gap(QUEUES[2], end, QueueOffset(end + 7), "lost")
        await world.pass_time(20.0)
        assert any(queue.manifests for queue in tier.state.queues.values())
        rng = Random(3)
        for _ in range(40):
            offsets = chosen(tier, rng)
            expected = await alone(tier, offsets)
            assert await together(tier, offsets) == expected
            few_bytes = rng.randrange(300, 5_000)
            found = await together(tier, offsets, bytes_max=few_bytes)
            assert found == {queue: expected[queue] for queue in found}
            for queue in offsets.keys() - found.keys():
                assert sum(len(one or b"") for one in expected[queue]) > few_bytes


async def test_queues_of_an_object_that_is_lost_are_left_out_and_nothing_is_raised() -> None:
    world = OwnedWorld(TierOptions(), UpkeepOptions(), packed=True)
    async with world.owned() as tier:
        # A part for each queue, too long for two to be read by one call.
        body_bytes = READ_BYTES_MAX // 20
        for queue in QUEUES:
            await put(tier, 15, queue, body_bytes=body_bytes)
        wanted = {queue: [QueueOffset(0), QueueOffset(14)] for queue in QUEUES}
        expected = await alone(tier, wanted)
        record = tier.queue(QUEUES[1])
        assert record is not None
        lost = record.commit_log[0].extents[0].object_name
        assert lost.startswith(PARTS_PREFIX)
        kept = world.memory._shared.objects.pop(lost)
        found = await together(tier, wanted, bytes_max=len(QUEUES) * BYTES_MAX)
        assert QUEUES[1] not in found
        assert found == {queue: expected[queue] for queue in found}
        world.memory._shared.objects[lost] = kept
        assert await together(tier, wanted) == expected


async def test_a_storage_that_does_not_answer_leaves_all_out() -> None:
    world = OwnedWorld(TierOptions(), UpkeepOptions(), packed=True)
    async with world.owned() as tier:
        await put(tier, 5, *QUEUES)
        store = world.stores[-1]
        store.calls.clear()
        store.faults = [Fault("refused", "read_many")]
        assert await together(tier, {queue: [QueueOffset(1)] for queue in QUEUES}) == {}
