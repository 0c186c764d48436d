"""Finding out where a queue resumes: what the tier has, what the hot log has, do they agree."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from container.metadata.records import Queue
from dispatcher.common_offsets import CommonOffsets
from dispatcher.divergence import compare_sampled, differs_sentence, find_common_end
from dispatcher.hot_log import HotLog, HotQueue, Wanted, records_of_queue
from dispatcher.options import Backfill
from dispatcher.queue_start import (
    BeginAt,
    BeginAtTime,
    HotLogIsDamaged,
    RecordGapFirst,
    ResumeAt,
    TierIsAhead,
    decide_step,
)
from dispatcher.tier_port import ReadableTierPort, TierPort
from provider.errors import Corrupt, OutOfRange
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class Opened:
    """The queue resumes at `offset`."""

    offset: QueueOffset
    gap: bool = False
    """A gap that ends there was recorded."""


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The queue halts: the tier and the hot log contradict each other."""

    reason: str
    tier_next: QueueOffset
    heals_at: QueueOffset | None = None
    """Open the queue again once the hot log reaches this offset; None: only a repair helps."""
    common_end: QueueOffset | None = None
    """Both agree below this offset, as far as they were compared; None: wherever both have it."""


async def open_queue(
    hot_log: HotLog,
    tier: TierPort,
    hot: HotQueue,
    *,
    look_anew: Callable[[HotQueue], Awaitable[HotQueue]],
    backfill: Backfill,
    compared_messages: int,
    now_ms: int,
    damage: str = "",
    agreed: Queue | None = None,
) -> Opened | Contradicted | HotLogIsDamaged:
    """Decide where a queue resumes; record a gap where messages were lost.

    Before a gap is recorded, `look_anew` says what the hot log has by a look that keeps nothing.
    Costs one request to the tier, or two; more only for a queue that halts. May be cancelled, and
    called again after any failure. Where both have the queue, `compare_sampled` says what is
    compared. `agreed` is what the tier had published of the queue when `find_agreeing` compared it
    with this `hot`, if it did: as long as it has, no second time is needed.

    Raises:
        Unavailable: try again.
        OutOfRange: the hot log deleted what was looked at: poll, then try again.
        Corrupt: the newest messages of one of the two cannot be read.
        Fenced: someone newer owns the tier.
    """
    await tier.settle(hot.id)
    published = tier.queue(hot.id)
    step = decide_step(hot, published, backfill=backfill, now_ms=now_ms, damage=damage)
    if isinstance(step, RecordGapFirst):
        hot, agreed = await look_anew(hot), None
        step = decide_step(hot, published, backfill=backfill, now_ms=now_ms, damage=damage)
    match step:
        case BeginAt() | BeginAtTime():
            offset = await _first_offset(hot_log, hot, step)
            return await _begun(tier, hot, offset, backfill)
        case RecordGapFirst(start, end, reason):
            if published is None:
                await tier.begin_queue(hot.id, start)
            await tier.record_gap(hot.id, start, end, reason)
            return Opened(end, gap=True)
        case HotLogIsDamaged():
            return step
        case TierIsAhead() | ResumeAt():
            assert published is not None, "only a tier that has the queue is compared"
            if agreed != published:
                differing = await _contradiction(hot_log, tier, hot, compared_messages)
                if differing is not None:
                    reason, common_end = differing
                    return Contradicted(reason, published.next_offset, common_end=common_end)
            if isinstance(step, TierIsAhead):
                return Contradicted(step.reason, published.next_offset, published.next_offset)
            return Opened(step.offset)


async def is_contradicted(
    hot_log: HotLog, tier: ReadableTierPort, hot: HotQueue, *, compared_messages: int
) -> bool:
    """Whether `open_queue` would halt a queue until it is repaired. Changes nothing.

    Raises:
        Unavailable, OutOfRange, Corrupt: as `open_queue`.
    """
    step = decide_step(hot, tier.queue(hot.id), backfill="all", now_ms=0)
    if isinstance(step, TierIsAhead):
        return True
    if not isinstance(step, ResumeAt):
        return False
    return await _contradiction(hot_log, tier, hot, compared_messages) is not None


async def _contradiction(
    hot_log: HotLog, tier: ReadableTierPort, hot: HotQueue, newest: int
) -> tuple[str, QueueOffset] | None:
    """The sentence about two that differ, and where they still agree; None if they do agree."""
    if newest == 0:
        return None
    differing = await compare_sampled(hot_log, tier, hot, newest=newest)
    if differing is None:
        return None
    try:
        common_end = await find_common_end(hot_log, tier, hot.id)
    except (Corrupt, OutOfRange):  # the repair command will say why
        common_end = None
    published = tier.queue(hot.id)
    low = None if published is None else CommonOffsets.of(hot, published).low
    sentence = differs_sentence(hot.id, differing, common_end, low=low)
    return sentence, differing if common_end is None else common_end


async def _first_offset(hot_log: HotLog, hot: HotQueue, step: BeginAt | BeginAtTime) -> QueueOffset:
    if isinstance(step, BeginAt):
        return step.offset
    return await find_by_time(hot_log, hot, step.timestamp_ms)


async def _begun(tier: TierPort, hot: HotQueue, offset: QueueOffset, backfill: Backfill) -> Opened:
    """Publish where a queue begins that does not begin at its oldest message.

    Otherwise a process that dies before its first commit would be followed by one that begins
    later, and the messages between the two beginnings would never be tiered.
    """
    if backfill != "all":
        await tier.begin_queue(hot.id, offset)
    return Opened(offset)


async def find_by_time(hot_log: HotLog, hot: HotQueue, timestamp_ms: int) -> QueueOffset:
    """The first message stored at or after `timestamp_ms`; the queue's end if all are older.

    Reads one message for each halving of the queue: 20 for a million messages.
    """
    low, high = hot.min_offset, hot.max_offset
    while low < high:
        middle = QueueOffset((low + high) // 2)
        units = await hot_log.references(hot.id, middle, messages_max=1)
        batch = await records_of_queue(hot_log, Wanted(hot.id, middle, units))
        if int(batch.store_timestamps[0]) < timestamp_ms:
            low = QueueOffset(middle + 1)
        else:
            high = middle
    return low
