"""What a check says of bytes that are gone: exactly the messages that lie in them, no others."""

import re
from collections.abc import Iterator

import pytest

from container.check.tier import check_tier
from container.errors import Finding
from container.metadata.objects import object_name
from container.names.queue_id import SegmentType
from container.options import TierOptions, UpkeepOptions
from container.record.unit import UNIT_BYTES
from container.tier_view import TierReader
from provider.stores.packed_segments import PartName
from provider.testing.memory import MemoryStore
from tests.support.damage_at_rest import held, memory_of
from tests.support.owned_tier import QUEUE, OwnedWorld, put

MESSAGES = 60
UNITS_IN_FILE = 25
OPTIONS = TierOptions(
    commit_log_bytes_max=4_000,
    consume_queue_bytes_max=UNITS_IN_FILE * UNIT_BYTES,
    extent_bytes_max=1_500,
)
DAMAGE = ("object-missing", "object-short", "unreadable", "checksum")
pytestmark = pytest.mark.leaves_findings(*DAMAGE, why="objects are cut short and removed")


async def whole_tier(*, packed: bool) -> MemoryStore:
    """One queue in several files of both kinds."""
    world = OwnedWorld(OPTIONS, UpkeepOptions(), packed=packed)
    async with world.owned() as tier:
        for _ in range(MESSAGES // 10):
            await put(tier, 10)
    return world.memory


async def lost_messages(tier: TierReader, name: str, kept_bytes: int) -> set[int]:
    """Messages of which a byte lies in `name` behind `kept_bytes`, by the tier's metadata."""
    container = tier.container(QUEUE)
    assert container is not None
    units = await container.units(container.min_offset, container.next_offset)
    lost: set[int] = set()
    for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
        for segment in await container.segments(kind):
            for extent in segment.extents:
                if object_name(QUEUE, segment, extent) != name:
                    continue
                kept = max(0, kept_bytes - extent.object_offset)
                start = segment.base + extent.position + min(kept, extent.length)
                end = segment.base + extent.position + extent.length
                for offset, unit in enumerate(units):
                    first, size = offset * UNIT_BYTES, UNIT_BYTES
                    if kind is SegmentType.COMMIT_LOG:
                        first, size = int(unit["position"]), int(unit["size"])
                    if start < end and first < end and first + size > start:
                        lost.add(offset)
    return lost


def said(findings: list[Finding]) -> Iterator[int]:
    """The messages that findings name as not checked."""
    for finding in findings:
        if finding.finding == "unreadable":
            assert finding.path == str(QUEUE)
            match = re.match(r"messages \[(\d+), (\d+)\) were not checked: their", finding.detail)
            assert match, finding
            assert finding.position == int(match[1])
            yield from range(int(match[1]), int(match[2]))


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
async def test_a_check_names_the_messages_that_lie_in_missing_bytes_and_no_other(
    *, packed: bool, kept: float
) -> None:
    objects = held(await whole_tier(packed=packed))
    names = [name for name in objects if name[0] != "@" or PartName.parse(name)]
    tried = 0
    for name in names:
        kept_bytes = int(kept * len(objects[name]))
        whole = await TierReader.open(memory_of(objects))
        lost = await lost_messages(whole, name, kept_bytes)
        damaged = {**objects, name: objects[name][:kept_bytes]}
        if not kept:
            del damaged[name]
        reader = await TierReader.open(memory_of(damaged))
        findings = [finding async for finding in check_tier(reader)]
        told = list(said(findings))
        assert set(told) == lost, (name, findings)
        assert len(told) == len(lost), "a message is named once"
        tried += bool(lost)
    assert tried > 1
