"""Check of index files, ours and those of a Java tier, against the messages they cover."""

from collections.abc import AsyncIterator, Iterator, Mapping

import numpy as np

from container.errors import Finding
from container.index.layout import (
    END_MAGIC,
    SECOND_MS,
    IndexHeader,
    IndexItem,
    IndexSlot,
    KeyItems,
    place_of,
    places_of,
)
from container.index.sealed import decode_sealed
from container.metadata.coverage import Span, readable, without
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.names.tier_objects import IndexBase
from container.queue.lenient_scan import SoundRecords, key_items_of, read_sound_records
from container.queue.message_queue_container import MessageQueueContainer
from container.record.checksum import crc32c
from container.tier_view import ATTEMPTS_MAX, TierView, take_newer
from provider.errors import Corrupt, Denied, NotFound, OutOfRange
from provider.object_store import ObjectStore
from provider.ranges import ByteRange, QueueOffset

CONTENT_PIECE_BYTES = 4 << 20
EVERYTHING = 1 << 62


async def check_index_contents(tier: TierView, file: IndexFile) -> AsyncIterator[Finding]:
    """Yield items without a message that has the key, and keys of covered messages without an item.

    Reads the whole file, and again every message that it covers. Damage of these messages is
    reported by the check of their queue. A queue that is truncated during the check is skipped.
    Holds some 120 bytes an item.

    Raises:
        Corrupt: the file contradicts the format.
        OutOfRange, Denied: it cannot be read.
        Unavailable: the storage does not answer, so the result is unknown.
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
                for finding in _compare_contents(queue_id, topic.topic_id, piece, held, begin):
                    kind, detail, offset = finding
                    yield Finding(kind, file.object_name, offset, detail)


async def _pieces(container: MessageQueueContainer, span: Span) -> AsyncIterator[SoundRecords]:
    """Messages of a span. Ends at unreadable ones, which the check of their queue reports."""
    at, end = span
    while at < end:
        try:
            piece = await read_sound_records(
                container, QueueOffset(at), QueueOffset(end), bytes_max=CONTENT_PIECE_BYTES
            )
        except (Corrupt, Denied, OutOfRange):
            return
        yield piece
        at = piece.end


def _compare_contents(
    queue: QueueId, topic_id: int, piece: SoundRecords, held: KeyItems, begin: int
) -> Iterator[tuple[str, str, int]]:
    """Kind, detail and place of differences between messages and the items of their queue."""
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


PIECE_BYTES = 16 << 20


async def check_index_files(
    tier: TierView, sizes: Mapping[str, int], *, contents: bool = True
) -> AsyncIterator[Finding]:
    """Yield index files that are missing, short or changed, and defects in ours.

    Reads each file with a known checksum as a whole, else only its header: files that an older
    program imported have no more to compare. A finding is reported only after a refresh of the
    metadata. If the file, or a queue that it covers, has changed by then, the file is checked
    again. Holds the findings of one file. `contents`: compare ours with the messages too.
    """
    for name in sorted(tier.state.index_files):
        for finding in await check_index_file(tier, name, sizes.get(name), contents=contents):
            yield finding


async def is_for_a_broker(store: ObjectStore, name: str, size: int) -> bool:
    """Whether an object of `size` bytes is a sealed index file of, or for, a Java broker.

    Such a file is referenced by a broker's metadata, not by ours. One request if the name is one of
    a broker's.
    """
    base = IndexBase.parse(name)
    if base is None or base.epoch or size < IndexHeader.SIZE:
        return False
    try:
        raw = await store.read(name, ByteRange(0, IndexHeader.SIZE))
        header = IndexHeader.decode(raw, path=name)
    except (Corrupt, Denied, NotFound, OutOfRange):
        return False
    slots_bytes = size - IndexHeader.SIZE - header.items * IndexItem.SIZE
    return header.magic == END_MAGIC and slots_bytes > 0 and slots_bytes % IndexSlot.SIZE == 0


async def check_index_file(
    tier: TierView, name: str, size: int | None = None, *, contents: bool = True
) -> list[Finding]:
    """Check one file as `check_index_files` does. `contents`: compare it with the messages too.

    `size` is its length, None if it was not listed.
    """
    found: list[Finding] = []
    for _ in range(ATTEMPTS_MAX):
        index = tier.state.index_files.get(name)
        if index is None:
            return []
        before = _basis(tier, index)
        found = [finding async for finding in _defects(tier, index, size, contents=contents)]
        if found:
            await take_newer(tier)
        if _basis(tier, tier.state.index_files.get(name)) == before:
            break
    return found


def _basis(tier: TierView, index: IndexFile | None) -> object:
    """State that findings of an index file depend on."""
    queues = [tier.queue(queue) for queue, _, _ in index.coverage] if index is not None else []
    return index, [None if one is None else one.generation for one in queues]


async def _defects(
    tier: TierView, index: IndexFile, size: int | None, *, contents: bool
) -> AsyncIterator[Finding]:
    """Yield defects of one file. `size` is its length, None if it was not listed."""
    name = index.object_name
    try:
        size = await tier.store.size(name) if size is None else size  # written since, perhaps
    except NotFound:
        yield Finding("object-missing", name, 0, "an index file that is known, not there")
        return
    if size < index.size:
        detail = f"known with {index.size} bytes, has {size}"
        yield Finding("object-short", name, size, detail)
        return
    try:
        finding = await _compare(tier.store, name, index)
    except (Corrupt, Denied, OutOfRange) as error:
        finding = Finding("unreadable", name, error.position, error.reason)
    if finding is not None:
        yield finding
    elif index.coverage and contents:
        async for wrong in _contents(tier, index):
            yield wrong


async def _contents(tier: TierView, index: IndexFile) -> AsyncIterator[Finding]:
    """Yield defects in the contents of a file with known coverage."""
    try:
        async for finding in check_index_contents(tier, index):
            yield finding
    except (Corrupt, Denied, OutOfRange) as error:
        yield Finding("index-file", index.object_name, error.position, error.reason)


async def _compare(store: ObjectStore, name: str, index: IndexFile) -> Finding | None:
    """Compare an index file with its record."""
    head = await store.read(name, ByteRange(0, IndexHeader.SIZE))
    header = IndexHeader.LAYOUT.unpack(head)[1:]
    known = (index.begin_timestamp, index.end_timestamp, index.slots, index.items)
    if header != known:
        return Finding("index-file", name, 0, f"its header has {header}, known is {known}")
    if index.crc32c is None:
        return None
    found = await checksum_of(store, name, index.size)
    if found == index.crc32c:
        return None
    detail = f"{index.size} bytes have {found:#010x}, imported {index.crc32c:#010x}"
    return Finding("checksum", name, 0, detail)


async def checksum_of(store: ObjectStore, name: str, size: int) -> int:
    """CRC-32C of the first `size` bytes of an object. Holds `PIECE_BYTES`.

    Raises:
        OutOfRange, Unavailable, Denied, Corrupt: as the storage's `read`.
    """
    found = 0
    for start in range(0, size, PIECE_BYTES):
        place = ByteRange(start, min(start + PIECE_BYTES, size))
        found = crc32c(await store.read(name, place), found)
    return found
