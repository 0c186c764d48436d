"""What an owner of many queues holds in memory, layer by layer: used by `packed_scale`.

The tier lies in a directory as an object store would have it: one snapshot, and nothing behind it.
The owner takes it, and the dispatcher sees the same queues in a hot log that has nothing new.
"""

import asyncio
import gc
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from container.index.options import IndexOptions
from container.journal.frame import Frame, FrameKind
from container.journal.snapshot import write_snapshot
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.tier_objects import BoundaryName
from container.options import TierIdentity
from container.tier import Tier
from dispatcher.hot_log import HotQueue
from dispatcher.options import DispatchOptions
from dispatcher.queue_table import QueueTable
from provider.clock import SystemClock
from provider.packed_segments import PackedDriver
from provider.posix import PosixStore
from provider.ranges import QueueOffset

KIB = 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class OwnerFigure:
    """What one number of queues costs its owner at rest."""

    tier_bytes_a_queue: int
    """Resident memory of `Tier.own`: the state, the planned one, the key collector, the steps."""
    dispatcher_bytes_a_queue: int
    """That of the dispatcher's queues, opened and described."""
    own_s: float
    """CPU time of taking the tier."""
    look_s: float
    """CPU time of looking at every record once, as steps of upkeep do after a start."""
    peak_bytes_a_queue: int
    """The most that was resident, over what the process had before."""


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def write_tier(directory: Path, state: TierState) -> None:
    """Write a tier of this state: a snapshot, and the boundary that says that it is all."""

    async def write() -> None:
        store, rng = PosixStore(directory), Random(1)
        await write_snapshot(store, state, epoch=1, rng=rng, clock=SystemClock())
        frame = Frame(FrameKind.BOUNDARY, 1, state.sequence, rng.randbytes(16), b"{}")
        await store.create(str(BoundaryName(state.sequence)), [frame.encode()])
        await store.close()

    asyncio.run(write())


def owner_figure(directory: Path) -> OwnerFigure:
    """Take the tier and measure; in a process that has done nothing else."""
    return asyncio.run(_measured(directory))


async def _measured(directory: Path) -> OwnerFigure:
    gc.collect()
    before = resident_bytes()
    store, rng = PosixStore(directory), Random(2)
    began_s = time.process_time()
    tier = await Tier.own(
        store,
        TierIdentity("cluster", "broker", "bench"),
        segments=PackedDriver(store, rng=rng),
        clock=SystemClock(),
        rng=rng,
        index=IndexOptions(),
    )
    own_s = time.process_time() - began_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB - before
    gc.collect()
    owned = resident_bytes() - before
    ends = {one.id: one.next_offset for one in tier.state.queues.bounds()}
    table = _followed(ends, list(ends))
    gc.collect()
    followed = resident_bytes() - before - owned
    began_s = time.process_time()
    assert all(queue.next_offset >= queue.min_offset for queue in tier.state.queues.values())
    look_s = time.process_time() - began_s
    count = len(table)
    await tier.journal.close()
    await store.close()
    return OwnerFigure(
        round(owned / count),
        round(followed / count),
        round(own_s, 2),
        round(look_s, 2),
        round(peak / count),
    )


def _followed(ends: dict[QueueId, QueueOffset], queues: Sequence[QueueId]) -> QueueTable:
    """The dispatcher's queues where all is tiered that the hot log has."""
    table = QueueTable(DispatchOptions())
    table.observe((HotQueue(one, QueueOffset(0), ends[one]) for one in queues), 1.0, first=True)
    for queue in table:
        queue.open(ends[queue.id])
    assert table.next_to_open(2.0, queues_max=1)[0] == []
    table.descriptions.at(2.0)
    return table
