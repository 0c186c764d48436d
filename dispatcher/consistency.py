"""Comparison of tier and hot log: the same messages at the same offsets.

A start finds thousands of queues whose messages agree. `find_agreeing` compares them together: a
store far away returns records of many queues in one request. A queue that differs, or that cannot
be read, is only left out there; `open_queue` then compares it alone and reports the cause.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress

import numpy as np

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.checksum import RECORD_CRC_BYTES, RECORD_CRC_PREFIX, body_crc_of
from container.record.header import locate_parts
from container.record.layout import PHYSICAL_OFFSET_AT, SYS_FLAG_AT
from container.record.unit import UNIT_DTYPE
from container.record.verification import damaged_bodies
from dispatcher.options import COMPARED_BYTES_MAX
from dispatcher.ports import HotLog, HotQueue, HotQueueState, ReadableTierPort, Wanted, WantedUnits
from dispatcher.round_plan import written_bytes
from dispatcher.start import OverlapSample, ResumeAt, TierIsAhead, decide_step
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.ranges import QueueOffset

NEAR_MESSAGES = 4096
"""The hot log's references to messages no further apart are fetched at once: 80 KiB at most."""
REPAIR_NEWEST = 16
"""Messages next to a cut that must be the same in both."""
SEARCH_WAYS = 16
"""Messages compared in one step of the search, which leaves a 17th of the offsets."""


def same_message(hot: bytes, tiered: bytes) -> bool:
    """Whether a hot record and a tiered one are one message. Pure.

    Tiering rewrites the physical offset, and the checksum of the whole record, which covers it.
    """
    if len(hot) != len(tiered):
        return False
    end = len(hot)
    if _has_crc(hot) and _has_crc(tiered):
        end -= RECORD_CRC_BYTES
    before, after = PHYSICAL_OFFSET_AT, SYS_FLAG_AT
    return hot[:before] == tiered[:before] and hot[after:end] == tiered[after:end]


def _has_crc(record: bytes) -> bool:
    return record[-RECORD_CRC_BYTES:].startswith(RECORD_CRC_PREFIX)


def differs_sentence(
    queue: QueueId,
    offset: QueueOffset,
    common_end: QueueOffset | None = None,
    *,
    low: QueueOffset | None = None,
) -> str:
    """What a person must know about a tier that contradicts its hot log.

    `common_end` is what `find_common_end` returned, if it could; `low` is the first offset that
    both have.
    """
    differs = f"the tier and the hot log have different messages at offset {offset}"
    kept = "what is tiered stays readable, nothing more is tiered until"
    repair = f"`tieredstore repair {queue.topic} {queue.queue_id} --cut-to-hot`"
    if common_end is not None and common_end == low:
        return (
            f"{differs}, and none that is the same: this is not the log that was tiered, or its "
            f"topic was made again unseen; {kept} the right store and tier are named, or until "
            f"{repair}, which would leave nothing that is tiered from there on"
        )
    below = f", and the same below offset {common_end}" if common_end else ""
    return (
        f"{differs}{below}: the broker gave offsets again that were tiered before; {kept} {repair}"
    )


async def compare_sampled(
    hot_log: HotLog, tier: ReadableTierPort, hot: HotQueue, *, newest: int
) -> QueueOffset | None:
    """Compare the newest messages that both have, and older ones at doubling distances.

    Returns the lowest offset at which they were seen to differ, or None. A store that was
    restored from a backup, or replaced by another one, may have the same newest messages again.
    The older ones tell it, down to the first that both have, or that the tier finds without
    reading its history. Older ones that cannot be read, or whose bits rotted in the hot log, are
    skipped.

    Compares `newest + log2(n) + 2` messages at most, n being what both have: 24 of a million.
    Costs one call to the tier, one `records_of_round` of the hot log, and one `references` for
    all within `NEAR_MESSAGES` and for each doubling beyond: 1 for 4,000 messages, 6 for 100,000.
    Costs more if they are larger than `COMPARED_BYTES_MAX` together, or one cannot be read. Holds
    `COMPARED_BYTES_MAX` of each side, or one message. Changes nothing, so it may be cancelled.

    A difference, or damage, is compared once more past caches and with the checksums of extents:
    bytes that flipped on their way, or at rest, are not another message.

    Raises:
        Unavailable: one of the two cannot be read now.
        Corrupt: the newest messages of one of the two cannot be read at all, or rotted there.
        OutOfRange: the hot log deleted the newest ones meanwhile.
    """
    published = tier.queue(hot.id)
    if published is None:
        return None
    common = OverlapSample.of(hot, published)
    offsets = common.sampled(common.end, newest=newest)
    with suppress(Corrupt, OutOfRange):
        if await first_difference(hot_log, tier, hot.id, offsets) is None:
            return None
    with cache_use(past=True):
        try:
            return await first_difference(hot_log, tier, hot.id, offsets, verified=True)
        except (Corrupt, OutOfRange):
            found = await first_difference(hot_log, tier, hot.id, offsets[-newest:], verified=True)
            older = await _readable_difference(hot_log, tier, hot.id, offsets[:-newest])
            return found if older is None else older


