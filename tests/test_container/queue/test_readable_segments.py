"""Readers read what the invariants speak of: finished copies, and nothing else."""

from dataclasses import replace

import pytest

from container.metadata.records import CopyState, Extent, Queue, Segment, check_queue
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.manifest import ManifestReader
from container.queue.message_queue_container import MessageQueueContainer
from provider.errors import OutOfRange
from provider.object_store import Append
from provider.ranges import ByteRange, QueueOffset
from provider.testing.memory import MemoryStore

QUEUE = QueueId("T", 0)
LOG, UNITS = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


def segment(kind: SegmentType, base: int, size: int, state: CopyState) -> Segment:
    extent = Extent(0, size, None, QueueOffset(base // 20), 1, 1)
    return Segment(kind, base, 1, 1, (extent,), sealed_ms=1, state=state)


@pytest.mark.parametrize("state", CopyState)
async def test_only_finished_copies_are_read_and_must_join(state: CopyState) -> None:
    store = MemoryStore()
    logs = (
        segment(LOG, 0, 100, state),
        segment(LOG, 100, 100, CopyState.COPY_FINISHED),
    )
    units = segment(UNITS, 0, 40, CopyState.COPY_FINISHED)
    queue = Queue(QUEUE, QueueOffset(0), QueueOffset(2), logs, (units,))
    for one in logs:
        await store.append([Append(segment_name(QUEUE, LOG, one.base), 0, (bytes(100),))])
    container = MessageQueueContainer(QUEUE, lambda _: queue, store, ManifestReader(store))
    apart = replace(queue, commit_log=(replace(logs[0], base=-50), logs[1]))
    if state == CopyState.COPY_FINISHED:
        assert len(await container.log(ByteRange(50, 150))) == 100
        with pytest.raises(Exception, match="I4"):
            check_queue(apart)
    else:
        with pytest.raises(OutOfRange):
            await container.log(ByteRange(50, 60))
        assert len(await container.log(ByteRange(100, 200))) == 100
        check_queue(apart)
    assert [one.base for one in await container.segments(LOG)] == [0, 100], "all are told"
    assert queue.readable(LOG) == tuple(one for one in logs if one.is_readable)
