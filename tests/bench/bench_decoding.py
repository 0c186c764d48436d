"""CPU time a message of a reader that decodes, over a tier in memory that copies what is read.

Not collected by default: `pytest tests/bench/bench_decoding.py --benchmark-enable`. Time is that of
the process, so that what else the machine does counts little; `us_a_message` is in the extra
columns, from the fastest round.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from container.record.message import StoredMessage
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchedMessages
from tests.bench.bench_fetcher import CopyingQueue
from tests.support.messages import make_record
from tests.support.read_tier import MemoryTier

MESSAGES = {100: 8_000, 1_024: 8_000, 16_384: 1_000}
"""How many messages of each length of body are read."""

Decoder = Callable[[FetchedMessages], Iterator[StoredMessage]]


def one_by_one(found: FetchedMessages) -> Iterator[StoredMessage]:
    """As a program does that has records only."""
    for record in found:
        yield StoredMessage.decode(record, path="T/0", position=0)


def read_records(found: FetchedMessages) -> None:
    """Nothing is decoded: what reading costs without it."""


def read_body(found: FetchedMessages, decode: Decoder = FetchedMessages.decode) -> None:
    for message in decode(found):
        _ = message.queue_offset, message.body


def read_body_and_labels(found: FetchedMessages, decode: Decoder = FetchedMessages.decode) -> None:
    for message in decode(found):
        _ = message.queue_offset, message.body, message.tags, message.keys


def read_all_fields(found: FetchedMessages, decode: Decoder = FetchedMessages.decode) -> None:
    for message in decode(found):
        _ = message.fields()


def read_body_one_by_one(found: FetchedMessages) -> None:
    read_body(found, one_by_one)


@pytest.fixture(scope="module", params=MESSAGES, ids=lambda size: f"{size} B")
def tier(request: pytest.FixtureRequest) -> tuple[MemoryTier, int]:
    """Messages with KEYS, UNIQ_KEY, TAGS and up to two more properties; lengths differ a little."""
    body_bytes, count = request.param, MESSAGES[request.param]
    queue = CopyingQueue()
    place = 0
    for offset in range(count):
        properties = {
            "KEYS": f"order-{offset:010d}",
            "UNIQ_KEY": f"7F00000100002A18B4AA{offset:010d}00",
            "TAGS": "TagA",
        }
        if offset % 2:
            properties |= {"WAIT": "true", "seq": str(offset)}
        body = offset.to_bytes(8, "big") * (body_bytes // 8) + bytes(offset % 7)
        record = make_record("T", 0, offset, body, properties=properties, physical_offset=place)
        queue.append([record], ["TagA"])
        place += len(record)
    queue.freeze()
    return MemoryTier(queue), count


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("messages_max", [32, 1024])
@pytest.mark.parametrize(
    "read",
    [read_records, read_body, read_body_and_labels, read_all_fields, read_body_one_by_one],
)
def test_a_reader_that_decodes(
    benchmark: BenchmarkFixture,
    tier: tuple[MemoryTier, int],
    read: Callable[[FetchedMessages], None],
    messages_max: int,
) -> None:
    source, count = tier

    async def once() -> int:
        at = 0
        async with TieredMessageFetcher(source) as fetcher:
            while at < count:
                found = await fetcher.get_message(
                    "g", "T", 0, at, messages_max=messages_max, bytes_max=None
                )
                read(found.messages)
                at = found.next_offset
        return at

    assert benchmark(lambda: asyncio.run(once())) == count
    measured: Any = benchmark.stats  # None where benchmarks are disabled
    if measured is not None:
        benchmark.extra_info["us_a_message"] = round(measured.stats.min / count * 1e6, 2)
