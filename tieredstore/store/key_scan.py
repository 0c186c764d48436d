"""Key queries by scanning messages, for messages without an index."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from container.index.keys import has_key
from container.lookup.query import SCAN_BYTES_MAX, Found, KeyQuery, QueryResult
from container.metadata.coverage import Span, count, without
from container.queue.positions import Boundary
from provider.errors import Corrupt, StoreError, Unavailable
from tieredstore.store.iteration import refuse_missing
from tieredstore.store.protocol import MessageStore

WINDOW_MESSAGES = 256
"""Messages of one window of a queue. With newest first, later windows are read first."""
UNLIKELY_BYTES_MAX = 16 << 20
"""Limit of bytes read of messages before the start of the requested time."""
DAMAGE_MAX = 100
"""Limit of damaged messages that a scan reports one by one."""
_Window = tuple[int, int, int]
"""Queue id, and the offsets `[first, last)` of a window."""


@dataclass(slots=True)
class KeyScan:
    """Result of a scan, besides the messages."""

    unsearched: int = 0
    """Unread and damaged messages of a scan."""
    damage: list[StoreError] = field(default_factory=list[StoreError])
    """Errors of the messages that cannot be read, at most `DAMAGE_MAX`."""

    def refuse(self, error: StoreError) -> None:
        """Count a message that cannot be read.

        Raises:
            Unavailable: this is `error`, and `DAMAGE_MAX` were reported before.
        """
        if len(self.damage) < DAMAGE_MAX:
            self.damage.append(error)
        elif isinstance(error, Unavailable):
            raise error
        self.unsearched += 1


async def scan_for_key(
    store: MessageStore,
    query: KeyQuery,
    found: Found,
    *,
    spans: Mapping[int, Sequence[Span]] | None = None,
    bytes_max: int = SCAN_BYTES_MAX,
) -> KeyScan:
    """Scan the messages of a topic that were stored within the requested time.

    Reads at most `bytes_max` bytes, the newest or the oldest messages of each queue first. Messages
    before the offset of `begin_ms` come last, for a clock may have been set back: the nearest ones,
    at most `UNLIKELY_BYTES_MAX`. The rest of them and damage among them are not reported. A message
    that cannot be read is skipped.

    Args:
        store: the store to read.
        query: the key and the time.
        found: receives the messages with the key.
        spans: offsets to scan, by queue, in order; None: all queues of the topic.
        bytes_max: bytes of records that are read.

    Raises:
        Unavailable: many messages cannot be read.
        Denied, Closed: as `MessageStore.get_message`.
    """
    if spans is None:
        spans = {queue_id: [(0, 1 << 62)] for queue_id in store.queue_ids(query.topic)}
    scan, left = KeyScan(), bytes_max
    before: list[_Window] = []
    for queue_id, wanted in spans.items():
        place = query.topic, queue_id
        first, end = await store.min_offset(*place), await store.max_offset(*place)
        there = [(max(start, first), min(stop, end)) for start, stop in wanted]
        there = [span for span in there if span[0] < span[1]]
        begin = first
        if there and query.begin_ms > 0:
            begin = await _begin(store, query, queue_id, first)
        late = without(there, [(0, begin)])
        windows = list(_windows(queue_id, late, newest_first=query.newest_first))
        for number, window in enumerate(windows):
            if left <= 0:
                scan.unsearched += count([(start, stop) for _, start, stop in windows[number:]])
                break
            left -= await _scan_window(store, query, found, window, scan)
        early = without(there, [(begin, 1 << 62)])
        before += _windows(queue_id, early, newest_first=True)
    unlikely = UNLIKELY_BYTES_MAX
    for window in before:
        if min(left, unlikely) <= 0:
            break
        size = await _scan_window(store, query, found, window, KeyScan())
        left, unlikely = left - size, unlikely - size
    return scan


async def query_by_scan(store: MessageStore, query: KeyQuery) -> QueryResult:
    """Answer a query from one store without an index; costs and errors as `scan_for_key`."""
    found = Found(query)
    scan = await scan_for_key(store, query, found)
    messages = found.messages()
    is_complete = not (found.cut or scan.unsearched)
    return QueryResult(messages, is_complete, scan.unsearched, tuple(scan.damage))


async def _begin(store: MessageStore, query: KeyQuery, queue_id: int, first: int) -> int:
    """Return the first offset of a queue that is stored at `begin_ms` or later."""
    try:
        found = await store.offset_by_time(query.topic, queue_id, query.begin_ms, Boundary.LOWER)
    except (Corrupt, Unavailable):
        return first
    return max(first, found)


def _windows(queue_id: int, spans: Sequence[Span], *, newest_first: bool) -> Iterator[_Window]:
    """Yield the windows of a queue in the order of reading, of at most `WINDOW_MESSAGES` each."""
    for first, end in reversed(spans) if newest_first else spans:
        begins = range(first, end, WINDOW_MESSAGES)
        for at in reversed(begins) if newest_first else begins:
            yield queue_id, at, min(at + WINDOW_MESSAGES, end)


async def _scan_window(
    store: MessageStore, query: KeyQuery, found: Found, window: _Window, scan: KeyScan
) -> int:
    """Scan the messages of one window. Return the bytes read."""
    queue_id, first, last = window
    size, at = 0, first
    while at < last:
        try:
            result = await store.get_message("", query.topic, queue_id, at, messages_max=last - at)
            await refuse_missing(store, query.topic, queue_id, at, result)
        except (Corrupt, Unavailable) as error:
            scan.refuse(error)
            at += 1
            continue
        for message in result.messages:
            size += message.size
            if query.includes(message.store_timestamp) and has_key(message, query.key):
                found.add(message)
        at = max(result.next_offset, at + 1)
    return size
