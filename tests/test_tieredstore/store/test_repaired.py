"""A store with a tier whose hot log was damaged and repaired: tiers past it, reads the rest."""

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import tieredstore
from container.names.queue_id import QueueId
from provider.errors import Denied
from tests.support.hot_store import SMALL, appender_at, new_message, put
from tests.test_tieredstore.hot.test_repair import HARMS, repaired, rot

ORDERS = QueueId("Orders", 0)

SETTINGS = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200}


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


@pytest.fixture(scope="module")
def sixty(tiered: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hot log of 60 messages and a tier of the first `tiered`; the tests damage copies."""
    place = tmp_path_factory.mktemp("sixty")
    root, tier = place / "store", place / "tier"
    if tiered:
        asyncio.run(filled(root, 0, tiered))
        asyncio.run(put_and_read(root, tier, None))
    asyncio.run(filled(root, tiered, 60))
    return place


@pytest.mark.parametrize(
    "lost",
    [{0}, {25}, {59}, {30, 31, 32}, {0, 1, 25, 40, 41, 59}, set(range(50, 60)), set(range(60))],
    ids=["first", "middle", "last", "run", "several", "end", "all"],
)
@pytest.mark.parametrize("tiered", [0, 26, 60], scope="module")
def test_tiering_goes_on_after_lost_messages_and_all_others_are_there(
    tiered: int, sixty: Path, lost: set[int], tmp_path: Path
) -> None:
    shutil.copytree(sixty, tmp_path, dirs_exist_ok=True)
    root, tier = tmp_path / "store", tmp_path / "tier"
    for number in lost:
        rot(root, new_message(number).body)
    assert repaired(root).places
    gone = {number for number in lost if number >= tiered}
    for turn in range(2):
        found = asyncio.run(put_and_read(root, tier, 60 + turn))
        assert found == bodies(range(61 + turn), lost=gone)
        assert asyncio.run(tier_end(tier)) == 61 + turn


@pytest.mark.parametrize(
    "harm",
    ["middle file lost", "last file lost", "two files lost", "short file", "zeros", "garbage"],
)
@pytest.mark.parametrize("tiered", [0, 26, 60], scope="module")
def test_of_a_file_that_is_lost_the_tier_has_what_was_tiered_and_nothing_else_goes(
    tiered: int, sixty: Path, harm: str, tmp_path: Path
) -> None:
    shutil.copytree(sixty, tmp_path, dirs_exist_ok=True)
    root, tier = tmp_path / "store", tmp_path / "tier"
    files = sorted((root / "commitlog").iterdir())
    held = {path: path.read_bytes() for path in files}
    HARMS[harm](root)
    changed = [raw for path, raw in held.items() if not is_same(path, raw)]
    lost = {
        number
        for place in repaired(root).places
        for first, end in place.lost[ORDERS]
        for number in range(first, end)
    }
    assert lost
    assert all(any(new_message(number).body in raw for raw in changed) for number in lost)
    gone = {number for number in lost if number >= tiered}
    for turn in range(2):
        found = asyncio.run(put_and_read(root, tier, 60 + turn))
        assert found == bodies(range(61 + turn), lost=gone)
        assert asyncio.run(tier_end(tier)) == 61 + turn


def is_same(path: Path, raw: bytes) -> bool:
    return path.is_file() and path.read_bytes() == raw


def test_a_torn_tail_that_was_not_tiered_is_truncated_and_its_offset_is_given_again(
    tmp_path: Path,
) -> None:
    """No repair: the record was not durable. What the tier has of it would contradict that."""
    root, tier = tmp_path / "store", tmp_path / "tier"
    asyncio.run(filled(root, 0, 30))
    asyncio.run(put_and_read(root, tier, None))
    with appender_at(root) as store:
        put(store, [new_message(30)])  # killed before a sync
    rot(root, new_message(30).body)
    assert not repaired(root).places
    assert asyncio.run(put_and_read(root, tier, 31)) == bodies(range(32), lost={30})


def test_a_repair_of_a_log_that_contradicts_its_tier_leaves_the_contradiction(
    tmp_path: Path,
) -> None:
    """Both messages are sound: which one stays is the other command's to say."""
    root, tier, copy = tmp_path / "store", tmp_path / "tier", tmp_path / "copy"
    asyncio.run(filled(root, 0, 20))
    shutil.copytree(root, copy)
    asyncio.run(filled(root, 20, 40))
    asyncio.run(put_and_read(root, tier, None))
    shutil.rmtree(root)
    copy.rename(root)
    asyncio.run(filled(root, 100, 110))
    rot(root, new_message(3).body)
    assert repaired(root).places
    for _ in range(2):
        with pytest.raises(Denied, match="the hot log contradicts its tier"):
            asyncio.run(put_and_read(root, tier, 41))


def test_a_message_that_was_put_again_is_no_damaged_copy(tmp_path: Path) -> None:
    """It differs from the first by its times alone, in some four bytes."""
    root, tier, copy = tmp_path / "store", tmp_path / "tier", tmp_path / "copy"
    asyncio.run(filled(root, 0, 20))
    shutil.copytree(root, copy)
    asyncio.run(filled(root, 20, 21))
    asyncio.run(put_and_read(root, tier, None))
    shutil.rmtree(root)
    copy.rename(root)
    asyncio.run(filled(root, 20, 21))
    with pytest.raises(Denied, match="the hot log contradicts its tier") as raised:
        asyncio.run(put_and_read(root, tier, 21))
    assert "one copy is damaged" not in str(raised.value)


def rot_key(root: Path, body: bytes) -> None:
    """Flip a bit of the last key's last digit, from 19 to 18."""
    (path,) = (one for one in (root / "commitlog").iterdir() if body in one.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"key-19", b"key-18"))


@pytest.mark.parametrize("rotten", [partial(rot, before=10), partial(rot, before=21), rot_key])
def test_a_copy_that_rotted_where_no_checksum_covers_it_is_told_from_another_message(
    tmp_path: Path, rotten: Callable[[Path, bytes], None]
) -> None:
    """A cut would take the damaged bytes into the tier: the sentence names the cause."""
    root, tier = tmp_path / "store", tmp_path / "tier"
    asyncio.run(filled(root, 0, 20))
    asyncio.run(put_and_read(root, tier, None))
    rotten(root, new_message(19).body)  # store host, store time, key
    with pytest.raises(Denied, match="one copy is damaged: `tieredstore check`"):
        asyncio.run(put_and_read(root, tier, 20))
    root.rename(tmp_path / "moved away")
    assert asyncio.run(put_and_read(root, tier, 20)) == bodies(range(21), lost=set())
