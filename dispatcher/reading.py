"""Turning what a round took into commit plans: reading, verifying and encoding, side by side."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from container.record_batch import RecordBatch
from dispatcher.queue_progress import Taken
from dispatcher.source import HotLog
from dispatcher.target import AnyTier, CommitPlan
from provider.errors import StoreError

READERS = 2
"""Queues of a round that are read and planned at once: one is read while another is encoded."""
HOP_BYTES = 1 << 20
"""Small batches are planned together in one hop to a thread until they have so many bytes."""


@dataclass(slots=True)
class Prepared:
    """A round that is ready to be written."""

    plans: list[CommitPlan] = field(default_factory=list[CommitPlan])
    failures: list[tuple[Taken, StoreError]] = field(default_factory=list[tuple[Taken, StoreError]])
    """Queues whose messages could not be read or planned; the others are not concerned."""


async def prepare_round(
    taken: Sequence[Taken], *, hot: HotLog, tier: AnyTier, executor: Executor | None
) -> Prepared:
    """Read and plan what a round took. Never raises a `StoreError`; cancelling leaves nothing.

    One `HotLog.records` call for each queue; `TierTarget.plan_commit` runs in `executor`.
    """
    prepared = Prepared()
    shares = iter(taken)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(READERS, len(taken))):
            group.create_task(_read(shares, prepared, hot, tier, executor))
    return prepared


async def _read(
    shares: Iterator[Taken],
    prepared: Prepared,
    hot: HotLog,
    tier: AnyTier,
    executor: Executor | None,
) -> None:
    loop = asyncio.get_running_loop()
    waiting: list[tuple[Taken, RecordBatch]] = []
    waiting_bytes = 0

    async def plan() -> None:
        results = await loop.run_in_executor(executor, _plan, tier, tuple(waiting))
        for (share, _), result in zip(waiting, results, strict=True):
            if isinstance(result, StoreError):
                prepared.failures.append((share, result))
            else:
                prepared.plans.append(result)
        waiting.clear()

    for share in shares:
        try:
            batch = await hot.records(share.queue, share.start, share.references)
        except StoreError as error:
            prepared.failures.append((share, error))
            continue
        waiting.append((share, batch))
        waiting_bytes += batch.bytes
        if waiting_bytes >= HOP_BYTES:
            await plan()
            waiting_bytes = 0
    if waiting:
        await plan()


def _plan(
    tier: AnyTier, batches: Sequence[tuple[Taken, RecordBatch]]
) -> list[CommitPlan | StoreError]:
    results: list[CommitPlan | StoreError] = []
    for share, batch in batches:
        try:
            results.append(tier.plan_commit(share.queue, batch))
        except StoreError as error:  # one queue must not fail the others
            results.append(error)
    return results
