"""Messages with a key, found by reading: for those that no index has."""

from collections.abc import Mapping

from container.index.keys import has_key
from container.lookup.query import SCAN_BYTES_MAX, Found, KeyQuery
from container.queue.time_boundary import Boundary
from tieredstore.store.protocol import MessageStore

WINDOW_MESSAGES = 256
"""Messages of one queue that are read before those before them, where the newest come first."""


async def scan_for_key(
    store: MessageStore,
    query: KeyQuery,
    found: Found,
    *,
    starts: Mapping[int, int] | None = None,
    bytes_max: int = SCAN_BYTES_MAX,
) -> int:
    """Look at the messages of a topic that were stored within the time asked for.

    Reads them all, but no more than `bytes_max` bytes; the newest or the oldest first, by queue.

    Args:
        store: where to read.
        query: what is looked for.
        found: gets what is found.
        starts: the queues to look at, and the offset that each is read from; None: all of all.
        bytes_max: bytes of records that are read.

    Returns:
        How many messages were not looked at.

    Raises:
        StoreError: as `MessageStore.get_message`.
    """
    left, unsearched = bytes_max, 0
    if starts is None:
        starts = dict.fromkeys(store.queue_ids(query.topic), 0)
    for queue_id, start in starts.items():
        place = query.topic, queue_id
        begin, end = max(await store.min_offset(*place), start), await store.max_offset(*place)
        if query.begin_ms > 0:
            begin = max(begin, await store.offset_by_time(*place, query.begin_ms, Boundary.LOWER))
        windows = [
            (first, min(first + WINDOW_MESSAGES, end))
            for first in range(begin, end, WINDOW_MESSAGES)
        ]
        for first, last in reversed(windows) if query.newest_first else windows:
            if left <= 0:
                unsearched += last - first
            else:
                left -= await _scan_window(store, query, found, (queue_id, first, last))
    return unsearched


async def _scan_window(
    store: MessageStore, query: KeyQuery, found: Found, window: tuple[int, int, int]
) -> int:
    """Look at the messages of a queue from one offset up to another; the bytes that were read."""
    queue_id, first, last = window
    size, at = 0, first
    while at < last:
        result = await store.get_message("", query.topic, queue_id, at, messages_max=last - at)
        for message in result.messages:
            size += message.size
            if query.includes(message.store_timestamp) and has_key(message, query.key):
                found.add(message)
        at = max(result.next_offset, at + 1)
    return size
