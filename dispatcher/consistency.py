"""Comparison of tier and hot log: the same messages at the same offsets.

At a start, nearly all of thousands of queues agree. `find_agreeing` compares them together, so
that one request to a remote store returns records of many queues. It leaves out a queue that
differs or cannot be read; `open_queue` then compares that queue alone and reports the cause.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress

import numpy as np

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.checksum import RECORD_CRC_BYTES, RECORD_CRC_PREFIX, body_crc_of
from container.record.header import PHYSICAL_OFFSET_AT, SYS_FLAG_AT, locate_parts
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
"""Span of messages whose references one call to the hot log fetches: at most 80 KiB."""
REPAIR_NEWEST = 16
"""Messages below a tail truncation that must be the same in tier and hot log."""
SEARCH_WAYS = 16
"""Messages compared in one step of the search. A step reduces the offsets to one 17th."""


def same_message(hot: bytes, tiered: bytes) -> bool:
    """Whether a hot record and a tiered record are the same message. Pure.

    Ignores the physical offset and the checksum of the whole record, which tiering rewrites.
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
    """Error sentence for an operator: a tier that contradicts its hot log, and the repair. Pure.

    `common_end` is the result of `find_common_end`; None if it failed. `low` is the first offset
    that both have.
    """
    differs = f"the tier and the hot log have different messages at offset {offset}"
    kept = "tiered messages stay readable, nothing more is tiered until"
    repair = f"`tieredstore repair {queue.topic} {queue.queue_id} --cut-to-hot`"
    if common_end is not None and common_end == low:
        return (
            f"{differs}, and none that is the same: this is not the log that was tiered, or its "
            f"topic was recreated unnoticed; {kept} the right store and tier are named, or until "
            f"{repair}, which would leave no tiered message from there on"
        )
    below = f", and the same below offset {common_end}" if common_end else ""
    return f"{differs}{below}: the broker gave tiered offsets to other messages; {kept} {repair}"


