"""Whether the tier and the hot log have the same messages at the same offsets."""

from collections.abc import Sequence

from container.record_batch import RecordBatch
from container.tier_records import QueueId
from dispatcher.source import HotLog, HotQueue
from dispatcher.target import AnyTier
from provider.errors import Corrupt
from provider.ranges import QueueOffset

QUEUE_OFFSET = slice(20, 28)
PHYSICAL_OFFSET = slice(28, 36)
"""Bytes of a record that tiering rewrites."""
CRC_PROPERTY_BYTES = 20
CRC_PROPERTY = b"__CRC32#\x01"
"""How the optional last property begins; its CRC covers bytes 28..35, so tiering rewrites it."""

WINDOW_MESSAGES = 16


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


def queue_offset_of(tiered: bytes, queue: QueueId) -> QueueOffset:
    """The offset that a tiered record says it has.

    Raises:
        Corrupt: it is too short to say so.
    """
    if len(tiered) < PHYSICAL_OFFSET.stop:
        raise Corrupt(f"a record of {len(tiered)} bytes is none", str(queue))
    return QueueOffset(int.from_bytes(tiered[QUEUE_OFFSET]))


def first_difference(
    tiered: Sequence[tuple[QueueOffset, bytes]], hot: Sequence[tuple[QueueOffset, bytes]]
) -> QueueOffset | None:
    """The smallest offset that both have and at which they differ; None if there is none. Pure."""
    hot_at = dict(hot)
    differing = (
        offset
        for offset, record in tiered
        if offset in hot_at and not same_message(hot_at[offset], record)
    )
    return min(differing, default=None)


def differs_sentence(queue: QueueId, offset: QueueOffset) -> str:
    """What a person must know about a tier that contradicts its hot log."""
    return (
        f"the tier and the hot log have different messages at offset {offset}: the broker gave "
        f"offsets again that were tiered before; what is tiered stays readable, nothing more is "
        f"tiered until `tieredstore repair {queue.topic} {queue.queue_id} --cut-to-hot`"
    )


async def compare_newest(
    hot_log: HotLog, tier: AnyTier, hot: HotQueue, *, count: int
) -> QueueOffset | None:
    """Compare the newest `count` tiered messages that the hot log still has.

    Returns the first offset at which they differ, or None. One request to the tier; holds the
    compared messages twice.

    Raises:
        Unavailable: one of the two cannot be read now.
        Corrupt: one of the two cannot be read at all.
        OutOfRange: the hot log deleted them meanwhile.
    """
    if count == 0 or hot.min_offset == hot.max_offset:
        return None
    tiered = await _newest(tier, hot.id, count)
    return first_difference(tiered, await _hot_copies(hot_log, hot, tiered))


async def find_common_end(hot_log: HotLog, tier: AnyTier, queue: QueueId) -> QueueOffset | None:
    """The offset that `repair --cut-to-hot` cuts a queue to; None where there is nothing to cut.

    That is the largest offset such that every tiered message below it is in the hot log and the
    same there, or is older than what the hot log has. A log never changes in its middle, so the
    search goes back in windows that double and ends at the first that begins with an agreement:
    its cost and memory are at most four times the tail that differs. The hot log must have been
    polled.

    Raises:
        Unavailable, Corrupt, OutOfRange: as `compare_newest`.
    """
    hot = hot_log.queue(queue)
    published = tier.queue(queue)
    if hot is None or published is None:
        return None
    end = min(published.next_offset, hot.max_offset)
    # What lies at or above the hot log's end goes anyway; do not read it in windows that double.
    window = WINDOW_MESSAGES + max(0, published.next_offset - hot.max_offset)
    while True:
        tiered = await _newest(tier, queue, window)
        hot_copies = await _hot_copies(hot_log, hot, tiered)
        differing = first_difference(tiered, hot_copies)
        if differing is not None:
            end = min(end, differing)
        common = [offset for offset, _ in hot_copies]
        begun = not tiered or tiered[0][0] <= hot.min_offset or len(tiered) < window
        agreed = bool(common) and differing != min(common)
        if begun or agreed:
            break
        window *= 2
    return end if end < published.next_offset else None


async def _newest(tier: AnyTier, queue: QueueId, count: int) -> list[tuple[QueueOffset, bytes]]:
    records = await tier.last_messages(queue, count)
    return [(queue_offset_of(record, queue), record) for record in records]


async def _hot_copies(
    hot_log: HotLog, hot: HotQueue, tiered: Sequence[tuple[QueueOffset, bytes]]
) -> list[tuple[QueueOffset, bytes]]:
    """The hot log's records from the first tiered one that it has to the last."""
    offsets = [offset for offset, _ in tiered if hot.min_offset <= offset < hot.max_offset]
    copies: list[tuple[QueueOffset, bytes]] = []
    if not offsets:
        return copies
    position, end = offsets[0], QueueOffset(offsets[-1] + 1)
    while position < end:
        units = await hot_log.references(hot.id, position, messages_max=end - position)
        batch = await hot_log.records(hot.id, position, units)
        copies.extend(_records_of(batch))
        position = batch.next_offset
    return copies


def _records_of(batch: RecordBatch) -> list[tuple[QueueOffset, bytes]]:
    return [
        (QueueOffset(batch.first_offset + number), batch.data[start : start + size].tobytes())
        for number, (start, size) in enumerate(
            zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True)
        )
    ]
