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
from typing import Self

from container.index.options import IndexOptions
from container.journal.frame import Frame, FrameKind
from container.journal.reader import write_snapshot
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.tier_objects import BoundaryName
from container.options import TierIdentity
from container.tier import Tier
from dispatcher.options import DispatchOptions
from dispatcher.ports import HotQueue
from dispatcher.queue_table import QueueTable
from provider.clock import SystemClock
from provider.posix.store import PosixStore
from provider.ranges import QueueOffset
from provider.stores.packed_segments import PackedDriver

KIB = 1024
TICK_S = 0.001
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class OwnerFigure:
    """What one number of queues costs its owner at rest."""

    tier_bytes_a_queue: int
    """Resident memory of `Tier.own`, after the steps of upkeep that look at every record once: the
    state, the planned one, the key collector, the steps."""
    dispatcher_bytes_a_queue: int
    """That of the dispatcher's queues, opened and described."""
    own_s: float
    """CPU time of taking the tier."""
    look_s: float
    """CPU time of these steps."""
    peak_bytes_a_queue: int
    """The most that was resident, over what the process had before."""
    own_turn_ms: float
    """CPU time of the longest turn of the event loop while the tier was taken."""
    snapshot_s: float
    """CPU time of writing a snapshot and comparing it."""
    snapshot_turn_ms: float
    """CPU time of the longest turn of the event loop meanwhile."""


class LongestTurn:
    """How long others waited for the event loop, in CPU time of its thread: not for the machine."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "entered"
        await asyncio.sleep(2 * TICK_S)
        self._task.cancel()

    async def _watch(self) -> None:
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.thread_time()
            self.ms, before_s = max(self.ms, 1e3 * (now_s - before_s)), now_s


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
    async with LongestTurn() as own_turn:
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
    began_s = time.process_time()
    for one in tier.upkeep._scheduled:
        if one.step.name in {"manifests", "repacking"}:
            await one.step.step()
    look_s = time.process_time() - began_s
    gc.collect()
    owned = resident_bytes() - before
    ends = {one.id: one.next_offset for one in tier.state.queues.bounds()}
    table = _followed(ends, list(ends))
    ends.clear()
    gc.collect()
    followed = resident_bytes() - before - owned
    count, epoch = len(table), tier.journal.epoch
    began_s = time.process_time()
    async with LongestTurn() as turn:
        await write_snapshot(store, tier.state, epoch=epoch, rng=rng, clock=SystemClock())
    snapshot_s = time.process_time() - began_s
    await tier.journal.close()
    await store.close()
    return OwnerFigure(
        round(owned / count),
        round(followed / count),
        round(own_s, 2),
        round(look_s, 2),
        round(peak / count),
        round(own_turn.ms, 1),
        round(snapshot_s, 2),
        round(turn.ms, 1),
    )


def _followed(ends: dict[QueueId, QueueOffset], queues: Sequence[QueueId]) -> QueueTable:
    """The dispatcher's queues where all is tiered that the hot log has."""
    table = QueueTable(DispatchOptions())
    table.observe((HotQueue(one, QueueOffset(0), ends[one]) for one in queues), 1.0, first=True)
    for queue in table:
        queue.open(ends[queue.id])
    assert table.next_to_open(2.0, queues_max=1)[0] == []
    table.descriptions.at(2.0)
    table.observe((HotQueue(queues[0], QueueOffset(0), ends[queues[0]]),), 3.0, first=False)
    table.descriptions.at(3.0)
    return table