async def _readable_difference(
    hot_log: HotLog, tier: ReadableTierPort, queue: QueueId, offsets: Sequence[QueueOffset]
) -> QueueOffset | None:
    """As `first_difference`, but skips what cannot be read; finds that by halving."""
    try:
        return await first_difference(hot_log, tier, queue, offsets, verified=True)
    except (Corrupt, OutOfRange):
        if len(offsets) == 1:
            return None
    middle = len(offsets) // 2
    found = await _readable_difference(hot_log, tier, queue, offsets[:middle])
    if found is None:
        found = await _readable_difference(hot_log, tier, queue, offsets[middle:])
    return found


async def find_common_end(
    hot_log: HotLog, tier: ReadableTierPort, queue: QueueId
) -> QueueOffset | None:
    """The offset that `repair --cut-to-hot` cuts a queue to; None where there is nothing to cut.

    That is the largest offset such that every tiered message below it is in the hot log and the
    same there, or is older than what the hot log has. The offset is not within a gap, so that what
    the hot log may have there now can be tiered after the repair.

    The search assumes that two logs which differ once differ from there on, apart from single
    messages that coincide again. On that assumption it finds the border between a message that
    agrees and one above it that differs. It then verifies the border as `compare_sampled` does:
    the `REPAIR_NEWEST` messages below it, and those at doubling distances down to the first that
    both have. While one of these differs, the search continues below it.

    Compares `REPAIR_NEWEST + log2(n) + 2` messages in one call to the tier if nothing differs.
    Otherwise it does that twice, and compares `SEARCH_WAYS` messages in each of about log17(n)
    calls: 5 for a million. The tier also reads what it needs of its history. Memory and cancelling
    are those of `compare_sampled`. The hot log must have been polled. Reads past caches.

    Raises:
        Unavailable, Corrupt, OutOfRange: as `first_difference`.
    """
    with cache_use(past=True):
        return await _common_end(hot_log, tier, queue)


async def _common_end(
    hot_log: HotLog, tier: ReadableTierPort, queue: QueueId
) -> QueueOffset | None:
    hot = hot_log.queue(queue)
    published = tier.queue(queue)
    if hot is None or published is None:
        return None
    common = OverlapSample.of(hot, published)
    end = common.end
    while True:
        offsets = common.sampled(end, newest=REPAIR_NEWEST)
        differs = await first_difference(hot_log, tier, queue, offsets, history=True)
        if differs is None:
            return end if end < published.next_offset else None
        start = max((offset + 1 for offset in offsets if offset < differs), default=common.low)
        end = differs
        while probes := common.spread(QueueOffset(start), end, count=SEARCH_WAYS):
            found = await first_difference(hot_log, tier, queue, probes, history=True)
            end = end if found is None else found
            start = max((probe + 1 for probe in probes if probe < end), default=start)


