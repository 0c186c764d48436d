"""Comparing many queues of the tier with the hot log at once, for those of which all is well.

A start finds thousands of queues whose messages agree. What is compared of each is what
`divergence.compare_sampled` compares, but all are read together: a store far away gives what many
queues have of an object in one request, and a disk is read in one hop into another thread. A queue
that differs, or that cannot be read, is only left out here: `open_queue` compares it alone then,
and says what is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from dispatcher.common_offsets import CommonOffsets
from dispatcher.divergence import compare_sampled, first_record, same_message
from dispatcher.hot_log import HotLog, HotQueue, HotQueueState, Wanted, WantedUnits
from dispatcher.options import COMPARED_BYTES_MAX
from dispatcher.queue_start import ResumeAt, TierIsAhead, decide_step
from dispatcher.tier_port import ReadableTierPort
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.ranges import QueueOffset

NEAR_MESSAGES = 64
"""Of a queue of the hot log, references to messages no further apart are read in one range."""

TieredRecords = Mapping[QueueOffset, bytes]


async def find_agreeing(
    hot_log: HotLog, tier: ReadableTierPort, hots: Iterable[HotQueue], *, newest: int
) -> dict[QueueId, Queue]:
    """The queues of which both have the same messages, with what the tier had published of them.

    Compares of each what `compare_sampled` does, and leaves out those of which it would return or
    raise anything; also those that are not to be compared (`decide_step`), or whose compared
    records have more than `COMPARED_BYTES_MAX`. `newest` 0: nothing is compared.

    Costs one `messages_of_queues`; and a `references_of_queues` and a `records_of_round` for each
    `COMPARED_BYTES_MAX` of records. Holds that of each side. Changes nothing, so it may be
    cancelled.

    Raises:
        Closed: the hot log was closed.
    """
    published: dict[QueueId, Queue] = {}
    offsets: dict[QueueId, Sequence[QueueOffset]] = {}
    for hot in hots:
        tiered = tier.queue(hot.id)
        if tiered is None:
            continue
        if isinstance(decide_step(hot, tiered, backfill="all", now_ms=0), ResumeAt | TierIsAhead):
            published[hot.id] = tiered
            common = CommonOffsets.of(hot, tiered)
            if newest and (sampled := common.sampled(common.end, newest=newest)):
                offsets[hot.id] = sampled
    agreeing = {queue: record for queue, record in published.items() if queue not in offsets}
    if not offsets:
        return agreeing
    reading = tier.messages_of_queues(offsets, bytes_max=COMPARED_BYTES_MAX)
    async with aclosing(reading):
        async for found in reading:
            tiered = {queue: _known(offsets[queue], records) for queue, records in found.items()}
            same = await _same_in(hot_log, tiered)
            agreeing.update((queue, published[queue]) for queue in same)
    return agreeing


async def compare_all(
    hot_log: HotLog, tier: ReadableTierPort, hots: Iterable[HotQueue], *, newest: int
) -> tuple[dict[QueueId, Queue], dict[QueueId, QueueOffset]]:
    """The queues that agree, and of those that differ the lowest offset where it was seen.

    Compares as `find_agreeing`, then each that does not agree as `compare_sampled`. Queues that
    are not to be compared, or that cannot be, are in neither. Changes nothing, so it may be
    cancelled.

    Raises:
        Unavailable: one of the two cannot be read now.
        Closed: the hot log was closed.
    """
    ready = [hot for hot in hots if hot.state is HotQueueState.READY]
    agreeing = await find_agreeing(hot_log, tier, ready, newest=newest)
    differing: dict[QueueId, QueueOffset] = {}
    for hot in ready:
        if hot.id in agreeing or tier.queue(hot.id) is None:
            continue
        try:
            offset = await compare_sampled(hot_log, tier, hot, newest=newest)
        except (Corrupt, OutOfRange):
            continue  # the dispatcher meets it again, and reports it
        if offset is not None:
            differing[hot.id] = offset
    return agreeing, differing


def _known(offsets: Sequence[QueueOffset], records: Sequence[bytes | None]) -> TieredRecords:
    pairs = zip(offsets, records, strict=True)
    return {offset: record for offset, record in pairs if record is not None}


async def _same_in(hot_log: HotLog, tiered: Mapping[QueueId, TieredRecords]) -> set[QueueId]:
    """The queues of which the hot log has all these records."""
    runs = [run for queue, records in tiered.items() for run in _runs(queue, list(records))]
    same = set(tiered)
    wanted: list[Wanted] = []
    for run, units in zip(runs, await hot_log.references_of_queues(runs), strict=True):
        offsets = _within(run, tiered[run.queue])
        if isinstance(units, StoreError) or len(units) <= offsets[-1] - run.start:
            same.discard(run.queue)
            continue
        for offset in offsets:
            unit = units[offset - run.start :][:1]
            if int(unit["size"][0]) != len(tiered[run.queue][offset]):
                same.discard(run.queue)
                break
            wanted.append(Wanted(run.queue, offset, unit))
    wanted = [one for one in wanted if one.queue in same]
    if not wanted:
        return same
    answers = await hot_log.records_of_round(wanted)
    for one, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, StoreError) or not same_message(
            first_record(answer), tiered[one.queue][one.start]
        ):
            same.discard(one.queue)
    return same


def _runs(queue: QueueId, offsets: Sequence[QueueOffset]) -> list[WantedUnits]:
    """Ranges of references that have ascending offsets. Pure."""
    runs: list[WantedUnits] = []
    for offset in offsets:
        if runs and offset - (runs[-1].start + runs[-1].messages_max) < NEAR_MESSAGES:
            runs[-1] = runs[-1]._replace(messages_max=offset + 1 - runs[-1].start)
        else:
            runs.append(WantedUnits(queue, offset, 1))
    return runs


def _within(run: WantedUnits, offsets: Iterable[QueueOffset]) -> list[QueueOffset]:
    return [offset for offset in offsets if run.start <= offset < run.start + run.messages_max]
