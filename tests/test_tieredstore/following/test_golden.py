"""Following store directories that real brokers wrote gives every message, and changes nothing."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.message import StoredMessage
from container.record.unit import UNIT_DTYPE, Units
from dispatcher.ports import HotQueueState, Wanted, records_of_queue
from provider.clock import SystemClock
from provider.ranges import QueueOffset
from tests.support.golden import GOLDEN_TREES, GoldenTree, expected, tree_name, unpacked
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions


@pytest.fixture(params=GOLDEN_TREES, ids=tree_name)
def tree(request: pytest.FixtureRequest) -> GoldenTree:
    return unpacked(*request.param)


async def open_log(tree: GoldenTree) -> RocketMqHotLog:
    return await RocketMqHotLog.open(
        tree.store,
        options=HotLogOptions(),
        clock=SystemClock(),
        cluster=tree.golden.cluster,
        broker=tree.golden.broker,
    )


async def everything(
    log: RocketMqHotLog, queue: QueueId, start: int, end: int, messages_max: int
) -> tuple[Units, list[MessageBatch]]:
    units: list[Units] = []
    batches: list[MessageBatch] = []
    while start < end:
        found = await log.references(queue, QueueOffset(start), messages_max=messages_max)
        batch = await records_of_queue(log, Wanted(queue, QueueOffset(start), found))
        units.append(found[: len(batch)])
        batches.append(batch)
        start = batch.next_offset
    return np.concatenate([np.empty(0, UNIT_DTYPE), *units], dtype=UNIT_DTYPE), batches


def messages_of(batches: list[MessageBatch]) -> Iterator[StoredMessage]:
    for batch in batches:
        for start, size in zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True):
            raw = batch.data[start : start + size].tobytes()
            yield StoredMessage.decode(raw, path="batch", position=start)


async def test_every_message_that_the_official_client_read_is_there(tree: GoldenTree) -> None:
    log = await open_log(tree)
    wanted = expected(tree.golden, "messages")
    counts = Counter(QueueId(line["topic"], line["queue_id"]) for line in wanted)
    found: dict[tuple[str, int, int], StoredMessage] = {}
    for seen in await log.poll():
        assert seen.state is HotQueueState.READY
        assert seen.min_offset == 0
        assert seen.max_offset == counts[seen.id]
        _, batches = await everything(log, seen.id, seen.min_offset, seen.max_offset, 100)
        for message in messages_of(batches):
            found[message.topic, message.queue_id, message.queue_offset] = message
    assert len(found) == len(wanted)
    for line in wanted:
        message = found[line["topic"], line["queue_id"], line["queue_offset"]]
        assert message.size == line["store_size"]
        assert message.store_timestamp == line["store_timestamp"]
    await log.close()


async def test_units_are_those_of_the_files_and_point_at_the_records(tree: GoldenTree) -> None:
    log = await open_log(tree)
    for seen in await log.poll():
        directory = tree.store / "consumequeue" / seen.id.topic / str(seen.id.queue_id)
        raw = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        units, batches = await everything(log, seen.id, 0, seen.max_offset, 37)
        assert units.tobytes() == raw[: units.nbytes]
        assert not any(raw[units.nbytes :])
        positions = [message.physical_offset for message in messages_of(batches)]
        assert positions == units["position"].tolist()
        tags = [tag for batch in batches for tag in batch.tag_hashes.tolist()]
        assert tags == units["tag_hash"].tolist()
    await log.close()


def listing(directory: Path) -> dict[str, tuple[int, int, str]]:
    found: dict[str, tuple[int, int, str]] = {}
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (status.st_size, status.st_mtime_ns, digest)
    return found


async def test_nothing_in_the_store_changes_and_nothing_is_opened_for_writing(
    tree: GoldenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listing(tree.store)
    opened: list[int] = []
    real_open = os.open

    def watching_open(path: object, flags: int, *args: int) -> int:
        if str(path).startswith(str(tree.store)):
            opened.append(flags)
        return real_open(path, flags, *args)  # pyright: ignore[reportArgumentType] - as given

    monkeypatch.setattr(os, "open", watching_open)
    log = await open_log(tree)
    for seen in await log.poll():
        await everything(log, seen.id, seen.min_offset, seen.max_offset, 1000)
    assert list(await log.poll()) == []
    await log.close()
    assert opened
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    assert not [flags for flags in opened if flags & writing]
    assert listing(tree.store) == before