async def first_difference(
    hot_log: HotLog,
    tier: ReadableTierPort,
    queue: QueueId,
    offsets: Sequence[QueueOffset],
    *,
    history: bool = False,
    verified: bool = False,
) -> QueueOffset | None:
    """The first of `offsets` at which the two have different messages; None if there is none.

    `offsets` ascend; both have all of them. Without `history`, offsets are left out that cost the
    tier more to find the longer the queue's history is. With `history`, a record that rotted in
    the tier is a difference: the repair cuts it off, and it is tiered again. With `verified`, the
    tier compares the checksums of the extents that it reads. Cost and memory are those of
    `compare_sampled`.

    Raises:
        Unavailable: one of the two cannot be read now.
        Corrupt: one of the two cannot be read at all, or the hot log's record rotted; without
            `history` also the tier's.
        OutOfRange: one of the two deleted them meanwhile.
    """
    done = 0
    while done < len(offsets):
        waiting = offsets[done:]
        tiered = await tier.messages_at(
            queue, waiting, bytes_max=COMPARED_BYTES_MAX, history=history, verified=verified
        )
        done += len(tiered)
        found = zip(waiting, tiered, strict=False)  # it may return fewer
        copies = {offset: record for offset, record in found if record is not None}
        differing = await _difference_from(hot_log, queue, copies)
        if differing is not None:
            if not history:
                _raise_if_rotten(queue, differing, copies[differing])
            return differing
    return None


async def _difference_from(
    hot_log: HotLog, queue: QueueId, tiered: Mapping[QueueOffset, bytes]
) -> QueueOffset | None:
    """As `first_difference`, for ascending offsets of which the tiered records are there."""
    for wanted in _pieces(await _wanted(hot_log, queue, list(tiered))):
        answers = await hot_log.records_of_round(wanted)
        for one, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, StoreError):
                raise answer
            if not same_message(first_record(answer), tiered[one.start]):
                _raise_if_damaged(queue, answer)
                return one.start
    return None


async def _wanted(hot_log: HotLog, queue: QueueId, offsets: Sequence[QueueOffset]) -> list[Wanted]:
    """Where the hot log has the messages at `offsets`; one request for those near each other."""
    wanted: list[Wanted] = []
    start, units = QueueOffset(0), np.zeros(0, UNIT_DTYPE)
    for offset in offsets:
        if not start <= offset < start + len(units):
            start = offset
            last = offsets[bisect_left(offsets, start + NEAR_MESSAGES) - 1]
            units = await hot_log.references(queue, start, messages_max=last - start + 1)
        wanted.append(Wanted(queue, offset, units[offset - start :][:1]))
    return wanted


def _pieces(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Parts that may be read at once: at most `COMPARED_BYTES_MAX`, or one message. Pure."""
    piece: list[Wanted] = []
    room = COMPARED_BYTES_MAX
    for one in wanted:
        size = int(written_bytes(one.references)[0])
        if piece and size > room:
            yield piece
            piece, room = [], COMPARED_BYTES_MAX
        piece.append(one)
        room -= size
    if piece:
        yield piece


def first_record(batch: MessageBatch) -> bytes:
    """A copy of the first record of a batch."""
    start = int(batch.starts[0])
    return batch.data[start : start + int(batch.sizes[0])].tobytes()


def _raise_if_damaged(queue: QueueId, batch: MessageBatch) -> None:
    """Refuse a hot record whose bits rotted: it differs, but is not another message."""
    if len(damaged_bodies(batch.data, batch.starts[:1], batch.sizes[:1])):
        offset = batch.first_offset
        reason = f"the hot log's record at offset {offset} fails its checksum"
        raise Corrupt(reason, str(queue), offset)


def _raise_if_rotten(queue: QueueId, offset: QueueOffset, tiered: bytes) -> None:
    """The same for a tiered record, by its body: Java leaves the other checksum stale."""
    header, parts = locate_parts(tiered, path=str(queue), position=offset)
    if body_crc_of(tiered[parts.body : parts.body_end]) != header.body_crc:
        raise Corrupt(
            f"the tier's record at offset {offset} fails its checksum; "
            f"`tieredstore repair {queue.topic} {queue.queue_id} --cut-to-hot` tiers it anew",
            str(queue),
            offset,
        )


NEAR_IN_HOT_LOG = 64
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
            common = OverlapSample.of(hot, tiered)
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
        if runs and offset - (runs[-1].start + runs[-1].messages_max) < NEAR_IN_HOT_LOG:
            runs[-1] = runs[-1]._replace(messages_max=offset + 1 - runs[-1].start)
        else:
            runs.append(WantedUnits(queue, offset, 1))
    return runs


def _within(run: WantedUnits, offsets: Iterable[QueueOffset]) -> list[QueueOffset]:
    return [offset for offset in offsets if run.start <= offset < run.start + run.messages_max]
