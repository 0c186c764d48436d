"""Repair of queues whose broker lost or rewrote tiered messages: plan a truncation, apply it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.queue.truncate import DamagedExtent, cut_queue
from container.tier import Tier
from container.tier_view import TierView
from dispatcher.consistency import find_common_end
from dispatcher.ports import HotLog, HotQueue, HotQueueState
from dispatcher.resume import is_contradicted
from provider.clock import Clock
from provider.errors import NotFound, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.session.owner import open_hot_log, running_owner

REASON = "cut to the hot log by `tieredstore repair`"


@dataclass(frozen=True, slots=True)
class Cut:
    """Part of a queue that a repair unpublishes."""

    queue: QueueId
    end: QueueOffset
    """First offset that is unpublished."""
    next_offset: QueueOffset
    """The commit offset before the repair."""
    is_whole: bool
    """True if no message of the queue stays."""

    @property
    def messages(self) -> int:
        """Number of messages that are unpublished."""
        return self.next_offset - self.end


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Planned repair of several queues."""

    cuts: tuple[Cut, ...]
    unknown: tuple[StoreError, ...] = ()
    """Errors of queues whose common end is unknown; the path names the queue."""


async def plan_repair(
    hot: HotLog,
    tier: TierView,
    topic: str | None,
    queue: int | None,
    *,
    compared_messages: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> RepairPlan:
    """Plan the truncation of a queue, of a topic's stopped queues, or of all stopped queues.

    Costs a `find_common_end` for each stopped queue, and two requests for each other one. A single
    queue is examined whether it is stopped or not. Changes nothing.

    Raises:
        NotFound: the tier has no such queue or topic; of a single queue also if the broker's log
            does not have it.
        Unavailable, Corrupt, OutOfRange: of a single queue: one of the two cannot be read.
    """
    await hot.poll()
    if topic is not None and queue is not None:
        found = await _find(hot, tier, QueueId(topic, queue))
        return RepairPlan(() if found is None else (found,))
    wanted = sorted(one for one in tier.state.queues if topic in {None, one.topic})
    if not wanted and topic is not None:
        raise NotFound("the tier has no such topic", topic)
    cuts: list[Cut] = []
    unknown: list[StoreError] = []
    for number, one in enumerate(wanted):
        progress(number, len(wanted))
        try:
            found = await _find_stopped(hot, tier, one, compared_messages)
        except StoreError as error:
            unknown.append(type(error)(error.reason, str(one), error.position))
            continue
        cuts += [] if found is None else [found]
    return RepairPlan(tuple(cuts), tuple(unknown))


async def repair(
    config: Config, store: Path, cuts: Sequence[Cut], *, take_over: bool, clock: Clock
) -> None:
    """Own the tier, make the cuts, and give it up. Each is durable when the next one begins.

    Raises:
        ConfigError: a queue changed since its cut was found; the cuts before it were made.
        Owned: a process that lives owns the tier; nothing was changed.
        Fenced: another process took the tier meanwhile.
    """
    async with (
        open_hot_log(config, store, clock=clock) as hot,
        running_owner(config, clock=clock, take_over=take_over) as tier,
    ):
        await hot.poll()
        for cut in cuts:
            await _cut_if_same(hot, tier, cut)


async def _cut_if_same(hot: HotLog, tier: Tier, cut: Cut) -> None:
    if await _find(hot, tier, cut.queue) != cut:
        raise ConfigError(f"{cut.queue} changed meanwhile: stop what tiers it, try again")
    await tier.cut_queue(cut.queue, cut.end, REASON)


async def _find_stopped(hot: HotLog, tier: TierView, queue: QueueId, compared: int) -> Cut | None:
    """As `_find`, of a queue that is stopped; None of all others, also of those without a log."""
    known = hot.queue(queue)
    if known is None or known.state is HotQueueState.REFUSED:
        return None
    if known.state is HotQueueState.READY and not await is_contradicted(
        hot, tier, known, compared_messages=compared
    ):
        return None
    return await _find(hot, tier, queue)


async def _find(hot: HotLog, tier: TierView, queue: QueueId) -> Cut | None:
    published = tier.queue(queue)
    if published is None:
        raise NotFound("the tier has no such queue", str(queue))
    refusal = _refusal(queue, hot.queue(queue))
    if refusal is not None:
        raise refusal
    end = await find_common_end(hot, tier, queue)
    if end is None:
        return None
    return _cut(published, await _sound_end(hot, tier, queue, end))


async def _sound_end(hot: HotLog, tier: TierView, queue: QueueId, end: QueueOffset) -> QueueOffset:
    """The end, or the beginning of a damaged extent that a cut at the end would go through.

    Raises:
        DamagedExtent: the hot log does not have all that such an extent holds, or no message of
            the queue would stay.
    """
    container, known = tier.container(queue), hot.queue(queue)
    assert container is not None, "it was found"
    assert known is not None, "it is not refused"
    while container.min_offset <= end < container.next_offset:
        try:
            await cut_queue(container, tier.store, end, now_ms=0)
        except DamagedExtent as damage:
            lowest = max(known.min_offset, container.min_offset + 1)
            if not lowest <= damage.first_offset < end:
                raise
            end = damage.first_offset
        else:
            break
    return end


def _refusal(queue: QueueId, known: HotQueue | None) -> StoreError | None:
    """Return the error that forbids to truncate a queue to the hot log; None if allowed. Pure.

    A queue that the hot log does not have stops nothing, so it needs no repair.
    """
    why = "so the place of the cut is unknown"
    if known is None:
        return NotFound(f"the hot log has no such queue, {why}", str(queue))
    match known.state:
        case HotQueueState.READY:
            return None
        case HotQueueState.UNREADABLE | HotQueueState.UNCONFIRMED:
            reason = f"the hot log cannot be read, {why}: {known.detail}"
            return Unavailable(reason, str(queue))
        case HotQueueState.DAMAGED:
            reason = f"the hot log is damaged, {why}; mend it first: {known.detail}"
            return NotFound(reason, str(queue))
        case HotQueueState.REFUSED:
            return NotFound(f"it is not tiered: {known.detail}; {why}", str(queue))


def _cut(published: Queue, end: QueueOffset) -> Cut:
    return Cut(published.id, end, published.next_offset, is_whole=end <= published.min_offset)
