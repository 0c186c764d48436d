"""Whether the tier and the hot log have the same messages at the same offsets."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from container.record_batch import UNIT_DTYPE, RecordBatch, Units
from container.tier_records import QueueId
from dispatcher.batching import Bytes, written_bytes
from dispatcher.common_offsets import CommonOffsets
from dispatcher.options import COMPARED_BYTES_MAX
from dispatcher.source import HotLog, HotQueue
from dispatcher.target import AnyTier
from provider.errors import Corrupt, OutOfRange
from provider.ranges import QueueOffset

PHYSICAL_OFFSET = slice(28, 36)
"""Bytes of a record that tiering rewrites."""
CRC_PROPERTY_BYTES = 20
CRC_PROPERTY = b"__CRC32#\x01"
"""How the optional last property begins; its CRC covers bytes 28..35, so tiering rewrites it."""

NEAR_MESSAGES = 256
"""The hot log's references to messages no further apart are fetched at once."""
NEAR_BYTES = 64 << 10
"""Bytes between two messages of the hot log that are read along with them."""
REPAIR_NEWEST = 16
"""Messages next to a cut that must be the same in both."""
SEARCH_WAYS = 16
"""Messages compared in one step of the search, which leaves a 17th of the offsets."""


def same_message(hot: bytes, tiered: bytes) -> bool:
    """Whether a hot record and a tiered one are one message. Pure."""
    if len(hot) != len(tiered):
        return False
    end = len(hot)
    if _has_crc(hot) and _has_crc(tiered):
        end -= CRC_PROPERTY_BYTES
    before, behind = PHYSICAL_OFFSET.start, PHYSICAL_OFFSET.stop
    return hot[:before] == tiered[:before] and hot[behind:end] == tiered[behind:end]


def _has_crc(record: bytes) -> bool:
    return record[-CRC_PROPERTY_BYTES:].startswith(CRC_PROPERTY)


def differs_sentence(
    queue: QueueId, offset: QueueOffset, common_end: QueueOffset | None = None
) -> str:
    """What a person must know about a tier that contradicts its hot log.

    `common_end` is what `find_common_end` says, if that could be found out.
    """
    below = "" if common_end is None else f", and the same below offset {common_end}"
    return (
        f"the tier and the hot log have different messages at offset {offset}{below}: the broker "
        f"gave offsets again that were tiered before; what is tiered stays readable, nothing more "
        f"is tiered until `tieredstore repair {queue.topic} {queue.queue_id} --cut-to-hot`"
    )


async def compare_sampled(
    hot_log: HotLog, tier: AnyTier, hot: HotQueue, *, newest: int
) -> QueueOffset | None:
    """Compare the newest messages that both have, and older ones at doubling distances.

    Returns the lowest offset at which they were seen to differ, or None. A store that was
    restored from a backup, or swapped for another one, may have the same newest messages again;
    the others tell, down to the first that both have, or that the tier finds without reading its
    history. Older ones that cannot be read say nothing and are passed over.

    Compares `newest + log2(n) + 2` messages at most, n being what both have: 24 of a million.
    Costs one call to the tier, and two to the hot log for each of these messages, but for those
    within some hundred of the newest, which need two or a few more together: 18 for 100,000 small
    messages; more where they are larger than `COMPARED_BYTES_MAX` together, or one cannot be
    read. Holds `COMPARED_BYTES_MAX` of each side, or one message. Changes nothing, so it may be
    cancelled.

    Raises:
        Unavailable: one of the two cannot be read now.
        Corrupt: the newest messages of one of the two cannot be read at all.
        OutOfRange: the hot log deleted the newest ones meanwhile.
    """
    published = tier.queue(hot.id)
    if published is None:
        return None
    common = CommonOffsets.of(hot, published)
    offsets = common.sampled(common.end, newest=newest)
    try:
        return await first_difference(hot_log, tier, hot.id, offsets)
    except (Corrupt, OutOfRange):
        found = await first_difference(hot_log, tier, hot.id, offsets[-newest:])
        older = await _readable_difference(hot_log, tier, hot.id, offsets[:-newest])
        return found if older is None else older


async def _readable_difference(
    hot_log: HotLog, tier: AnyTier, queue: QueueId, offsets: Sequence[QueueOffset]
) -> QueueOffset | None:
    """As `first_difference`; passes over what cannot be read, which it finds by halving."""
    try:
        return await first_difference(hot_log, tier, queue, offsets)
    except (Corrupt, OutOfRange):
        if len(offsets) == 1:
            return None
    middle = len(offsets) // 2
    found = await _readable_difference(hot_log, tier, queue, offsets[:middle])
    if found is None:
        found = await _readable_difference(hot_log, tier, queue, offsets[middle:])
    return found