async def compare_sampled(
    hot_log: HotLog, tier: ReadableTierPort, hot: HotQueue, *, newest: int
) -> QueueOffset | None:
    """Compare the newest common messages of a queue, and older ones at doubling distances.

    Returns the lowest sampled offset at which tier and hot log differ, or None. A store that was
    restored from a backup, or replaced by another one, may have the same newest messages again.
    The older samples detect that. They reach down to the first common message, or to the oldest
    that the tier finds without reading its history. Older messages that cannot be read, or whose
    checksum fails in the hot log, are skipped.

    Compares at most `newest + log2(n) + 2` of n common messages: 24 of a million. Costs one call
    to the tier, one `records_of_round`, and one `references` for all messages within
    `NEAR_MESSAGES` and for each doubling beyond: 1 for 4,000 messages, 6 for 100,000. Costs more
    if the records exceed `COMPARED_BYTES_MAX` together, or if one cannot be read. Holds
    `COMPARED_BYTES_MAX` of each side, or one message. Changes nothing, so it may be cancelled.

    A difference or damage is compared a second time, past caches and with the checksums of
    extents. Bits that flipped in transfer or at rest therefore do not count as another message.

    Raises:
        Unavailable: the tier or the hot log cannot be read now.
        Corrupt: the newest messages of the tier or the hot log cannot be read or fail a checksum.
        OutOfRange: the hot log deleted the newest messages meanwhile.
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
    """Return `first_difference` of the readable messages; bisects to skip unreadable ones."""
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
    """Find the offset at which `repair --cut-to-hot` truncates a queue; None: nothing to truncate.

    Returns the largest offset such that every tiered message below it is either the same in the
    hot log or older than the hot log. The offset is not within a gap, so messages that the hot log
    has there now can be tiered after the repair.

    The search assumes that two logs that differ once differ from there on, apart from single
    messages that coincide again. On that assumption it finds the border between a message that
    agrees and one above it that differs. It then verifies the border as `compare_sampled` does:
    the `REPAIR_NEWEST` messages below it, and messages at doubling distances down to the first
    common one. While one of these differs, the search continues below it.

    Compares `REPAIR_NEWEST + log2(n) + 2` messages in one call to the tier if nothing differs.
    Otherwise it does that twice, and compares `SEARCH_WAYS` messages in each of about log17(n)
    calls: 5 for a million. The tier reads its history in addition. Memory and cancelling are those
    of `compare_sampled`. The hot log must have been polled. Reads past caches.

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
    """Find the first of `offsets` at which tier and hot log differ; None if they agree.

    `offsets` ascend; tier and hot log have all of them. Without `history`, offsets are skipped
    whose lookup in the tier costs more the longer the queue's history is. With `history`, a tiered
    record that fails its checksum is a difference: the repair truncates it, and it is tiered
    again. With `verified`, the tier verifies the checksums of the extents that it reads. Cost and
    memory are those of `compare_sampled`.

    Raises:
        Unavailable: the tier or the hot log cannot be read now.
        Corrupt: the tier or the hot log cannot be read at all, or the hot record fails its
            checksum. Without `history`, also if the tiered record fails it.
        OutOfRange: the tier or the hot log deleted the messages meanwhile.
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
    """Return `first_difference` for ascending offsets whose tiered records are already read."""
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
    """Fetch the references of the messages at `offsets`; one call for messages near each other."""
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
    """Split into reads of at most `COMPARED_BYTES_MAX`, or of one larger message. Pure."""
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
    """Copy the first record of a batch."""
    start = int(batch.starts[0])
    return batch.data[start : start + int(batch.sizes[0])].tobytes()


def _raise_if_damaged(queue: QueueId, batch: MessageBatch) -> None:
    """Raise `Corrupt` for a hot record that fails its checksum: it is not another message."""
    if len(damaged_bodies(batch.data, batch.starts[:1], batch.sizes[:1])):
        offset = batch.first_offset
        reason = f"the hot log's record at offset {offset} fails its checksum"
        raise Corrupt(reason, str(queue), offset)


def _raise_if_rotten(queue: QueueId, offset: QueueOffset, tiered: bytes) -> None:
    """Raise `Corrupt` for a tiered record whose body fails its checksum.

    The checksum of the whole record does not count: Java leaves it stale.
    """
    header, parts = locate_parts(tiered, path=str(queue), position=offset)
    if body_crc_of(tiered[parts.body : parts.body_end]) != header.body_crc:
        raise Corrupt(
            f"the tier's record at offset {offset} fails its checksum; "
            f"`tieredstore repair {queue.topic} {queue.queue_id} --cut-to-hot` tiers it again",
            str(queue),
            offset,
        )


NEAR_IN_HOT_LOG = 64
"""Distance in messages up to which two references of a queue are read in one range."""

TieredRecords = Mapping[QueueOffset, bytes]


async def find_agreeing(
    hot_log: HotLog, tier: ReadableTierPort, hots: Iterable[HotQueue], *, newest: int
) -> dict[QueueId, Queue]:
    """Find the queues that agree, each with the record that the tier had published of it.

    Compares the same messages of each queue as `compare_sampled`. Leaves out queues for which
    `compare_sampled` would return an offset or raise, queues that `decide_step` does not compare,
    and queues whose sampled records exceed `COMPARED_BYTES_MAX`. With `newest` 0, nothing is
    compared and every queue that `decide_step` would compare is returned.

    Costs one `messages_of_queues`, and one `references_of_queues` and one `records_of_round` for
    each `COMPARED_BYTES_MAX` of records. Holds `COMPARED_BYTES_MAX` of each side. Changes nothing,
    so it may be cancelled.

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
    """Compare all queues: the agreeing ones with their tier records, the others by offset.

    Returns the result of `find_agreeing`, and for each differing queue the result of
    `compare_sampled`. Queues that need no comparison, or that cannot be compared, are in neither.
    Changes nothing, so it may be cancelled.

    Raises:
        Unavailable: the tier or the hot log cannot be read now.
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
            continue  # the dispatcher will hit the same error and report it
        if offset is not None:
            differing[hot.id] = offset
    return agreeing, differing


def _known(offsets: Sequence[QueueOffset], records: Sequence[bytes | None]) -> TieredRecords:
    pairs = zip(offsets, records, strict=True)
    return {offset: record for offset, record in pairs if record is not None}


async def _same_in(hot_log: HotLog, tiered: Mapping[QueueId, TieredRecords]) -> set[QueueId]:
    """Return the queues of which the hot log has all these records."""
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
    """Coalesce ascending offsets into ranges of references. Pure."""
    runs: list[WantedUnits] = []
    for offset in offsets:
        if runs and offset - (runs[-1].start + runs[-1].messages_max) < NEAR_IN_HOT_LOG:
            runs[-1] = runs[-1]._replace(messages_max=offset + 1 - runs[-1].start)
        else:
            runs.append(WantedUnits(queue, offset, 1))
    return runs


def _within(run: WantedUnits, offsets: Iterable[QueueOffset]) -> list[QueueOffset]:
    return [offset for offset in offsets if run.start <= offset < run.start + run.messages_max]
