"""Extents as rows: those that objects say, in a memory that hardly grows with their number."""

import asyncio
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Broker, CopyState, Extent, Gap, ManifestRef, Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer
from container.tier_view import FixedMetadata, TierReader
from provider.ranges import QueueOffset
from provider.testing.memory import MemoryStore
from tieredstore.config.effective import Config
from tieredstore.offline.jobs import restore_plan as job
from tieredstore.offline.jobs.restore_plan import (
    Corrections,
    LogRow,
    RestorePlan,
    Wanted,
    rows_of_log,
)
from tieredstore.offline.scan.planning import LogExtent, Selection, extents_of, splits_of_queue
from tieredstore.offline.scan.split import TierPlace

LOG = SegmentType.COMMIT_LOG
QUEUE = QueueId("T", 3)
EXTENT_BYTES = 4 << 20


class Listed:
    """Manifests, whose segments are made when they are asked for."""

    def __init__(self, segments: Callable[[int], Iterable[Segment]]) -> None:
        self._segments = segments

    async def segments(self, ref: ManifestRef) -> tuple[Segment, ...]:
        return tuple(self._segments(int(ref.object_name)))


def ref(number: int, segments: Iterable[Segment]) -> ManifestRef:
    found = [*segments]
    return ManifestRef(str(number), LOG, found[0].base, found[-1].end, len(found), 0, 0, 0)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Queue, list[list[Segment]]]:
    """A queue of some manifests, and the segments that these list."""
    runs: list[list[Segment]] = []
    base, offset = draw(st.integers(0, 100)), draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        runs.append([])
        for _ in range(draw(st.integers(1, 3))):
            extents: list[Extent] = []
            at = 0
            for length in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
                name = draw(st.sampled_from(["", "@parts/a", "@parts/b"]))
                place = draw(st.integers(0, 99)) if name else at
                crc = draw(st.integers(0, 2**32 - 1))
                first = QueueOffset(offset)
                extents.append(Extent(at, length, crc, first, offset, offset + 3, name, place))
                at, offset = at + length, offset + draw(st.integers(0, 4))
            runs[-1].append(Segment(LOG, base, 1, 1, tuple(extents), 1))
            base += at
    *listed, live = runs
    if draw(st.booleans()):  # deletion of the oldest one has begun
        oldest = replace(runs[0][0], state=CopyState.DELETE_STARTED)
        live = [oldest, *(live if listed else live[1:])]
    bounds = sorted(draw(st.lists(st.integers(0, offset + 2), max_size=6, unique=True)))
    gaps = tuple(
        Gap(QueueOffset(start), QueueOffset(end), "lost", 1)
        for start, end in zip(bounds[::2], bounds[1::2], strict=False)
    )
    first, end = sorted((draw(st.integers(0, offset)), draw(st.integers(0, offset + 2))))
    return Queue(
        QUEUE, QueueOffset(first), QueueOffset(end), tuple(live), (),
        tuple(ref(number, segments) for number, segments in enumerate(listed)), gaps,
    ), runs  # fmt: skip


@given(logs())
async def test_rows_have_what_splits_of_extents_have(
    log: tuple[Queue, list[list[Segment]]],
) -> None:
    queue, runs = log
    container = MessageQueueContainer(
        QUEUE, lambda _: queue, MemoryStore(), Listed(runs.__getitem__)
    )
    extents = extents_of(queue, await container.segments(LOG))
    splits = splits_of_queue(queue, extents, 1 << 62, wanted=Selection(), place=TierPlace())
    kept = {piece for split in splits for piece in split.pieces}
    names: dict[str, int] = {}
    rows = [
        LogRow(*row) async for some in rows_of_log(container, 7, names) for row in some.tolist()
    ]
    assert [as_extent(row, [*names]) for row in rows] == [
        one._replace(segment_base=0) for one in extents if one.piece in kept
    ]
    assert all((row.queue, row.bytes) == (7, row.length) for row in rows)


def as_extent(row: LogRow, names: list[str]) -> LogExtent:
    return LogExtent(
        row.piece(QUEUE, names),
        row.first_offset,
        row.next_offset,
        (row.first_ms, row.last_ms),
        0,
        row.crc32c,
    )


def plan_of_many(manifests: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> RestorePlan:
    """Plan of a log with so many manifests of 1,024 extents, as written by 16 segments each."""

    def segments(number: int) -> list[Segment]:
        found: list[Segment] = []
        for base in range(1024 * number, 1024 * (number + 1), 64):
            extents = tuple(
                Extent(
                    EXTENT_BYTES * at, EXTENT_BYTES, base, QueueOffset(100 * (base + at)), base,
                    base + 64, "", EXTENT_BYTES * at,
                )
                for at in range(64)
            )  # fmt: skip
            found.append(Segment(LOG, EXTENT_BYTES * base, 1, 1, extents, 1))
        return found

    refs = tuple(ref(number, segments(number)) for number in range(manifests))
    state = TierState(Broker("C", "b"))
    end = QueueOffset(102_400 * manifests)
    state.queues[QUEUE] = Queue(QUEUE, QueueOffset(0), end, manifests=refs)
    reader = TierReader(MemoryStore(), FixedMetadata(state), manifests=Listed(segments))

    def opened(_: Config, work: Callable[..., Any], **__: str) -> RestorePlan:
        return asyncio.run(work(reader, TierPlace()))

    monkeypatch.setattr(job, "with_open_tier", opened)
    monkeypatch.setattr(job, "WRITTEN_ROWS", 1000)
    monkeypatch.setattr(job, "DIGESTED_ROWS", 1000)
    return job.planned(Config.load(), root, Wanted(), Corrections())


def test_the_memory_of_a_plan_hardly_grows_with_the_extents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks: list[int] = []
    for manifests in (8, 24):
        tracemalloc.start()
        found = plan_of_many(manifests, tmp_path, monkeypatch)
        assert found.digest
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (np.diff(found.order) == 1).all()
        extracts = [one for stretch in found.groups for one in found.group(stretch).extracts]
        assert len(extracts) == 1024 * manifests
        assert extracts[-1].next_offset == 102_400 * manifests
    assert (peaks[1] - peaks[0]) / (16 * 1024) < 64