async def find_common_end(hot_log: HotLog, tier: AnyTier, queue: QueueId) -> QueueOffset | None:
    """The offset that `repair --cut-to-hot` cuts a queue to; None where there is nothing to cut.

    That is the largest offset such that every tiered message below it is in the hot log and the
    same there, or is older than what the hot log has.

    Two logs that part go on apart: what differs is taken to be a suffix of what both have, but
    for single messages that coincide again. On that assumption the border between a message that
    agrees and one above it that differs is found by search. What it found is then looked at as
    `compare_sampled` does: the `REPAIR_NEWEST` messages below it, and those at doubling distances
    down to the first that both have. While one of these differs, the search goes on below it.

    Compares `REPAIR_NEWEST + log2(n) + 2` messages in one call to the tier if nothing differs;
    else that twice, and `SEARCH_WAYS` in each of about log17(n) calls: 5 for a million. The tier
    also reads what it needs of its history. Memory and cancelling as `compare_sampled`. The hot
    log must have been polled.

    Raises:
        Unavailable, Corrupt, OutOfRange: as `first_difference`.
    """
    hot = hot_log.queue(queue)
    published = tier.queue(queue)
    if hot is None or published is None:
        return None
    common = CommonOffsets.of(hot, published)
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
    tier: AnyTier,
    queue: QueueId,
    offsets: Sequence[QueueOffset],
    *,
    history: bool = False,
) -> QueueOffset | None:
    """The first of `offsets` at which the two have different messages; None if there is none.

    `offsets` ascend; both have all of them. Without `history`, those are left out that cost the
    tier more to find the longer the queue's history is. Cost and memory: see `compare_sampled`.

    Raises:
        Unavailable: one of the two cannot be read now.
        Corrupt: one of the two cannot be read at all.
        OutOfRange: one of the two deleted them meanwhile.
    """
    done = 0
    while done < len(offsets):
        waiting = offsets[done:]
        tiered = await tier.messages_at(
            queue, waiting, bytes_max=COMPARED_BYTES_MAX, history=history
        )
        done += len(tiered)
        found = zip(waiting, tiered, strict=False)  # it may return fewer
        copies = {offset: record for offset, record in found if record is not None}
        for near in _near_ones(list(copies)):
            differing = await _difference_near(hot_log, queue, near, copies)
            if differing is not None:
                return differing
    return None


async def _difference_near(
    hot_log: HotLog,
    queue: QueueId,
    offsets: Sequence[QueueOffset],
    tiered: Mapping[QueueOffset, bytes],
) -> QueueOffset | None:
    """As `first_difference`, for offsets near each other of which the tiered records are there."""
    units: Units = np.zeros(0, UNIT_DTYPE)
    start, rest = offsets[0], list(offsets)
    while rest:
        if rest[0] - start >= len(units):
            start = rest[0]
            units = await hot_log.references(queue, start, messages_max=rest[-1] - start + 1)
        first = rest[0]
        waiting = units[first - start :]
        count = _read_along(written_bytes(waiting), [offset - first for offset in rest])
        batch = await hot_log.records(queue, first, waiting[:count])
        for offset in rest:
            if offset >= batch.next_offset:
                break
            if not same_message(_record(batch, offset), tiered[offset]):
                return offset
        rest = [offset for offset in rest if offset >= batch.next_offset]
    return None


def _near_ones(offsets: Sequence[QueueOffset]) -> Iterator[list[QueueOffset]]:
    """Ascending offsets in groups of which one request has all references. Pure."""
    group: list[QueueOffset] = []
    for offset in offsets:
        if group and offset - group[-1] > NEAR_MESSAGES:
            yield group
            group = []
        group.append(offset)
    if group:
        yield group


def _read_along(sizes: Bytes, wanted: Sequence[int]) -> int:
    """How many messages to read at once, of which only those at the indices `wanted` count. Pure.

    The first index is 0. Few bytes that nobody wants are cheaper than one more request.
    """
    count = 1
    for before, index in pairwise(wanted):
        between = int(sizes[before + 1 : index].sum())
        total = int(sizes[: index + 1].sum())
        if index >= len(sizes) or between > NEAR_BYTES or total > COMPARED_BYTES_MAX:
            break
        count = index + 1
    return count


def _record(batch: RecordBatch, offset: QueueOffset) -> bytes:
    number = offset - batch.first_offset
    start = int(batch.starts[number])
    return batch.data[start : start + int(batch.sizes[number])].tobytes()
