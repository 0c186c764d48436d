"""What a fetch decodes: every message with its fields, and damage where it is reached."""

from typing import Any

import numpy as np
import pytest

from container.record import message
from container.record.message import StoredMessage
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.errors import Corrupt
from tests.support.read_tier import MemoryQueue, MemoryTier, filled


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("subscription", [None, "A"])
async def test_the_messages_of_a_fetch_are_those_of_its_records(
    subscription: str | None, *, cached: bool
) -> None:
    queue = MemoryQueue(first=50)
    queue.fill(100, body_bytes=300, tags=("A", "B", ""))
    options = FetcherOptions(cache_enabled=cached, run_messages_max=40)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        at = 50
        for _ in range(10):
            found = await fetcher.get_message(
                "g", "T", 0, at, messages_max=25, subscription=subscription
            )
            decoded = list(found.messages.decode())
            records = [bytes(record) for record in found.messages]
            assert decoded == [
                StoredMessage.decode(record, path="", position=0) for record in records
            ]
            assert [one.queue_offset for one in decoded] == found.messages.offsets.tolist()
            assert subscription is None or {one.tags for one in decoded} <= {subscription}
            at = int(found.next_offset)


async def test_damage_inside_a_record_is_named_when_its_message_is_reached() -> None:
    queue = filled(60, body_bytes=100)
    bad = 37
    position = queue.commit_log.index(queue.record(bad))
    queue.commit_log[position + 84] ^= 0x40  # the body's length, which no get looks at
    options = FetcherOptions(verify=False)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=60)
        assert found.next_offset == 60
        messages = found.messages.decode()
        assert [next(messages).queue_offset for _ in range(bad)] == list(range(bad))
        with pytest.raises(Corrupt, match="body length") as caught:
            next(messages)
        assert (caught.value.path, caught.value.position) == ("T/0/COMMIT_LOG", position)


async def test_a_run_is_checked_for_decoding_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def counted(*columns: Any) -> np.ndarray | None:
        checked.append(len(columns[1]))
        return places(*columns)

    places = message.properties_of_all
    monkeypatch.setattr(message, "properties_of_all", counted)
    options = FetcherOptions(verify=False)
    async with TieredMessageFetcher(MemoryTier(filled(2000)), options=options) as fetcher:
        at = 0
        while at < 2000:
            found = await fetcher.get_message("g", "T", 0, at, messages_max=32)
            assert sum(1 for _ in found.messages.decode()) == len(found.messages)
            at = int(found.next_offset)
        assert len(checked) <= fetcher.statistics().runs_read
        assert sum(checked) == 2000
