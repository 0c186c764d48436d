"""Key queries that wait for nothing: a few items and records that the storage can read at once.

The usual query of a tier in a directory: its index is complete, and the page cache has the parts of
index files and records that it needs. `find.py` answers all others, and reports all damage.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from container.index.keys import has_key
from container.index.layout import SECOND_MS, IndexItem, IndexSlot, ItemPlace, places_in_log
from container.index.sealed import FEW_ITEMS, SealedIndex
from container.lookup.query import Found, KeyQuery, QueryResult, Unsealed
from container.metadata.objects import object_name
from container.metadata.records import Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.record.message import StoredMessage
from container.tier_view import TierView
from provider.errors import StoreError
from provider.object_store import ReadNow

FILES_MAX = 16
"""Index files that are read without a turn for other tasks: some 15 us each."""
RECORDS_MAX = 16
"""Records likewise: some 15 us each, and the bytes."""
_RUN_BYTES_MAX = FEW_ITEMS * IndexItem.SIZE
_LOG = SegmentType.COMMIT_LOG
_by_base, _by_position = attrgetter("base"), attrgetter("position")


async def answer_at_once(
    tier: TierView,
    query: KeyQuery,
    key: tuple[int, int],
    files: Sequence[SealedIndex],
    unsealed: Sequence[Unsealed],
) -> QueryResult | None:
    """Answer a query whose messages are all in an index. None if `find.py` must. About 25 us.

    Waits for nothing but a manifest that is not cached. Every read record is verified as in
    `find.py`; whatever is unusual, or contradicts a format, is left to it.

    Args:
        tier: the tier, with its present metadata.
        query: the key, the times and the limit of the result.
        key: its hash, and the id of its topic.
        files: index files of ours that may have items within the queried times.
        unsealed: items in memory, with exact times.
    """
    read_now = tier.read_now
    if read_now is None or len(files) > FILES_MAX:
        return None
    try:
        places = _places(read_now, key, files)
        if places is None:
            return None
        exact = [
            place
            for one in unsealed
            if len(items := one.items_of(*key))
            for place in places_in_log(items)
        ]
        wanted = {
            place[:3]
            for some, tick_ms in ((places, SECOND_MS), (exact, 1))
            for place in some
            if place[3] <= query.end_ms and place[3] + tick_ms > query.begin_ms
        }
        if len(wanted) > RECORDS_MAX:
            return None
        found = Found(query)
        for queue_id, position, size in wanted:
            queue = QueueId(query.topic, queue_id)
            message = await _message(tier, read_now, queue, position, size)
            if message is None:
                return None
            if query.includes(message.store_timestamp) and has_key(message, query.key):
                found.add(message)
    except StoreError:
        return None  # `find.py` meets it again, and reports it
    messages = found.messages()
    return QueryResult(messages, is_complete=not found.cut)


def _places(
    read_now: ReadNow, key: tuple[int, int], files: Sequence[SealedIndex]
) -> list[ItemPlace] | None:
    """Places of the items in files. None if a file cannot be read at once, or has many."""
    found: list[ItemPlace] = []
    for file in files:
        slot = file.slot_of(key[0])
        entry = read_now(file.path, file.slot_at(slot), IndexSlot.SIZE)
        if entry is None:
            return None
        run = file.run(slot, entry)
        if run is None:
            continue
        if run.length > _RUN_BYTES_MAX:
            return None
        raw = read_now(file.path, run.start, run.length, follows=True)
        if raw is None:
            return None
        found += file.places(raw, key, position=run.start, slot=slot)
    return found


async def _segment_at(tier: TierView, queue: Queue, position: int) -> Segment | None:
    """Segment of a queue's log that has a byte. One request if its manifest is not cached."""
    live = queue.commit_log
    number = bisect_right(live, position, key=_by_base) - 1
    if number >= 0 and live[number].is_readable:
        return live[number] if position < live[number].end else None
    container = tier.container(queue.id)
    return None if container is None else await container.segment_at(_LOG, position)


async def _message(
    tier: TierView, read_now: ReadNow, queue_id: QueueId, position: int, size: int
) -> StoredMessage | None:
    """Read the message at a place of a queue's log. None if anything about it is unusual.

    Raises:
        Corrupt: the record contradicts the format.
        OutOfRange: nothing is published there.
    """
    queue = tier.queue(queue_id)
    if queue is None:
        return None
    segment = await _segment_at(tier, queue, position)
    if segment is None:
        return None
    inside, extents = position - segment.base, segment.extents
    extent = extents[bisect_right(extents, inside, key=_by_position) - 1]
    if inside + size > extent.end:
        return None
    name = object_name(queue_id, segment, extent)
    raw = read_now(name, inside - extent.position + extent.object_offset, size)
    if raw is None:
        return None
    message = StoredMessage.decode(raw, path=name, position=position)
    is_sound = (
        message.physical_offset == position
        and message.size == size
        and (message.topic, message.queue_id) == queue_id
        and queue.min_offset <= message.queue_offset < queue.next_offset
        and message.body_is_intact
    )
    return message if is_sound else None
