"""Turning what a round claimed into commit plans: reading, verifying and encoding."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch
from dispatcher.hot_log import HotLog, Wanted
from dispatcher.references import ClaimedRange
from dispatcher.tier_port import TierPort
from provider.errors import StoreError


@dataclass(slots=True)
class Prepared:
    """A round that is ready to be written."""

    plans: list[CommitPlan] = field(default_factory=list[CommitPlan])
    failures: list[tuple[ClaimedRange, StoreError]] = field(
        default_factory=list[tuple[ClaimedRange, StoreError]]
    )
    """Queues whose messages could not be read or planned; the others are not affected."""


async def prepare_round(
    claimed: Sequence[ClaimedRange], *, hot: HotLog, tier: TierPort, executor: Executor | None
) -> Prepared:
    """Read and plan what a round claimed. Never raises a `StoreError`; cancelling leaves nothing.

    One `HotLog.records_of_round` call; `TierPort.plan_commit` runs in `executor`, one hop.
    """
    answers = await hot.records_of_round(
        [Wanted(share.queue, share.start, share.references) for share in claimed]
    )
    return await asyncio.get_running_loop().run_in_executor(executor, _plan, tier, claimed, answers)


def _plan(
    tier: TierPort, claimed: Sequence[ClaimedRange], answers: Sequence[MessageBatch | StoreError]
) -> Prepared:
    prepared = Prepared()
    for share, answer in zip(claimed, answers, strict=True):
        if isinstance(answer, StoreError):
            prepared.failures.append((share, answer))
            continue
        try:
            prepared.plans.append(tier.plan_commit(share.queue, answer))
        except StoreError as error:  # one queue must not fail the others
            prepared.failures.append((share, error))
    return prepared
