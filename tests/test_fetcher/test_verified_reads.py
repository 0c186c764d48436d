"""D5: by default no read returns a record whose topic, offset, tags and body were not compared."""

import asyncio
from typing import Any

import pytest

from container.record.columns import Contents
from container.record.properties import tag_hash
from container.record.unit import UNIT_BYTES
from fetcher import loading
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.errors import Corrupt
from tests.support.messages import make_record
from tests.support.read_tier import MemoryQueue, MemoryTier, filled

RECORD = len(filled(1).commit_log)
BAD = 37
BODY_AT = 88
TAGS = ("A", "B")


async def offsets_until_error(
    fetcher: TieredMessageFetcher, subscription: str | None = None, *, at: int = 0, group: str = "g"
) -> tuple[list[int], Corrupt | None]:
    offsets: list[int] = []
    while True:
        try:
            found = await fetcher.get_message(
                group, "T", 0, at, messages_max=32, subscription=subscription
            )
        except Corrupt as error:
            return offsets, error
        if found.next_offset == at:
            return offsets, None
        offsets += found.messages.offsets.tolist()
        at = found.next_offset


@pytest.mark.parametrize(("cached", "together"), [(True, 512), (False, 512), (True, 5)])
async def test_a_body_that_rotted_is_not_served(
    monkeypatch: pytest.MonkeyPatch, *, cached: bool, together: int
) -> None:
    monkeypatch.setattr(loading, "VERIFIED_TOGETHER", together)
    queue = filled(100)
    queue.commit_log[BAD * RECORD + BODY_AT + 3] ^= 1
    options = FetcherOptions(cache_enabled=cached)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        offsets, error = await offsets_until_error(fetcher)
        assert offsets == list(range(BAD))
        assert error is not None
        assert (error.path, error.position) == ("T/0/COMMIT_LOG", BAD * RECORD)
        assert "checksum" in error.reason
        assert (await offsets_until_error(fetcher, at=BAD + 1))[0] == list(range(BAD + 1, 100))


@pytest.mark.parametrize(("records", "size"), [(10, 1 << 20), (512, 5 * RECORD)])
async def test_other_tasks_run_while_a_read_is_verified(
    monkeypatch: pytest.MonkeyPatch, records: int, size: int
) -> None:
    monkeypatch.setattr(loading, "VERIFIED_TOGETHER", records)
    monkeypatch.setattr(loading, "VERIFIED_BYTES", size)
    turn, verified_in, verify = 0, list[int](), loading.verify_contents

    def noted(*arguments: Any, **named: Any) -> Contents:
        verified_in.append(turn)
        return verify(*arguments, **named)

    async def other() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(loading, "verify_contents", noted)
    options = FetcherOptions(cache_enabled=False)  # one read at a time
    async with (
        TieredMessageFetcher(MemoryTier(filled(100)), options=options) as fetcher,
        asyncio.TaskGroup() as tasks,
    ):
        ticking = tasks.create_task(other())
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=100)
        ticking.cancel()
    assert [one.queue_offset for one in found.messages.decode()] == list(range(100))
    assert len(verified_in) >= 10
    assert len(set(verified_in)) == len(verified_in)


async def test_records_of_another_topic_are_not_served() -> None:
    queue = filled(40)
    other = MemoryQueue(queue.id._replace(topic="U"))
    other.fill(40)
    assert len(other.commit_log) == len(queue.commit_log)
    queue.commit_log, other.commit_log = other.commit_log, queue.commit_log
    async with TieredMessageFetcher(MemoryTier(queue, other)) as fetcher:
        with pytest.raises(Corrupt, match="another topic"):
            await fetcher.get_message("g", "T", 0, 0, messages_max=32)
        with pytest.raises(Corrupt, match="another topic"):
            await fetcher.get_message("g", "U", 0, 20, messages_max=1)


async def test_without_verification_only_headers_are_compared() -> None:
    queue = filled(100)
    queue.commit_log[BAD * RECORD + BODY_AT + 3] ^= 1
    options = FetcherOptions(verify=False)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        assert await offsets_until_error(fetcher) == (list(range(100)), None)


async def test_what_is_cached_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    verify = loading.verify_contents

    def counted(*arguments: object, **named: object) -> object:
        compared.append(len(arguments[1]))  # pyright: ignore[reportArgumentType] - an array
        return verify(*arguments, **named)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(loading, "verify_contents", counted)
    async with TieredMessageFetcher(MemoryTier(filled(100))) as fetcher:
        for _ in range(3):
            await offsets_until_error(fetcher)
    assert sum(compared) == 100


def with_flipped_hash(count: int, flipped: int) -> MemoryQueue:
    """Messages with tags A and B in turn; the unit of one has another hash."""
    queue = MemoryQueue()
    queue.fill(count, body_bytes=2000, tags=TAGS)
    queue.consume_queue[UNIT_BYTES * flipped + 19] ^= 4
    queue.damaged_units = True
    return queue


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "cached by another group"])
async def test_a_flipped_tags_code_hides_no_message(*, warm: bool) -> None:
    queue = with_flipped_hash(100, 38)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        if warm:
            assert await offsets_until_error(fetcher, group="h") == (list(range(100)), None)
        offsets, error = await offsets_until_error(fetcher, "A")
        assert offsets == list(range(0, 38, 2))
        assert error is not None
        assert (error.path, error.position) == ("T/0/CONSUME_QUEUE", UNIT_BYTES * 38)
        found = await offsets_until_error(fetcher, "A", at=39)
        assert found == (list(range(40, 100, 2)), None)


async def test_a_unit_with_the_wanted_hash_of_another_tag_is_named() -> None:
    queue = MemoryQueue()
    queue.fill(100, body_bytes=20_000, tags=("A", "B", "B", "B"))
    start = UNIT_BYTES * 41 + 12
    queue.consume_queue[start : start + 8] = tag_hash("A").to_bytes(8, "big", signed=True)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        offsets, error = await offsets_until_error(fetcher, "A")
        assert offsets == list(range(0, 41, 4))
        assert error is not None


async def test_filtered_reads_without_verification_trust_the_units() -> None:
    queue = with_flipped_hash(100, 38)
    options = FetcherOptions(verify=False)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        offsets, error = await offsets_until_error(fetcher, "A")
        assert error is None
        assert offsets == [offset for offset in range(0, 100, 2) if offset != 38]


async def test_a_code_that_is_no_hash_of_tags_is_not_compared() -> None:
    """Of a delayed message it is the time at which it is due."""
    queue = MemoryQueue()
    for offset in range(10):
        place = len(queue.commit_log)
        properties = {"TAGS": "A"}
        record = make_record("T", 0, offset, properties=properties, physical_offset=place)
        queue.append([record], ["A"])
        due = 1_700_000_000_000 << 1
        start = UNIT_BYTES * offset + 12
        queue.consume_queue[start : start + 8] = due.to_bytes(8, "big")
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        assert await offsets_until_error(fetcher) == (list(range(10)), None)
        assert await offsets_until_error(fetcher, "A") == ([], None)


async def test_tags_that_are_no_text_are_not_compared() -> None:
    queue = MemoryQueue()
    record = make_record("T", 0, 0, properties={"TAGS": "A?B"})
    queue.append([record.replace(b"A?B", b"A\xffB")], ["A?B"])
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        await offsets_until_error(fetcher)  # all of it is cached
        assert await offsets_until_error(fetcher, "A?B") == ([0], None)
