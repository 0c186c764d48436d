"""Whether an index file of ours has the keys of the messages that it covers, and no others."""

from collections.abc import AsyncIterator, Iterator

import numpy as np

from container.check.finding import Finding
from container.index.items import SECOND_MS, KeyItems, place_of, places_of
from container.index.sealed import decode_sealed
from container.lookup.coverage import Span, readable, without
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.queue.collected_keys import key_items_of
from container.queue.message_queue_container import MessageQueueContainer
from container.queue.sound_records import SoundRecords, read_sound_records
from container.tier_view import TierView
from provider.errors import Corrupt, Denied, OutOfRange
from provider.ranges import QueueOffset

PIECE_BYTES = 4 << 20
EVERYTHING = 1 << 62


async def check_index_contents(tier: TierView, file: IndexFile) -> AsyncIterator[Finding]:
    """Yield items without a message that has the key, and keys of covered messages without item.

    Reads the file whole, and once more every message that it covers; what of those is damaged the
    check of their queue tells. A queue that is cut meanwhile is passed over. Holds some 120 bytes
    an item.

    Raises:
        Corrupt: the file contradicts the format.
        OutOfRange, Denied: it cannot be read.
        Unavailable: the storage does not answer, so nothing can be said.
    """
    raw = await tier.store.read(file.object_name)
    index, items = decode_sealed(raw, path=file.object_name)
    del raw
    items = items[np.lexsort((items["key_hash"], items["position"], places_of(items)))]
    places = places_of(items)
    begin = index.header.begin_timestamp
    for queue_id, start, end in file.coverage:
        record, topic = tier.queue(queue_id), tier.state.topics.get(queue_id.topic)
        container = tier.container(queue_id)
        if record is None or topic is None or container is None:
            continue
        place = place_of(topic.topic_id, queue_id.queue_id)
        first, last = np.searchsorted(places, (place, place + 1)).tolist()
        held = items[first:last]
        outside = without([(0, EVERYTHING)], readable(record))
        for span in without([(start, end)], outside):
            async for piece in _pieces(container.as_of(record), span):
                now = tier.queue(queue_id)
                if now is None or now.generation != record.generation:
                    break
                for finding in _compare(queue_id, topic.topic_id, piece, held, begin):
                    kind, detail, offset = finding
                    yield Finding(kind, file.object_name, offset, detail)


async def _pieces(container: MessageQueueContainer, span: Span) -> AsyncIterator[SoundRecords]:
    """The messages of a span; ends where they cannot be read, which is told of their queue."""
    at, end = span
    while at < end:
        try:
            piece = await read_sound_records(
                container, QueueOffset(at), QueueOffset(end), bytes_max=PIECE_BYTES
            )
        except (Corrupt, Denied, OutOfRange):
            return
        yield piece
        at = piece.end


def _compare(
    queue: QueueId, topic_id: int, piece: SoundRecords, held: KeyItems, begin: int
) -> Iterator[tuple[str, str, int]]:
    """Kind, detail and place of what differs between messages and the items of their queue."""
    if not len(piece.offsets):
        return
    items = key_items_of(piece, queue, topic_id)
    low, high = int(piece.positions[0]), int(piece.positions[-1])
    first, last = (
        int(np.searchsorted(held["position"], low, side="left")),
        int(np.searchsorted(held["position"], high, side="right")),
    )
    wanted, found = _rows(items, begin), _rows(held[first:last], begin)
    for position, key_hash, _, _ in sorted(wanted - found):
        offset = int(piece.offsets[np.searchsorted(piece.positions, position)])
        detail = f"no item for the hash {key_hash} of the message {queue} {offset}"
        yield "index-key-missing", detail, offset
    if not piece.damage:
        for position, key_hash, _, _ in sorted(found - wanted):
            detail = f"an item of hash {key_hash} names position {position} of {queue} in vain"
            yield "index-item", detail, position


def _rows(items: KeyItems, begin: int) -> set[tuple[int, int, int, int]]:
    """Position, hash, size and seconds of items."""
    seconds = (items["store_timestamp"] - begin) // SECOND_MS
    columns = (items["position"], items["key_hash"], items["size"], seconds)
    return set(zip(*(column.tolist() for column in columns), strict=True))
