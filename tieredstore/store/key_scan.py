"""Messages with a key, found by reading: for those that no index has."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from container.index.keys import has_key
from container.lookup.query import SCAN_BYTES_MAX, Found, KeyQuery
from container.queue.time_boundary import Boundary
from provider.errors import Corrupt
from tieredstore.store.protocol import MessageStore

WINDOW_MESSAGES = 256
"""Messages of one queue that are read before those before them, where the newest come first."""
UNLIKELY_BYTES_MAX = 16 << 20
"""Bytes of records that are read of those before the time that is asked for."""
_Window = tuple[int, int, int]
"""A queue, and the offsets `[first, last)` of it."""


async def scan_for_key(
    store: MessageStore,
    query: KeyQuery,
    found: Found,
    *,
    starts: Mapping[int, int] | None = None,
    bytes_max: int = SCAN_BYTES_MAX,
) -> int:
    """Look at the messages of a topic, for those that were stored within the time asked for.

    Reads them all, but no more than `bytes_max` bytes; the newest or the oldest first, by queue.
    Last come those before the place where `begin_ms` is passed, for a clock may have been set
    back: the nearest ones, `UNLIKELY_BYTES_MAX` at most. Nothing is told of the others, nor of
    damage there.

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
    if starts is None:
        starts = dict.fromkeys(store.queue_ids(query.topic), 0)
    left, unsearched = bytes_max, 0
    before: list[_Window] = []
    for queue_id, start in starts.items():
        place = query.topic, queue_id
        first, end = max(await store.min_offset(*place), start), await store.max_offset(*place)
        begin = first
        if query.begin_ms > 0:
            begin = max(first, await store.offset_by_time(*place, query.begin_ms, Boundary.LOWER))
        for window in _windows(queue_id, begin, end, newest_first=query.newest_first):
            if left <= 0:
                unsearched += window[2] - window[1]
            else:
                left -= await _scan_window(store, query, found, window)
        if first < begin:
            before.append((queue_id, first, begin))
    unlikely = UNLIKELY_BYTES_MAX
    for queue_id, first, begin in before:
        for window in _windows(queue_id, first, begin, newest_first=True):
            if min(left, unlikely) <= 0:
                break
            with suppress(Corrupt):
                size = await _scan_window(store, query, found, window)
                left, unlikely = left - size, unlikely - size
    return unsearched


def _windows(queue_id: int, first: int, end: int, *, newest_first: bool) -> Iterator[_Window]:
    """The messages of a queue in the order in which they are read, `WINDOW_MESSAGES` at once."""
    begins = range(first, end, WINDOW_MESSAGES)
    for at in reversed(begins) if newest_first else begins:
        yield queue_id, at, min(at + WINDOW_MESSAGES, end)


async def _scan_window(store: MessageStore, query: KeyQuery, found: Found, window: _Window) -> int:
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
