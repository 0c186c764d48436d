"""A store with a tier whose hot log was damaged and repaired: tiers past it, reads the rest."""

import asyncio
from pathlib import Path

import pytest

import tieredstore
from container.names.queue_id import QueueId
from provider.clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tests.test_tieredstore.hot.test_repair import rot
from tieredstore.hot.repair import HotDamage, open_repair

ORDERS = QueueId("Orders", 0)

SETTINGS = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200}


def repaired(root: Path) -> HotDamage:
    with open_repair(root, SMALL, ManualClock()) as one:
        damage = one.look()
        one.carry_out(damage)
        return damage


async def filled(root: Path, first: int, end: int) -> None:
    """Messages in the hot log alone."""
    async with tieredstore.LocalMessageStore(root, options=SMALL) as store:
        for number in range(first, end):
            await store.put_message(new_message(number))


def bodies(numbers: range, *, lost: set[int]) -> list[bytes]:
    return [new_message(number).body for number in numbers if number not in lost]


async def put_and_read(root: Path, tier: Path, number: int | None) -> list[bytes]:
    """Put a message, if it has a number; all bodies of a read from the first message on."""
    found: list[bytes] = []
    async with tieredstore.open_store(root, tier, broker="b", settings=SETTINGS) as store:
        if number is not None:
            await store.put_message(new_message(number))
        offset, end = await store.min_offset(*ORDERS), await store.max_offset(*ORDERS)
        while offset < end:
            result = await store.get_message("g", *ORDERS, offset, messages_max=32)
            found += [message.body for message in result.messages]
            assert result.next_offset > offset, result
            offset = result.next_offset
    return found


async def tier_end(tier: Path) -> int:
    async with tieredstore.open(tier) as readable:
        return readable.queue(*ORDERS).max_offset


@pytest.mark.parametrize(
    "lost",
    [{0}, {25}, {59}, {30, 31, 32}, {0, 1, 25, 40, 41, 59}, set(range(50, 60)), set(range(60))],
    ids=["first", "middle", "last", "run", "several", "end", "all"],
)
@pytest.mark.parametrize("tiered", [0, 26, 60])
def test_tiering_goes_on_after_lost_messages_and_all_others_are_there(
    tiered: int, lost: set[int], tmp_path: Path
) -> None:
    root, tier = tmp_path / "store", tmp_path / "tier"
    if tiered:
        asyncio.run(filled(root, 0, tiered))
        asyncio.run(put_and_read(root, tier, None))
    asyncio.run(filled(root, tiered, 60))
    for number in lost:
        rot(root, new_message(number).body)
    assert repaired(root).places
    gone = {number for number in lost if number >= tiered}
    for turn in range(2):
        found = asyncio.run(put_and_read(root, tier, 60 + turn))
        assert found == bodies(range(61 + turn), lost=gone)
        assert asyncio.run(tier_end(tier)) == 61 + turn
